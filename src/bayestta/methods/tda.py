"""TDA: two small caches of features, one for and one against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayestta.adapter import register
from bayestta.methods._entropy_cache import Cache
from bayestta.methods._sequential import Sequential
from bayestta.models.base import VLM
from bayestta.names import unknown

UNITS = {"log2": math.log2, "log": math.log}


@register
class TDA(Sequential):
    """Add the votes of confident samples, take away those of half-confident ones; no gradients.

    Both caches file a sample under its zero-shot class. The current sample is already in them when
    it is scored.

    Parameters
    ----------
    alpha, beta, shots
        Weight, sharpness and entries a class of the positive cache; ImageNet's values.
    negative_alpha, negative_beta, negative_shots
        The same of the negative cache.
    low, high
        Entropy between which a sample enters the negative cache, as a share of log K.
    unit
        `log2` divides the entropy, in nats, by log2 K, as the code does, so that the share is at
        most 0.69; `log` by ln K, which the paper's words say.
    mask_low, mask_high
        A negative entry votes against the classes whose probability lies between them.
    views, selection
        Above 1, a sample is the mean of this share of its views: the code's form for ImageNet's
        variants.
    """

    name = "tda"
    title = "TDA"
    citation = (
        "Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, CVPR 2024"
    )
    tunes = "caches of 3 + 2 features a class"
    cost = "1 forward an image"
    fidelity = (
        "code, in float32 instead of float16; ImageNet's values, as none are published for "
        "drifting streams"
    )
    answer = "after"

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        alpha: float = 2.0,
        beta: float = 5.0,
        shots: int = 3,
        negative_alpha: float = 0.117,
        negative_beta: float = 1.0,
        negative_shots: int = 2,
        low: float = 0.2,
        high: float = 0.5,
        unit: str = "log2",
        mask_low: float = 0.03,
        mask_high: float = 1.0,
        views: int = 1,
        selection: float = 0.1,
    ) -> None:
        if unit not in UNITS:
            raise ValueError(unknown("unit of tda", unit, UNITS))
        self.alpha, self.beta, self.shots = alpha, beta, shots
        self.negative_alpha, self.negative_beta = negative_alpha, negative_beta
        self.negative_shots, self.low, self.high, self.unit = negative_shots, low, high, unit
        self.mask_low, self.mask_high = mask_low, mask_high
        self.views, self.selection = views, selection
        super().__init__(model, names, templates, seed=seed)

    def restart(self) -> None:
        super().restart()
        K, D = self.text.shape
        self.positive = Cache(K, self.shots, self.text, feature=D)
        self.negative = Cache(K, self.negative_shots, self.text, feature=D, probability=K)

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        z, logits = self._confident(z, self.text)
        feature, logits, p = z.mean(0), logits.mean(0), logits.softmax(1).mean(0)
        if learn:
            self._store(feature, p, int(logits.argmax()))
        return logits + self._votes_for(feature) - self._votes_against(feature)

    def _store(self, feature: Tensor, p: Tensor, k: int) -> None:
        entropy = float(torch.special.entr(p).sum())
        self.positive.insert(k, entropy, feature=feature)
        if self.low < entropy / UNITS[self.unit](len(p)) < self.high:
            self.negative.insert(k, entropy, feature=feature, probability=p)

    def _votes_for(self, feature: Tensor) -> Tensor:
        near = self._affinity(self.positive, feature, self.beta)
        return self.alpha * near.sum(1)

    def _votes_against(self, feature: Tensor) -> Tensor:
        near = self._affinity(self.negative, feature, self.negative_beta)
        p = self.negative["probability"]
        mask = ((p > self.mask_low) & (p < self.mask_high)).to(p)  # (K,S,K)
        return self.negative_alpha * (near.flatten() @ mask.flatten(0, 1))

    @staticmethod
    def _affinity(cache: Cache, feature: Tensor, beta: float) -> Tensor:
        """exp(-beta (1 - cosine)) of every entry, 0 where there is none: (K,S)."""
        return torch.exp(-beta * (1 - cache["feature"] @ feature)) * cache.filled

    def state_dict(self) -> dict[str, Tensor]:
        positive, negative = self.positive.state_dict("positive/"), self.negative
        return {**super().state_dict(), **positive, **negative.state_dict("negative/")}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.positive.load_state_dict(state, "positive/")
        self.negative.load_state_dict(state, "negative/")

    def _merge(self, other: TDA) -> None:
        self.positive.merge(other.positive)
        self.negative.merge(other.negative)
