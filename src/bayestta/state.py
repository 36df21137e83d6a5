"""State declared once: its start, how it merges and what it may be.

Reset, saving, loading, merging and placement on a device follow from the declaration. A piece of
state is a tensor, a number or a word of the owner, or a `Part` with a life of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from bayestta.matching import copied, is_sound
from bayestta.matching import matching as matching
from bayestta.matching import taken as taken

T = TypeVar("T")
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
    """A tensor, number or word: its start, its merge and what it may be."""

    start: Any
    merge: Merge
    limits: Mapping[str, Any]


class Stateful:
    """Owns declared state.

    >>> class Counter(Stateful):
    ...     def __init__(self):
    ...         self.total = self.add_state("total", torch.zeros(2), merge="sum")
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
        start: T,
        *,
        merge: str | Merge = "keep",
        least: float | None = None,
        most: float | None = None,
        grows: bool = False,
    ) -> T:
        """Declare a piece of state, set it to its start and return it.

        Parameters
        ----------
        start
            A tensor, number or word, or a `Part`. The tensor must not change afterwards.
        merge
            `sum`, `mean` (weighted by samples), `max`, `keep`, or a function of (mine, theirs,
            their share of the samples). A part merges itself.
        least, most
            The range that a loaded value must lie in.
        grows
            Whether the first dimension of a tensor may have any length; a start of shape (0,0)
            leaves the others open as well.
        """
        declared = self.__dict__.setdefault("_declared", {})
        names = self.__dict__.setdefault("_part_names", [])
        if hasattr(start, "state") and hasattr(start, "reset"):
            names.append(name)
            setattr(self, name, start)
            return start
        rule = MERGES[merge] if isinstance(merge, str) else merge
        declared[name] = Declared(start, rule, {"least": least, "most": most, "grows": grows})
        value: T = copied(start)
        setattr(self, name, value)
        return value

    def parts(self) -> dict[str, Part]:
        """The pieces of state that have a life of their own."""
        return {name: getattr(self, name) for name in self._part_names}

    def state_names(self) -> set[str]:
        return {*self._declared, *self._part_names}

    def reset_state(self) -> None:
        with torch.inference_mode(False):  # what is made there could never be changed elsewhere
            for name, declared in self._declared.items():
                setattr(self, name, copied(declared.start))
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
            like = declared.start if declared.limits["grows"] else getattr(self, name)
            given = rest.pop(name, None)
            setattr(self, name, matching(name, given, like, **declared.limits))
        for name, part in self.parts().items():
            if name in chosen:
                given = taken(rest, f"{name}/")
                part.load(given)
                rest |= {f"{name}/{key}": given[key] for key in given.keys() - part.state().keys()}
        if rest:
            raise ValueError(f"{', '.join(sorted(rest)[:5])} is not part of the state.")
        self.check_state()

    def check_state(self) -> None:
        """Raise a ValueError where loaded pieces contradict each other."""

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

    def unsound(self) -> str | None:
        """The name of a piece of state that holds NaN, infinite or huge numbers, if there is one.

        What passes can be loaded again.
        """
        for name in self._declared:
            if not is_sound(getattr(self, name)):
                return name
        for name, part in self.parts().items():
            if hasattr(part, "unsound"):  # without the copies of `state`
                wrong = part.unsound()
            else:
                wrong = next((k for k, v in part.state().items() if not is_sound(v)), None)
            if wrong:
                return f"{name}/{wrong}"
        return None

    def merge_state(self, other: Any, share: float) -> None:
        """Take in another's state, whose share of all samples is given."""
        for name, declared in self._declared.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, declared.merge(mine, theirs, share))
        for name, part in self.parts().items():
            part.merge(getattr(other, name), share)


class StatefulPart(Stateful):
    """A part that is made of declared state itself.

    >>> class Mean(StatefulPart):
    ...     def __init__(self):
    ...         self.add_state("total", 0.0, merge="sum")
    ...         self.add_state("count", 0, merge="sum", least=0)
    >>> one, two = Mean(), Mean()
    >>> two.load({"total": 3.0, "count": 2})
    >>> one.merge(two, share=1.0)
    >>> one.state()
    {'total': 3.0, 'count': 2}
    """

    def reset(self) -> None:
        self.reset_state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.load_state(state)

    def merge(self, other: Any, share: float) -> None:
        self.merge_state(other, share)


class Randomness:
    """The adapter's own generator, as a piece of its state."""

    def __init__(self, seed: int) -> None:
        self.seed, self.generator = seed, torch.Generator()
        self.reset()

    def reset(self) -> None:
        self.generator.manual_seed(self.seed)

    def state(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load(self, state: Mapping[str, Any]) -> None:
        given = matching("generator", state.get("generator"), self.generator.get_state())
        try:
            self.generator.set_state(given)
        except RuntimeError as error:
            raise ValueError(f"generator cannot be restored ({error}).") from None

    def merge(self, other: Randomness, share: float) -> None:
        pass  # each worker keeps its own draws
