"""Gaussian discriminant analysis: log discriminants for a shared or a per-class covariance."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from bayestta.maths.covariance import truncated_eigen


def log_discriminant(
    z: Tensor, mean: Tensor, cov: Tensor, log_prior: Tensor, *, rtol: float | None = None
) -> Tensor:
    """log pi_k + log N(z | mean_k, cov) without the constant, for z (B,D) and mean (K,D): (B,K).

    Parameters
    ----------
    cov
        (D,D) shared: z and the means are whitened once; or (K,D,D): one Cholesky factor per class.
        Positive definite, unless `rtol` is given.
    rtol
        Truncate instead: directions whose eigenvalue is at most `rtol` times the largest are
        dropped, as by a pseudo-inverse. The determinant is that of the whole matrix.

    >>> mean, one = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.eye(2)
    >>> log_discriminant(torch.zeros(1, 2), mean, one, torch.zeros(2))
    tensor([[ 0., -2.]])
    """
    kind = torch.promote_types(torch.promote_types(z.dtype, cov.dtype), torch.float32)
    return Discriminant(mean, cov.to(kind), log_prior, rtol=rtol)(z)


class Discriminant:
    """Gaussian classes whose covariance is factored once, to be asked about many samples.

    >>> mean, one = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.eye(2)
    >>> classes = Discriminant(mean, one, torch.zeros(2))
    >>> classes.contrast(torch.tensor([[5.0, 0.0]]))
    tensor([[-4.,  4.]])
    """

    def __init__(
        self, mean: Tensor, cov: Tensor, log_prior: Tensor, *, rtol: float | None = None
    ) -> None:
        self.log_prior = log_prior.to(cov.dtype)
        if cov.ndim == 2:
            self._white = [White(mean, cov, rtol)]
        else:
            self._white = [White(mean[k : k + 1], cov[k], rtol) for k in range(len(mean))]

    def __call__(self, z: Tensor) -> Tensor:
        """log pi_k + log N(z | k), without the constant: (B,K)."""
        scores = [-0.5 * one.distance(z) - one.half_log_det for one in self._white]
        return self.log_prior + torch.cat(scores, dim=1)

    def contrast(self, z: Tensor) -> Tensor:
        """The same less its mean over the classes, which one covariance makes linear in z."""
        shared = len(self._white) == 1
        score = self.log_prior + self._white[0].linear(z) if shared else self(z)
        return score - score.mean(1, keepdim=True)


class White:
    """Means (k,D) in the space where their one covariance is the identity."""

    def __init__(self, mean: Tensor, cov: Tensor, rtol: float | None) -> None:
        # |a - b|^2 is taken apart below, which cancels less when both start near the origin; the
        # subtraction comes before any rounding to the precision of the covariance
        self.origin, self.kind = mean.mean(0), cov.dtype
        self.mean = (mean - self.origin).to(self.kind)  # (k,D)
        self.factor: Tensor | None = None
        if rtol is not None:
            self.whiten, self.half_log_det = truncated_eigen(cov, rtol)
            return
        self.factor, failed = torch.linalg.cholesky_ex(cov)
        if failed:
            raise ValueError(
                f"a covariance in {len(cov)} dimensions is not positive definite (minor "
                f"{int(failed)}): shrink it towards a multiple of the identity, or give rtol."
            )
        self.half_log_det = self.factor.diagonal().log().sum()

    def _apply(self, points: Tensor) -> Tensor:
        if self.factor is None:
            return points @ self.whiten
        white: Tensor = torch.linalg.solve_triangular(self.factor, points.T, upper=False)
        return white.T

    def distance(self, z: Tensor) -> Tensor:
        """Squared, (B,k)."""
        white = self._apply(torch.cat([(z - self.origin).to(self.kind), self.mean]))
        a, b = white[: len(z)], white[len(z) :]
        return (a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)).clamp_min(0)

    @cached_property
    def plane(self) -> tuple[Tensor, Tensor]:
        """Weights (D,k) and biases (k,) of minus half the squared distance, but for |z|^2."""
        if self.factor is None:
            weight = self.whiten @ (self.mean @ self.whiten).T
        else:
            white = torch.linalg.solve_triangular(self.factor, self.mean.T, upper=False)
            weight = torch.linalg.solve_triangular(self.factor.mT, white, upper=True)
        middle = self.origin.to(self.kind) + 0.5 * self.mean  # (k,D)
        return weight, -(middle.T * weight).sum(0)

    def linear(self, z: Tensor) -> Tensor:
        """Minus half the squared distance, but for |z|^2: (B,k), without whitening z."""
        weight, bias = self.plane
        return torch.addmm(bias, z.to(self.kind), weight)
