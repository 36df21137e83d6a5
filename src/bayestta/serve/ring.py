"""Which shard holds an adapter: a consistent hash, so that more shards move few adapters."""

from __future__ import annotations

import bisect
import hashlib

POINTS = 128  # per shard: the more, the more even


class Ring:
    """Shards on a circle; an adapter belongs to the next one after its own place.

    >>> ring = Ring(4)
    >>> ring.shard("cam-1") == Ring(4).shard("cam-1")
    True
    """

    def __init__(self, shards: int) -> None:
        if shards < 1:
            raise ValueError(f"shards is {shards}: give 1 or more.")
        places = [(_place(f"{shard}/{i}"), shard) for shard in range(shards) for i in range(POINTS)]
        self._places = sorted(places)
        self._keys = [place for place, _ in self._places]

    def shard(self, name: str) -> int:
        i = bisect.bisect(self._keys, _place(name)) % len(self._keys)
        return self._places[i][1]


def _place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
