"""Accuracy against one number: a setting that was swept, or the size of the batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayestta.report.curves import figure
from bayestta.report.groups import Group, Row, settings
from bayestta.report.markup import titled
from bayestta.report.plots import Axis, Point, Series
from bayestta.report.scales import scale
from bayestta.report.tables import Cell, Table, accuracy, by_columns, cells, number

LEAST = 3  # values that make a curve
WORDS = {"batch_size": "batch size"}


@dataclass(frozen=True)
class Sweep:
    """Rows of one method that differ in nothing but one number, in the order of that number."""

    label: str
    rows: dict[float, Row]


def sweeps(g: Group) -> dict[str, list[Sweep]]:
    """What was swept, by the name of the setting."""
    found: dict[str, list[Sweep]] = {}
    for method in dict.fromkeys(row.method for row in g.rows):
        rows = [(settings(row.runs[0]), row) for row in g.rows if row.method == method]
        for key in dict.fromkeys(key for known, _ in rows for key in known):
            families: dict[str, dict[float, Row]] = {}
            for known, row in rows:
                if _is_number(known.get(key)):
                    rest = {k: v for k, v in known.items() if k != key}
                    families.setdefault(json.dumps(rest, sort_keys=True), {})[known[key]] = row
            kept = {rest: f for rest, f in families.items() if len(f) >= LEAST}
            for label, family in zip(_labels(method, list(kept)), kept.values(), strict=True):
                found.setdefault(key, []).append(Sweep(label, dict(sorted(family.items()))))
    return found


def sensitivity_tables(g: Group) -> list[Table]:
    """For each setting that was swept, a column a value."""
    tables = []
    for key, found in sweeps(g).items():
        columns = [("method", [Cell(sweep.label) for sweep in found])]
        for value in sorted({value for sweep in found for value in sweep.rows}):
            measured = [sweep.rows.get(value) for sweep in found]
            means = [None if row is None else row.value(accuracy) for row in measured]
            columns.append((f"{value:g}", cells(means)))
        table = by_columns(
            f"{g.title}: {_word(key)}", f"accuracy in % against {_word(key)}", columns
        )
        for line in table.rows:  # here the best of a line matters, not that of a column
            _embolden(line)
        tables.append(table)
    return tables


def sensitivity_section(g: Group, styles: Mapping[str, int]) -> str:
    """A curve for each setting that was swept, with zero-shot as a level; "" where none was."""
    figures = []
    for key, found in sweeps(g).items():
        values = [value for sweep in found for value in sweep.rows]
        axis = scale(values)
        series = []
        for i, sweep in enumerate(found):
            points = []
            for value, row in sweep.rows.items():
                mean = row.value(accuracy)
                if mean is not None:
                    tip = f"{sweep.label}, {_word(key)} {value:g}: {number(mean)} %"
                    points.append(Point(axis.place(value), mean.mean, mean.std, tip))
            # A method that is one row keeps its colour; a swept one has several.
            series.append(Series(sweep.label, points, styles.get(sweep.label, i + 1)))
        swept = {id(row) for sweep in found for row in sweep.rows.values()}
        if g.reference is not None and id(g.reference) not in swept:
            ends = [axis.place(v) for v in (min(values), max(values))]
            level = [Point(x, g.reference.accuracy) for x in ends]
            series.insert(0, Series(g.reference.label, level, 0, dots=False, dashed=True))
        name = Axis(f"{_word(key)}{axis.about}", axis.marks(values))
        figures.append(figure(f"Sensitivity to {_word(key)}", series, name, g, whole=True))
    note = "Runs of one method that differ in this number alone."
    body = f'<div class="figures">{"".join(figures)}</div>' if figures else ""
    return titled("Sensitivity", note, body)


def _labels(method: str, families: list[str]) -> list[str]:
    """The method, with the settings in which its families differ where it has several."""
    known: list[dict[str, Any]] = [json.loads(rest) for rest in families]
    keys = [k for k in (known[0] if known else {}) if len({str(s.get(k)) for s in known}) > 1]
    words = [", ".join(f"{k}={s.get(k)}" for k in keys) for s in known]
    return [f"{method} ({word})" if word else method for word in words]


def _embolden(line: list[Cell]) -> None:
    known = [float(cell.text.split()[0]) for cell in line[1:] if cell.text[0].isdigit()]
    for i, cell in enumerate(line):
        if i and len(set(known)) > 1 and cell.text[0].isdigit():
            line[i] = Cell(cell.text, float(cell.text.split()[0]) == max(known))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _word(key: str) -> str:
    return WORDS.get(key, key)
