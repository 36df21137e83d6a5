"""What a person sees: bars and colours on a terminal, plain lines anywhere else.

Answers go to stdout; progress, notes and errors to stderr, so that a pipe gets the answers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from bayestta.evaluation.steps import Step

WIDTH = 80  # columns of a table in a pipe or a log
ROWS = 16  # bars on the screen at once; the oldest give way


class Screen:
    """Where a command writes; `quiet` silences all but answers and errors."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.out, self.err = Console(highlight=False), Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """An answer, as it is: no wrapping, no markup."""
        print(text)

    def conclude(self, text: str) -> None:
        """A sentence that is an answer: on a terminal it is wrapped between words."""
        self.out.print(Text(text), soft_wrap=not self.out.is_terminal)

    def note(self, text: str) -> None:
        if not self.quiet:
            self._print(Text(text))

    def error(self, text: str) -> None:
        self._print(Text(f"Error: {text}", style="bold red"))

    def _print(self, text: Text) -> None:
        """Wrapped between words on a terminal; one line in a pipe or a log."""
        self.err.print(text, soft_wrap=not self.err.is_terminal)

    @contextmanager
    def wait(self, text: str) -> Iterator[None]:
        """Say what takes a while, with a spinner where one can be seen."""
        if self.quiet or not self.err.is_terminal:
            self.note(text)
            yield
            return
        with self.err.status(Text(text)):
            yield

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """One line per row: columns as wide as their cells, but for the second, which is cut.

        It has the width of the terminal, and 80 columns in a pipe.
        """
        width = self.out.width if self.out.is_terminal else WIDTH
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        widths[1] = max(8, min(widths[1], width - sum(widths) - 2 * len(widths) + 2 + widths[1]))
        for row in (header, *rows):
            cells = (shorten(cell, width) for cell, width in zip(row, widths, strict=True))
            padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            self.say("  ".join(padded).rstrip())


def shorten(text: str, width: int) -> str:
    """Text that fits, cut between words.

    >>> shorten("digits that turn", 12)
    'digits that…'
    """
    if len(text) <= width:
        return text
    cut = text[: width - 1]
    head = cut if text[width - 1 : width] == " " else cut.rpartition(" ")[0] or cut
    return head.rstrip(" ,;:") + "…"


def one_line(text: str) -> TextColumn:
    """A column of a bar that is cut, never wrapped; names of folders are no markup."""
    column = Column(no_wrap=True, overflow="ellipsis")
    return TextColumn(text, markup=False, table_column=column)


class Bars:
    """One bar per domain, with the accuracy so far; methods that are compared share the bars.

    >>> with Bars(Screen(quiet=True), "lit on rmnist", {"0": 8}) as bars:
    ...     progress = bars.follow("zero-shot")  # to be called with every step
    """

    def __init__(self, screen: Screen, title: str, sizes: Mapping[str, int]) -> None:
        self.screen, self.title, self.sizes = screen, title, sizes
        self.live = screen.err.is_terminal and not screen.quiet
        self.narrow = screen.err.width < 100
        columns = (
            one_line("{task.description}"),
            BarColumn(bar_width=8 if self.narrow else 24),
            MofNCompleteColumn(),
            one_line("{task.fields[scores]}"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
        )
        self.progress = Progress(*columns, console=screen.err, disable=not self.live)
        self.tasks: dict[str, Any] = {}
        self.scores: dict[str, dict[str, str]] = {}  # domain -> method -> accuracy
        # (method, domain, round) -> images, images with a label, hits
        self.seen: dict[tuple[str, str, int], list[int]] = {}
        self.last: tuple[str, str, int] | None = None

    def __enter__(self) -> Bars:
        self.screen.note(self.title)
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.progress.stop()
        if kind is None:
            self._finish()

    def follow(self, method: str) -> Callable[[Step], None]:
        """The callback for one method's pass over the stream."""

        def update(step: Step) -> None:
            key = (method, step.domain, step.round)
            if key != self.last:
                self._finish()
                self._begin(step.domain)
                self.last = key
            seen = self.seen.setdefault(key, [0, 0, 0])
            seen[0] += step.n
            if step.y is not None:
                seen[1] += step.n
                seen[2] += int((step.probabilities.argmax(1).cpu() == step.y.cpu()).sum())
                self.scores.setdefault(step.domain, {})[method] = f"{100 * seen[2] / seen[1]:.1f} %"
            scores = "  ".join(f"{k} {v}" for k, v in self.scores.get(step.domain, {}).items())
            self.progress.update(self.tasks[step.domain], completed=seen[0], scores=scores)

        return update

    def _begin(self, domain: str) -> None:
        if domain in self.tasks:
            self.progress.reset(self.tasks[domain])
            return
        most = max(8, self.screen.err.width - (66 if self.narrow else 84))
        width = min(most, max(map(len, self.sizes), default=0))
        self.tasks[domain] = self.progress.add_task(
            f"  {shorten(domain, width):>{width}}", total=self.sizes.get(domain), scores=""
        )
        if len(self.tasks) > ROWS:
            self.progress.update([*self.tasks.values()][-ROWS - 1], visible=False)

    def _finish(self) -> None:
        """Where there are no bars, a line for the domain that has just ended."""
        if self.last is None or self.live:
            return
        method, domain, _ = self.last
        images = self.seen[self.last][0]
        score = self.scores.get(domain, {}).get(method)
        self.screen.note(f"  {domain}: {method}{f' {score}' if score else ''}, {images} images")
