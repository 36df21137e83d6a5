"""Faults to order: a disk that is full, a process that dies, and files that are damaged."""

from __future__ import annotations

import copy
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Killed(BaseException):
    """Passes every handler of ours, as the end of a process does."""


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# What a program that trusts a file does not expect in it.
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 3.5, -0.0, 1e308, 10**30, math.nan, math.inf, "", "text", "\x00\ud800"),
    *([], {}, [[]], [1, "a"], {"a": {}}, {"": None}),
)


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, cut out, repeated, or the end lost."""
    changed = bytearray(content)
    kind = rng.integers(4)
    start = int(rng.integers(len(changed)))
    length = int(rng.integers(1, 40))
    if kind == 0:
        for place in rng.integers(len(changed), size=rng.integers(1, 8)):
            changed[place] = int(rng.integers(256))
    elif kind == 1:
        del changed[start : start + length]
    elif kind == 2:
        changed[start:start] = changed[start : start + length] * int(rng.integers(1, 5))
    else:
        del changed[start:]
    return bytes(changed)


def altered(value: Any, rng: np.random.Generator) -> Any:
    """A copy of what JSON holds with one thing changed, dropped, added or doubled, at any depth."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return copy.deepcopy(ODD[rng.integers(len(ODD))])
    value = copy.deepcopy(value)
    inside = list(value) if isinstance(value, dict) else range(len(value))
    key: Any = inside[rng.integers(len(inside))]
    kind = rng.integers(8)
    if kind == 0:
        del value[key]
    elif kind == 1 and isinstance(value, list):
        value.append(copy.deepcopy(value[key]))
    elif kind == 1:
        value["unknown"] = copy.deepcopy(value[key])
    else:
        value[key] = altered(value[key], rng)
    return value


def spoilt(value: Tensor, rng: np.random.Generator) -> Tensor:
    """A copy of a tensor with another shape, type or numbers."""
    choices = [value[None], value.flatten()[:-1], torch.cat([value.flatten()] * 2), -value.float()]
    if value.numel():
        kind = value.dtype if value.is_floating_point() else torch.float32
        for wrong in (math.nan, math.inf, -1.0, 1e30, 0.0):
            changed = value.to(kind, copy=True)
            changed.view(-1)[rng.integers(value.numel())] = wrong
            choices += [changed, torch.full_like(changed, wrong)]
        choices += [changed.half(), changed.double(), value.flatten().flip(0).view_as(value)]
    return choices[rng.integers(len(choices))].contiguous()
