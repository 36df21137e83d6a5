"""DOTA: Gaussian statistics of the features beside the text classifier, sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bayestta.adapter import register
from bayestta.maths import stats
from bayestta.methods._sequential import Sequential
from bayestta.models.base import VLM
from bayestta.names import unknown

STARTS = ("constant", "text")


@register
class DOTA(Sequential):
    """Add a linear discriminant, from class means and the mean of the class covariances.

    Soft zero-shot labels update the statistics after the answer. The official code inverts the
    covariance after every sample. Here nothing is inverted, and nothing is approximated: weighted
    sums of outer products a class are updated in place, one pass over them gives the mean
    covariance, and a Cholesky factor solves for the K means. A rank-one update of the inverse is
    not possible, because every sample also shrinks the old covariance of every class.

    Parameters
    ----------
    epsilon
        Weight of the identity in the covariance that is inverted.
    eta, rho
        The discriminant weighs min(rho * mean class count / number of views, eta).
    sigma
        The covariance of a class starts at sigma * I, with the weight of one sample.
    init_mean
        `constant`: 0.001 everywhere, as the official code's head; `text`: the prototypes, as its
        first public version.
    refresh_every
        Samples between two factors; above 1 it deviates from the method.
    views, selection
        Above 1, the discriminant scores the mean of this share of its views, and learns from each.
    """

    name = "dota"
    title = "DOTA"
    citation = (
        "Han et al., DOTA: Distributional Test-Time Adaptation of Vision-Language Models, "
        "arXiv 2409.19375, 2024"
    )
    tunes = "Gaussian statistics of the features, a covariance a class"
    cost = "1 forward an image + a D x D Cholesky factor"
    fidelity = (
        "code (head), in float32 instead of float16; its most common values, as none are published "
        "for drifting streams"
    )

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        epsilon: float = 1e-4,
        eta: float = 0.3,
        rho: float = 0.02,
        sigma: float = 0.002,
        init_mean: str = "constant",
        refresh_every: int = 1,
        views: int = 1,
        selection: float = 0.1,
    ) -> None:
        if init_mean not in STARTS:
            raise ValueError(unknown("init_mean of dota", init_mean, STARTS))
        if refresh_every < 1:
            raise ValueError(
                f"refresh_every is {refresh_every}: give a number of samples, 1 or more."
            )
        needed = 4 * len(names) * model.dim**2
        if needed > stats.BUDGET_BYTES:
            raise ValueError(
                f"dota keeps {len(names)} covariances of {model.dim} x {model.dim}, "
                f"{needed:,} bytes, above the budget of {stats.BUDGET_BYTES:,}: use fewer classes, "
                "or raise bayestta.maths.stats.BUDGET_BYTES."
            )
        self.epsilon, self.eta, self.rho, self.sigma = epsilon, eta, rho, sigma
        self.init_mean, self.refresh_every = init_mean, refresh_every
        self.views, self.selection = views, selection
        super().__init__(model, names, templates, seed=seed)

    def restart(self) -> None:
        super().restart()
        text = self.text.double()
        self.count = text.new_ones(len(text))  # (K,)
        self.mean = text if self.init_mean == "text" else torch.full_like(text, 0.001)  # (K,D)
        eye = torch.eye(text.shape[1]).to(self.text)
        self.scatter = (self.sigma * eye).repeat(len(text), 1, 1)  # (K,D,D) count * covariance
        self.covariance = self.sigma * eye  # (D,D); the first one is not regularised
        self.factor: Tensor | None = None  # of the covariance, made when a score needs it
        self.seen = 0

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        z, logits = self._confident(z, self.text)
        weight = min(self.rho * float(self.count.mean()) / len(z), self.eta)
        answer = logits.mean(0) + weight * self._score(z.mean(0))
        if learn:
            self._fit(z, logits.softmax(1).double())
        return answer

    def _score(self, feature: Tensor) -> Tensor:
        """z' L m - m' L m / 2 for the precision L and every mean m: (K,)."""
        if self.factor is None:
            self.factor = torch.linalg.cholesky(self.covariance)
        mean = self.mean.to(self.covariance.dtype).T  # (D,K)
        solved = torch.cholesky_solve(mean, self.factor)
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
        if self.seen % self.refresh_every == 0:
            self._refresh()

    def _refresh(self) -> None:
        """(1 - epsilon) * mean of the class covariances + epsilon * I."""
        share = ((1 - self.epsilon) / (len(self.count) * self.count)).to(self.scatter.dtype)
        self.covariance = (share @ self.scatter.flatten(1)).view_as(self.covariance)
        self.covariance.diagonal().add_(self.epsilon)
        self.factor = None

    def state_dict(self) -> dict[str, Tensor]:
        moved = {key: getattr(self, key).clone() for key in STATE}
        return {**super().state_dict(), **moved, "seen": torch.tensor(self.seen)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        for key in STATE:
            setattr(self, key, state[key].to(self.text.device, copy=True))
        self.seen, self.factor = int(state["seen"]), None

    def _merge(self, other: DOTA) -> None:
        """Add the sums, less one copy of the start; scatter stays about each worker's own means."""
        if other.samples == 0:
            return
        total = self.count + other.count - 1
        start = self.text.double() if self.init_mean == "text" else 0.001
        sums = self.count[:, None] * self.mean + other.count[:, None] * other.mean - start
        self.mean, self.count = sums / total[:, None], total
        self.scatter += other.scatter
        self.scatter.diagonal(dim1=1, dim2=2).sub_(self.sigma)
        self.seen += other.seen
        self._refresh()


STATE = ("count", "mean", "scatter", "covariance")
