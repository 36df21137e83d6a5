"""Data sets that are arrays of small images, changed a little in every domain."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bayestta.data import _sources as sources
from bayestta.data._base import Data, Dataset, Index
from bayestta.names import unknown

Pixels = NDArray[np.uint8]  # (n,H,W) or (n,H,W,3)
HELD_OUT = 5000  # the last images of a train split, which the mini models never saw

CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
DIGITS = tuple(f'number:"{digit}"' for digit in range(10))  # the paper's names, quotes included

# split -> the parts of the source that it holds, in this order
SPLITS = {
    "test": ("test",),
    "all": ("train", "held-out", "test"),
    "held-out": ("held-out",),
    "train": ("train",),
}


def each(images: Pixels, change: Callable[[Image.Image], Image.Image]) -> Pixels:
    """Put images through Pillow one by one."""
    return np.stack([np.asarray(change(Image.fromarray(image))) for image in images])


class ArrayDomain(Dataset):
    """The images `index` of the arrays, changed when they are read."""

    def __init__(
        self, x: Pixels, y: Pixels, index: NDArray[np.int64], change: Callable[[Pixels], Pixels]
    ) -> None:
        self._x, self._y, self._index, self._change = x, y, index, change

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> tuple[Image.Image, int | None]:
        return Image.fromarray(self._read([i])[0]), int(self._y[self._index[i]])

    def labels(self, index: Index) -> Tensor:
        return torch.from_numpy(self._y[self._index[index]].astype(np.int64))

    def pixels(self, index: Index) -> Tensor:
        return torch.from_numpy(self._read(index))

    def _read(self, index: Index) -> Pixels:
        found = self._change(np.asarray(self._x[self._index[index]]))
        return found if found.ndim == 4 else np.repeat(found[..., None], 3, axis=3)  # grey -> RGB


class ArrayData(Data):
    """Arrays of one source, a split of them, and one change per domain.

    Parameters
    ----------
    root
        The folder of the cached sources (default: `$BAYESTTA_DATA`, else `~/.cache/bayestta`).
    split
        `test`; `all` (train, then test); `held-out`, the last 5,000 train images, which the mini
        models never saw; or `train`, the others.
    """

    source: ClassVar[str]
    default_split: ClassVar[str] = "test"
    template_set: ClassVar[str] = "seven"

    def __init__(
        self, *, root: str | os.PathLike[str] | None = None, split: str | None = None
    ) -> None:
        from bayestta.models._text import templates

        split = split or self.default_split
        if split not in SPLITS:
            raise ValueError(unknown(f"split of {self.name}", split, SPLITS))
        self.root, self.split, self.skipped = root, split, []
        self.classes, self.domains = list(self.class_names), list(self.domain_names)
        self.templates = templates(self.template_set)
        self.contains = frozenset(f"{self.source}/{part}" for part in SPLITS[split])
        self._load()

    def _load(self) -> None:
        files = {"test" if part == "test" else "train" for part in SPLITS[self.split]}
        keys = [f"{file}_{axis}" for file in files for axis in "xy"]
        found = sources.arrays(self.source, self.root, keys)

        def part(name: str, axis: str) -> Pixels:
            if name == "test":
                return found[f"test_{axis}"]
            train = found[f"train_{axis}"]
            return train[:-HELD_OUT] if name == "train" else train[-HELD_OUT:]

        def join(axis: str) -> Pixels:
            parts = [part(name, axis) for name in SPLITS[self.split]]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        self._x, self._y = join("x"), join("y")

    def __getstate__(self) -> dict[str, Any]:
        """Without the arrays: a worker process maps the files itself."""
        return {key: value for key, value in vars(self).items() if key not in ("_x", "_y")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._load()

    def __getitem__(self, domain: str) -> ArrayDomain:
        if domain not in self.domains:
            raise ValueError(unknown(f"domain of {self.name}", domain, self.domains))

        def change(images: Pixels) -> Pixels:
            return self.change(domain, images)

        return ArrayDomain(self._x, self._y, self.indices(domain), change)

    def indices(self, domain: str) -> NDArray[np.int64]:
        """Which images of the split belong to a domain, in the domain's own order: all of them."""
        return np.arange(len(self._y))

    def change(self, domain: str, images: Pixels) -> Pixels:
        """Images as they look in a domain."""
        raise NotImplementedError

    def fingerprint(self, domain: str) -> str:
        """The sha256 of the domain's indices (int64, little-endian), to compare streams by."""
        return hashlib.sha256(self.indices(domain).astype("<i8").tobytes()).hexdigest()
