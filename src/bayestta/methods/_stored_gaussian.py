"""Gaussian classes with one ridged covariance, around the stored features of OGA and ADAPT."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.methods._entropy_cache import Cache

FLAT = torch.finfo(torch.float64).eps  # variance of unit features below what float32 tells apart


def stored(cache: Cache) -> tuple[Tensor, Tensor]:
    """The features of a cache (n,D) in float64, and their classes (n,)."""
    k, place = cache.filled.nonzero(as_tuple=True)
    return cache["feature"][k, place].double(), k


def spread(residual: Tensor) -> tuple[Tensor, Tensor]:
    """Centred residuals (n,D), and the trace of their covariance."""
    centred = residual - residual.mean(0)
    return centred, centred.square().sum() / (len(residual) - 1)


def ridged(residual: Tensor, mean: Tensor) -> Tensor:
    """D ((n-1) S + tr(S) I)^-1 times the means (K,D), S the covariance of the residuals: (D,K).

    The ridge keeps the condition number below n, so that the official pseudo-inverse is an inverse;
    without any spread it is zero. Fewer residuals than features are solved for among themselves
    (Woodbury), and no D x D matrix is made.

    >>> residual = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    >>> ridged(residual, torch.eye(2, dtype=torch.float64))
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    (n, D), (centred, trace) = residual.shape, spread(residual)
    if trace <= FLAT:
        return torch.zeros_like(mean.T)
    square = centred @ centred.T if n < D else centred.T @ centred
    square.diagonal().add_(trace)
    factor = torch.linalg.cholesky(square)
    if n >= D:
        return D * torch.cholesky_solve(mean.T, factor)
    inner = torch.cholesky_solve(centred @ mean.T, factor)  # (n,K)
    return D / trace * (mean.T - centred.T @ inner)


def linear_score(z: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
    """-(z - m)' L (z - m) / 2 of every mean m, but for z' L z, by weight = L m (D,K): (B,K)."""
    return z.to(weight.dtype) @ weight - 0.5 * (mean.T * weight).sum(0)
