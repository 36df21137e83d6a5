"""A table as cells, some of them bold; how it is written down is the business of `formats`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bayestta.evaluation.result import Result
from bayestta.report.groups import Group, Row, Value

NONE = "–"
DOMAINS = 16  # a table with more columns is no longer read; the CSV has them all


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False


@dataclass
class Table:
    title: str
    about: str
    header: list[str]
    rows: list[list[Cell]]
    domains: range = field(default_factory=lambda: range(0))  # the columns that are domains

    def without_domains(self) -> Table:
        keep = [i for i in range(len(self.header)) if i not in self.domains]
        return Table(
            self.title,
            f"{self.about}; {len(self.domains)} domains not shown",
            [self.header[i] for i in keep],
            [[row[i] for i in keep] for row in self.rows],
        )

    def summary_first(self) -> Table:
        """The domains last, where a narrow screen hides columns."""
        order = [i for i in range(len(self.header)) if i not in self.domains] + [*self.domains]
        rows = [[row[i] for i in order] for row in self.rows]
        start = len(order) - len(self.domains)
        domains = range(start, len(order))
        return Table(self.title, self.about, [self.header[i] for i in order], rows, domains)

    def turned(self) -> Table:
        """Rows for columns."""
        cells = [list(column) for column in zip(*self.rows, strict=True)]
        rows = [[Cell(title), *c] for title, c in zip(self.header[1:], cells[1:], strict=True)]
        return Table(self.title, self.about, ["", *(cell.text for cell in cells[0])], rows)


def comparison(group: Group, *, domains: int = DOMAINS) -> Table:
    """Methods by domains: accuracy, its average, the gain on zero-shot, ECE, seconds and memory.

    The average weighs images, not domains. The estimate is what the method makes of its own
    accuracy without labels, and in brackets how far that is off. Best cells of a column are bold,
    ties included; domains are left out where there are more than `domains`.
    """
    rows = group.rows
    columns: list[tuple[str, list[Cell]]] = [("method", [Cell(row.label) for row in rows])]
    if len({tuple(row.seeds) for row in rows}) > 1:
        columns.append(("seeds", [Cell(str(len(row.runs))) for row in rows]))
    start = len(columns)
    for name in group.domains:
        values = [row.domain(name) for row in rows]
        columns.append((name, cells(values, best=max)))
    end = len(columns)
    columns.append(("average", cells([row.value(accuracy) for row in rows], best=max)))
    if group.reference is not None and len(rows) > 1:
        columns.append(("vs zero-shot", [difference(row, group.reference) for row in rows]))
    if any(run.estimate for row in rows for run in row.runs):
        columns.append(("estimate", [estimate(row) for row in rows]))
    ece = [row.value(lambda run: None if run.ece is None else 100 * run.ece) for row in rows]
    columns.append(("ECE %", cells(ece, best=min)))
    seconds = [row.value(lambda run: run.seconds.get("total")) for row in rows]
    columns.append(("seconds", cells([v and Value(v.mean) for v in seconds])))
    memory = [row.value(lambda run: run.peak_memory_bytes) for row in rows]
    if any(memory):  # of the whole process, torch and the model included
        columns.append(
            ("MB", [Cell(NONE if v is None else f"{v.mean / 1e6:,.0f}") for v in memory])
        )
    about = f"accuracy in %; {group.about}"
    table = by_columns(group.title, about, columns, range(start, end))
    return table if len(group.domains) <= domains else table.without_domains()


def number(value: Value | None, *, sign: bool = False, digits: int = 1) -> str:
    """One decimal, as the noise of a few thousand images allows.

    >>> number(Value(53.46, 0.31)), number(Value(-0.04), sign=True), number(None)
    ('53.5 ± 0.3', '0.0', '–')
    """
    if value is None:
        return NONE
    text = f"{value.mean:{'+' if sign else ''}.{digits}f}"
    if float(text) == 0:
        text = f"{0:.{digits}f}"
    return text if value.std is None else f"{text} ± {value.std:.{digits}f}"


def accuracy(run: Result) -> float | None:
    return run.accuracy


def cells(
    values: Sequence[Value | None],
    *,
    best: Callable[[list[float]], float] | None = None,
    sign: bool = False,
) -> list[Cell]:
    """A column of numbers, the best of them bold, ties included."""
    known = [round(v.mean, 1) for v in values if v is not None]
    top = best(known) if best is not None and len(known) > 1 else None
    if len(set(known)) < 2:
        top = None  # all the same: nothing to point at
    return [Cell(number(v, sign=sign), v is not None and round(v.mean, 1) == top) for v in values]


def by_columns(
    title: str,
    about: str,
    columns: Sequence[tuple[str, Sequence[Cell]]],
    domains: range = range(0),
) -> Table:
    """A table from its columns, each with its name."""
    rows = [[column[i] for _, column in columns] for i in range(len(columns[0][1]))]
    return Table(title, about, [name for name, _ in columns], rows, domains)


def estimate(row: Row) -> Cell:
    """Mean confidence, and how far it is above accuracy; means over seeds."""
    value, error = (
        row.value(lambda run, key=key: (run.estimate or {}).get(key))  # type: ignore[misc]
        for key in ("accuracy", "error")
    )
    if value is None or error is None:
        return Cell(NONE)
    return Cell(f"{value.mean:.1f} ({number(Value(error.mean), sign=True)})")


def difference(row: Row, reference: Row) -> Cell:
    return Cell(NONE) if row is reference else Cell(number(row.difference(reference), sign=True))
