"""Covariances: shrinkage, pooling, the truncated inverse, PCA, and Box's M with its F approximations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import f as f_distribution
from torch import Tensor

from bayestta.names import unknown

FORMS = ("box", "paper", "released")


def shrink(cov: Tensor, amount: float | Tensor, variance: float | None = None) -> Tensor:
    """(1 - amount) cov + amount * variance * I; the variance is the mean of the diagonal unless it is given.

    >>> shrink(torch.diag(torch.tensor([1.0, 3.0])), 0.5)
    tensor([[1.5000, 0.0000],
            [0.0000, 2.5000]])
    """
    D = cov.shape[-1]
    if variance is None:
        level = cov.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    else:
        level = torch.as_tensor(variance, dtype=cov.dtype, device=cov.device)
    return (1 - amount) * cov + amount * level * torch.eye(D, dtype=cov.dtype, device=cov.device)


def pool(count: Tensor, cov: Tensor, epsilon: float = 0.0) -> Tensor:
    """The pooled covariance (d,d) of classes with counts (K,) and covariances (K,d,d), weighted by n_k - 1."""
    weight = count - 1
    return (weight[:, None, None] * cov).sum(0) / (weight.sum() + epsilon)


def truncated_eigen(cov: Tensor, rtol: float) -> tuple[Tensor, Tensor]:
    """A matrix A with A A' the pseudo-inverse of a covariance cut at rtol * largest, and half the log determinant."""
    values, vectors = torch.linalg.eigh(cov)
    kept = values > rtol * values.abs().max()
    whiten = vectors[:, kept] / values[kept].sqrt()
    return whiten, 0.5 * values.clamp_min(torch.finfo(cov.dtype).tiny).log().sum()


def pca(z: Tensor, d: int) -> Tensor:
    """The first d principal components of a batch: (B,D) -> (B,d); signs are those of the SVD."""
    if min(z.shape) < d:
        raise ValueError(f"{z.shape[0]} samples of {z.shape[1]} features have no {d} principal components: use fewer.")
    centred = z.double() - z.double().mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    return centred @ directions[:d].T


