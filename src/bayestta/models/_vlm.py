"""A vision-language model as the adapters see it."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from bayestta.models._norms import batch_statistics
from bayestta.models._preprocess import CLIP_MEAN, CLIP_STD
from bayestta.models._text import prompts
from bayestta.names import unknown

TEXTS = 4  # sets of text prototypes that a model keeps: 20 MB each for 10,000 classes of 512


class VLM:
    """A model as `load_model` and `wrap` give it: image tower, text encoder, and the scale.

    The towers are frozen, in evaluation mode, and never written to: an adapter passes the tensors
    that it tunes to `encode_image`. Features leave as float32 at unit norm, whatever the precision
    of the weights. One model serves any number of adapters and threads.

    A model of your own is a subclass with `encode_text`.

    Parameters
    ----------
    name
        What results and messages call it.
    visual
        The image tower: pixels (B,C,H,W) -> features (B,D). It is frozen; `wrap` leaves a module
        of the caller's as it is.
    preprocess
        PIL image -> (C,H,W). Its attribute `size`, where it has one, is checked against batches.
    dim
        Number of features D.
    scale, bias
        Logits are `scale * cosine + bias`.
    mean, std
        Of the normalised pixels, per channel.
    spectrum
        The logarithm of the power of the images that it was trained on, for the first bands of
        frequencies (`models/_spectrum.py`); None where they are photographs.
    trained_on
        `source/split` of the images that it has seen, see `bayestta.data.check_split`.
    layout
        Memory format in which the tower runs.

    >>> import bayestta as bt
    >>> model = bt.load_model("mini-rn")
    >>> z, text = model.encode_image(torch.zeros(2, 3, 64, 64)), model.encode_text(["cat", "dog"])
    >>> model.logits(z, text).shape
    torch.Size([2, 2])
    """

    prompt_tuning = False  # whether embed and encode_embeddings work

    def __init__(
        self,
        name: str,
        visual: nn.Module,
        preprocess: Callable[[Image.Image], Tensor],
        *,
        dim: int,
        scale: float,
        bias: float = 0.0,
        mean: tuple[float, ...] = CLIP_MEAN,
        std: tuple[float, ...] = CLIP_STD,
        spectrum: tuple[float, ...] | None = None,
        trained_on: frozenset[str] = frozenset(),
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.name, self.preprocess = name, preprocess
        self.visual = visual.eval().requires_grad_(False)
        self.dim, self.scale, self.bias, self.mean, self.std = dim, scale, bias, mean, std
        self.spectrum, self.trained_on = spectrum, trained_on
        self.layout = layout  # channels_last: up to 2.8 times as fast for small convolutions
        if layout != torch.contiguous_format:
            visual.to(memory_format=layout)  # type: ignore[call-overload]
        # functional_call swaps tensors in place while it runs: one pass at a time
        self.lock = threading.RLock()
        self._texts: OrderedDict[Any, Tensor] = OrderedDict()
        self._digest: tuple[int, str] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.dim} features, on {self.device})"

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """(C,H,W) of an image as the tower takes it; None where that is not known."""
        size = getattr(self.preprocess, "size", None)
        return (len(self.mean), size, size) if isinstance(size, int) else None

    @property
    def device(self) -> torch.device:
        return next(self.visual.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the largest weight: norms stay in float32."""
        return self._largest.dtype

    @cached_property
    def _largest(self) -> nn.Parameter:
        return max(self.visual.parameters(), key=lambda parameter: parameter.numel())

    @property
    def fingerprint(self) -> str:
        """A digest of all weights and the scale, by which saved states know their model."""
        version = self._version()
        if self._digest is None or self._digest[0] != version:
            self._digest = version, self._make_digest()
        return self._digest[1]

    def _make_digest(self) -> str:
        digest = hashlib.sha256(f"{self.dim} {self.scale:.6g} {self.bias:.6g}".encode())
        with self.lock:
            for tower in self.towers():
                for key, value in sorted(tower.state_dict().items()):
                    digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
                    digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()[:16]

    def _version(self) -> int:
        """Another number after the weights were written to, as the owner of a wrapped model may."""
        with self.lock:
            modules = self.towers()
            tensors = [t for m in modules for t in (*m.parameters(), *m.buffers())]
            # inference tensors count no versions, and cannot be written to outside that mode
            return hash(tuple((t.data_ptr(), t.is_inference() or t._version) for t in tensors))

    def encode_image(
        self, x: Tensor, params: Mapping[str, Tensor] | None = None, norms: str = "source"
    ) -> Tensor:
        """Pixels (B,C,H,W) -> features (B,D) at unit norm.

        Parameters
        ----------
        params
            Tensors to use instead of the tower's own, by their names in it; the result is
            differentiable in them, and the tower stays as it is.
        norms
            `source`: BatchNorms use their stored statistics; `batch`: those of the batch.
        """
        if norms not in ("source", "batch"):
            raise ValueError(unknown("norm statistics", norms, ["source", "batch"]))
        swap: dict[str, Any] = dict(batch_statistics(self.visual)) if norms == "batch" else {}
        for key, value in (params or {}).items():
            if key not in self._types:
                raise ValueError(
                    f"the image tower of {self.name!r} has no tensor {key!r} among its "
                    f"{len(self._types)}: take the names from norm_parameters(model.visual)."
                )
            swap[key] = value.to(self.device, self._types[key])
        x = x.to(self.device, self.dtype).contiguous(memory_format=self.layout)
        with self.lock:
            z = functional_call(self.visual, swap, (x,)) if swap else self.visual(x)
        return functional.normalize(z.float(), dim=-1)

    @cached_property
    def _types(self) -> dict[str, torch.dtype]:
        with self.lock:
            return {key: value.dtype for key, value in self.visual.state_dict().items()}

    def towers(self) -> list[nn.Module]:
        """The modules that move with the model."""
        return [self.visual]

    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        """Prompts -> (P,D) at unit norm."""
        raise NotImplementedError

    def prototypes(self, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
        """Text prototypes (K,D): prompts at unit norm, averaged over templates, at unit norm again.

        Prompts are encoded once: the last few sets are kept until the weights change.
        """
        key = tuple(classes), tuple(templates), self._version()
        with self.lock:
            text = self._texts.pop(key, None)
        if text is None:
            # an inference tensor could never be learnt from
            with torch.inference_mode(False), torch.no_grad():
                text = self.encode_text([line for c in classes for line in prompts(c, templates)])
                text = text.view(len(classes), len(templates), -1).mean(1)
                text = functional.normalize(text, dim=1)  # (K,D)
        with self.lock:
            self._texts[key] = text
            while len(self._texts) > TEXTS:
                self._texts.popitem(last=False)
        return text.clone()

    def logits(self, z: Tensor, text: Tensor) -> Tensor:
        """Features (B,D) and prototypes (K,D) -> (B,K)."""
        return self.scale * z @ text.T + self.bias

    def sigmoid(self, logits: Tensor) -> Tensor:
        """The probability of each class on its own (B,K), for a SigLIP; rows need not sum to one.

        `adapter.probabilities` is the softmax: which of the classes it is. A SigLIP was trained to
        say of each text by itself whether it fits, which also answers "none of them". That is exact
        for zero-shot logits; an adapted answer moves them, mostly by a contrast of the classes.
        """
        if self.bias == 0:
            raise ValueError(
                f"model {self.name!r} has no logit bias, so it was trained with a softmax over "
                "texts: use adapter.probabilities, or a SigLIP."
            )
        return logits.float().sigmoid()

    def embed(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Prompts -> token embeddings (P,L,W) and token ids (P,L), for prompt tuning."""
        raise NotImplementedError(self._no_prompts())

    def encode_embeddings(self, embeddings: Tensor, tokens: Tensor) -> Tensor:
        """Token embeddings (P,L,W) -> (P,D) at unit norm, differentiable.

        The ids travel along, because they tell where the text ends.
        """
        raise NotImplementedError(self._no_prompts())

    def _no_prompts(self) -> str:
        return (
            f"model {self.name!r} has no gradient path through its text tower: for prompt tuning "
            "use mini-rn, mini-vit, clip-rn50, clip-vit-b16, open_clip:NAME/TAG or hf:ID."
        )
