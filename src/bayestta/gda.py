"""Gaussian discriminant analysis: log discriminants for a shared or a per-class covariance."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.covariance import truncated_eigen


def log_discriminant(
    z: Tensor, mean: Tensor, cov: Tensor, log_prior: Tensor, *, rtol: float | None = None
) -> Tensor:
    """log pi_k + log N(z | mean_k, cov) without the constant, for z (B,D) and mean (K,D): (B,K).

    Parameters
    ----------
    cov
        (D,D) shared: z and the means are whitened once; or (K,D,D): a Cholesky factor a class.
        Positive definite, unless `rtol` is given.
    rtol
        Truncate instead: directions whose eigenvalue is at most `rtol` times the largest are
        dropped, as by a pseudo-inverse. The determinant is that of the whole matrix.

    >>> mean, one = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.eye(2)
    >>> log_discriminant(torch.zeros(1, 2), mean, one, torch.zeros(2))
    tensor([[ 0., -2.]])
    """
    kind = torch.promote_types(torch.promote_types(z.dtype, cov.dtype), torch.float32)
    cov, log_prior = cov.to(kind), log_prior.to(kind)
    if cov.ndim == 2:
        distance, half_log_det = _mahalanobis(z, mean, cov, rtol)  # (B,K), ()
        return log_prior - 0.5 * distance - half_log_det
    columns = []
    for k in range(len(mean)):
        distance, half_log_det = _mahalanobis(z, mean[k : k + 1], cov[k], rtol)  # (B,1), ()
        columns.append(log_prior[k] - 0.5 * distance - half_log_det)
    return torch.cat(columns, dim=1)


def _mahalanobis(z: Tensor, mean: Tensor, cov: Tensor, rtol: float | None) -> tuple[Tensor, Tensor]:
    """Squared distances (B,K) under one covariance, and half of its log determinant."""
    # |a - b|^2 is taken apart below, which cancels less when both start near the origin; the
    # subtraction comes before any rounding to the precision of the covariance
    origin = mean.mean(0)
    points = torch.cat([z - origin, mean - origin]).to(cov.dtype)  # (B+K,D)
    if rtol is None:
        factor, failed = torch.linalg.cholesky_ex(cov)
        if failed:
            raise ValueError(
                f"a covariance in {len(cov)} dimensions is not positive definite (minor "
                f"{int(failed)}): shrink it towards a multiple of the identity, or give rtol."
            )
        white = torch.linalg.solve_triangular(factor, points.T, upper=False).T
        half_log_det = factor.diagonal().log().sum()
    else:
        whiten, half_log_det = truncated_eigen(cov, rtol)
        white = points @ whiten
    a, b = white[: len(z)], white[len(z) :]
    distance = a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)
    return distance.clamp_min(0), half_log_det
