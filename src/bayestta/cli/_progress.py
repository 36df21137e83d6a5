"""The progress of a bench: bars on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID

from bayestta.cli._screen import Screen, one_line, shorten

if TYPE_CHECKING:
    from bayestta.bench import Event, Run, TimeLeft

EVERY = 60.0  # seconds between two lines on one run where there are no bars


class BenchBars:
    """One bar for the whole, and one per run under way, each with the time left.

    >>> duration(42), duration(150), duration(8000), duration(None)
    ('42 s', '2.5 min', '2.2 h', '?')
    """

    def __init__(self, screen: Screen, title: str, runs: list[Run], left: TimeLeft) -> None:
        self.screen, self.title, self.left, self.total = screen, title, left, len(runs)
        self.live = screen.err.is_terminal and not screen.quiet
        narrow = screen.err.width < 100
        self.width = max(12, screen.err.width - (46 if narrow else 62))  # of a run's description
        columns = (
            one_line("{task.description}"),
            BarColumn(bar_width=8 if narrow else 24),
            one_line("{task.fields[count]}"),
            one_line("{task.fields[left]}"),
        )
        self.progress = Progress(*columns, console=screen.err, disable=not self.live)
        self.all = self.progress.add_task(
            shorten(title, self.width), total=len(runs), count="", left=""
        )
        self.bars: dict[str, TaskID] = {}
        self.shares: dict[str, float] = {}  # of runs under way
        self.reported: dict[str, float] = {}  # when a line on a run was last printed
        self.done = self.kept = 0

    def __enter__(self) -> BenchBars:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        if event.kind == "set aside":
            self.screen.note(event.error)
            return
        if event.kind == "kept":
            self.kept += 1
        elif self.kept:
            self.screen.note(f"{self.kept} of {self.total} runs are there already.")
            self.kept = 0
        self.left.add(event)
        name, run = event.run.file, event.run
        if event.kind == "started":
            self.reported[name], self.shares[name] = time.monotonic(), 0.0
            words = f"  {shorten(str(run), self.width - 2)}"
            self.bars[name] = self.progress.add_task(words, total=1, count="", left="")
        elif event.kind == "step":
            self._step(event)
        else:
            self._finish(event)
        done = self.done + sum(self.shares.values())
        count = f"{self.done} of {self.total} runs"
        self.progress.update(self.all, completed=done, count=count, left=self._left())

    def _step(self, event: Event) -> None:
        name = event.run.file
        share = event.images / max(1, event.total)
        self.shares[name] = share
        count, rest = f"{event.images} of {event.total}", duration(self.left.of(event.run))
        self.progress.update(self.bars[name], completed=share, count=count, left=f"{rest} left")
        if not self.live and time.monotonic() - self.reported[name] >= EVERY:
            self.reported[name] = time.monotonic()
            self.screen.note(f"  {event.run}: {count} images, {rest} left; {self._left()}")

    def _finish(self, event: Event) -> None:
        name = event.run.file
        self.done += 1
        self.shares.pop(name, None)
        if (bar := self.bars.pop(name, None)) is not None:
            self.progress.remove_task(bar)
        if event.kind == "kept":
            return
        outcome = event.error or "?"
        if event.result is not None:
            seconds = duration(event.result.seconds["total"])
            outcome = f"{event.result.accuracy:.2f} % of {event.result.n} images, {seconds}"
        line = f"{event.kind} ({self.done} of {self.total}): {event.run}: {outcome}"
        self.screen.note(line if self.live else f"{line}; {self._left()}")

    def _left(self) -> str:
        return f"{duration(self.left.seconds())} left"


def duration(seconds: float | None) -> str:
    """A time as a person says it."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
