"""Gaussian discriminant analysis: log discriminants for a shared or a per-class covariance."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.covariance import truncated_eigen


def log_discriminant(z: Tensor, mean: Tensor, cov: Tensor, log_prior: Tensor, *, rtol: float | None = None) -> Tensor:
    """log pi_k + log N(z | mean_k, cov) without the constant, for z (B,D) and mean (K,D): (B,K).

    Parameters
    ----------
    cov
        (D,D) shared: z and the means are whitened once; or (K,D,D): a Cholesky factor a class. Positive definite, unless
        `rtol` is given.
    rtol
        Truncate instead: directions whose eigenvalue is at most `rtol` times the largest are dropped, as by a
        pseudo-inverse. The determinant is that of the whole matrix.

    >>> mean, one = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.eye(2)
    >>> log_discriminant(torch.zeros(1, 2), mean, one, torch.zeros(2))
    tensor([[ 0., -2.]])
    """
    kind = torch.promote_types(z.dtype, cov.dtype)
    z, mean, cov = z.to(kind), mean.to(kind), cov.to(kind)
    if cov.ndim == 2:
        distance, half_log_det = _mahalanobis(z, mean, cov, rtol)
    else:
        parts = [_mahalanobis(z, mean[k : k + 1], cov[k], rtol) for k in range(len(mean))]
        distance = torch.cat([d for d, _ in parts], dim=1)
        half_log_det = torch.stack([h for _, h in parts])
    return log_prior.to(kind) - 0.5 * distance - half_log_det


def _mahalanobis(z: Tensor, mean: Tensor, cov: Tensor, rtol: float | None) -> tuple[Tensor, Tensor]:
    """Squared distances (B,K) under one covariance, and half of its log determinant."""
    centre = mean.mean(0)  # differences of whitened vectors cancel less when both start near the origin
    if rtol is None:
        factor = torch.linalg.cholesky(cov)
        white = torch.linalg.solve_triangular(factor, torch.cat([z, mean]).sub(centre).T, upper=False).T
        half_log_det = factor.diagonal().log().sum()
    else:
        whiten, half_log_det = truncated_eigen(cov, rtol)
        white = torch.cat([z, mean]).sub(centre) @ whiten
    a, b = white[: len(z)], white[len(z) :]
    distance = a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)
    return distance.clamp_min(0), half_log_det
