"""Where cached files go, and files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# How libraries that do not raise OSError with a number put it: safetensors, then NumPy.
FULL_TEXT = re.compile(r"os error (27|28|122)\b|\d+ requested and \d+ written")


class DiskFullError(OSError):
    """A file that did not fit on the disk; the message has path, bytes and cure."""


def cache_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder for data and built models: `root`, `$BAYESTTA_DATA` or `~/.cache/bayestta`."""
    chosen = root or os.environ.get("BAYESTTA_DATA") or Path.home() / ".cache" / "bayestta"
    return Path(chosen).expanduser()


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A name beside the file to write to, which takes its place at the end.

    What was written is synced to the disk before it is renamed: readers and crashes see the old
    file or the new one. Folders are made. The mode is that of the user's umask. A link stays one:
    what it points to is replaced.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with explained(Path(path), part):
            yield part
            _open_to_others(part)
            sync(part)
            os.replace(part, target)
            sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def explained(target: Path, part: Path) -> Iterator[None]:
    """A full disk raises a `DiskFullError` about `target`, whose bytes are going to `part`."""
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in FULL
        if not full and not FULL_TEXT.search(str(error)):
            raise
        written = part.stat().st_size if part.exists() else 0
        free = shutil.disk_usage(part.parent).free
        raise DiskFullError(
            f"{target} could not be written: the disk was full after {written:,} bytes ({free:,} "
            "are free); the earlier file, if there was one, is unchanged: free some space, or "
            "choose another place, and start again."
        ) from error


def clear_parts(path: str | os.PathLike[str], *, owned: bool = False) -> None:
    """Remove what killed processes left beside a file that they were writing.

    A process that still runs keeps its own, unless the caller holds the file for itself (`owned`).
    """
    target = Path(os.path.realpath(path))
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(?:(\d+)-)?[0-9a-f]{{8}}\.part")
    with suppress(OSError):
        for entry in os.scandir(target.parent):
            found = pattern.fullmatch(entry.name)
            if found and (owned or not (found[1] and is_alive(int(found[1])))):
                Path(entry.path).unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs on this machine."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # it is somebody else's
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    with suppress(PermissionError):  # a folder that may not be opened is synced with the system
        handle = os.open(path, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _open_to_others(part: Path) -> None:
    """Give a file that a library made for its owner alone the mode that a new file gets."""
    if stat.S_IMODE(part.stat().st_mode) != 0o600:
        return
    probe = part.with_name(f"{part.name}.mode")
    probe.touch(exist_ok=False)
    try:
        part.chmod(stat.S_IMODE(probe.stat().st_mode))
    finally:
        probe.unlink()
