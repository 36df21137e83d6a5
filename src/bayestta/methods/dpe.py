"""DPE: prototypes of text and image take a step for every sample; the text's evolve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.adapter import register
from bayestta.methods._entropy_cache import Cache
from bayestta.methods._sequential import Sequential
from bayestta.methods.tpt import entropy
from bayestta.models._text import prompts
from bayestta.models.base import VLM
from bayestta.names import unknown

DIRECTIONS = ("image", "both")
FINAL = ("plain", "selected")


@register
class DPE(Sequential):
    """Tune residuals of both kinds of prototypes to one sample, answer, and keep the text's part.

    The residuals are thrown away after the sample. Where the answer is sure, the moved text
    prototypes enter a running mean, from which the next sample starts.

    Parameters
    ----------
    alpha, beta, shots
        Weight and sharpness of the image prototypes, means of so many cached features a class.
    lr
        Of the one AdamW step. Its weight decay never acts, as residuals start at zero.
    lam
        Weight of the alignment of image and text prototypes.
    align
        `image`: image prototypes look for their text among the cached classes, as in the code;
        `both`: and the other way round, the mean of the two, as the paper has it.
    gate
        Entropy, over log2 K, below which the text prototypes evolve.
    descriptions
        More prompts, by class name, beside the templates (CuPL sentences in the official code,
        which exist for none of the drifting streams).
    views, selection, final
        Above 1, a sample is the mean of this share of its views; the answer is for the `plain`
        view or, as for ImageNet-A, for the `selected` ones.
    """

    name = "dpe"
    title = "DPE"
    citation = (
        "Zhang et al., Dual Prototype Evolving for Test-Time Generalization of Vision-Language "
        "Models, NeurIPS 2024"
    )
    tunes = "text prototypes; a cache of 3 features a class"
    cost = "1 forward an image + 1 backward in the space of prototypes"
    fidelity = (
        "code, in float32 instead of float16; templates only, without CuPL sentences; ImageNet's "
        "values, as none are published for drifting streams"
    )
    answer = "after"

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        alpha: float = 6.0,
        beta: float = 5.0,
        shots: int = 3,
        lr: float = 6e-4,
        lam: float = 0.5,
        align: str = "image",
        gate: float = 0.1,
        descriptions: dict[str, list[str]] | None = None,
        views: int = 1,
        selection: float = 0.1,
        final: str = "plain",
    ) -> None:
        if align not in DIRECTIONS:
            raise ValueError(unknown("align of dpe", align, DIRECTIONS))
        if final not in FINAL:
            raise ValueError(unknown("final of dpe", final, FINAL))
        self.alpha, self.beta, self.shots, self.lr = alpha, beta, shots, lr
        self.lam, self.align, self.gate, self.descriptions = lam, align, gate, descriptions
        self.views, self.selection, self.final = views, selection, final
        super().__init__(model, names, templates, seed=seed)

    @torch.no_grad()
    def make_text(self) -> Tensor:
        if self.descriptions is None:
            return super().make_text()
        missing = [name for name in self.names if name not in self.descriptions]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(self.names)} classes have no descriptions "
                f"({', '.join(missing[:5])}): add them, or leave descriptions out."
            )
        texts = [
            self.model.encode_text([*prompts(name, self.templates), *self.descriptions[name]])
            for name in self.names
        ]
        return functional.normalize(torch.stack([text.mean(0) for text in texts]), dim=1)

    def restart(self) -> None:
        super().restart()
        K, D = self.text.shape
        self.cache = Cache(K, self.shots, self.text, feature=D)
        self.evolved, self.kept = self.text.clone(), 0  # (K,D), and the samples in their mean

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        text = _unit(self.evolved)
        chosen, logits = self._confident(z, text)
        feature, logits, p = chosen.mean(0), logits.mean(0), logits.softmax(1).mean(0)
        if learn:
            self.cache.insert(int(logits.argmax()), _relative_entropy(p), feature=feature)
        count = self.cache.filled.sum(1)
        present = count.nonzero().flatten()  # (P,) classes that have an image prototype
        image = self.cache["feature"][present].sum(1) / count[present, None]  # (P,D)
        new_text, new_image = self._step(feature, image, present)
        seen = z[0] if self.final == "plain" else feature
        answer = self._answer(seen, new_text, new_image, present)
        if learn and _relative_entropy(answer.softmax(0)) < self.gate:
            self.kept += 1
            n = self.kept
            self.evolved = self.evolved * (n / (n + 1)) + new_text / (n + 1)
        return answer

    @torch.enable_grad()
    def _step(self, feature: Tensor, image: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Both prototypes after one AdamW step of residuals that start at zero."""
        moves = [torch.zeros_like(self.evolved), torch.zeros_like(image)]
        residuals = [move.requires_grad_() for move in moves]
        text, seen = _unit(self.evolved + residuals[0]), _unit(image + residuals[1])
        logits = self._answer(feature, text, seen, present)
        loss = entropy(logits)
        if len(present):
            loss = loss + self.lam * self._alignment(seen, text[present])
        gradients = torch.autograd.grad(loss, residuals, materialize_grads=True, allow_unused=True)
        # AdamW's first step: both moments are the gradient itself once their bias is corrected.
        steps = [-self.lr * g / (g.abs() + 1e-3) for g in gradients]
        return _unit(self.evolved + steps[0]), _unit(image + steps[1])

    def _answer(self, feature: Tensor, text: Tensor, image: Tensor, present: Tensor) -> Tensor:
        """Text logits plus alpha * exp(-beta (1 - cosine)) for classes with an image prototype."""
        logits = self.model.logits(feature[None], text)[0]
        near = torch.exp(-self.beta * (1 - image @ feature))
        return logits.index_add(0, present, self.alpha * near)

    def _alignment(self, image: Tensor, text: Tensor) -> Tensor:
        """InfoNCE at temperature 0.01 with the prototype of the same class as the positive."""
        cosines = image @ text.T / 0.01  # (P,P)
        target = torch.arange(len(cosines), device=cosines.device)
        loss = functional.cross_entropy(cosines, target)
        if self.align == "both":
            loss = 0.5 * (loss + functional.cross_entropy(cosines.T, target))
        return loss

    def state_dict(self) -> dict[str, Tensor]:
        own = {"evolved": self.evolved.clone(), "kept": torch.tensor(self.kept)}
        return {**super().state_dict(), **self.cache.state_dict("cache/"), **own}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.cache.load_state_dict(state, "cache/")
        self.evolved = state["evolved"].to(self.text.device, copy=True)
        self.kept = int(state["kept"])

    def _merge(self, other: DPE) -> None:
        """The mean is (start + sum of what was kept) / (kept + 1): add the sums."""
        self.cache.merge(other.cache)
        if other.kept:
            total = (self.kept + 1) * self.evolved + (other.kept + 1) * other.evolved - self.text
            self.kept += other.kept
            self.evolved = total / (self.kept + 1)


def _relative_entropy(p: Tensor) -> float:
    """Nats over log2 K, as the official code has it: at most 0.69."""
    return float(torch.special.entr(p).sum()) / math.log2(len(p))


def _unit(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)
