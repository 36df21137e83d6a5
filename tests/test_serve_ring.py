"""The consistent hash: even, stable, and few adapters move when a shard is added."""

from __future__ import annotations

from collections import Counter

import pytest

from bayestta.serve.ring import Ring

NAMES = [f"cam-{i}" for i in range(4000)]


def test_adapters_are_spread_evenly_and_few_move():
    four, five = Ring(4), Ring(5)
    counts = Counter(four.shard(name) for name in NAMES)
    assert min(counts.values()) > 0.6 * len(NAMES) / 4
    moved = [name for name in NAMES if four.shard(name) != five.shard(name)]
    assert len(moved) < 0.3 * len(NAMES)
    assert all(five.shard(name) == 4 for name in moved)  # only to the new one


def test_a_ring_needs_a_shard():
    with pytest.raises(ValueError, match="shards is 0"):
        Ring(0)
