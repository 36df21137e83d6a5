"""Gaussian statistics of soft classes, updated batch by batch without keeping a sample."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.matching import matching
from bayestta.maths.covariance import is_scatter
from bayestta.names import unknown

CENTRES = ("exact", "old", "new")
STRUCTURES = ("shared", "per-class")
BUDGET_BYTES = 2 * 1024**3  # a larger per-class scatter is refused before it is allocated
SMALL = 16  # dimensions in which the squares of a batch fit into one (B,D*D)
SMALLEST = torch.finfo(torch.float64).tiny  # keeps 0 / 0 at zero


class GaussianStats:
    """Counts, means and scatter of K soft classes in D dimensions, the prior included.

    The prior of a class is its text prototype, worth `prior_count` samples in the mean, and the
    identity, worth `prior_scatter` samples in the covariance. The statistics know it, so that
    forgetting spares it and `merge` counts it once. Counts, means and the shared scatter are
    float64; per-class scatter is `wide`.

    Parameters
    ----------
    centre
        About which mean the scatter of a batch is taken. With W its scatter about its own mean, d
        the step from the old mean to that, c the old count and n the new one: `exact`
        W + cn/(c+n) dd' (Chan: any split of the data gives the same sum), `old` W + n dd' (the
        released code), `new` W + n (c/(c+n))^2 dd' (the paper).
    epsilon
        Added to the counts that divide, as the released code does.

    >>> stats = GaussianStats(torch.eye(2), prior_count=0.0)
    >>> z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> stats.update(z, torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]))
    >>> stats.mean.tolist(), stats.covariance().tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [[0.5, 0.0], [0.0, 0.5]])
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
        self.prior_mean = prior_mean.detach().to(torch.float64, copy=True)  # (K,D)
        self.structure, self.centre, self.epsilon, self.wide = structure, centre, epsilon, wide
        self.prior_count, self.prior_scatter = prior_count, prior_scatter
        self._first_structure = structure
        self.reset()

    def reset(self) -> None:
        """Forget all evidence; the prior is left."""
        self.structure = self._first_structure
        # the evidence is kept apart from the prior: 1 + 1e-17 would lose a sharp softmax's tail
        self.seen = self.prior_mean.new_zeros(len(self.prior_mean))  # (K,)
        self.mean = self.prior_mean.clone()  # (K,D)
        self.scatter = self._empty()  # (D,D) or (K,D,D)
        self._add_prior(self.scatter, 1.0)

    def _empty(self) -> Tensor:
        K, D = self.prior_mean.shape
        if self.structure == "shared":
            return self.prior_mean.new_zeros(D, D)
        need = K * D * D * self.wide.itemsize
        if need > BUDGET_BYTES:
            raise MemoryError(
                f"a covariance for each of {K} classes in {D} dimensions takes {need:,} bytes, "
                f"more than the budget of {BUDGET_BYTES:,}: use the shared covariance, or raise "
                "bayestta.maths.stats.BUDGET_BYTES."
            )
        return self.prior_mean.new_zeros(K, D, D, dtype=self.wide)

    def _add_prior(self, scatter: Tensor, copies: float) -> None:
        if self.structure == "shared":
            copies *= len(self.prior_mean)
        scatter.diagonal(dim1=-2, dim2=-1).add_(copies * self.prior_scatter)

    def _add_outer(self, *pairs: tuple[Tensor, Tensor]) -> None:
        """Add the outer products of paired rows: all to one scatter, or row k to class k's."""
        if self.structure == "shared":
            # one pass over (D,D) for all; few rows are cheaper to gather than (D,D) is to pass
            left, right = pairs[0]
            if len(pairs) > 1:
                left, right = (torch.cat([pair[side] for pair in pairs]) for side in (0, 1))
            self.scatter.addmm_(left.T, right)
            return
        # float64 until they are added: the pairs may cancel
        lefts, rights = (torch.stack([pair[side] for pair in pairs]) for side in (0, 1))
        if self.scatter.shape[-1] <= SMALL:
            self.scatter += torch.einsum("pki,pkj->kij", lefts, rights).to(self.wide)
            return
        for k, scatter in enumerate(self.scatter):
            scatter += lefts[:, k].T @ rights[:, k]

    @property
    def count(self) -> Tensor:
        """(K,) soft counts, prior included."""
        return self.seen + self.prior_count

    @property
    def proportion(self) -> Tensor:
        """(K,) class frequencies, prior counts included; uniform when there are none."""
        count = self.count + SMALLEST
        return count / count.sum()

    @property
    def weight(self) -> Tensor:
        """What the scatter is divided by: a number, or (K,)."""
        weight = self.seen + self.prior_scatter
        weight = weight.sum() if self.structure == "shared" else weight + self.epsilon
        return weight.clamp_min(torch.finfo(torch.float32).tiny)

    def covariance(self) -> Tensor:
        """(D,D) or (K,D,D); zero where nothing was seen."""
        return self.scatter / self.weight.to(self.scatter.dtype)[..., None, None]

    @torch.no_grad()
    def update(self, z: Tensor, weight: Tensor) -> None:
        """Count a batch z (B,D) with the weight (B,K) of each sample in each class."""
        if len(z) == 0:
            return
        z, weight = z.double(), weight.double()
        n, c, old = weight.sum(0), self.count, self.mean  # (K,), (K,), (K,D)
        batch = weight.T @ z / n.clamp_min(SMALLEST)[:, None]  # (K,D)
        self.seen = self.seen + n
        share = n / self.count.clamp_min(SMALLEST)
        self.mean = old + share[:, None] * (batch - old)  # an unseen class stays where it was
        if self.epsilon:
            self.mean *= (self.count / (self.count + self.epsilon))[:, None]
        if self.centre == "exact":
            step, factor = batch - old, c * share
        else:
            step, factor = batch - (old if self.centre == "old" else self.mean), n
        between = (step, factor[:, None] * step)
        if self.structure == "shared":  # sum_k W_k = z'Rz - sum_k n_k m_k m_k', about any origin
            origin = z.mean(0)  # far features would cancel to nothing about zero
            z, batch = z - origin, batch - origin
            within = (z, weight.sum(1)[:, None] * z)
            self._add_outer(within)
            self._add_outer((batch, -n[:, None] * batch), between)
            return
        if z.shape[1] <= SMALL:
            origin = z.mean(0)
            z, batch = z - origin, batch - origin
            squares = (z[:, :, None] * z[:, None, :]).flatten(1)  # (B,D*D)
            outer = batch[:, :, None] * batch[:, None, :] * n[:, None, None]
            self.scatter += ((weight.T @ squares).view_as(outer) - outer).to(self.wide)
        else:
            for k, scatter in enumerate(self.scatter):  # one class at a time: no (B,K,D) tensor
                centred = (z - batch[k]).to(self.wide)
                scatter.addmm_((weight[:, k, None].to(self.wide) * centred).T, centred)
        self._add_outer(between)

    def forget(self, keep: float) -> None:
        """Scale the evidence by `keep`, as if all its weights had been so; the prior stays."""
        if not 0 <= keep <= 1:
            raise ValueError(f"cannot keep {keep} of the evidence: give a number from 0 to 1.")
        before, self.seen = self.count, keep * self.seen
        shift = self.mean - self.prior_mean
        ratio = (keep * before / self.count.clamp_min(SMALLEST))[:, None]
        self.mean = self.prior_mean + ratio * shift
        self.scatter.mul_(keep)
        self._add_prior(self.scatter, 1 - keep)
        if self.centre == "exact" and self.prior_count:  # the gap between prior and evidence
            self._add_outer((shift, self.prior_count * (1 - keep) * ratio * shift))

    def merge(self, other: GaussianStats, share: float = 0.5) -> None:
        """Add the evidence of another worker with the same prior; exact for `centre="exact"`."""
        for name in ("structure", "centre", "prior_count", "prior_scatter", "epsilon"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(
                    f"statistics with {name} {mine!r} and {theirs!r} do not merge: "
                    "start both from the same settings."
                )
        if not torch.equal(self.prior_mean, other.prior_mean):
            raise ValueError(
                "statistics with different prior means do not merge: "
                "use the same classes, templates and model."
            )
        s, t = self.mean - self.prior_mean, other.mean - other.prior_mean  # (K,D)
        a, b, m = self.count[:, None], other.count[:, None], other.seen[:, None]
        total = (a + m).clamp_min(SMALLEST)
        added = other.scatter.clone()
        self._add_prior(added, -1.0)  # first, so that an untouched copy adds exactly nothing
        self.scatter = added.add_(self.scatter)
        if self.centre == "exact":  # Chan's step between the two, less the prior's second copy
            each = (m > 0) / total
            again = -self.prior_count * each
            self._add_outer((s - t, a * b * each * (s - t)), (s, again * a * s), (t, again * b * t))
        self.mean = self.mean + (b * t - m * s) / total
        self.seen = self.seen + other.seen

    def per_class(self) -> GaussianStats:
        """The same with a scatter per class, which starts from the shared covariance."""
        split = copy.copy(self)
        split.structure = "per-class"
        weight = split.weight.to(self.wide)[:, None, None]
        split.scatter = split._empty().add_(self.covariance()).mul_(weight)
        return split

    def state(self) -> dict[str, Any]:
        """The three sums, and their structure; `count` is without the prior."""
        sums = {"count": self.seen, "mean": self.mean, "scatter": self.scatter}
        return {**{key: value.clone() for key, value in sums.items()}, "structure": self.structure}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, of statistics with the same classes and features."""
        if state.get("structure") not in STRUCTURES:
            raise ValueError(
                unknown("covariance structure", str(state.get("structure")), STRUCTURES)
            )
        fresh = copy.copy(self)
        fresh._first_structure = state["structure"]
        fresh.reset()
        new: dict[str, Tensor] = {
            key: matching(key, state.get(key), like, least=0 if key == "count" else None)
            for key, like in fresh.state().items()
            if isinstance(like, Tensor)
        }
        if not is_scatter(new["scatter"]):
            raise ValueError("scatter is no sum of squares: it is not symmetric, or negative.")
        self.structure = state["structure"]
        self.seen, self.mean, self.scatter = new["count"], new["mean"], new["scatter"]
