"""Box's M test of equal covariances, with the F approximations of the paper and its code."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import f as f_distribution
from torch import Tensor

from bayestta.maths.covariance import pool
from bayestta.names import unknown

FORMS = ("box", "paper", "released")
SAMPLES_PER_DIMENSION = 3  # in the smallest class, for Box's approximation to hold its level


@dataclass(frozen=True)
class BoxM:
    """The outcome of Box's M test of equal covariances.

    `usable` says whether the test can be believed: it could be carried out, every class has at
    least three samples per dimension (below, Box's approximation rejects too often: 47 % instead of
    5 % of equal covariances for ten classes of 12 samples in ten dimensions), and the largest F
    that the formula can give exceeds the critical one.
    """

    statistic: float  # F
    critical: float
    df1: float
    df2: float
    pvalue: float
    bound: float  # of F: df2/df1 for the published forms, infinite for Box's
    usable: bool
    m: float
    form: str
    reason: str = ""  # why it is not usable

    @property
    def rejects(self) -> bool:
        """Whether equal covariances are rejected; never by a test that could not be carried out."""
        return self.statistic > self.critical

    def record(self) -> dict[str, Any]:
        """For results: what JSON can hold, with None for a number that is not finite."""
        fields = {**asdict(self), "rejects": self.rejects}
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in fields.items()
        }


def box_m(count: Tensor, cov: Tensor, *, level: float = 0.05, form: str = "box") -> BoxM:
    """Box's M test of equal covariances from counts (K,) and covariances (K,d,d).

    Parameters
    ----------
    form
        `box`: Box's F approximation (1949) of the textbooks; covariances are taken as unbiased
        (scatter over n - 1). `paper` and `released`: the formulas of the BayesTTA paper and of its
        code, to the letter, which are bounded by df2/df1; covariances are scatter over n.

    >>> same = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    >>> outcome = box_m(torch.tensor([50.0, 50.0]), same)
    >>> outcome.statistic, outcome.usable, outcome.rejects
    (0.0, True, False)
    """
    if form not in FORMS:
        raise ValueError(unknown("form of Box's test", form, FORMS))
    if len(count) < 2:
        raise ValueError(f"{len(count)} class has no covariance to compare with: give at least 2.")
    count, cov = count.double(), cov.double()
    K, d = len(count), cov.shape[-1]
    df1 = d * (d + 1) * (K - 1) / 2
    total, smallest = float(count.sum()), float(count.min())

    def give_up(reason: str) -> BoxM:
        nan = math.nan
        return BoxM(nan, nan, df1, nan, nan, nan, False, nan, form, reason)

    if total - K <= K - 1:
        return give_up(f"{total:.1f} samples are too few for {K} classes")
    pooled = pool(count, cov, epsilon=1e-8 if form == "released" else 0.0)
    sign, log_det = torch.linalg.slogdet(torch.cat([pooled[None], cov]))
    if not bool((sign > 0).all()):
        return give_up("a covariance is not positive definite")
    if form != "released" and smallest <= 1:
        return give_up(f"a class has {smallest:.2g} samples, no more than one")
    m = float((count - 1) @ (log_det[0] - log_det[1:]))
    solved = {"box": _box, "paper": _paper, "released": _released}[form](m, count, d, df1)
    if isinstance(solved, str):
        return give_up(solved)
    statistic, df2, bound, reason = solved
    critical = float(f_distribution.ppf(1 - level, df1, df2))
    pvalue = float(f_distribution.sf(statistic, df1, df2))
    if not reason and bound <= critical:
        reason = f"F cannot exceed {bound:.3g}, below the critical {critical:.3g}"
    if not reason and smallest < SAMPLES_PER_DIMENSION * d:
        reason = f"a class has {smallest:.1f} samples in {d} dimensions"
    return BoxM(statistic, critical, df1, df2, pvalue, bound, not reason, m, form, reason)


# Each form gives F, df2, the bound of F and a doubt, or says why it cannot be carried out.
Solved = tuple[float, float, float, str] | str


def _correction(freedom: Tensor, total: float, d: int, K: int) -> float:
    """Box's c1, by which the scale of M departs from one; `freedom` n_k - 1, `total` N - K."""
    inverse = float((1 / freedom).sum()) - 1 / total
    return (2 * d * d + 3 * d - 1) / (6 * (d + 1) * (K - 1)) * inverse


def _box(m: float, count: Tensor, d: int, df1: float) -> Solved:
    K, freedom = len(count), count - 1
    total = float(freedom.sum())
    c1 = _correction(freedom, total, d, K)
    squares = float((1 / freedom**2).sum()) - 1 / total**2
    gap = (d - 1) * (d + 2) / (6 * (K - 1)) * squares - c1 * c1
    if gap == 0:
        return "the second correction vanishes"
    df2 = (df1 + 2) / abs(gap)
    if gap > 0:
        factor = 1 - c1 - df1 / df2
        if factor <= 0:
            return f"the scale of F, {factor:.3g}, is not positive"
        return m * factor / df1, df2, math.inf, ""
    limit = df2 / (1 - c1 + 2 / df2)
    if limit <= 0:
        return f"the range of M, up to {limit:.3g}, is empty"
    statistic = df2 * m / (df1 * (limit - m)) if m < limit else math.inf
    return statistic, df2, math.inf, ""


def _paper(m: float, count: Tensor, d: int, df1: float) -> Solved:
    K, total = len(count), float(count.sum())
    c = 1 - _correction(count - 1, total - K, d, K)
    rest = total - 2 * K + 1
    if c <= 0:
        return f"the correction c = {c:.3g} is not positive"
    df2 = (df1 + 2) / (d * (d + 1) * (K - 1) * (K + 1) / (6 * rest) + 1e-8)
    scaled = m / c
    return scaled / (df1 * (1 + scaled / df2)), df2, df2 / df1, ""


def _released(m: float, count: Tensor, d: int, df1: float) -> Solved:
    K, total = len(count), float(count.sum())
    rest = total - 2 * K
    if rest <= 0:
        return f"N - 2K = {rest:.3g} is not positive"
    c = _correction(count[count >= 11] - 1 + 1e-8, total - K, d, K)
    df2 = (df1 + 2) / (d * (d + 1) * (K - 1) * (K + 1) / (6 * rest)) + 1e-8
    scaled = m * (1 - c)
    divisor = df1 * (c + scaled / df2)
    if divisor == 0:
        return "the divisor of F is zero"
    doubt = "" if c >= 0 else f"the correction {c:.3g} is negative, which voids the bound of F"
    return scaled / divisor, df2, df2 / df1, doubt
