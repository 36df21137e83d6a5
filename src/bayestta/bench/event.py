"""What a bench says about its runs while it goes on, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bayestta.bench.plan import Run
from bayestta.evaluation.result import Result


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    run: Run
    kind: str  # kept (from an earlier start), set aside, started, step, done or failed
    images: int = 0  # so far
    total: int = 0
    result: Result | None = None
    error: str = ""  # in one line
    traceback: str = ""
    stage: str = ""  # that failed: data or model, which would fail other runs alike


class TimeLeft:
    """Seconds until the last run ends, as far as the runs so far can tell.

    A run under way is judged by its own speed; one that waits by those like it, the nearest first:
    method, model and data; method and model; method; any.

    >>> one, two = (Run("rmnist", "mini-rn", "zero-shot", seed=seed) for seed in (1, 2))
    >>> now = iter([0.0, 4.0, 4.0]).__next__
    >>> left = TimeLeft([one, two], processes=1, clock=now)
    >>> left.add(Event(one, "started", total=8)), left.add(Event(one, "done", images=8))
    (None, None)
    >>> left.seconds()
    4.0
    """

    def __init__(
        self, runs: Sequence[Run], *, processes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.waiting = {run.file: run for run in runs}
        self.processes, self.clock = processes, clock
        self.under_way: dict[str, tuple[Run, float, float]] = {}  # file -> run, begin, share done
        self.spent: dict[tuple[str, ...], list[float]] = {}

    def add(self, event: Event) -> None:
        if event.kind == "set aside":
            return
        run = event.run
        self.waiting.pop(run.file, None)
        if event.kind == "started":
            self.under_way[run.file] = (run, self.clock(), 0.0)
        elif event.kind == "step" and event.total and run.file in self.under_way:
            _, began, _ = self.under_way[run.file]
            self.under_way[run.file] = (run, began, event.images / event.total)
        elif event.kind in ("done", "failed"):
            seen = self.under_way.pop(run.file, None)
            if event.kind == "done" and seen is not None:
                spent = self.clock() - seen[1]
                for key in _keys(run):
                    self.spent.setdefault(key, []).append(spent)

    def of(self, run: Run) -> float | None:
        """The seconds left of a run under way."""
        if run.file not in self.under_way:
            return None
        _, began, share = self.under_way[run.file]
        spent = self.clock() - began
        if share > 0:
            return spent * (1 - share) / share
        expected = self._expected(run)
        return None if expected is None else max(0.0, expected - spent)

    def seconds(self) -> float | None:
        """None while nothing is known."""
        each = [self.of(run) for run, _, _ in self.under_way.values()]
        each += [self._expected(run) for run in self.waiting.values()]
        known = [value for value in each if value is not None]
        if not known:
            return None if each else 0.0
        guess = sum(known) / len(known)
        total = sum(guess if value is None else value for value in each)
        return max(total / self.processes, max(known[: len(self.under_way)], default=0.0))

    def _expected(self, run: Run) -> float | None:
        for key in _keys(run):
            if key in self.spent:
                return sum(self.spent[key]) / len(self.spent[key])
        return None


def _keys(run: Run) -> list[tuple[str, ...]]:
    whole = (run.method, run.model, run.data)
    return [whole, whole[:2], whole[:1], ()]
