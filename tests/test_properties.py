"""Properties of statistics, merge, forget, save and load, over random shapes, skews and splits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayestta.maths.stats import GaussianStats
from bayestta.state_file import pack, unpack

settings.register_profile("fast", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("fast")


@st.composite
def worlds(draw):
    """Classes, features and weights of a small stream: skewed, far from the origin, any dtype."""
    K, D = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    n = draw(st.integers(1, 40))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    offset = draw(st.sampled_from([0.0, 1.0, 1e3]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    z = (torch.randn(n, D, generator=rng, dtype=torch.float64) + offset).to(dtype)
    sharp = draw(st.sampled_from([0.0, 1.0, 30.0]))  # from even to one-hot
    skew = draw(st.sampled_from([0.0, 3.0, 50.0]))  # the first class takes all
    logits = sharp * torch.randn(n, K, generator=rng, dtype=torch.float64)
    logits[:, 0] += skew
    prior = torch.randn(K, D, generator=rng, dtype=torch.float64)
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=4)))
    return z, logits.softmax(1), prior, cuts


def fed(prior, z, weight, **options):
    stats = GaussianStats(prior, **options)
    stats.update(z, weight)
    return stats


def pieces(cuts, n):
    edges = [0, *cuts, n]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def agree(one, two, scale):
    for key in ("seen", "mean", "scatter"):
        torch.testing.assert_close(
            getattr(one, key), getattr(two, key), rtol=1e-8, atol=1e-9 * scale
        )


STRUCTURES = st.sampled_from(["shared", "per-class"])
OPTIONS = {"centre": "exact", "wide": torch.float64}


@given(worlds(), STRUCTURES, st.sampled_from([0.0, 1.0, 5.0]))
def test_any_split_of_a_stream_gives_the_same_sums(world, structure, prior_count):
    z, weight, prior, cuts = world
    options = {**OPTIONS, "structure": structure, "prior_count": prior_count}
    whole, parts = fed(prior, z, weight, **options), GaussianStats(prior, **options)
    for part in pieces(cuts, len(z)):
        parts.update(z[part], weight[part])
    agree(whole, parts, float(z.double().square().sum()) + 1)


@given(worlds(), STRUCTURES)
def test_shards_merge_to_the_whole_in_any_order(world, structure):
    z, weight, prior, cuts = world
    options = {**OPTIONS, "structure": structure}
    whole = fed(prior, z, weight, **options)
    shards = [fed(prior, z[part], weight[part], **options) for part in pieces(cuts, len(z))]
    for ordered in (shards, shards[::-1]):
        total = GaussianStats(prior, **options)
        for shard in ordered:
            total.merge(shard)
        agree(whole, total, float(z.double().square().sum()) + 1)


@given(worlds(), STRUCTURES, st.floats(0, 1))
def test_forgetting_is_as_if_the_weights_had_been_smaller(world, structure, keep):
    z, weight, prior, _ = world
    options = {**OPTIONS, "structure": structure}
    faded, light = fed(prior, z, weight, **options), fed(prior, z, keep * weight, **options)
    faded.forget(keep)
    agree(faded, light, float(z.double().square().sum()) + 1)


@given(worlds(), STRUCTURES)
def test_a_saved_state_comes_back_to_the_bit(world, structure):
    z, weight, prior, _ = world
    stats = fed(prior, z, weight, structure=structure, **OPTIONS)
    header, state = unpack(pack({"about": "a test"}, stats.state()), "memory")
    again = GaussianStats(prior, structure=structure, **OPTIONS)
    again.load(state)
    assert header["about"] == "a test"
    for key, value in stats.state().items():
        other = again.state()[key]
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


@given(worlds())
def test_covariances_are_finite_symmetric_and_not_negative(world):
    z, weight, prior, _ = world
    cov = fed(prior, z, weight, structure="shared", **OPTIONS).covariance()
    assert torch.isfinite(cov).all()
    torch.testing.assert_close(cov, cov.T)
    scale = float(z.double().square().sum() + prior.square().sum())
    assert torch.linalg.eigvalsh(cov).min() >= -1e-9 * scale


@given(st.integers(0, 10**6), st.integers(0, 7))
@settings(max_examples=200)
def test_every_flipped_bit_of_a_state_is_noticed(place, bit):
    state = {"mean": torch.arange(12.0).view(3, 4), "steps": 7, "word": "ok", "rate": math.pi}
    data = bytearray(pack({"method": "m"}, state))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(ValueError, match="memory"):
        unpack(bytes(data), "memory")


@given(st.binary(max_size=300))
def test_noise_is_no_state(data):
    with pytest.raises(ValueError, match="no complete BayesTTA state"):
        unpack(data, "noise")
