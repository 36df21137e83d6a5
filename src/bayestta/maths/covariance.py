"""Covariances: shrinkage, pooling, the truncated inverse and PCA."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-4  # of the largest variance: what sums of squares in float32 may be off by


def shrink(
    cov: Tensor,
    amount: float | Tensor,
    variance: float | None = None,
    *,
    scale: Tensor | None = None,
) -> Tensor:
    """(1 - amount) cov + amount * variance * I; the variance is the diagonal's mean unless given.

    `amount` is a number for all, or (K,) for the covariances (K,D,D) of K classes; so is `scale`,
    by which `cov` is multiplied first, in the same pass.

    >>> shrink(torch.diag(torch.tensor([1.0, 3.0])), 0.5)
    tensor([[1.5000, 0.0000],
            [0.0000, 2.5000]])
    """
    share = torch.as_tensor(amount, dtype=cov.dtype, device=cov.device)
    scale = cov.new_ones(()) if scale is None else scale.to(cov.dtype)
    level = scale * cov.diagonal(dim1=-2, dim2=-1).mean(-1) if variance is None else variance
    shrunk = ((1 - share) * scale)[..., None, None] * cov
    shrunk.diagonal(dim1=-2, dim2=-1).add_((share * level)[..., None])
    return shrunk


def pool(count: Tensor, cov: Tensor, epsilon: float = 0.0) -> Tensor:
    """The pooled covariance (d,d) of counts (K,) and covariances (K,d,d), weighted by n_k - 1."""
    weight = count - 1
    return torch.einsum("k,kij->ij", weight, cov) / (weight.sum() + epsilon)


def truncated_eigen(cov: Tensor, rtol: float) -> tuple[Tensor, Tensor]:
    """A with A A' the pseudo-inverse cut at rtol * largest, and half the whole log determinant.

    In float64 inside: a ridge of 1e-6 drowns in float32, and the determinant with it. Directions
    that are not positive even so count as the rounding error of `cov`.
    """
    values, vectors = torch.linalg.eigh(cov.double())
    top = values.abs().max()
    kept = values > rtol * top
    whiten = vectors[:, kept] / values[kept].sqrt()  # (D, number kept)
    noise = (torch.finfo(cov.dtype).eps * top).clamp_min(torch.finfo(torch.float64).tiny)
    half_log_det = 0.5 * torch.where(values > 0, values, noise).log().sum()
    return whiten.to(cov.dtype), half_log_det.to(cov.dtype)


def is_scatter(matrix: Tensor, *, definite: bool = False) -> bool:
    """Whether (D,D), or each of (K,D,D), is symmetric and has no negative direction.

    With `definite`, no direction may be zero either. Tensors without values (`meta`) pass.

    >>> is_scatter(torch.eye(2)), is_scatter(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    (True, False)
    """
    if matrix.is_meta:
        return True
    if matrix.ndim > 2:
        return all(is_scatter(one, definite=definite) for one in matrix)  # no second (K,D,D)
    slack = float(ROUNDING * matrix.diagonal().abs().max().clamp_min(1.0))  # features are units
    if (matrix - matrix.T).abs().max() > slack:
        return False
    if not definite:
        matrix = matrix.to(torch.float64, copy=True)
        matrix.diagonal().add_(slack + torch.finfo(torch.float32).tiny)
    return not torch.linalg.cholesky_ex(matrix)[1]


def pca_basis(z: Tensor, d: int) -> Tensor:
    """The first d principal directions (D,d) of a batch (B,D); signs are those of the SVD."""
    if min(z.shape) < d:
        raise ValueError(
            f"{z.shape[0]} samples of {z.shape[1]} features have no {d} principal components: "
            "use fewer."
        )
    centred = z.double() - z.double().mean(0)
    directions: Tensor = torch.linalg.svd(centred, full_matrices=False)[2]
    return directions[:d].T


def pca(z: Tensor, d: int) -> Tensor:
    """The first d principal components of a batch: (B,D) -> (B,d)."""
    return (z.double() - z.double().mean(0)) @ pca_basis(z, d)


def soft_covariances(z: Tensor, weight: Tensor, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """Counts (K,) and covariances (K,d,d) of soft classes, scatter over count.

    `ridge` joins the diagonal of the scatter, before the division. A class without any weight has
    the covariance zero.
    """
    z, weight = z.double(), weight.double()
    count = weight.sum(0)
    divisor = count.clamp_min(torch.finfo(count.dtype).tiny)
    mean = weight.T @ z / divisor[:, None]
    scatter = torch.stack(
        [  # centred, class by class: no (B,K,d) tensor
            (w[:, None] * (z - m)).T @ (z - m) for w, m in zip(weight.T, mean, strict=True)
        ]
    )
    scatter.diagonal(dim1=-2, dim2=-1).add_(ridge * (count > 0)[:, None])
    return count, scatter / divisor[:, None, None]
