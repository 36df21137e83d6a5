"""One registry per kind of thing that has a name: methods, data sets and models."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Generic, TypeVar

from bayestta.names import unknown

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Things by name. Those of the package are found by importing its files on first use.

    >>> shapes = Registry[type]("shape")
    >>> shapes.add("circle", int)
    >>> shapes.find("circel")
    Traceback (most recent call last):
    ...
    ValueError: unknown shape 'circel': did you mean 'circle'? Valid: circle.
    """

    def __init__(self, kind: str, package: str = "") -> None:
        self.kind, self.package = kind, package
        self._known: dict[str, T] = {}
        self._walked = not package
        self._lock = threading.RLock()

    def add(self, name: str, thing: T) -> None:
        """Make a thing known. A file may be imported twice, two things may not share a name."""
        known = self._known.get(name)
        if known is not None and _title(known) != _title(thing):
            raise ValueError(
                f"{self.kind} {name!r} is registered twice, by {_title(known)} and "
                f"{_title(thing)}: give one of them another name."
            )
        self._known[name] = thing

    def remove(self, name: str) -> None:
        """Forget a thing, such as one that a test made known."""
        del self._known[name]

    def find(self, name: str) -> T:
        """The thing of that name, or a ValueError with the nearest names."""
        if name not in self._all():
            raise ValueError(unknown(self.kind, name, self._all()))
        return self._known[name]

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        with self._lock:  # a second thread waits for the whole list, and a failed import is no end
            if not self._walked:
                for module in pkgutil.iter_modules(import_module(self.package).__path__):
                    import_module(f"{self.package}.{module.name}")
                self._walked = True
        return self._known


def _title(thing: object) -> str:
    return str(getattr(thing, "__qualname__", thing))
