"""Class prompts with a context that can be tuned: context + class name + "."."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from bayestta.models._vlm import VLM

TOKENS = 2048  # of one text pass with a graph: below 1 GB for CLIP, whatever the number of classes


class PromptLearner:
    """Text prototypes as a pure function of the context: (n,W) -> (K,D), or (M,n,W) -> (M,K,D).

    The classes go through the text tower in chunks. Where there is more than one, the graph of a
    chunk is not kept but made again on the way back, so that memory does not grow with K.

    Parameters
    ----------
    start
        The words whose token embeddings are `self.start`, (n,W). For a context that starts
        elsewhere any n words of one token do: they only keep its place.
    """

    def __init__(self, model: VLM, names: Sequence[str], start: str = "a photo of a") -> None:
        try:
            embedded, probe = model.embed(["", start, f"{start} x"])
        except NotImplementedError as error:
            raise ValueError(str(error)) from None
        # Where the texts part tells the place of the context, whatever the tokenizer puts before.
        first, end = _common(probe[0], probe[1]), _common(probe[1], probe[2])
        if end <= first:
            raise ValueError("the context is empty: give the words it starts from.")
        self.model = model
        self.start = embedded[1, first:end].clone()  # (n,W)
        lines = [f"{start} {name.replace('_', ' ')}." for name in names]
        embeddings, tokens = model.embed(lines)  # (K,L,W), (K,L)
        if (tokens[:, :end] != probe[1, :end]).any():
            raise ValueError(
                f"the tokenizer of {model.name!r} joins {start!r} with a class name: choose other "
                "words for the context."
            )
        embeddings, self.tokens = _trim(model, embeddings, tokens)
        self.before, self.after = embeddings[:, :first].clone(), embeddings[:, end:].clone()

    def __call__(self, context: Tensor) -> Tensor:
        if context.shape[-2:] != self.start.shape:
            raise ValueError(
                f"the context is {tuple(context.shape[-2:])} (tokens, width), the prompts have "
                f"place for {tuple(self.start.shape)}: use one that was made for {self.model.name}."
            )
        many = context if context.ndim == 3 else context[None]  # (M,n,W)
        K, chunk = len(self.tokens), max(1, TOKENS // self.tokens.shape[1])
        pairs = torch.split(torch.arange(len(many) * K, device=many.device), chunk)
        again = len(pairs) > 1 and many.requires_grad and torch.is_grad_enabled()
        parts = [
            checkpoint(self._encode, many, pair, use_reentrant=False, preserve_rng_state=False)
            if again
            else self._encode(many, pair)
            for pair in pairs
        ]
        text = torch.cat(parts).view(len(many), K, -1)
        return text if context.ndim == 3 else text[0]

    def _encode(self, many: Tensor, pair: Tensor) -> Tensor:
        """The features (P,D) of pairs of a context and a class."""
        m, k = pair // len(self.tokens), pair % len(self.tokens)
        line = torch.cat([self.before[k], many[m], self.after[k]], 1)  # (P,L,W)
        return self.model.encode_embeddings(line, self.tokens[k])


def _common(a: Tensor, b: Tensor) -> int:
    """How many ids two rows have in common at their start."""
    different = (a != b).nonzero()
    return int(different[0]) if len(different) else len(a)


@torch.no_grad()
def _trim(model: VLM, embeddings: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out the padding that all prompts share, if the text tower does not look at it.

    A causal tower does not, and is then several times faster; SigLIP's does. Two prompts tell. One
    column of padding stays: some tokenizers pad with the very id that ends the text.
    """
    used = (tokens != tokens[:, -1:]).any(0).nonzero()
    length = int(used.max()) + 2 if len(used) else tokens.shape[1]
    short, full = embeddings[:2, :length], embeddings[:2]
    difference = model.encode_embeddings(short, tokens[:2, :length])
    difference = difference - model.encode_embeddings(full, tokens[:2])
    limit = 1e-5 if model.dtype == torch.float32 else 2e-3
    if float(difference.abs().max()) > limit:
        return embeddings, tokens
    return embeddings[:, :length], tokens[:, :length]
