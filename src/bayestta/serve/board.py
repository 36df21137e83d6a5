"""What is new: the latest summary per adapter and the latest events, for pages and listeners."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

EVENTS = 200


class Board:
    """Bounded memory of what happened; listeners ask for what came after a number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._summaries: dict[str, tuple[int, dict[str, Any]]] = {}
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=EVENTS)

    def changed(self, name: str, summary: dict[str, Any], events: list[dict[str, Any]]) -> None:
        now = time.time()
        with self._lock:
            self._number += 1
            self._summaries[name] = (self._number, {"id": name, "time": now, **summary})
            for event in events:
                self._number += 1
                self._events.append((self._number, {"time": now, **event}))

    def removed(self, name: str) -> None:
        with self._lock:
            self._number += 1
            self._summaries.pop(name, None)
            self._events.append((self._number, {"kind": "removed", "adapter": name}))

    @property
    def number(self) -> int:
        """Of the latest change."""
        with self._lock:
            return self._number

    def summary(self, name: str) -> dict[str, Any] | None:
        with self._lock:
            found = self._summaries.get(name)
            return None if found is None else found[1]

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        with self._lock:
            return [e for _, e in self._events if name is None or e.get("adapter") == name]

    def since(self, number: int, name: str | None = None) -> tuple[int, list[Any], list[Any]]:
        """The number now, and summaries and events that came after the one given."""
        with self._lock:
            if number == self._number:
                return number, [], []
            summaries = [
                value
                for key, (at, value) in self._summaries.items()
                if at > number and name in (None, key)
            ]
            events = [
                event
                for at, event in self._events
                if at > number and name in (None, event.get("adapter"))
            ]
            return self._number, summaries, events