def soft_covariances(z: Tensor, weight: Tensor, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """Counts (K,) and covariances (K,d,d), scatter over count, of soft classes; `ridge` joins the scatter."""
    z, weight = z.double(), weight.double()
    count = weight.sum(0)
    mean = weight.T @ z / count[:, None]
    scatter = torch.einsum("bk,bi,bj->kij", weight, z, z) - torch.einsum("k,ki,kj->kij", count, mean, mean)
    scatter = scatter + ridge * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    return count, scatter / count[:, None, None]


@dataclass(frozen=True)
class BoxM:
    """The outcome of Box's M test of equal covariances.

    `usable` says whether the test can be believed: every class has more samples than dimensions and its covariance is
    positive definite, the degrees of freedom exist, and the largest F that the formula can give exceeds the critical one.
    """

    statistic: float  # F
    critical: float
    df1: float
    df2: float
    pvalue: float
    bound: float  # the largest value F can take
    usable: bool
    m: float
    form: str
    reason: str = ""  # why it is not usable

    @property
    def rejects(self) -> bool:
        """Whether equal covariances are rejected; a test that could not be carried out rejects nothing."""
        return self.statistic > self.critical

    def record(self) -> dict[str, Any]:
        """For results: numbers that JSON can hold."""
        return {k: None if v != v or v in (float("inf"), float("-inf")) else v for k, v in asdict(self).items()}


def box_m(count: Tensor, cov: Tensor, *, level: float = 0.05, form: str = "box") -> BoxM:
    """Box's M test of equal covariances from counts (K,) and covariances (K,d,d).

    Parameters
    ----------
    form
        `box`: Box's F approximation (1949) of the textbooks; covariances are taken as unbiased (scatter over n - 1).
        `paper` and `released`: the formulas of the BayesTTA paper and of its code, to the letter, which are bounded by
        df2/df1; covariances are scatter over n.

    >>> same = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    >>> outcome = box_m(torch.tensor([50.0, 50.0]), same)
    >>> outcome.statistic, outcome.usable, outcome.rejects
    (0.0, True, False)
    """
    if form not in FORMS:
        raise ValueError(unknown("form of Box's test", form, FORMS))
    count, cov = count.double(), cov.double()
    K, d = len(count), cov.shape[-1]
    df1 = d * (d + 1) * (K - 1) / 2
    total = float(count.sum())
    weight = count - 1
    pooled = pool(count, cov, epsilon=1e-8 if form == "released" else 0.0)
    sign, log_det = torch.linalg.slogdet(torch.cat([pooled[None], cov]))
    degrees = float(weight.sum())

    def give_up(reason: str) -> BoxM:
        nan = float("nan")
        return BoxM(nan, nan, df1, nan, nan, nan, False, nan, form, reason)

    if total - K <= K - 1 or degrees <= 0:
        return give_up(f"{total:.0f} samples are too few for {K} classes")
    if not bool((sign > 0).all()):
        return give_up("a covariance is not positive definite")
    if form == "paper" and bool((count <= 1).any()):
        return give_up("a class has no more than one sample")
    m = degrees * float(log_det[0]) - float((weight * log_det[1:]).sum())
    enough = bool((count > d + 1).all())
    solve = {"box": _box, "paper": _paper, "released": _released}[form]
    solved = solve(m, count, d, K, total, df1)
    if isinstance(solved, str):
        return give_up(solved)
    statistic, df2, bound = solved
    critical = float(f_distribution.ppf(1 - level, df1, df2))
    pvalue = float(f_distribution.sf(statistic, df1, df2))
    reason = "" if enough else f"a class has {float(count.min()):.1f} samples in {d} dimensions"
    if bound <= critical:
        reason = f"F cannot exceed {bound:.3g}, below the critical {critical:.3g}"
    return BoxM(statistic, critical, df1, df2, pvalue, bound, not reason, m, form, reason)


def _spread(count: Tensor, total: float, K: int, d: int) -> float:
    """Box's c1: how far the scaling of M departs from one."""
    inverse = float((1 / (count - 1)).sum()) - 1 / (total - K)
    return (2 * d * d + 3 * d - 1) / (6 * (d + 1) * (K - 1)) * inverse


def _box(m: float, count: Tensor, d: int, K: int, total: float, df1: float) -> tuple[float, float, float] | str:
    if bool((count <= 1).any()):
        return "a class has no more than one sample"
    c1 = _spread(count, total, K, d)
    squares = float((1 / (count - 1) ** 2).sum()) - 1 / (total - K) ** 2
    c2 = (d - 1) * (d + 2) / (6 * (K - 1)) * squares
    gap = c2 - c1 * c1
    if gap == 0:
        return "the second correction vanishes"
    df2 = (df1 + 2) / abs(gap)
    if gap > 0:
        scale = df1 / (1 - c1 - df1 / df2)
        if scale <= 0:
            return "the scale of F is not positive"
        return m / scale, df2, float("inf")
    scale = df2 / (1 - c1 + 2 / df2)
    if scale <= m:
        return f"M = {m:.3g} is beyond the range of the approximation"
    return df2 * m / (df1 * (scale - m)), df2, float("inf")


def _paper(m: float, count: Tensor, d: int, K: int, total: float, df1: float) -> tuple[float, float, float] | str:
    c = 1 - _spread(count, total, K, d)
    rest = total - 2 * K + 1
    if rest <= 0 or c <= 0:
        return f"the correction c = {c:.3g} or N - 2K + 1 = {rest:.3g} is not positive"
    df2 = (df1 + 2) / (d * (d + 1) * (K - 1) * (K + 1) / (6 * rest) + 1e-8)
    scaled = m / c
    return scaled / (df1 * (1 + scaled / df2)), df2, df2 / df1


def _released(m: float, count: Tensor, d: int, K: int, total: float, df1: float) -> tuple[float, float, float] | str:
    rest = total - 2 * K
    if rest <= 0:
        return f"N - 2K = {rest:.3g} is not positive"
    large = count[count >= 11]
    inverse = float((1 / (large - 1 + 1e-8)).sum()) - 1 / (total - K)
    a = 1 - (2 * d * d + 3 * d - 1) / (6 * (d + 1) * (K - 1)) * inverse
    df2 = (df1 + 2) / (d * (d + 1) * (K - 1) * (K + 1) / (6 * rest)) + 1e-8
    scaled = m * a
    divisor = df1 * (1 - a + scaled / df2)
    if divisor == 0:
        return "the divisor of F is zero"
    return scaled / divisor, df2, df2 / df1
