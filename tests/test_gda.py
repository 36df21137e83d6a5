"""Log discriminants against scikit-learn's LDA and QDA, direct inverses and pseudo-inverses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bayestta.maths.covariance import shrink
from bayestta.maths.discriminant import log_discriminant
from bayestta.maths.stats import STRUCTURES, GaussianStats

SEEDS = range(20)
DTYPES = (torch.float32, torch.float64)
K, D = 4, 5
PRIORS = [0.1, 0.2, 0.3, 0.4]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}


def labelled(seed: int, n: int = 80) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels, and features to classify; float64, but exact in float32."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % K
    centre, root = torch.randn(K, D, generator=g), torch.randn(K, D, D, generator=g)
    root = torch.eye(D) + root / 4  # well conditioned
    z = centre[y] + (root[y] @ torch.randn(n, D, 1, generator=g)).squeeze(-1)
    return z.double(), y, torch.randn(12, D, generator=g).double()


def problem(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random z, means, (K,D,D) covariances and log priors."""
    g = torch.Generator().manual_seed(seed)
    z, mean = torch.randn(9, D, generator=g).to(dtype), torch.randn(K, D, generator=g).to(dtype)
    root = torch.randn(K, D, 2 * D, generator=g).to(dtype)
    return z, mean, root @ root.mT / (2 * D), torch.tensor(PRIORS, dtype=dtype).log()


