"""DPE: prototypes of text and image take a step for every sample; the text's evolve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.methods import register
from bayestta.methods._entropy_cache import Cache
from bayestta.methods._losses import entropy
from bayestta.methods._sequential import Sequential, SequentialSettings
from bayestta.models._text import prompts
from bayestta.settings import setting


@dataclass(frozen=True)
class DPESettings(SequentialSettings):
    alpha: float = setting(6.0, "Weight of the image prototypes.", least=0)
    beta: float = setting(5.0, "Sharpness of the image prototypes.", least=0)
    shots: int = setting(3, "Cached features per class.", least=0)
    lr: float = setting(6e-4, "Learning rate of the one AdamW step per sample.", least=0)
    lam: float = setting(0.5, "Weight of the alignment of image and text prototypes.", least=0)
    align: str = setting(
        "image",
        "Image prototypes look for their text among the cached classes, as in the code; both: and "
        "the other way round, as the paper has it.",
        choices=("image", "both"),
    )
    gate: float = setting(
        0.1, "Entropy over log2 K below which the text prototypes evolve.", least=0
    )
    descriptions: dict[str, list[str]] | None = setting(
        None,
        "More prompts by class name beside the templates (CuPL sentences in the official code, "
        "which exist for none of the drifting streams).",
    )
    final: str = setting(
        "plain",
        "The answer is for the plain view or, as for ImageNet-A, for the selected ones.",
        choices=("plain", "selected"),
    )


@register
class DPE(Sequential):
    """Tune residuals of both kinds of prototypes to one sample, answer, and keep the text's part.

    The residuals are thrown away after the sample. Where the answer is sure, the moved text
    prototypes enter a running mean, from which the next sample starts.

    """

    Settings = DPESettings
    settings: DPESettings
    name = "dpe"
    title = "DPE"
    about = "Prototypes of both kinds, tuned per image."
    citation = (
        "Zhang et al., Dual Prototype Evolving for Test-Time Generalization of Vision-Language "
        "Models, NeurIPS 2024"
    )
    tunes = "text prototypes; a cache of 3 features per class"
    cost = "1 forward per image + 1 backward in the space of prototypes"
    fidelity = (
        "code, in float32 instead of float16; templates only, without CuPL sentences; ImageNet's "
        "values, as none are published for drifting streams"
    )
    answer = "after"

    @torch.no_grad()
    def make_text(self) -> Tensor:
        if self.settings.descriptions is None:
            return super().make_text()
        missing = [name for name in self.classes if name not in self.settings.descriptions]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(self.classes)} classes have no descriptions "
                f"({', '.join(missing[:5])}): add them, or leave descriptions out."
            )
        texts = [
            self.model.encode_text(
                [*prompts(name, self.templates), *self.settings.descriptions[name]]
            )
            for name in self.classes
        ]
        return functional.normalize(torch.stack([text.mean(0) for text in texts]), dim=1)

    def declare(self) -> None:
        K, D = self.text.shape
        self.cache = self.add_state("cache", Cache(K, self.settings.shots, self.text, feature=D))
        self.evolved = self.add_state("evolved", self.text)  # (K,D)
        self.kept = self.add_state("kept", 0, least=0)  # samples in their mean

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
        seen = z[0] if self.settings.final == "plain" else feature
        answer = self._answer(seen, new_text, new_image, present)
        if learn and _relative_entropy(answer.softmax(0)) < self.settings.gate:
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
            loss = loss + self.settings.lam * self._alignment(seen, text[present])
        gradients = torch.autograd.grad(loss, residuals, materialize_grads=True, allow_unused=True)
        # AdamW's first step: both moments are the gradient itself once their bias is corrected.
        steps = [-self.settings.lr * g / (g.abs() + 1e-3) for g in gradients]
        return _unit(self.evolved + steps[0]), _unit(image + steps[1])

    def _answer(self, feature: Tensor, text: Tensor, image: Tensor, present: Tensor) -> Tensor:
        """Text logits plus alpha * exp(-beta (1 - cosine)) for classes with an image prototype."""
        logits = self.model.logits(feature[None], text)[0]
        near = torch.exp(-self.settings.beta * (1 - image @ feature))
        return logits.index_add(0, present, self.settings.alpha * near)

    def _alignment(self, image: Tensor, text: Tensor) -> Tensor:
        """InfoNCE at temperature 0.01 with the prototype of the same class as the positive."""
        cosines = image @ text.T / 0.01  # (P,P)
        target = torch.arange(len(cosines), device=cosines.device)
        loss = functional.cross_entropy(cosines, target)
        if self.settings.align == "both":
            loss = 0.5 * (loss + functional.cross_entropy(cosines.T, target))
        return loss

    def merge_state(self, other: DPE, share: float) -> None:
        """The mean is (start + sum of what was kept) / (kept + 1): add the sums."""
        super().merge_state(other, share)
        if other.kept:
            total = (self.kept + 1) * self.evolved + (other.kept + 1) * other.evolved - self.text
            self.kept += other.kept
            self.evolved = total / (self.kept + 1)


def _relative_entropy(p: Tensor) -> float:
    """Nats over log2 K, as the official code has it: at most 0.69."""
    return float(torch.special.entr(p).sum()) / math.log2(len(p))


def _unit(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)
