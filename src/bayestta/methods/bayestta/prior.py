"""An empirical-Bayes prior for the class means.

The text says how classes lie relative to each other; where images lie and how far apart their
classes are, the stream says. With soft counts n_k, class means m_k, N = sum n_k and text
prototypes w_k:

    zbar = sum n_k m_k / N,   tbar = sum n_k w_k / N    weighted alike: right under label skew
    a    = sum n_k <m_k - zbar, w_k - tbar> / sum n_k |w_k - tbar|^2   the slope of a regression
    pi_k = zbar + a (w_k - tbar)                                       where class k is expected
    sigma2 = tr W / (N D)                                              W: scatter within classes
    tau2   = (sum n_k |m_k - pi_k|^2 / D - K sigma2) / N               how far classes stray
    kappa  = sigma2 / tau2                                             samples that pi_k is worth
    foretold = v / (v + tau2),  v = a^2 sum n_k |w_k - tbar|^2 / (N D)   what the text foretells
    G    = 0.9 cos(w_k - tbar, w_l - tbar) + 0.1 [k = l]               which classes stray alike
    mu   = pi + G (diag(n) G + kappa I)^-1 diag(n) (m - pi)

What the text does not tell of a class, it does not tell of classes with similar names either: m -
pi is taken for a draw from N(0, tau2 G), seen with noise sigma2 / n_k. If classes strayed each for
itself, G = I, mu_k would be (kappa pi_k + n_k m_k) / (kappa + n_k).

A constant offset between images and text in a direction of its own (the modality gap of CLIP) goes
into zbar and tbar, and changes nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bayestta.maths.covariance import shrink
from bayestta.maths.discriminant import Discriminant
from bayestta.maths.stats import GaussianStats

SLOPE = (0.0, 2.0)
KAPPA = (0.5, 64.0)  # samples that the expected mean of a class is worth
KIN = 0.9  # share of how a class strays from where it is expected that similar names have in common
RIDGE = 3.0  # the covariance is shrunk as if RIDGE * D samples had been isotropic
SPREAD = 1e-9  # mean squared distance of unit features from their classes, below it is rounding
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class Expected:
    """Class means as the prior and the evidence make them."""

    mean: Tensor  # (K,D)
    slope: float
    kappa: float
    within: float  # variance within classes, per dimension
    foretold: float  # share of what sets the classes apart that the text foretells


def expected_means(stats: GaussianStats, text: Tensor) -> Expected:
    """The posterior means of all classes; one that was never seen is where text and kin put it."""
    n, m, w = stats.seen, stats.mean, text.to(stats.mean)
    (K, D), N = w.shape, n.sum().clamp_min(TINY)
    zbar, tbar = n @ m / N, n @ w / N
    off, apart = m - zbar, w - tbar  # (K,D)
    power = (n @ apart.square().sum(1)).clamp_min(TINY)
    slope = (n @ (off * apart).sum(1) / power).clamp(*SLOPE)
    pi = zbar + slope * apart
    scatter = stats.scatter.diagonal(dim1=-2, dim2=-1).sum()
    within = (scatter / (N * D)).clamp_min(TINY)
    stray = (n @ (m - pi).square().sum(1) / D - K * within) / N
    kappa = (within / stray.clamp_min(1e-12)).clamp(*KAPPA)
    layout = slope.square() * power / (N * D)
    foretold = layout / (layout + stray.clamp_min(0)).clamp_min(TINY)
    own, alike = torch.eye(K, dtype=w.dtype, device=w.device), normalize(apart, dim=1)
    kin = KIN * alike @ alike.T + (1 - KIN) * own  # (K,K)
    mean = pi + kin @ torch.linalg.solve(n[:, None] * kin + kappa * own, n[:, None] * (m - pi))
    return Expected(mean, float(slope), float(kappa), float(within), float(foretold))


def regularised(stats: GaussianStats, mean: Tensor) -> Tensor | None:
    """The covariance about given means, (D,D) or (K,D,D), shrunk by what its evidence lacks.

    Scatter about mu_k is that about m_k plus n_k (m_k - mu_k)(m_k - mu_k)'. What is missing is
    isotropic, at the variance of all classes: a class that was not seen has none of its own. None
    where there is no variance at all, as in a single image.
    """
    n, off, D = stats.seen, stats.mean - mean, mean.shape[1]
    if stats.structure == "shared":
        scatter, count = stats.scatter + off.T @ (n[:, None] * off), n.sum()
    else:
        outer = torch.einsum("k,ki,kj->kij", n, off, off)
        scatter, count = stats.scatter + outer.to(stats.wide), n
    trace = scatter.diagonal(dim1=-2, dim2=-1).sum()
    variance = float(trace / n.sum().clamp_min(TINY)) / D
    if not variance * D > SPREAD:
        return None
    count = count.clamp_min(TINY)
    share = RIDGE * D / (count + RIDGE * D)
    return shrink(scatter, share, variance, scale=1 / count)


def fit(stats: GaussianStats, text: Tensor) -> tuple[Discriminant | None, Expected]:
    """The discriminants of an even stream, and their means.

    None where the evidence has no spread: before the first image, and after one alone.
    """
    expected = expected_means(stats, text)
    cov = regularised(stats, expected.mean)
    even = torch.full_like(stats.seen, -math.log(len(text)))
    return None if cov is None else Discriminant(expected.mean, cov, even), expected
