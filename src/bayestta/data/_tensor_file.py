"""One file of the tensor cache: the images of a domain, each with a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayestta.data._base import Dataset
from bayestta.images import ImageError

if TYPE_CHECKING:
    from bayestta.data._views import Recipe

CHECKSUM = 4  # bytes per image
Indices = NDArray[np.int64]


class Kept:
    """The images of one domain: `read` gives those at some positions, as the model takes them."""

    def __init__(
        self,
        path: Path,
        rows: NDArray[Any],
        sums: NDArray[np.uint32],
        index: Indices,
        transform: Any,
    ) -> None:
        self._path, self._rows, self._sums = path, rows, sums
        self._index, self._transform = index, transform  # index is sorted

    def __contains__(self, i: int) -> bool:
        at = int(np.searchsorted(self._index, i))
        return at < len(self._index) and int(self._index[at]) == i and bool(self._sums[at])

    def read(self, positions: Sequence[int] | Indices) -> Tensor:
        """(n,C,H,W) float32; ValueError where an image is not what was written."""
        places = np.searchsorted(self._index, np.asarray(positions))
        rows = self._rows[places]
        for row, at in zip(rows, places, strict=True):
            if checksum(row) != self._sums[at]:
                self._path.unlink(missing_ok=True)  # it can be made again
                raise ValueError(
                    f"{self._path} was damaged since it was written (image {int(self._index[at])} "
                    "has another checksum), and is deleted: run again to make another."
                )
        found = torch.from_numpy(rows)
        made: Tensor = self._transform.normalise(found) if found.dtype == torch.uint8 else found
        return made


class Maker:
    """Images as they are kept: bytes where the transform can go on from there exactly, else
    floats; None for one that cannot be decoded."""

    def __init__(self, recipe: Recipe, dataset: Dataset, *, fast: bool) -> None:
        self.recipe, self.dataset, self.fast = recipe, dataset, fast
        self.bytes = all(hasattr(recipe.transform, k) for k in ("levels", "normalise"))
        self.dtype = np.dtype(np.uint8 if self.bytes else np.float32)

    def one(self, i: int) -> NDArray[Any] | None:
        return next(iter(self.many(np.array([i]))))

    def many(self, index: Indices) -> Iterator[NDArray[Any] | None]:
        transform: Any = self.recipe.transform
        if self.fast:
            pixels = self.dataset.pixels(index)
            made = transform.batch_levels(pixels) if self.bytes else transform.batch(pixels)
            yield from made.numpy()
            return
        for i in index.tolist():
            try:
                image = self.dataset[i][0]
            except ImageError:
                yield None
            else:
                yield (transform.levels(image) if self.bytes else transform(image)).numpy()


def checksum(row: NDArray[Any]) -> int:
    """Of one image, and never 0, which stands for an image that could not be decoded."""
    return zlib.crc32(np.ascontiguousarray(row).data) or 1


def map_file(
    path: Path, mode: Any, n: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """The images (n,C,H,W), and the checksum of each, 0 where there is none."""
    raw = np.memmap(path, np.uint8, mode)
    end = len(raw) - CHECKSUM * n
    return raw[:end].view(dtype).reshape(n, *shape), raw[end:].view(np.uint32)
