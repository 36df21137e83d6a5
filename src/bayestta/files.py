"""Where cached files go, and files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def cache_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder for data and built models: `root`, `$BAYESTTA_DATA` or `~/.cache/bayestta`."""
    chosen = root or os.environ.get("BAYESTTA_DATA") or Path.home() / ".cache" / "bayestta"
    return Path(chosen).expanduser()


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A name beside the file to write to, which takes its place at the end.

    What was written is synced to the disk before it is renamed: readers and crashes see the old
    file or the new one. Folders are made.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        sync(part)
        os.replace(part, target)
        sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    with suppress(PermissionError):  # a folder that may not be opened is synced with the system
        handle = os.open(path, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