def literal(z: Tensor, mean: Tensor, cov: Tensor, log_prior: Tensor, rtol: float | None) -> Tensor:
    """Class by class and sample by sample, with an explicit (pseudo-)inverse, in float64."""
    z, mean, cov, log_prior = (t.double() for t in (z, mean, cov, log_prior))
    score = torch.empty(len(z), len(mean), dtype=torch.float64)
    for k in range(len(mean)):
        own = cov if cov.ndim == 2 else cov[k]
        inverse = (
            own.inverse() if rtol is None else torch.linalg.pinv(own, rtol=rtol, hermitian=True)
        )
        for i in range(len(z)):
            gap = z[i] - mean[k]
            score[i, k] = log_prior[k] - 0.5 * gap @ inverse @ gap - 0.5 * own.logdet()
    return score


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", ["lsqr", "eigen"])
def test_shared_equals_scikit_learns_lda(solver: str, dtype: torch.dtype) -> None:
    for seed in SEEDS:
        z, y, new = labelled(seed)
        lda = LinearDiscriminantAnalysis(solver=solver, priors=PRIORS).fit(z.numpy(), y.numpy())
        mean, cov = (
            torch.from_numpy(np.asarray(a)).to(dtype) for a in (lda.means_, lda.covariance_)
        )
        ours = log_discriminant(new.to(dtype), mean, cov, torch.tensor(PRIORS, dtype=dtype).log())
        assert ours.dtype == dtype
        linear = torch.from_numpy(lda.decision_function(new.numpy())).to(dtype)
        same = [score - score.mean(1, keepdim=True) for score in (ours, linear)]  # up to a constant
        torch.testing.assert_close(*same, **tolerance(dtype))
        proba = torch.from_numpy(lda.predict_proba(new.numpy())).to(dtype)
        torch.testing.assert_close(ours.softmax(1), proba, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_per_class_equals_scikit_learns_qda(dtype: torch.dtype) -> None:
    for seed in SEEDS:
        z, y, new = labelled(seed)
        qda = QuadraticDiscriminantAnalysis(priors=PRIORS, store_covariance=True).fit(
            z.numpy(), y.numpy()
        )
        mean, cov = (
            torch.from_numpy(np.asarray(a)).to(dtype) for a in (qda.means_, qda.covariance_)
        )
        ours = log_discriminant(new.to(dtype), mean, cov, torch.tensor(PRIORS, dtype=dtype).log())
        theirs = torch.from_numpy(qda.decision_function(new.numpy())).to(dtype)
        torch.testing.assert_close(ours, theirs, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_in_two_batches_classify_as_lda_and_qda_do(dtype: torch.dtype) -> None:
    for seed in SEEDS:
        z, y, new = labelled(seed)
        hard = torch.eye(K, dtype=dtype)[y]
        lda = LinearDiscriminantAnalysis(solver="lsqr").fit(z.numpy(), y.numpy())
        qda = QuadraticDiscriminantAnalysis(store_covariance=True).fit(z.numpy(), y.numpy())
        biased = np.cov(z[y == 0].T.numpy(), ddof=0)
        divisor = qda.covariance_[0].trace() / biased.trace()  # n or n - 1, by its version
        for structure, theirs, scale in (("shared", lda, 1.0), ("per-class", qda, divisor)):
            prior = torch.zeros(K, D, dtype=dtype)
            stats = GaussianStats(prior, structure=structure, prior_count=0.0, wide=dtype)
            for part in (slice(0, 30), slice(30, None)):
                stats.update(z[part].to(dtype), hard[part])
            ours = log_discriminant(
                new.to(dtype), stats.mean, scale * stats.covariance(), stats.proportion.log()
            )
            proba = torch.from_numpy(theirs.predict_proba(new.numpy()))
            torch.testing.assert_close(ours.softmax(1).double(), proba, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_whitening_equals_the_direct_inverse(structure: str, dtype: torch.dtype) -> None:
    for seed in SEEDS:
        z, mean, cov, log_prior = problem(seed, dtype)
        cov = cov[0] if structure == "shared" else cov
        ours = log_discriminant(z, mean, cov, log_prior)
        want = literal(z, mean, cov, log_prior, None).to(dtype)
        torch.testing.assert_close(ours, want, **tolerance(dtype))
        same = log_discriminant(z, mean, cov, log_prior, rtol=1e-9)  # nothing to truncate
        torch.testing.assert_close(same, want, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_truncation_equals_the_pseudo_inverse(structure: str, dtype: torch.dtype) -> None:
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        z, mean = (
            torch.randn(9, 20, generator=g).to(dtype),
            torch.randn(K, 20, generator=g).to(dtype),
        )
        few = torch.randn(K, 7, 20, generator=g).to(dtype)
        cov = shrink(few.mT @ few / 7, 1e-4, 0.01)  # rank seven, and the ridge of the released code
        cov = cov[0] if structure == "shared" else cov
        log_prior = torch.tensor(PRIORS, dtype=dtype).log()
        rtol = 20 * torch.finfo(torch.float32).eps
        ours = log_discriminant(z, mean, cov, log_prior, rtol=rtol)
        want = literal(z, mean, cov, log_prior, rtol).to(dtype)
        loose = {"rtol": 2e-2, "atol": 2e-2}  # eigenvalues of 1e-6 have few digits in float32
        torch.testing.assert_close(
            ours, want, **(tolerance(dtype) if dtype.itemsize > 4 else loose)
        )
        full = log_discriminant(z.double(), mean.double(), cov.double(), log_prior.double())
        assert (full - ours).abs().max() > 100  # the cut is part of the method


def test_the_cut_is_relative_and_strict() -> None:
    z, mean, log_prior = torch.ones(1, 3).double(), torch.zeros(2, 3).double(), torch.zeros(2)
    cov = torch.diag(torch.tensor([4.0, 2.0, 1.0])).double()
    half = 0.5 * torch.tensor(8.0).double().log()
    for rtol, kept in ((0.24, 1.75), (0.25, 0.75), (0.5, 0.25), (1.0, 0.0)):
        got = log_discriminant(z, mean, cov, log_prior, rtol=rtol)
        torch.testing.assert_close(got, (-0.5 * kept - half).expand(1, 2))


def test_the_shared_form_is_the_per_class_form_with_equal_covariances() -> None:
    z, mean, cov, log_prior = problem(0, torch.float64)
    shared = log_discriminant(z, mean, cov[0], log_prior)
    torch.testing.assert_close(
        shared, log_discriminant(z, mean, cov[:1].expand(K, D, D), log_prior)
    )
    half = 0.5 * cov[0].logdet()
    assert not torch.allclose(shared, shared + half)  # the determinant is there, and cancels
    torch.testing.assert_close(shared.softmax(1), (shared + half).softmax(1))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_large_common_offset_does_not_cancel_in_float32(structure: str) -> None:
    for seed in SEEDS:
        z, mean, cov, log_prior = problem(seed, torch.float32)
        cov = cov[0] if structure == "shared" else cov
        far = z + 1e3  # rounded; means, as the statistics keep them, in float64
        centre = mean.double() + 1e3
        want = literal(far, centre, cov, log_prior, None)
        ours = log_discriminant(far, centre, cov, log_prior)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), want, rtol=1e-4, atol=1e-4)


class Watch(TorchDispatchMode):
    """Notes the largest tensor made and how often each operation runs."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.calls = 0, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        for value in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.numel())
        return made


@pytest.mark.parametrize(("structure", "factors"), [("shared", 1), ("per-class", 30)])
def test_no_tensor_of_samples_by_classes_by_features_and_no_repeated_inverse(
    structure: str, factors: int
) -> None:
    B, K, D = 60, 30, 20  # above stats.SMALL
    g = torch.Generator().manual_seed(0)
    z, weight = torch.randn(B, D, generator=g), torch.rand(B, K, generator=g)
    with Watch() as watch:
        stats = GaussianStats(torch.zeros(K, D), structure=structure)
        stats.update(z, weight)
        stats.merge(stats)
        stats.forget(0.5)
        cov = shrink(stats.covariance(), 0.3)
        log_discriminant(z, stats.mean, cov, stats.proportion.log())
    assert watch.largest <= max(
        K * D * D if structure == "per-class" else D * D, (B + K) * max(K, D)
    )
    assert watch.largest < B * K * D / 2
    assert watch.calls["linalg_cholesky_ex"] == factors
    assert not any("inv" in name or "svd" in name or "eigh" in name for name in watch.calls)
    with Watch() as watch:
        log_discriminant(z, stats.mean, cov, stats.proportion.log(), rtol=1e-6)
    assert watch.calls["_linalg_eigh"] == factors


def test_a_covariance_that_is_not_positive_definite_is_refused_with_the_cure() -> None:
    z, mean, cov, log_prior = problem(0, torch.float32)
    cov[2] -= 10 * torch.eye(D)
    with pytest.raises(ValueError, match=r"not positive definite .* shrink it .* or give rtol"):
        log_discriminant(z, mean, cov, log_prior)


def test_gradients_reach_z_and_half_precision_is_widened() -> None:
    z, mean, cov, log_prior = problem(1, torch.float32)
    leaf = z.clone().requires_grad_()
    log_discriminant(leaf, mean, cov[0], log_prior).sum().backward()
    assert leaf.grad is not None
    want = -torch.linalg.solve(cov[0], (K * z - mean.sum(0)).T).T
    torch.testing.assert_close(leaf.grad, want, rtol=1e-3, atol=1e-4)
    narrow = [t.bfloat16() for t in (z, mean)]
    wide = log_discriminant(*(t.float() for t in narrow), cov[0], log_prior)
    torch.testing.assert_close(
        log_discriminant(*narrow, cov[0], log_prior), wide, rtol=0.05, atol=0.2
    )
    assert log_discriminant(*narrow, torch.eye(D).bfloat16(), log_prior).dtype == torch.float32
