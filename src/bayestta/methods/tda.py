"""TDA: two small caches of features, one for and one against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayestta.methods import register
from bayestta.methods._entropy_cache import Cache
from bayestta.methods._sequential import Sequential, SequentialSettings
from bayestta.settings import setting

UNITS = {"log2": math.log2, "log": math.log}


@dataclass(frozen=True)
class TDASettings(SequentialSettings):
    alpha: float = setting(2.0, "Weight of the positive cache.", least=0)
    beta: float = setting(5.0, "Sharpness of the positive cache.", least=0)
    shots: int = setting(3, "Entries per class of the positive cache.", least=0)
    negative_alpha: float = setting(0.117, "Weight of the negative cache.", least=0)
    negative_beta: float = setting(1.0, "Sharpness of the negative cache.", least=0)
    negative_shots: int = setting(2, "Entries per class of the negative cache.", least=0)
    low: float = setting(0.2, "Relative entropy above which a sample enters the negative cache.")
    high: float = setting(0.5, "Relative entropy below which it does.")
    unit: str = setting("log2", "What the entropy is divided by.", choices=("log2", "log"))
    mask_low: float = setting(
        0.03, "Probability above which a negative entry speaks against a class."
    )
    mask_high: float = setting(1.0, "Probability below which it does.")


@register
class TDA(Sequential):
    """Add the votes of confident samples, take away those of half-confident ones; no gradients.

    Both caches put a sample under its zero-shot class. The current sample is already in them when
    it is scored.

    """

    Settings = TDASettings
    settings: TDASettings
    name = "tda"
    title = "TDA"
    about = "Votes of confident samples, for and against."
    citation = (
        "Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, CVPR 2024"
    )
    tunes = "caches of 3 + 2 features per class"
    cost = "1 forward per image"
    fidelity = (
        "code, in float32 instead of float16; ImageNet's values, as none are published for "
        "drifting streams"
    )
    answer = "after"

    def declare(self) -> None:
        K, D = self.text.shape
        own = self.settings
        self.positive = self.add_state("positive", Cache(K, own.shots, self.text, feature=D))
        negative = Cache(K, own.negative_shots, self.text, feature=D, probability=K)
        self.negative = self.add_state("negative", negative)

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        z, logits = self._confident(z, self.text)
        feature, logits, p = z.mean(0), logits.mean(0), logits.softmax(1).mean(0)
        if learn:
            self._store(feature, p, int(logits.argmax()))
        return logits + self._votes_for(feature) - self._votes_against(feature)

    def _store(self, feature: Tensor, p: Tensor, k: int) -> None:
        entropy = float(torch.special.entr(p).sum())
        self.positive.insert(k, entropy, feature=feature)
        if self.settings.low < entropy / UNITS[self.settings.unit](len(p)) < self.settings.high:
            self.negative.insert(k, entropy, feature=feature, probability=p)

    def _votes_for(self, feature: Tensor) -> Tensor:
        near = self._affinity(self.positive, feature, self.settings.beta)
        return self.settings.alpha * near.sum(1)

    def _votes_against(self, feature: Tensor) -> Tensor:
        near = self._affinity(self.negative, feature, self.settings.negative_beta)
        p = self.negative["probability"]
        mask = ((p > self.settings.mask_low) & (p < self.settings.mask_high)).to(p)  # (K,S,K)
        return self.settings.negative_alpha * (near.flatten() @ mask.flatten(0, 1))

    @staticmethod
    def _affinity(cache: Cache, feature: Tensor, beta: float) -> Tensor:
        """exp(-beta (1 - cosine)) of every entry, 0 where there is none: (K,S)."""
        return torch.exp(-beta * (1 - cache["feature"] @ feature)) * cache.filled
