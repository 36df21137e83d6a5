"""DOTA: Gaussian statistics of the features beside the text classifier, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayestta.maths import stats
from bayestta.maths.covariance import is_scatter
from bayestta.methods import register
from bayestta.methods._sequential import Sequential, SequentialSettings
from bayestta.settings import setting


@dataclass(frozen=True)
class DOTASettings(SequentialSettings):
    epsilon: float = setting(1e-4, "Weight of the identity in the covariance.", least=0, most=1)
    eta: float = setting(0.3, "Largest weight of the discriminant.", least=0)
    rho: float = setting(
        0.02, "The discriminant weighs min(rho * mean class count / views, eta).", least=0
    )
    sigma: float = setting(
        0.002, "Class covariances start at sigma * I, worth one sample.", above=0
    )
    init_mean: str = setting(
        "constant",
        "Class means start at 0.001 everywhere, as the official code's head, or at the text "
        "prototypes, as its first public version.",
        choices=("constant", "text"),
    )
    refresh_every: int = setting(
        1, "Samples between two factors; above 1 it deviates from the method.", least=1
    )


@register
class DOTA(Sequential):
    """Add a linear discriminant, from class means and the mean of the class covariances.

    Soft zero-shot labels update the statistics after the answer. The official code inverts the
    covariance after every sample. Here nothing is inverted, and nothing is approximated: weighted
    sums of outer products per class are updated in place, one pass over them gives the mean
    covariance, and a Cholesky factor solves for the K means. A rank-one update of the inverse is
    not possible, because every sample also shrinks the old covariance of every class.

    """

    Settings = DOTASettings
    settings: DOTASettings
    name = "dota"
    title = "DOTA"
    about = "Zero-shot plus a discriminant of the stream."
    citation = (
        "Han et al., DOTA: Distributional Test-Time Adaptation of Vision-Language Models, "
        "arXiv 2409.19375, 2024"
    )
    tunes = "Gaussian statistics of the features, a covariance per class"
    cost = "1 forward per image + a D x D Cholesky factor"
    fidelity = (
        "code (head), in float32 instead of float16; its most common values, as none are published "
        "for drifting streams"
    )

    def make_text(self) -> Tensor:
        text = super().make_text()
        (K, D), size = text.shape, text.element_size()
        if K * D * D * size > stats.BUDGET_BYTES:
            raise ValueError(
                f"dota keeps {K} covariances of {D} x {D}, {K * D * D * size:,} bytes, above the "
                f"budget of {stats.BUDGET_BYTES:,}: use fewer classes, or raise "
                "bayestta.maths.stats.BUDGET_BYTES."
            )
        return text

    def declare(self) -> None:
        (K, D), own = self.text.shape, self.settings
        self.start = self.text.double()  # (K,D)
        if own.init_mean == "constant":
            self.start = torch.full_like(self.start, 0.001)
        first = own.sigma * torch.eye(D).to(self.text)
        self.count = self.add_state("count", self.start.new_ones(K), least=1)  # (K,)
        self.mean = self.add_state("mean", self.start)  # (K,D)
        # (K,D,D) count * covariance
        self.scatter = self.add_state("scatter", first.expand(K, D, D))
        self.covariance = self.add_state("covariance", first)  # (D,D); the first has no ridge
        self.seen = self.add_state("seen", 0, merge="sum", least=0)
        self._solved: tuple[Tensor, Tensor] | None = None  # covariance and its factor

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        z, logits = self._confident(z, self.text)
        weight = min(self.settings.rho * float(self.count.mean()) / len(z), self.settings.eta)
        answer = logits.mean(0) + weight * self._score(z.mean(0))
        if learn:
            self._fit(z, logits.softmax(1).double())
        return answer

    def _score(self, feature: Tensor) -> Tensor:
        """z' L m - m' L m / 2 for the precision L and every mean m: (K,)."""
        if self._solved is None or self._solved[0] is not self.covariance:
            self._solved = self.covariance, torch.linalg.cholesky(self.covariance)
        mean = self.mean.to(self.covariance.dtype).T  # (D,K)
        solved = torch.cholesky_solve(mean, self._solved[1])
        return feature @ solved - 0.5 * (mean * solved).sum(0)

    def _fit(self, z: Tensor, weight: Tensor) -> None:
        """Scatter about the old means, then the means; z (v,D), weight (v,K)."""
        off = z - self.mean[:, None].to(z.dtype)  # (K,v,D)
        for part, w in zip(off.unbind(1), weight.to(z.dtype), strict=True):
            self.scatter.addcmul_((w[:, None] * part)[:, :, None], part[:, None, :])
        total = self.count + weight.sum(0)
        self.mean = (self.count[:, None] * self.mean + weight.T @ z.double()) / total[:, None]
        self.count = total
        self.seen += 1
        if self.seen % self.settings.refresh_every == 0:
            self._refresh()

    def _refresh(self) -> None:
        """(1 - epsilon) * mean of the class covariances + epsilon * I."""
        share = ((1 - self.settings.epsilon) / (len(self.count) * self.count)).to(
            self.scatter.dtype
        )
        self.covariance = (share @ self.scatter.flatten(1)).view_as(self.covariance)
        self.covariance.diagonal().add_(self.settings.epsilon)

    def check_state(self) -> None:
        if not is_scatter(self.covariance, definite=True) or not is_scatter(self.scatter.sum(0)):
            raise ValueError("scatter or covariance has a direction of negative variance.")

    def merge_state(self, other: DOTA, share: float) -> None:
        """Add the sums, less one copy of the start; scatter stays about each worker's own means."""
        total = self.count + other.count - 1
        sums = self.count[:, None] * self.mean + other.count[:, None] * other.mean - self.start
        scatter = self.scatter + other.scatter
        scatter.diagonal(dim1=1, dim2=2).sub_(self.settings.sigma)
        super().merge_state(other, share)
        self.mean, self.count, self.scatter = sums / total[:, None], total, scatter
        self._refresh()
