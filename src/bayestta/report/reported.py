"""Measured beside reported: the rows for which the paper has a number."""

from __future__ import annotations

from bayestta.report.groups import Group, Row, Value
from bayestta.report.paper import Paper, Reported
from bayestta.report.tables import DOMAINS, Cell, Table, accuracy, by_columns, cells, number


def find(row: Row, g: Group, paper: Paper | None) -> Reported | None:
    """What the paper says of a row."""
    if paper is None:
        return None
    label = row.runs[0].notes.get("label")
    return paper.find(g.data, g.model, row.method, label=None if label is None else str(label))


def reported_tables(g: Group, paper: Paper | None) -> list[Table]:
    """Averages measured, reported and their difference, and the differences by domain."""
    pairs = [(row, find(row, g, paper)) for row in g.rows]
    known = [(row, told) for row, told in pairs if told is not None]
    if not known:
        return []
    columns: dict[str, list[Cell]] = {
        "method": [Cell(row.label) for row, _ in known],
        "measured": [Cell(number(row.value(accuracy), digits=2)) for row, _ in known],
        "reported": [Cell(f"{told.average:.2f}") for _, told in known],
        "difference": [
            Cell(number(_minus(row.value(accuracy), told.average), sign=True, digits=2))
            for row, told in known
        ],
        "from": [Cell(f"Table {told.table}, {told.row}") for _, told in known],
    }
    about = "average accuracy in %: measured, reported in the paper, and measured minus reported"
    tables = [by_columns(f"{g.title}: measured and reported", about, list(columns.items()))]
    rows = [(row, told) for row, told in known if set(told.domains) & set(g.domains)]
    if rows and len(g.domains) <= DOMAINS:
        apart = [("method", [Cell(row.label) for row, _ in rows])]
        for name in g.domains:
            values = [domain_difference(row, told, name) for row, told in rows]
            apart.append((name, cells(values, sign=True)))
        about = "measured minus reported accuracy in points"
        title = f"{g.title}: difference from the paper by domain"
        tables.append(by_columns(title, about, apart, range(1, len(apart))))
    return tables


def domain_difference(row: Row, told: Reported | None, name: str) -> Value | None:
    """Measured minus reported in one domain."""
    if told is None or name not in told.domains:
        return None
    return _minus(row.domain(name), told.domains[name])


def _minus(value: Value | None, reported: float) -> Value | None:
    return None if value is None else Value(value.mean - reported, value.std)
