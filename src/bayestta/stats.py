"""Gaussian statistics of soft classes, updated batch by batch without keeping a sample."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayestta.names import unknown

CENTRES = ("exact", "old", "new")
STRUCTURES = ("shared", "per-class")
BUDGET_BYTES = 2 * 1024**3  # a larger per-class scatter is refused before it is allocated


class GaussianStats:
    """Counts, means and scatter of K soft classes in D dimensions, the prior included.

    The prior of a class is its text prototype, worth `prior_count` samples in the mean, and the identity, worth
    `prior_scatter` samples in the covariance. The statistics know it, so that forgetting spares it and `merge` counts it
    once. Counts, means and the shared scatter are float64; per-class scatter is `wide`.

    Parameters
    ----------
    centre
        About which mean the scatter of a batch is taken. With W its scatter about its own mean, d the step from the old
        mean to that, c the old count and n the new one: `exact` W + cn/(c+n) dd' (Chan: any split of the data gives the
        same sum), `old` W + n dd' (the released code), `new` W + n (c/(c+n))^2 dd' (the paper).
    epsilon
        Added to the counts that divide, as the released code does.

    >>> stats = GaussianStats(torch.eye(2), prior_count=0.0)
    >>> z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    >>> stats.update(z, torch.tensor([[1.0, 0], [1, 0], [0, 1]]))
    >>> stats.mean.tolist(), stats.covariance().tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [[0.6666666666666666, 0.0], [0.0, 0.0]])
    """

    def __init__(
        self,
        prior_mean: Tensor,
        *,
        structure: str = "shared",
        centre: str = "exact",
        prior_count: float = 1.0,
        prior_scatter: float = 0.0,
        epsilon: float = 0.0,
        wide: torch.dtype = torch.float32,
    ) -> None:
        if centre not in CENTRES:
            raise ValueError(unknown("centre", centre, CENTRES))
        if structure not in STRUCTURES:
            raise ValueError(unknown("covariance structure", structure, STRUCTURES))
        self.prior_mean = prior_mean.double()  # (K,D)
        self.structure, self.centre, self.epsilon, self.wide = structure, centre, epsilon, wide
        self.prior_count, self.prior_scatter = prior_count, prior_scatter
        K, D = prior_mean.shape
        self.count = self.prior_mean.new_full((K,), prior_count)
        self.mean = self.prior_mean.clone()  # (K,D)
        self.scatter = self._empty(K, D)  # (D,D) or (K,D,D)
        if prior_scatter:
            self.scatter.diagonal(dim1=-2, dim2=-1).add_(prior_scatter * (K if structure == "shared" else 1))

    def _empty(self, K: int, D: int) -> Tensor:
        if self.structure == "shared":
            return self.prior_mean.new_zeros(D, D)
        need = K * D * D * self.wide.itemsize
        if need > BUDGET_BYTES:
            raise MemoryError(
                f"a covariance for each of {K} classes in {D} dimensions takes {need:,} bytes, more than the budget of "
                f"{BUDGET_BYTES:,}: use the shared covariance, or raise bayestta.stats.BUDGET_BYTES."
            )
        return torch.zeros(K, D, D, dtype=self.wide, device=self.prior_mean.device)

    @property
    def seen(self) -> Tensor:
        """(K,) the evidence: counts without the prior."""
        return self.count - self.prior_count

    @property
    def proportion(self) -> Tensor:
        """(K,) class frequencies, prior counts included."""
        return self.count / self.count.sum()

    @property
    def weight(self) -> Tensor:
        """What the scatter is divided by: a number, or (K,)."""
        weight = self.seen + self.prior_scatter
        weight = weight.sum() if self.structure == "shared" else weight + self.epsilon
        return weight.clamp_min(torch.finfo(torch.float32).tiny)

    def covariance(self) -> Tensor:
        """(D,D) or (K,D,D); zero where nothing was seen."""
        return self.scatter / self.weight.to(self.scatter.dtype)[..., None, None]

    def update(self, z: Tensor, weight: Tensor) -> None:
        """Count a batch z (B,D) with the weight (B,K) of each sample in each class."""
        z, weight = z.double(), weight.double()
        n = weight.sum(0)  # (K,)
        total = n[:, None].clamp_min(torch.finfo(n.dtype).tiny)
        batch = weight.T @ z / total  # (K,D)
        c, old = self.count, self.mean
        self.count = c + n
        divisor = (self.count + self.epsilon)[:, None].clamp_min(torch.finfo(n.dtype).tiny)
        self.mean = (c[:, None] * old + n[:, None] * batch) / divisor
        if self.centre == "exact":
            step, factor = batch - old, c * n / divisor[:, 0]
        else:
            step, factor = batch - (old if self.centre == "old" else self.mean), n
        if self.structure == "shared":  # sum_k W_k = z'Rz - sum_k n_k m_k m_k'
            self.scatter = self.scatter + torch.cat([z, batch, step]).T @ torch.cat(
                [weight.sum(1)[:, None] * z, -n[:, None] * batch, factor[:, None] * step]
            )
            return
        for k in range(len(n)):  # one class at a time: no (B,K,D) tensor
            centred = (z - batch[k]).to(self.wide)
            self.scatter[k] += (weight[:, k, None].to(self.wide) * centred).T @ centred
            self.scatter[k] += (factor[k] * torch.outer(step[k], step[k])).to(self.wide)

    def forget(self, keep: float) -> None:
        """Scale the evidence by `keep`; the prior stays."""
        evidence = self.count[:, None] * self.mean - self.prior_count * self.prior_mean
        self.count = self.prior_count + keep * self.seen
        divisor = self.count[:, None].clamp_min(torch.finfo(self.count.dtype).tiny)
        self.mean = (self.prior_count * self.prior_mean + keep * evidence) / divisor
        self.scatter = self._prior_part(keep) + keep * self.scatter

    def _prior_part(self, keep: float) -> Tensor | float:
        """What the prior is owed after the scatter was scaled by `keep`."""
        if not self.prior_scatter:
            return 0.0
        K, D = self.prior_mean.shape
        copies = self.prior_scatter * (K if self.structure == "shared" else 1)
        return (1 - keep) * copies * torch.eye(D, dtype=self.scatter.dtype, device=self.scatter.device)

    def merge(self, other: GaussianStats) -> None:
        """Add the evidence of another worker that started from the same prior; exact for `centre="exact"`."""
        mine = (self.structure, self.centre, self.prior_count, self.prior_scatter, tuple(self.mean.shape))
        theirs = (other.structure, other.centre, other.prior_count, other.prior_scatter, tuple(other.mean.shape))
        if mine != theirs:
            raise ValueError(f"statistics of {mine} and of {theirs} do not merge: start both from the same settings.")
        if not torch.equal(self.prior_mean, other.prior_mean):
            raise ValueError("statistics with different prior means do not merge: use the same classes and templates.")
        tiny = torch.finfo(torch.float64).tiny
        n, c0 = other.seen, self.prior_count
        evidence = (other.count[:, None] * other.mean - c0 * other.prior_mean) / n[:, None].clamp_min(tiny)
        evidence = torch.where(n[:, None] > 0, evidence, self.mean)
        count = self.count + n
        gap, step = evidence - self.prior_mean, evidence - self.mean
        lost, gained = c0 * n / other.count.clamp_min(tiny), self.count * n / count.clamp_min(tiny)
        if self.centre != "exact":
            lost, gained = torch.zeros_like(n), torch.zeros_like(n)
        added = other.scatter - other._prior_part(0.0)
        if self.structure == "shared":
            added = added - gap.T @ (lost[:, None] * gap) + step.T @ (gained[:, None] * step)
        else:
            for k in range(len(n)):
                added[k] -= (lost[k] * torch.outer(gap[k], gap[k])).to(self.wide)
                added[k] += (gained[k] * torch.outer(step[k], step[k])).to(self.wide)
        self.scatter = self.scatter + added
        self.mean = self.mean + (n / count.clamp_min(tiny))[:, None] * step
        self.count = count

    def state_dict(self) -> dict[str, Tensor]:
        """The three sums."""
        return {"count": self.count.clone(), "mean": self.mean.clone(), "scatter": self.scatter.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.count, self.mean, self.scatter = (state[key].clone() for key in ("count", "mean", "scatter"))
