"""Several rounds through the domains: the average of each, and what was forgotten at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bayestta.evaluation.result import Result
from bayestta.report.curves import figure
from bayestta.report.groups import Group, Row, Value
from bayestta.report.markup import html_table, sentence, titled
from bayestta.report.plots import Axis, Point, Series
from bayestta.report.tables import DOMAINS, Cell, Table, by_columns, cells, number


def round_table(g: Group) -> Table | None:
    """The average of each round, and the last one minus the first; None for one round."""
    count = _rounds(g)
    if count < 2:
        return None
    columns = [("method", [Cell(row.label) for row in g.rows])]
    for i in range(count):
        columns.append((f"round {i + 1}", cells([_round(row, i) for row in g.rows], best=max)))
    change = [row.value(_change) for row in g.rows]
    columns.append(("change", cells(change, best=max, sign=True)))
    about = "accuracy in % of each round through all domains; change: the last minus the first"
    return by_columns(f"{g.title}: rounds", about, columns)


def forgetting_table(g: Group) -> Table | None:
    """Accuracy then and now, and the change in each domain; None where nobody looked back."""
    rows = [row for row in g.rows if any(run.forgetting for run in row.runs)]
    if not rows:
        return None
    columns = [("method", [Cell(row.label) for row in rows])]
    for title, read in (("then", _then), ("now", _now), ("change", _lost)):
        values = [row.value(read) for row in rows]
        best = None if title == "then" else max
        columns.append((title, cells(values, best=best, sign=title == "change")))
    names = looked_back(g)
    for name in names if len(names) <= DOMAINS else []:
        values = [forgotten(row, name) for row in rows]
        columns.append((name, cells(values, best=max, sign=True)))
    about = (
        "earlier domains, asked twice: accuracy in % while they were adapted to (then) and by the "
        "state at the end, which learns no more (now); below zero: forgotten"
    )
    return by_columns(f"{g.title}: forgetting", about, columns, range(4, len(columns)))


def looked_back(g: Group) -> list[str]:
    """The domains that were asked again at the end, in the order of the stream."""
    found = [e["domain"] for row in g.rows for run in row.runs for e in run.forgetting]
    return list(dict.fromkeys(found))


def forgotten(row: Row, domain: str) -> Value | None:
    """Now minus then."""

    def change(run: Result) -> float | None:
        found = [e["now"] - e["then"] for e in run.forgetting if e["domain"] == domain]
        return found[0] if found else None

    return row.value(change)


def rounds_section(g: Group, styles: Mapping[str, int]) -> str:
    """Tables and curves of rounds and of forgetting; "" where there are none."""
    parts = ""
    table, lost = round_table(g), forgetting_table(g)
    if table is not None:
        names = [str(i + 1) for i in range(_rounds(g))]
        chart = figure(
            "Accuracy by round", _series(g, styles, names, _round, "round "),
            Axis("round", list(enumerate(names))), g,
        )  # fmt: skip
        parts += titled("Rounds", sentence(table.about), html_table(table) + _in_grid(chart))
    if lost is not None:
        names, chart = looked_back(g), ""
        if len(names) > 1:
            chart = figure(
                "Change by domain",
                _series(g, styles, names, lambda row, i: forgotten(row, names[i])),
                Axis("domain, in the order of the stream", list(enumerate(names))),
                g,
                y_title="now − then (points)",
                limits=(-100.0, 100.0),
            )
        parts += titled("Forgetting", sentence(lost.about), html_table(lost) + _in_grid(chart))
    return parts


def _series(
    g: Group,
    styles: Mapping[str, int],
    names: Sequence[str],
    read: Callable[[Row, int], Value | None],
    what: str = "",
) -> list[Series]:
    series = []
    for row in g.shown():
        points = []
        for i, name in enumerate(names):
            value = read(row, i)
            if value is not None:
                tip = f"{row.label}, {what}{name}: {number(value)}"
                points.append(Point(i, value.mean, value.std, tip))
        series.append(Series(row.label, points, styles.get(row.label, 0)))
    return series


def _rounds(g: Group) -> int:
    return max(len(run.rounds) for row in g.rows for run in row.runs)


def _round(row: Row, i: int) -> Value | None:
    return row.value(lambda run: run.rounds[i]["accuracy"] if i < len(run.rounds) else None)


def _change(run: Result) -> float | None:
    if len(run.rounds) < 2:
        return None
    return float(run.rounds[-1]["accuracy"] - run.rounds[0]["accuracy"])


def _then(run: Result) -> float | None:
    return _mean(run.forgetting, "then")


def _now(run: Result) -> float | None:
    return _mean(run.forgetting, "now")


def _lost(run: Result) -> float | None:
    then, now = _then(run), _now(run)
    return None if then is None or now is None else now - then


def _mean(entries: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Of all images, as every average of a report."""
    n = sum(e["n"] for e in entries)
    return sum(e["n"] * e[key] for e in entries) / n if n else None


def _in_grid(chart: str) -> str:
    return f'<div class="figures">{chart}</div>' if chart else ""
