"""Whether a loaded value is what a piece of state may be, and copies of such values."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

LARGEST = 1e18  # of a number in a state: its square still fits into float32


def copied(value: Any) -> Any:
    """A copy that shares nothing with the value."""
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def taken(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the entries below a prefix from `state` and return them without it."""
    keys = [key for key in state if key.startswith(prefix)]
    return {key.removeprefix(prefix): state.pop(key) for key in keys}


def matching(
    name: str,
    value: Any,
    like: Any,
    *,
    grows: bool = False,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A copy of `value`, proven to be what `like` is: type, shape, finite, in range.

    A tensor comes to the device of `like`. With `grows`, its first dimension may have any length,
    and the others too where `like` is (0,0).
    """
    if value is None:
        raise ValueError(f"{name} is missing.")
    if isinstance(like, Tensor):
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__} instead of a tensor.")
        if value.dtype != like.dtype:
            raise ValueError(f"{name} is of type {value.dtype} instead of {like.dtype}.")
        shape, expected = tuple(value.shape), tuple(like.shape)
        fits = shape == expected
        if grows:
            fits = len(shape) > 0 and (shape[1:] == expected[1:] or expected == (0, 0))
        if not fits:
            raise ValueError(f"{name} has shape {shape} instead of {expected}.")
        if not is_sound(value):
            raise ValueError(f"{name} holds NaN, infinite or huge numbers.")
        low = high = None
        if value.numel() and (least is not None or most is not None):
            low, high = value.min().item(), value.max().item()
        result: Any = value.to(like.device, copy=True)
    else:
        if type(value) is not type(like) and not (type(like) is float and type(value) is int):
            raise ValueError(f"{name} is {value!r} instead of a {type(like).__name__}.")
        if not is_sound(value):
            raise ValueError(f"{name} is {value}, which is no finite number up to {LARGEST:.0e}.")
        low = high = value if isinstance(value, (int, float)) else None
        result = type(like)(copied(value))
    if (least is not None and low is not None and low < least) or (
        most is not None and high is not None and high > most
    ):
        limits = f"{'any' if least is None else least} to {'any' if most is None else most}"
        raise ValueError(f"{name} ranges from {low} to {high}, but must lie within {limits}.")
    return result


def is_sound(value: Any) -> bool:
    """Whether a tensor or number is free of NaN, infinities and numbers beyond `LARGEST`."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or torch.linalg.vector_norm(value).item() <= LARGEST:
            return True  # a norm takes a fraction of the time of a look at each number
        return bool((value.abs() <= LARGEST).all())
    return not isinstance(value, (int, float)) or abs(value) <= LARGEST
