"""Images as a transform made them, kept on disk: the next run reads instead of decoding.

One file holds the images of one domain that a stream visits, in order of their positions. Its name
is a digest of all that its bytes depend on, and it is written beside its place and renamed: it
exists whole or not at all. Every image has a checksum, which is verified when it is read. What does
not fit into the stated size is decoded as ever.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from bayestta.data._base import Dataset
from bayestta.data._tensor_file import CHECKSUM, Indices, Kept, Maker, checksum, map_file

if TYPE_CHECKING:
    from bayestta.data._views import Recipe

GIGABYTE = 10**9
CHUNK = 128  # images that are made at once
FRESH = 600  # seconds without dropping: a stream beyond the size would drop what it needs next


class TensorCache:
    """A folder of at most `gigabytes`, shared by any number of processes.

    Parameters
    ----------
    folder
        Made at first use.
    gigabytes
        What the files may take together; those not used for longest are dropped for new ones.
    identity
        Tells the data set from others: its name, folder and options.
    """

    def __init__(self, folder: str | os.PathLike[str], gigabytes: float, identity: str) -> None:
        self.folder, self.limit, self.identity = Path(folder), int(gigabytes * GIGABYTE), identity

    def open(self, recipe: Recipe, domain: str, index: Indices, *, fast: bool) -> Kept | None:
        """The images at these positions, made now if they are not there; None if they do not fit
        or need no transform."""
        dataset = recipe.dataset(domain)
        if dataset.tensors(index[:1]) is not None:
            return None
        order = np.unique(index)
        make = Maker(recipe, dataset, fast=fast)
        probes = [make.one(int(i)) for i in order[[0, len(order) // 2, -1]]]
        shape = next((probe.shape for probe in probes if probe is not None), None)
        if shape is None:
            return None
        size = len(order) * (int(np.prod(shape)) * make.dtype.itemsize + CHECKSUM)
        key = self._key(recipe, dataset, domain, order, make, probes)
        path = self.folder / f"{key}.tensors"
        if not _is_there(path, size):
            if size > self.limit:
                return None
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f"{key[:2]}.lock"):  # another process may be making it
                if not _is_there(path, size) and not self._write(path, make, order, shape, size):
                    return None
        try:
            os.utime(path)
            rows, sums = map_file(path, "r", len(order), shape, make.dtype)
        except FileNotFoundError:  # dropped by another process just now
            return None
        return Kept(path, rows, sums, order, recipe.transform)

    def _key(
        self,
        recipe: Recipe,
        dataset: Dataset,
        domain: str,
        order: Indices,
        make: Maker,
        probes: list[NDArray[Any] | None],
    ) -> str:
        """All that decides the bytes; three images themselves stand in for the code that makes
        them and for files whose dates nobody knows."""
        transform = re.sub(r" at 0x\w+", "", repr(recipe.transform))  # an address says nothing
        facts = (self.identity, domain, transform, make.fast, str(make.dtype), CHECKSUM)
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(order.astype("<i8").tobytes())
        for probe in probes:
            digest.update(b"-" if probe is None else probe.tobytes())
        for i in order:
            path = dataset.path(int(i))
            try:
                found = os.stat(path)
            except (OSError, ValueError):
                digest.update(path.encode("utf-8", "surrogatepass"))
            else:
                state = f"{path} {found.st_size} {found.st_mtime_ns}"
                digest.update(state.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]

    def _write(
        self, path: Path, make: Maker, order: Indices, shape: tuple[int, ...], size: int
    ) -> bool:
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)  # left by a killed process; the lock is ours
        with FileLock(self.folder / "size.lock"):
            if not self._make_room(size):
                return False
            if not _reserve(part, size):
                return False
        try:
            rows, sums = map_file(part, "r+", len(order), shape, make.dtype)
            for start in range(0, len(order), CHUNK):
                for at, x in enumerate(make.many(order[start : start + CHUNK]), start):
                    if x is not None:
                        rows[at], sums[at] = x, checksum(x)
            del rows, sums
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        return True

    def _make_room(self, size: int) -> bool:
        """Drop files, the least recently used first, until `size` fits."""
        for part in self.folder.glob("*.part"):
            with _try_lock(self.folder / f"{part.name[:2]}.lock") as free:
                if free:
                    part.unlink(missing_ok=True)
        known = _stats(
            path for path in self.folder.iterdir() if path.suffix in (".part", ".tensors")
        )
        used = sum(found.st_size for found in known.values())
        for path, found in sorted(known.items(), key=lambda item: item[1].st_mtime):
            if used + size <= self.limit or found.st_mtime > time.time() - FRESH:
                break
            if path.suffix == ".tensors":
                path.unlink(missing_ok=True)
                used -= found.st_size
        return used + size <= self.limit


def _stats(paths: Iterable[Path]) -> dict[Path, os.stat_result]:
    known = {}
    for path in paths:
        with suppress(FileNotFoundError):  # another process has just renamed it
            known[path] = path.stat()
    return known


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _reserve(path: Path, size: int) -> bool:
    """Take the space now: writing to a full disk through a memory map would end the process."""
    try:
        with path.open("xb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
    except OSError:
        path.unlink(missing_ok=True)
        return False
    return True


@contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
