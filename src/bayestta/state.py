"""State declared once: its start, how it merges and what it may be.

Reset, saving, loading, merging and placement on a device follow from the declaration. A piece of
state is a tensor, a number or a word of the owner, or a `Part` with a life of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Merge = Callable[[Any, Any, float], Any]  # mine, theirs, their share of the samples -> both
MERGES: dict[str, Merge] = {
    "keep": lambda mine, theirs, share: mine,
    "sum": lambda mine, theirs, share: mine + theirs,
    "mean": lambda mine, theirs, share: mine + share * (theirs - mine),
    "max": lambda mine, theirs, share: max(mine, theirs),
}


class Part(Protocol):
    """A piece of state with a life of its own, such as tuned weights with their optimiser."""

    def reset(self) -> None:
        """Go back to the start."""

    def state(self) -> dict[str, Any]:
        """Copies of all that moves: tensors, and values that JSON holds."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; ValueError for anything else."""

    def merge(self, other: Any, share: float) -> None:
        """Take in another's evidence, whose share of all samples is given."""


@dataclass(frozen=True)
class Declared:
    """A tensor, number or word: its start, its merge and its range."""

    start: Callable[[], Any]
    merge: Merge
    least: float | None = None
    most: float | None = None


class Stateful:
    """Owns declared state.

    >>> class Counter(Stateful):
    ...     def __init__(self):
    ...         self.add_state("total", torch.zeros(2), merge="sum")
    >>> counter = Counter()
    >>> counter.total += 1
    >>> saved = counter.state()
    >>> counter.reset_state()
    >>> counter.total.tolist(), saved["total"].tolist()
    ([0.0, 0.0], [1.0, 1.0])
    >>> counter.load_state({"total": torch.ones(3)})
    Traceback (most recent call last):
    ...
    ValueError: total has shape (3,) instead of (2,).
    """

    _declared: dict[str, Declared]
    _part_names: list[str]

    def add_state(
        self,
        name: str,
        start: Any,
        *,
        merge: str | Merge = "keep",
        least: float | None = None,
        most: float | None = None,
    ) -> None:
        """Declare a piece of state and set it to its start.

        Parameters
        ----------
        start
            A tensor, number or word, a function that makes one, or a `Part`.
        merge
            `sum`, `mean` (weighted by samples), `max`, `keep`, or a function of (mine, theirs,
            their share of the samples). A part merges itself.
        least, most
            The range that a loaded value must lie in.
        """
        declared = self.__dict__.setdefault("_declared", {})
        names = self.__dict__.setdefault("_part_names", [])
        if hasattr(start, "state") and hasattr(start, "reset"):
            names.append(name)
            setattr(self, name, start)
            return
        make = start if callable(start) else (lambda: start)
        rule = MERGES[merge] if isinstance(merge, str) else merge
        declared[name] = Declared(make, rule, least, most)
        setattr(self, name, copied(make()))

    def parts(self) -> dict[str, Part]:
        """The pieces of state that have a life of their own."""
        return {name: getattr(self, name) for name in self._part_names}

    def state_names(self) -> set[str]:
        return {*self._declared, *self._part_names}

    def reset_state(self) -> None:
        with torch.inference_mode(False):  # what is made there could never be changed elsewhere
            for name, declared in self._declared.items():
                setattr(self, name, copied(declared.start()))
            for part in self.parts().values():
                part.reset()

    def state(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """Copies of all that moves, by name; a part's names follow its own and a slash.

        `only` restricts it to some of `state_names`.
        """
        chosen = self.state_names() if only is None else only
        found = {name: copied(getattr(self, name)) for name in self._declared if name in chosen}
        for name, part in self.parts().items():
            if name in chosen:
                found |= {f"{name}/{key}": value for key, value in part.state().items()}
        return found

    def load_state(self, state: Mapping[str, Any], only: Collection[str] | None = None) -> None:
        """Take back what `state` gave: all of it, or a ValueError and nothing."""
        chosen = self.state_names() if only is None else only
        with torch.inference_mode(False), self.unchanged_on_error(chosen):
            self._load(dict(state), chosen)

    def _load(self, rest: dict[str, Any], chosen: Collection[str]) -> None:
        for name, declared in self._declared.items():
            if name not in chosen:
                continue
            like, limits = getattr(self, name), {"least": declared.least, "most": declared.most}
            setattr(self, name, matching(name, rest.pop(name, None), like, **limits))
        for name, part in self.parts().items():
            if name in chosen:
                given = taken(rest, f"{name}/")
                part.load(given)
                rest |= {f"{name}/{key}": given[key] for key in given.keys() - part.state().keys()}
        if rest:
            raise ValueError(f"{', '.join(sorted(rest)[:5])} is not part of the state.")

    @contextmanager
    def unchanged_on_error(self, only: Collection[str] | None = None) -> Iterator[None]:
        """Whatever raises inside leaves the state as it was."""
        chosen = self.state_names() if only is None else only
        before = self.state(chosen)
        try:
            yield
        except BaseException:
            self._load(before, chosen)
            raise

    def not_finite(self) -> str | None:
        """The name of a piece of state that holds NaN or infinite numbers, if there is one."""
        for name in self._declared:
            if not is_finite(getattr(self, name)):
                return name
        for name, part in self.parts().items():
            for key, value in part.state().items():
                if not is_finite(value):
                    return f"{name}/{key}"
        return None

    def merge_state(self, other: Any, share: float) -> None:
        """Take in another's state, whose share of all samples is given."""
        for name, declared in self._declared.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, declared.merge(mine, theirs, share))
        for name, part in self.parts().items():
            part.merge(getattr(other, name), share)


def copied(value: Any) -> Any:
    """A tensor's own copy; anything else is not changed in place and needs none."""
    return value.detach().clone() if isinstance(value, Tensor) else value


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

    A tensor comes to the device of `like`. With `grows`, its first dimension may have any length.
    """
    if value is None:
        raise ValueError(f"{name} is missing.")
    if isinstance(like, Tensor):
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__} instead of a tensor.")
        if value.dtype != like.dtype:
            raise ValueError(f"{name} is of type {value.dtype} instead of {like.dtype}.")
        shape, expected = tuple(value.shape), tuple(like.shape)
        fits = shape[1:] == expected[1:] and len(shape) if grows else shape == expected
        if not fits:
            raise ValueError(f"{name} has shape {shape} instead of {expected}.")
        if not is_finite(value):
            raise ValueError(f"{name} holds NaN or infinite numbers.")
        low = high = None
        if value.numel() and (least is not None or most is not None):
            low, high = value.min().item(), value.max().item()
        result: Any = value.to(like.device, copy=True)
    else:
        if type(value) is not type(like) and not (type(like) is float and type(value) is int):
            raise ValueError(f"{name} is {value!r} instead of a {type(like).__name__}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, not a finite number.")
        low = high = value if isinstance(value, (int, float)) else None
        result = type(like)(value)
    if (least is not None and low is not None and low < least) or (
        most is not None and high is not None and high > most
    ):
        limits = f"{'any' if least is None else least} to {'any' if most is None else most}"
        raise ValueError(f"{name} ranges from {low} to {high}, but must lie within {limits}.")
    return result


def is_finite(value: Any) -> bool:
    """Whether a tensor or number is free of NaN and infinities; words and integers are."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or bool(torch.isfinite(value.sum())):
            return True  # a sum takes a twentieth of the time of a look at each number
        return bool(torch.isfinite(value).all())
    return not isinstance(value, float) or math.isfinite(value)
