"""Data sets: `load_data`, `list_data`, and `stream`, which turns one into batches."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from bayestta.data._about import DataInfo, about
from bayestta.data._base import (
    REGISTRY,
    Batch,
    Data,
    Dataset,
    Part,
    check_split,
    register_data,
)
from bayestta.data._stream import stream
from bayestta.images import ImageError
from bayestta.names import unknown

__all__ = [
    "Batch",
    "Data",
    "DataInfo",
    "Dataset",
    "ImageError",
    "Part",
    "check_files",
    "check_split",
    "get_data",
    "list_data",
    "load_data",
    "register_data",
    "stream",
]


def load_data(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    split: str | None = None,
    **options: Any,
) -> Data:
    """Build a data set by name; its files are fetched, verified and cached at first use.

    Parameters
    ----------
    root
        The folder of the cached files, or of your own images for `folder`.
    split
        Which images, where the set has splits; by default its own choice, mostly `test`.
    options
        What else the set takes, such as `classes` for `folder`.

    >>> load_data("rmnits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown data set 'rmnits': did you mean 'rmnist'? Valid: aircraft, ...
    """
    cls = REGISTRY.find(name)
    given = {**options, **({} if split is None else {"split": split})}
    valid = inspect.signature(cls).parameters
    for key in given:
        if key not in valid:
            raise ValueError(unknown(f"option of {name}", key, valid))
    return cls(root=root, **given)  # type: ignore[call-arg]


def list_data() -> list[DataInfo]:
    """What `load_data` takes, by name, with counts, citation, licence and where to get it."""
    return [about(name, cls) for name, cls in REGISTRY.items()]


def get_data(name: str, *, root: str | os.PathLike[str] | None = None) -> Path | None:
    """Fetch the files of a data set (`rmnist`) or of a source (`mnist`) and return their folder.

    Files that are there are verified, and fetched again where they are damaged. None means that
    the set needs no download.
    """
    from bayestta.data._origins import SOURCES
    from bayestta.data._sources import fetch

    if name not in REGISTRY and name not in SOURCES:
        raise ValueError(unknown("data set", name, [*REGISTRY, *SOURCES]))
    source = getattr(REGISTRY[name], "source", None) if name in REGISTRY else name
    return None if source is None else fetch(source, root)


def check_files(name: str, *, root: str | os.PathLike[str] | None = None) -> list[Part]:
    """What a data set needs on disk, and whether it is there; empty for a person's own files."""
    return REGISTRY.find(name).check(root)
