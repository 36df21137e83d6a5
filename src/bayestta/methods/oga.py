"""OGA: Gaussian classes around the eight most confident features of each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.maths.covariance import truncated_eigen
from bayestta.methods import register
from bayestta.methods._entropy_cache import Cache
from bayestta.methods._stored_gaussian import FLAT, linear_score, ridged, spread, stored
from bayestta.settings import Settings, setting

IN_MEAN, IN_COVARIANCE = 2, 3  # entries that a class needs to have a mean, and one of them a spread


@dataclass(frozen=True)
class OGASettings(Settings):
    tau: float = setting(0.05, "Weight of the Gaussian score beside the zero-shot logits.", least=0)
    shots: int = setting(8, "Stored features per class.", least=1)
    mean_divisor: str = setting(
        "capacity",
        "A class mean divides the sum of its features by the slots of the class, as in the code, "
        "which shortens the mean of a class that is not full, or by their count (ours).",
        choices=("capacity", "count"),
    )


@register
class OGA(Adapter):
    """Add the score of Gaussian classes, fitted to the stored features of lowest entropy.

    The whole batch enters the memory before it is answered, so that the batch size matters. An
    entry leaves only for one of lower entropy: the memory of a drifting stream keeps confident
    images of early domains.
    """

    Settings = OGASettings
    settings: OGASettings
    name = "oga"
    title = "OGA"
    about = "Gaussian classes of the surest features."
    citation = (
        "Fuchs et al., Online Gaussian Test-Time Adaptation of Vision-Language Models, "
        "CVPR Workshops 2025, arXiv 2501.04352"
    )
    tunes = "a cache of 8 features per class"
    cost = "1 forward per image + a D x D factor per batch"
    fidelity = (
        "code, in float64 instead of float16 and float32; batches of the runner's size instead of "
        "32; the templates of the data set instead of one"
    )
    answer = "after"

    def declare(self) -> None:
        K, D = self.text.shape
        self.cache = self.add_state("cache", Cache(K, self.settings.shots, self.text, feature=D))
        self._fitted: tuple[Tensor, list[list[float]], tuple[Tensor, Tensor]] | None = None

    @torch.no_grad()
    def _adapt(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x)
        self.sketch = self.model.logits(z, self.text)
        self._store(z, self.sketch.double().softmax(1))
        return self._answer(z, self.sketch)

    def _predict(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x)
        return self._answer(z, self.model.logits(z, self.text))

    def _store(self, z: Tensor, p: Tensor) -> None:
        # The code's -sum p ln(p + 1e-9) is below zero by up to this shift, which changes no order.
        shift = math.log1p(1e-9)
        entropies = (shift - (p * (p + 1e-9).log()).sum(1)).clamp_min(0)
        limit = shift + math.log(len(self.text))  # the entropy of an empty slot
        for feature, k, entropy in zip(z, p.argmax(1).tolist(), entropies.tolist(), strict=True):
            if entropy < limit:
                self.cache.insert(k, entropy, feature=feature)

    def _answer(self, z: Tensor, logits: Tensor) -> Tensor:
        score = linear_score(z, *self._gaussians())
        # What all classes share would round away what they differ by.
        score = self.settings.tau * (score - score.amax(1, keepdim=True))
        return logits + score.to(logits.dtype)

    def _gaussians(self) -> tuple[Tensor, Tensor]:
        """Means (K,D), and the precision times them (D,K): fitted again when an entry changed."""
        feature, last = self.cache["feature"], self._fitted
        if last is None or last[0] is not feature or last[1] != self.cache.entropy:
            entropies = [list(row) for row in self.cache.entropy]
            self._fitted = last = feature, entropies, self._fit()
        return last[2]

    def _fit(self) -> tuple[Tensor, Tensor]:
        count = self.cache.filled.sum(1).double()  # (K,)
        capacity = self.settings.mean_divisor == "capacity"
        divisor = torch.full_like(count, self.settings.shots) if capacity else count.clamp_min(1)
        mean = self.cache["feature"].double().sum(1) / divisor[:, None]
        mean = torch.where(count[:, None] < IN_MEAN, self.text.double(), mean)
        D = mean.shape[1]
        if count.max() < IN_COVARIANCE:
            return mean, D * mean.T
        z, k = stored(self.cache)
        residual = z - mean[k]
        return mean, ridged(residual, mean) if len(z) <= 4 * D else plain(residual, mean)


def plain(residual: Tensor, mean: Tensor) -> Tensor:
    """The pseudo-inverse of the covariance times the means, cut as torch does in float32: (D,K)."""
    centred, trace = spread(residual)
    if trace <= FLAT:
        return torch.zeros_like(mean.T)
    cov = centred.T @ centred / (len(centred) - 1)
    whiten, _ = truncated_eigen(cov, len(cov) * torch.finfo(torch.float32).eps)
    return whiten @ (mean @ whiten).T
