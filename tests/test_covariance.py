"""Covariances and Box's M against scikit-learn, pingouin, SciPy and literal transcriptions."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pingouin
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import f as f_distribution
from sklearn.covariance import shrunk_covariance
from sklearn.decomposition import PCA
from torch import Tensor

from bayestta.maths.box_m import FORMS, box_m
from bayestta.maths.covariance import (
    pca,
    pca_basis,
    pool,
    shrink,
    soft_covariances,
    truncated_eigen,
)

SEEDS = range(20)
DTYPES = (torch.float32, torch.float64)
Array = NDArray[np.float64]


def covariances(seed: int, K: int, d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    root = torch.randn(K, d, 3 * d, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return root @ root.mT / (3 * d)


def soft(seed: int, B: int, K: int, d: int, sharp: float = 3.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    z, logits = torch.randn(B, d, generator=g), torch.randn(B, K, generator=g)
    return z.double(), (sharp * logits.double()).softmax(1)


# --- shrinkage, pooling, the truncated inverse, PCA, soft covariances ---


@pytest.mark.parametrize("dtype", DTYPES)
def test_shrink_equals_scikit_learn(dtype: torch.dtype) -> None:
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    for seed in SEEDS:
        cov, amount = covariances(seed, 3, 5, dtype), [0.0, 0.3, 1.0]
        one = [shrunk_covariance(c.double().numpy(), a) for c, a in zip(cov, amount, strict=True)]
        shrunk = shrink(cov, torch.tensor(amount))
        assert shrunk.dtype == dtype
        np.testing.assert_allclose(shrunk, one, rtol=tolerance, atol=1e-7)
        np.testing.assert_allclose(shrink(cov, 0.3)[1], one[1], rtol=tolerance, atol=1e-7)
        np.testing.assert_allclose(shrink(cov[1], 0.3), one[1], rtol=tolerance, atol=1e-7)
        given = 0.75 * cov.double().numpy() + 0.25 * 0.1 * np.eye(5)
        np.testing.assert_allclose(shrink(cov, 0.25, 0.1), given, rtol=tolerance, atol=1e-7)


def test_pool_weighs_by_degrees_of_freedom() -> None:
    count, cov = torch.tensor([3.0, 11.0, 5.0]).double(), covariances(0, 3, 4)
    want = (2 * cov[0] + 10 * cov[1] + 4 * cov[2]) / 16
    torch.testing.assert_close(pool(count, cov), want)
    torch.testing.assert_close(pool(count, cov, epsilon=16.0), want / 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_truncated_eigen_equals_pinv(dtype: torch.dtype) -> None:
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        z = torch.randn(6, 12, generator=g).to(dtype)
        cov = z.T @ z / 6 + 1e-4 * torch.eye(12, dtype=dtype)  # rank six, and a ridge below the cut
        whiten, half_log_det = truncated_eigen(cov, 1e-3)
        assert whiten.shape == (12, 6)
        want = torch.linalg.pinv(cov, rtol=1e-3, hermitian=True)
        tolerance = 1e-4 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(whiten @ whiten.T, want, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(2 * half_log_det, cov.logdet(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pca_equals_scikit_learn_up_to_sign(dtype: torch.dtype) -> None:
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        z = (torch.randn(30, 12, generator=g) * torch.arange(1, 13) + 5).to(dtype)
        theirs = PCA(4, svd_solver="full").fit(z.double().numpy())
        want, ours = theirs.transform(z.double().numpy()), pca(z, 4).numpy()
        sign = np.sign((want * ours).sum(0))
        np.testing.assert_allclose(sign * ours, want, rtol=1e-8, atol=1e-8)
        basis = pca_basis(z, 4)
        np.testing.assert_allclose(sign * basis.numpy(), theirs.components_.T, atol=1e-8)
    with pytest.raises(ValueError, match="9 samples of 12 features have no 10 principal"):
        pca(z[:9], 10)


@pytest.mark.parametrize("ridge", [0.0, 1e-6, 0.5])
def test_soft_covariances_equal_loops_and_numpy(ridge: float) -> None:
    for seed in SEEDS:
        z, weight = soft(seed, 25, 3, 4)
        count, cov = soft_covariances(z, weight, ridge)
        x, w = z.numpy(), weight.numpy()
        for k in range(3):
            mean, scatter = np.zeros(4), ridge * np.eye(4)
            for i in range(25):
                mean += w[i, k] * x[i] / w[:, k].sum()
            for i in range(25):
                scatter += w[i, k] * np.outer(x[i] - mean, x[i] - mean)
            assert count[k] == pytest.approx(w[:, k].sum())
            np.testing.assert_allclose(cov[k] * count[k], scatter, rtol=1e-10, atol=1e-10)
            theirs = np.cov(x.T, aweights=w[:, k], ddof=0) + ridge / w[:, k].sum() * np.eye(4)
            np.testing.assert_allclose(cov[k], theirs, rtol=1e-9, atol=1e-10)


def test_soft_covariances_survive_an_offset_and_an_empty_class() -> None:
    z, weight = soft(0, 40, 3, 4)
    far = (z + 1e5).float()  # float32 rounds to 0.004 there: compare with that, not with z
    near = far.double() - 1e5
    torch.testing.assert_close(soft_covariances(far, weight), soft_covariances(near, weight))
    count, cov = soft_covariances(z, weight * torch.tensor([1.0, 0.0, 1.0]), 1e-6)
    assert count[1] == 0
    assert torch.count_nonzero(cov[1]) == 0
    for form in FORMS:
        assert not box_m(count, cov, form=form).usable


# --- Box's M: literal transcriptions ---


def statistic_m(count: Array, cov: Array, epsilon: float = 0.0) -> float:
    d, K = cov.shape[-1], len(count)
    pooled = np.zeros((d, d))
    for k in range(K):
        pooled += (count[k] - 1) * cov[k]
    pooled /= (count - 1).sum() + epsilon
    m = (count - 1).sum() * np.log(np.linalg.det(pooled))
    for k in range(K):
        m -= (count[k] - 1) * np.log(np.linalg.det(cov[k]))
    return float(m)


def textbook(count: Array, cov: Array) -> tuple[float, float, bool]:
    """F and df2 of Box (1949), as in the textbooks, and which of their two cases it is."""
    k, p, v = len(count), cov.shape[-1], count - 1
    m = statistic_m(count, cov)
    c1 = (np.sum(1 / v) - 1 / np.sum(v)) * (2 * p**2 + 3 * p - 1) / (6 * (p + 1) * (k - 1))
    c2 = (np.sum(1 / v**2) - 1 / np.sum(v) ** 2) * (p - 1) * (p + 2) / (6 * (k - 1))
    a1 = (k - 1) * p * (p + 1) / 2
    a2 = (a1 + 2) / abs(c2 - c1**2)
    if c2 > c1**2:
        b1 = (1 - c1 - a1 / a2) / a1
        F = b1 * m
    else:
        b2 = (1 - c1 + 2 / a2) / a2
        F = a2 * b2 * m / (a1 * (1 - b2 * m))
    return float(F), float(a2), bool(c2 > c1**2)


def paper(count: Array, cov: Array) -> tuple[float, float]:
    K, d, N = len(count), cov.shape[-1], count.sum()
    c = 0.0
    for k in range(K):
        c += 1 / (count[k] - 1)
    c = 1 - (2 * d**2 + 3 * d - 1) / (6 * (d + 1) * (K - 1)) * (c - 1 / (N - K))
    m_star = statistic_m(count, cov) / c
    lam = d * (d + 1) * (K - 1) * (K + 1) / (6 * (N - K - (K - 1)))
    d1 = d * (d + 1) * (K - 1) / 2
    d2 = (d1 + 2) / (lam + 1e-8)
    return m_star / (d1 * (1 + m_star / d2)), d2


def released(count: Array, cov: Array) -> tuple[float, float]:
    K, d, N = len(count), cov.shape[-1], count.sum()
    total_dof = N - K
    a = 0.0
    for k in range(K):
        if count[k] >= 11:
            a += 1 / (count[k] - 1 + 1e-8)
    a = 1 - (2 * d**2 + 3 * d - 1) / (6 * (d + 1) * (K - 1)) * (a - 1 / total_dof)
    m_star = statistic_m(count, cov, 1e-8) * a
    lam = d * (d + 1) * (K - 1) * (K + 1) / (6 * (total_dof - K))
    d1 = d * (d + 1) * (K - 1) / 2
    d2 = (d1 + 2) / lam + 1e-8
    return m_star / (d1 * (1 - a + m_star / d2)), d2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(20, 20, 20), (12, 40, 90), (15, 15)])
def test_box_m_equals_pingouin(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    d, K = 3, len(sizes)
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        parts = [(1 + 0.2 * k) * rng.standard_normal((n, d)) for k, n in enumerate(sizes)]
        table = pd.DataFrame(np.concatenate(parts), columns=list("abc"))
        table["group"] = np.repeat(range(K), sizes)
        theirs = pingouin.box_m(table, dvs=list("abc"), group="group").iloc[0]
        cov = torch.stack([torch.from_numpy(np.cov(part.T)) for part in parts]).to(dtype)
        outcome = box_m(torch.tensor(sizes).to(dtype), cov)
        v = np.array(sizes) - 1
        c1 = (2 * d**2 + 3 * d - 1) / (6 * (d + 1) * (K - 1)) * ((1 / v).sum() - 1 / v.sum())
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        assert (1 - c1) * outcome.m == pytest.approx(theirs["Chi2"], rel=tolerance)
        assert outcome.df1 == theirs["df"]
        assert outcome.pvalue == pytest.approx(theirs["pval"], abs=0.02)  # F beside chi-square


@pytest.mark.parametrize(("K", "d", "c2_is_larger"), [(3, 4, True), (2, 10, True), (3, 1, False)])
def test_box_m_equals_the_textbook_and_scipy(K: int, d: int, c2_is_larger: bool) -> None:
    for seed in SEEDS:
        count = torch.linspace(3 * d + 1, 8 * d, K).double()
        cov = covariances(seed, K, d)
        outcome = box_m(count, cov)
        F, df2, case = textbook(count.numpy(), cov.numpy())
        pvalue = f_distribution.sf(F, outcome.df1, df2)
        assert case == c2_is_larger
        assert outcome.usable
        assert outcome.m == pytest.approx(statistic_m(count.numpy(), cov.numpy()), rel=1e-10)
        assert outcome.statistic == pytest.approx(F, rel=1e-10)
        assert outcome.df2 == pytest.approx(df2, rel=1e-10)
        assert outcome.pvalue == pytest.approx(pvalue, rel=1e-8)
        assert outcome.critical == pytest.approx(f_distribution.ppf(0.95, outcome.df1, df2))
        assert outcome.rejects == (pvalue < 0.05)


@pytest.mark.parametrize("K", [2, 3, 10])
def test_the_published_forms_equal_their_transcriptions(K: int) -> None:
    d = 10
    for seed in SEEDS:
        z, weight = soft(seed, 60 * K, K, d)
        z = z * (1 + seed * weight[:, :1])  # from equal covariances to different ones
        count, cov = soft_covariances(z, weight, 1e-6)
        for form, literal in (("paper", paper), ("released", released)):
            outcome, (F, df2) = box_m(count, cov, form=form), literal(count.numpy(), cov.numpy())
            assert outcome.statistic == pytest.approx(F, rel=1e-7)
            assert outcome.df2 == pytest.approx(df2, rel=1e-12)
            assert outcome.critical == pytest.approx(f_distribution.ppf(0.95, outcome.df1, df2))
            assert outcome.bound == pytest.approx(df2 / outcome.df1)
            assert 0 < outcome.statistic < outcome.bound
            assert outcome.rejects == (outcome.statistic > outcome.critical)
            assert outcome.usable == (outcome.bound > outcome.critical)


def test_the_released_sum_skips_classes_below_eleven_samples() -> None:
    cov = covariances(1, 4, 3)
    for sizes in ([10.9, 11.0, 60.0, 70.0], [10.5] * 4):
        F, _ = released(np.array(sizes), cov.numpy())
        outcome = box_m(torch.tensor(sizes, dtype=torch.float64), cov, form="released")
        assert outcome.statistic == pytest.approx(F, rel=1e-9)
    assert outcome.statistic > outcome.bound  # no class that large: the bound does not hold
    assert "negative" in outcome.reason
    assert not outcome.usable


@pytest.mark.parametrize(
    ("form", "K", "N"),
    [
        ("released", 2, 84),
        ("paper", 2, 83),
        ("released", 3, 199),
        ("released", 5, 548),
        ("released", 10, 2105),
    ],
)
def test_the_smallest_batch_that_can_reject(form: str, K: int, N: int) -> None:
    cov = covariances(0, K, 10)  # as different as can be: the bound does not depend on it
    for size, possible in ((N - 1, False), (N, True)):
        outcome = box_m(torch.full((K,), size / K), cov, form=form)
        assert (outcome.bound > outcome.critical) == possible
        assert outcome.usable == possible
        assert possible or outcome.reason.startswith("F cannot exceed")


@pytest.mark.parametrize(("K", "N"), [(47, 43_250), (62, 74_600), (101, 195_600)])
def test_the_smallest_batch_of_many_classes(K: int, N: int) -> None:
    cov = covariances(0, K, 10)
    for size, possible in ((0.998 * N, False), (1.002 * N, True)):
        assert box_m(torch.full((K,), size / K), cov, form="released").usable == possible


# --- Box's M: level, power, limits ---


def wishart(seed: int, runs: int, sizes: tuple[int, ...], d: int) -> Tensor:
    """(runs,K,d,d) unbiased covariances of Gaussian classes that share one covariance."""
    rng = np.random.default_rng(seed)
    found = []
    for n in sizes:
        x = rng.standard_normal((runs, n, d)) @ np.diag(np.arange(1, d + 1))
        x -= x.mean(1, keepdims=True)
        found.append(x.transpose(0, 2, 1) @ x / (n - 1))
    return torch.from_numpy(np.stack(found, 1))


@pytest.mark.parametrize(
    ("d", "sizes"), [(4, (40, 40, 40)), (4, (12, 60, 200)), (2, (6, 6)), (10, (30, 45))]
)
def test_the_false_reject_rate_is_near_the_level_where_usable(
    d: int, sizes: tuple[int, ...]
) -> None:
    outcomes = [box_m(torch.tensor(sizes), cov) for cov in wishart(d, 400, sizes, d)]
    assert all(outcome.usable for outcome in outcomes)
    rate = sum(outcome.rejects for outcome in outcomes) / 400
    assert 0.02 <= rate <= 0.09  # a fair 5 % leaves this range once in a few hundred seeds
    assert rate == sum(outcome.pvalue < 0.05 for outcome in outcomes) / 400


def test_where_the_level_is_lost_the_test_is_not_usable() -> None:
    sizes = (12,) * 10
    outcomes = [box_m(torch.tensor(sizes), cov) for cov in wishart(0, 60, sizes, 10)]
    assert sum(outcome.rejects for outcome in outcomes) > 15  # a quarter, of equal covariances
    assert not any(outcome.usable for outcome in outcomes)
    assert "12.0 samples in 10 dimensions" in outcomes[0].reason


def test_different_covariances_are_found() -> None:
    scale = torch.tensor([1.0, 1.0, 3.0]).double()[:, None, None]
    outcomes = [box_m(torch.tensor([40] * 3), scale * c) for c in wishart(0, 50, (40,) * 3, 4)]
    assert all(outcome.rejects for outcome in outcomes)


def test_beyond_the_range_of_the_approximation_the_test_rejects() -> None:
    outcome = box_m(torch.tensor([3, 3]), torch.tensor([[[1.0]], [[1e30]]]))
    assert outcome.statistic == math.inf
    assert outcome.pvalue == 0
    assert outcome.rejects
    assert outcome.record()["statistic"] is None


@pytest.mark.parametrize("form", FORMS)
def test_a_test_that_cannot_be_carried_out_says_why_and_rejects_nothing(form: str) -> None:
    one = torch.eye(2).repeat(3, 1, 1)
    one[1] *= 50
    flat = one.clone()
    flat[0, 0, 0] = 0
    cases = {
        "too few": (torch.tensor([2.0, 2.0, 1.0]), one),
        "positive definite": (torch.tensor([20.0, 20.0, 20.0]), flat),
    }
    if form != "released":
        cases["no more than one"] = (torch.tensor([20.0, 20.0, 0.5]), one)
    if form == "paper":
        cases["correction"] = (torch.tensor([1.01, 20.0, 20.0]), one)
    for reason, (count, cov) in cases.items():
        outcome = box_m(count, cov, form=form)
        assert reason in outcome.reason
        assert not outcome.usable
        assert not outcome.rejects
        json.dumps(outcome.record(), allow_nan=False)
    with pytest.raises(ValueError, match="1 class has no covariance"):
        box_m(torch.tensor([9.0]), one[:1], form=form)


@pytest.mark.parametrize("form", FORMS)
def test_the_record_is_json_and_complete(form: str) -> None:
    outcome = box_m(torch.tensor([300.0, 400.0]), covariances(0, 2, 4), form=form)
    record = json.loads(json.dumps(outcome.record(), allow_nan=False))
    for key in ("statistic", "critical", "df1", "df2", "pvalue", "m"):
        assert record[key] == getattr(outcome, key)
    assert record["usable"] is True
    assert record["rejects"] is outcome.rejects
    assert record["form"] == form
    assert record["bound"] == (None if form == "box" else outcome.bound)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'released'"):
        box_m(torch.tensor([9.0, 9.0]), covariances(0, 2, 2), form="release")
