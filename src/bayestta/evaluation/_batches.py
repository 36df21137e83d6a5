"""What a stream may hand to the runner: `Batch`, `(x, y)`, or `x` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayestta.data._base import Batch
from bayestta.models._inputs import is_one


def to_step(given: Any) -> Batch:
    """A batch as `stream` makes it, from `(x, y)` or `x` alone, such as a DataLoader gives.

    >>> to_step([torch.zeros(2, 3, 8, 8), torch.tensor([1, 0])]).y.tolist()
    [1, 0]
    >>> to_step({"image": torch.zeros(2, 3, 8, 8)})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    TypeError: a batch is a dict with image: write ((b["image"], b["label"]) for b in loader), ...
    """
    if isinstance(given, Batch):
        return given
    if isinstance(given, Mapping):
        raise TypeError(
            f"a batch is a {type(given).__name__} with {', '.join(map(str, given))}: write "
            '((b["image"], b["label"]) for b in loader), with its own keys.'
        )
    x, y = given, None
    if isinstance(given, (tuple, list)) and len(given) == 2 and _are_labels(given[1]):
        x, y = given
    elif isinstance(given, (tuple, list)) and len(given) == 1 and _is_batch(given[0]):
        (x,) = given  # a DataLoader over a TensorDataset without labels
    elif isinstance(given, tuple) and len(given) > 1:
        kinds = ", ".join(type(part).__name__ for part in given)
        raise TypeError(f"a batch is a tuple of {len(given)} ({kinds}): give (x, y), or x.")
    n = 1 if is_one(x) else len(x) if hasattr(x, "__len__") else 0
    return Batch(x, None if y is None else _labels(y, n), "stream", torch.arange(n))


def _is_batch(x: Any) -> bool:
    return isinstance(x, (Tensor, np.ndarray)) and x.ndim != 3


def _are_labels(y: Any) -> bool:
    """Whether it is not the second of two images."""
    if y is None or isinstance(y, (int, np.integer)):
        return True
    if isinstance(y, (Tensor, np.ndarray)):
        return y.ndim < 2
    return isinstance(y, Sequence) and all(isinstance(i, (int, np.integer)) for i in y)


def _labels(y: Any, n: int) -> Tensor:
    labels = torch.as_tensor(y)
    labels = labels[None] if labels.ndim == 0 else labels
    if labels.is_floating_point() or len(labels) != n:
        raise ValueError(
            f"the labels of a batch are {labels.dtype} of shape {tuple(labels.shape)} for {n} "
            "images: give one whole number per image, the position of its class."
        )
    return labels
