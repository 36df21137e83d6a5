"""The pickles of Wild-Time (Yao et al., 2022): years, each in three splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayestta.data._unpickle import unpickle

Year = tuple[NDArray[Any], NDArray[np.int64]]  # what `key` holds of every image, and the labels

# Wild-Time's number of a split: nine tenths of a year, the other tenth, and the whole year, which
# is what the paper streams.
SPLITS = {"train": 0, "test": 1, "all": 2}


def read_years(
    path: Path, years: Sequence[int], key: str, *, split: str, classes: int
) -> dict[int, Year]:
    """One split of every year, from a file `{year: {split: {key: array, "labels": array}}}`.

    The splits are integers, or members of an enum in old files.
    """
    found, read = unpickle(path), {}
    for year in years:
        try:
            part = found[year][SPLITS[split]]
            values, labels = _numbers(part[key]), whole_numbers(part["labels"])
            n = len(values)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{path} has no {key} and labels of {year} in split {SPLITS[split]} ({split}): "
                "get the file again from where it is published."
            ) from error
        read[year] = values, check_labels(path, year, n, labels, classes)
    return read


def _numbers(values: object) -> NDArray[Any]:
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise TypeError("not an array")
    return values


def whole_numbers(values: object) -> NDArray[np.int64]:
    """(n,) whole numbers, of any type and shape that holds nothing else."""
    numbers = _numbers(values).reshape(-1)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise ValueError("not finite")
    whole = numbers.astype(np.int64)
    if not np.array_equal(whole, numbers):
        raise ValueError("not whole numbers")
    return whole


def check_labels(
    path: Path, year: int, n: int, labels: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """The labels of a year, one per image and each the number of a class."""
    if len(labels) != n or n == 0:
        raise ValueError(
            f"{path} has {n} images and {len(labels)} labels of {year}: "
            "get the file again from where it is published."
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"{path} has labels {labels.min()} to {labels.max()} in {year}, where there are "
            f"{classes} classes: get the file again from where it is published."
        )
    return labels
