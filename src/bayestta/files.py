"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A name beside the file to write to, renamed at the end: readers and crashes see the old file
    or the new one. Folders are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
