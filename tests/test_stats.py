"""Gaussian statistics against literal loops, scikit-learn, and themselves in any split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from bayestta.maths import stats as module
from bayestta.maths.stats import CENTRES, STRUCTURES, GaussianStats

SEEDS = range(20)
DTYPES = (torch.float32, torch.float64)
B, K, D = 10, 3, 4
Batches = list[tuple[Tensor, Tensor]]


def same(one, two):
    """Two states to the bit."""
    assert one.keys() == two.keys()
    return all(
        torch.equal(value, two[key]) if isinstance(value, torch.Tensor) else value == two[key]
        for key, value in one.items()
    )


def sample(
    seed: int, *, dtype: torch.dtype = torch.float64, n: int = 3, offset: float = 0.0
) -> tuple[Tensor, Batches]:
    """Prior means (K,D) and n batches of features and soft weights."""
    g = torch.Generator().manual_seed(seed)
    prior = torch.randn(K, D, generator=g).to(dtype)
    batches = []
    for _ in range(n):
        z = torch.randn(B, D, generator=g).to(dtype) + offset
        batches.append((z, (2 * torch.randn(B, K, generator=g)).softmax(1).to(dtype)))
    return prior, batches


def literal(
    prior: Tensor,
    batches: Batches,
    centre: str,
    structure: str,
    *,
    prior_count: float = 1.0,
    prior_scatter: float = 0.0,
    epsilon: float = 0.0,
) -> dict[str, NDArray[np.float64]]:
    """Sample by sample, in float64: what the two published forms and the exact one define."""
    text = prior.double().numpy()
    K, D = text.shape
    mean, count = text.copy(), np.full(K, prior_count)
    scatter = np.stack([prior_scatter * np.eye(D) for _ in range(K)])
    for z, weight in ((z.double().numpy(), w.double().numpy()) for z, w in batches):
        old, new = mean.copy(), np.empty_like(mean)
        for k in range(K):
            top, bottom = count[k] * old[k], count[k]
            for i in range(len(z)):
                top, bottom = top + weight[i, k] * z[i], bottom + weight[i, k]
            new[k] = top / (bottom + epsilon)
            count[k] = bottom
            about = old[k] if centre == "old" else new[k]
            for i in range(len(z)):
                scatter[k] += weight[i, k] * np.outer(z[i] - about, z[i] - about)
        mean = new
    if centre == "exact":  # all samples and the prior at once, about the final mean
        z = np.concatenate([z.double().numpy() for z, _ in batches])
        weight = np.concatenate([w.double().numpy() for _, w in batches])
        for k in range(K):
            scatter[k] = prior_scatter * np.eye(D)
            scatter[k] += prior_count * np.outer(text[k] - mean[k], text[k] - mean[k])
            for i in range(len(z)):
                scatter[k] += weight[i, k] * np.outer(z[i] - mean[k], z[i] - mean[k])
    seen = count - prior_count
    if structure == "shared":
        scatter, divisor = scatter.sum(0), np.asarray(seen.sum() + K * prior_scatter)
    else:
        divisor = seen + prior_scatter + epsilon
    return {"count": count, "mean": mean, "cov": scatter / divisor[..., None, None]}


def fed(prior: Tensor, batches: Batches, **settings: Any) -> GaussianStats:
    stats = GaussianStats(prior, **settings)
    for z, weight in batches:
        stats.update(z, weight)
    return stats


def close(stats: GaussianStats, want: GaussianStats, tolerance: float) -> None:
    torch.testing.assert_close(stats.seen, want.seen, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(stats.mean, want.mean, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(stats.scatter, want.scatter, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        stats.covariance(), want.covariance(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("centre", CENTRES)
def test_update_equals_literal_loops(centre: str, structure: str, dtype: torch.dtype) -> None:
    rounded = structure == "per-class" and dtype == torch.float32
    for seed in SEEDS:
        prior, batches = sample(seed, dtype=dtype)
        settings: dict[str, Any] = [
            {"prior_count": 1.0, "epsilon": 1e-8 if centre != "exact" else 0.0},
            {"prior_count": 2.5, "prior_scatter": 1.0},
        ][seed % 2]
        stats = fed(prior, batches, centre=centre, structure=structure, wide=dtype, **settings)
        want = literal(prior, batches, centre, structure, **settings)
        assert stats.mean.dtype == torch.float64
        np.testing.assert_allclose(stats.count, want["count"], rtol=1e-12)
        np.testing.assert_allclose(stats.mean, want["mean"], rtol=1e-12, atol=1e-12)
        tolerance = 2e-6 if rounded else 1e-12
        np.testing.assert_allclose(stats.covariance(), want["cov"], rtol=tolerance, atol=tolerance)


def test_the_epsilon_of_the_released_code_is_visible() -> None:
    prior, batches = sample(0)
    with_it = fed(prior, batches, epsilon=1e-3, centre="old", structure="per-class")
    want = literal(prior, batches, "old", "per-class", epsilon=1e-3)
    np.testing.assert_allclose(with_it.mean, want["mean"], rtol=1e-12)
    np.testing.assert_allclose(with_it.covariance(), want["cov"], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(with_it.mean, fed(prior, batches).mean, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_classes_equal_scikit_learn(dtype: torch.dtype) -> None:
    for seed in SEEDS:
        prior, batches = sample(seed, dtype=dtype)
        labels = [torch.arange(len(z)) % K for z, _ in batches]
        hard = [torch.eye(K, dtype=dtype)[y] for y in labels]
        stats = GaussianStats(prior, prior_count=0.0)
        for (z, _), weight in zip(batches, hard, strict=True):
            stats.update(z, weight)
        z = torch.cat([z for z, _ in batches]).double().numpy()
        lda = LinearDiscriminantAnalysis(solver="lsqr").fit(z, torch.cat(labels).numpy())
        np.testing.assert_allclose(stats.mean, lda.means_, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(stats.covariance(), lda.covariance_, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(stats.proportion, lda.priors_, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_shards_merge_to_one_pass_in_any_split_and_order(
    structure: str, dtype: torch.dtype
) -> None:
    tolerance = 1e-5 if structure == "per-class" and dtype == torch.float32 else 1e-10
    for seed in SEEDS:
        prior, batches = sample(seed, dtype=dtype, n=5, offset=3.0)
        settings: dict[str, Any] = {"structure": structure, "wide": dtype}
        settings |= {"prior_count": (0.0, 1.0, 2.5)[seed % 3], "prior_scatter": float(seed % 2)}
        z, weight = (torch.cat(part) for part in zip(*batches, strict=True))
        whole = fed(prior, [(z, weight)], **settings)
        close(fed(prior, batches, **settings), whole, tolerance)
        rng = np.random.default_rng(seed)
        order = torch.from_numpy(rng.permutation(len(z)))
        cuts = np.sort(
            [rng.integers(0, 2), *rng.integers(0, len(z) + 1, 2)]
        )  # often an empty shard
        shards = [
            fed(prior, list(zip(z[i].split(7), weight[i].split(7), strict=True)), **settings)
            for i in order.tensor_split(cuts.tolist())
        ]
        for other in shards[1:]:
            before = other.state()
            shards[0].merge(other)
            assert same(before, other.state())
        close(shards[0], whole, tolerance)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("centre", CENTRES)
def test_merging_an_untouched_copy_changes_nothing(centre: str, structure: str) -> None:
    for seed in SEEDS:
        prior, batches = sample(seed)
        settings: dict[str, Any] = {"structure": structure, "centre": centre}
        settings |= {"prior_count": float(seed % 2), "prior_scatter": 0.1 * (seed % 3)}
        stats = fed(prior, batches, **settings)
        before = stats.state()
        stats.merge(GaussianStats(prior, **settings))
        assert same(before, stats.state())
        fresh = GaussianStats(prior, **settings)
        fresh.merge(stats)  # and the other way round nothing is lost
        close(fresh, stats, 1e-6 if structure == "per-class" else 1e-12)


def test_merge_goes_on_as_one_pass_does() -> None:
    prior, batches = sample(1, n=4)
    one = fed(prior, batches, prior_scatter=1.0)
    left, right = (fed(prior, part, prior_scatter=1.0) for part in (batches[:1], batches[1:3]))
    left.merge(right)
    left.update(*batches[3])
    close(left, one, 1e-11)


@pytest.mark.parametrize(
    "change",
    [
        {"structure": "per-class"},
        {"centre": "old"},
        {"prior_count": 2.0},
        {"prior_scatter": 1.0},
        {"epsilon": 1e-8},
    ],
)
def test_other_settings_do_not_merge(change: dict[str, Any]) -> None:
    prior, _ = sample(0)
    with pytest.raises(ValueError, match=f"{next(iter(change))} .* do not merge"):
        GaussianStats(prior).merge(GaussianStats(prior, **change))
    with pytest.raises(ValueError, match="different prior means"):
        GaussianStats(prior).merge(GaussianStats(prior + 1))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_forgetting_scales_the_evidence_and_spares_the_prior(structure: str) -> None:
    for seed in SEEDS:
        prior, batches = sample(seed, offset=1.0)
        settings: dict[str, Any] = {"structure": structure, "wide": torch.float64}
        settings |= {"prior_count": (0.0, 1.0, 2.5)[seed % 3], "prior_scatter": float(seed % 2)}
        stats = GaussianStats(prior, **settings)
        for i, (z, weight) in enumerate(batches):
            if i:
                stats.forget(0.6)
            stats.update(z, weight)
        age = len(batches) - 1
        scaled = [(z, 0.6 ** (age - i) * weight) for i, (z, weight) in enumerate(batches)]
        close(stats, fed(prior, scaled, **settings), 1e-11)  # as if the weights had been scaled
        stats.forget(0.0)
        close(stats, GaussianStats(prior, **settings), 1e-9)


@pytest.mark.parametrize("centre", ["old", "new"])
def test_forgetting_scales_the_published_sums(centre: str) -> None:
    prior, batches = sample(2)
    stats = fed(prior, batches, centre=centre, prior_scatter=1.0)
    seen, scatter = stats.seen.clone(), stats.scatter.clone()
    evidence = stats.count[:, None] * stats.mean - stats.prior_mean
    stats.forget(0.25)
    one = K * torch.eye(D, dtype=torch.float64)
    torch.testing.assert_close(stats.seen, 0.25 * seen)
    torch.testing.assert_close(stats.scatter - one, 0.25 * (scatter - one))
    want = (stats.prior_mean + 0.25 * evidence) / (1 + 0.25 * seen)[:, None]
    torch.testing.assert_close(stats.mean, want)
    with pytest.raises(ValueError, match=r"cannot keep 1\.5"):
        stats.forget(1.5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_features_far_from_the_origin_keep_their_covariance(structure: str) -> None:
    tolerance = 1e-7 if structure == "shared" else 2e-6
    for dtype, offset in ((torch.float32, 1e4), (torch.float64, 1e6)):
        prior, batches = sample(3, dtype=dtype, offset=offset)
        settings: dict[str, Any] = {"prior_count": 0.0, "structure": structure}
        want = literal(prior, batches, "exact", structure, prior_count=0.0)["cov"]
        stats = fed(prior, batches, **settings)
        np.testing.assert_allclose(stats.covariance(), want, rtol=tolerance, atol=tolerance)
        halves = [fed(prior, part, **settings) for part in (batches[:2], batches[2:])]
        halves[0].merge(halves[1])
        np.testing.assert_allclose(halves[0].covariance(), want, rtol=tolerance, atol=tolerance)


def test_a_vanishing_weight_beside_the_prior_is_not_lost() -> None:
    prior, batches = sample(4, n=1)
    (z, weight), shift = batches[0], torch.tensor([1.0, 1.0, 1e-18], dtype=torch.float64)
    settings: dict[str, Any] = {"structure": "per-class", "wide": torch.float64, "centre": "old"}
    faint = fed(prior, [(z, weight * shift)], **settings)
    full = fed(prior, [(z, weight)], **settings)  # about the old mean, weights cancel
    assert faint.count[2] == 1.0
    torch.testing.assert_close(faint.covariance(), full.covariance())


def test_an_unseen_class_stays_at_its_prior() -> None:
    prior, batches = sample(5)
    z, weight = batches[0]
    weight = weight * torch.tensor([1.0, 1.0, 0.0])
    for structure in STRUCTURES:
        stats = GaussianStats(prior, prior_count=0.0, structure=structure)
        assert torch.equal(stats.proportion, torch.full((K,), 1 / K, dtype=torch.float64))
        stats.update(z, weight)
        stats.forget(0.5)
        assert torch.equal(stats.mean[2], stats.prior_mean[2])
        assert bool(stats.covariance().isfinite().all())
        assert bool(stats.proportion.log().isfinite().all())
    assert torch.count_nonzero(stats.covariance()[2]) == 0


def test_a_per_class_state_beyond_the_budget_is_refused_before_it_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(MemoryError, match=r"3 classes in 200000 .* 480,000,000,000 bytes"):
        GaussianStats(torch.zeros(3, 200_000), structure="per-class")  # no machine has them
    monkeypatch.setattr(module, "BUDGET_BYTES", K * D * D * 8 - 1)
    with pytest.raises(MemoryError, match="384 bytes, more than the budget of 383: use the shared"):
        GaussianStats(torch.zeros(K, D), structure="per-class", wide=torch.float64)
    GaussianStats(torch.zeros(K, D), structure="per-class", wide=torch.float32)
    GaussianStats(torch.zeros(K, D), structure="shared")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_saved_statistics_go_on_as_if_never_stopped(structure: str) -> None:
    prior, batches = sample(6)
    settings: dict[str, Any] = {"structure": structure, "prior_scatter": 1.0}
    whole, first = fed(prior, batches, **settings), fed(prior, batches[:1], **settings)
    state = first.state()
    first.update(*batches[2])  # what was handed out does not move any more
    again = GaussianStats(prior, **settings)
    again.load(state)
    for z, weight in batches[1:]:
        again.update(z, weight)
    assert same(whole.state(), again.state())
    other = GaussianStats(prior[:, 1:], **settings)
    with pytest.raises(ValueError, match=r"mean has shape \(3, 4\) instead of \(3, 3\)"):
        other.load(state)


def test_statistics_hold_no_graph_and_alias_nothing() -> None:
    prior, batches = sample(7)
    stats = GaussianStats(prior)
    prior += 1
    assert not torch.equal(stats.prior_mean, prior)
    z = batches[0][0].clone().requires_grad_()
    stats.update(z, z @ z.new_ones(D, K))
    sums = [value for value in stats.state().values() if isinstance(value, torch.Tensor)]
    assert len(sums) == 3
    assert not any(value.requires_grad for value in sums)
    assert not torch.equal(stats.mean, stats.prior_mean)


def test_unknown_names_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="did you mean 'exact'"):
        GaussianStats(torch.eye(2), centre="exat")
    with pytest.raises(ValueError, match="Valid: per-class, shared"):
        GaussianStats(torch.eye(2), structure="full")
