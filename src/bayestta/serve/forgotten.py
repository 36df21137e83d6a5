"""Digests of request ids whose answers are no longer kept, so that none is learnt twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from bayestta.files import replacing

SIZE = 8  # bytes per digest
MOST = 131_072  # digests: 1 MiB per adapter


class Forgotten:
    """The last ids that left the history, as a file of digests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes() if path.exists() else b""
        self._known = dict.fromkeys(
            data[i : i + SIZE] for i in range(0, len(data) - SIZE + 1, SIZE)
        )

    def __contains__(self, request_id: str) -> bool:
        return digest(request_id) in self._known

    def add(self, ids: Iterable[str]) -> None:
        """Remember ids, on the disk; the oldest make room."""
        self._known |= dict.fromkeys(digest(each) for each in ids)
        for old in list(self._known)[: max(0, len(self._known) - MOST)]:
            del self._known[old]
        with replacing(self.path) as part:
            part.write_bytes(b"".join(self._known))


def digest(request_id: str) -> bytes:
    return hashlib.blake2b(request_id.encode(), digest_size=SIZE).digest()
