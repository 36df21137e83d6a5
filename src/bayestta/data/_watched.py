"""Images as they arrive in a folder: for `predict --watch`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path

from bayestta.images import EXTENSIONS

SETTLE = 0.5  # seconds for which a file must not have changed: a copy may still be under way


def arriving(
    folder: Path,
    *,
    done: Collection[str] = (),
    batch_size: int = 64,
    interval: float = 0.5,
    patience: float | None = None,
    settle: float = SETTLE,
) -> Iterator[list[Path]]:
    """Batches of image files of a folder, at any depth, in the order in which they were written.

    Yields what is there, up to `batch_size` files, and waits for more. A file counts when it has
    not changed for a moment; hidden ones, as `rsync` and browsers use for parts, never do.

    Parameters
    ----------
    done
        Absolute paths that were answered before: after a restart they are left out.
    interval
        Seconds between looks.
    patience
        Seconds without a new file after which it ends; None waits for ever.
    settle
        Seconds for which a file must not have changed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     _ = Path(name, "a.png").write_bytes(b"1")
    ...     list(arriving(Path(name), patience=0, settle=0))[0][0].name
    'a.png'
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give one that exists to --watch.")
    seen, last = set(done), time.monotonic()
    while True:
        new = _settled(folder, seen, settle)
        for start in range(0, len(new), batch_size):
            batch = new[start : start + batch_size]
            seen.update(str(path.absolute()) for path in batch)
            yield batch
        if new:
            last = time.monotonic()
            continue
        if patience is not None and time.monotonic() - last >= patience:
            return
        time.sleep(interval)


def _settled(folder: Path, seen: Collection[str], settle: float) -> list[Path]:
    """New image files, the oldest first."""
    found, now = [], time.time()
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or path.suffix.lower() not in EXTENSIONS or str(path.absolute()) in seen:
            continue
        try:
            about = path.stat()
        except FileNotFoundError:  # taken away again
            continue
        if about.st_size and now - about.st_mtime >= settle:
            found.append((about.st_mtime, str(path), path))
    return [path for _, _, path in sorted(found)]
