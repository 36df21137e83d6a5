"""Names that one process holds for itself, and gives up when it ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def claim(
    path: str | os.PathLike[str], cure: str, *, user: str = "process", title: str = ""
) -> Iterator[None]:
    """Hold a path, or raise a ValueError that names the process which does.

    The system frees the lock with the process, so that a killed one blocks nobody. `cure` ends the
    sentence; `user` says what kind of process holds it, `title` what it holds.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    owner = target.with_name(f".{target.name}.pid")
    lock = FileLock(target.with_name(f".{target.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        pid = owner.read_text().strip() if owner.exists() else "unknown"
        what = title or str(path)
        raise ValueError(f"{what} is in use by another {user} (process {pid}): {cure}") from None
    try:
        owner.write_text(f"{os.getpid()}\n")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
