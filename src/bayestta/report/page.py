"""One HTML page that needs nothing but itself: tables, curves, and what the methods recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bayestta.report.curves import by_domain, by_stream, calibration
from bayestta.report.facts import details, records, seeds
from bayestta.report.groups import Group, Row, group
from bayestta.report.style import CSS
from bayestta.report.tables import Table, comparison, number
from bayestta.result import Result, write_atomic

POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a browser may fetch and run nothing
MINUS = re.compile("^-(?=[0-9])")


def write_page(results: Sequence[Result], path: str | Path) -> None:
    """Write the page, whole or not at all."""
    write_atomic(path, render_page(results))


def render_page(results: Sequence[Result]) -> str:
    """The page as text: no scripts, no fonts, no pictures from elsewhere."""
    groups = group(results)
    # A method has one colour all over the page, and zero-shot the neutral one.
    labels = dict.fromkeys(row.label for g in groups for row in g.rows if row is not g.reference)
    styles = {label: i for i, label in enumerate(labels, start=1)}
    names = list(dict.fromkeys(g.data for g in groups))
    title = f"BayesTTA: {', '.join(names[:4])}{' …' * (len(names) > 4)}"
    body = "".join(_section(g, styles) for g in groups)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" />'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}" />'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{_lede(results)}</header><main>{body}</main>"
        f"<footer>{_sources(results)}</footer></body></html>\n"
    )


def _lede(results: Sequence[Result]) -> str:
    images = sum(run.n for run in results)
    runs = f"{len(results)} run{'s' * (len(results) != 1)}"
    spent = _duration(sum(run.seconds.get("total") or 0 for run in results))
    return (
        f'<p class="about">{runs} over {images:,} images, {seeds([r.seed for r in results])}, '
        f"{spent}. Accuracy in percent; the average weighs every image alike. Labels were used "
        "for scoring only.</p>"
    )


def _section(g: Group, styles: dict[str, int]) -> str:
    return "".join(
        [
            f'<section><h2>{escape(g.title)}</h2><p class="about">{escape(g.about)}</p>',
            _headline(g),
            _table(comparison(g).summary_first()),
            f'<div class="figures">{by_domain(g, styles)}{by_stream(g, styles)}</div>',
            calibration(g, styles),
            records(g, "covariance", "Covariance homogeneity test"),
            records(g, "guard", "Guard against collapse"),
            "<h3>Settings and environment</h3>",
            *(details(row) for row in g.rows),
            "</section>",
        ]
    )


def _headline(g: Group) -> str:
    """The finding in one sentence: the best method against zero-shot."""
    others = [row for row in g.rows if row is not g.reference]
    if g.reference is None or not others:
        return ""
    best = max(others, key=_accuracy)
    gain = best.difference(g.reference)
    more = f", {number(gain, sign=True)} points" if gain else ""
    value, base = (row.value(lambda run: run.accuracy) for row in (best, g.reference))
    return (
        f'<p class="headline"><strong>{escape(best.label)}</strong> reaches {number(value)} %, '
        f"zero-shot {number(base)} %{more}.</p>"
    )


def _accuracy(row: Row) -> float:
    value = row.value(lambda run: run.accuracy)
    return float("-inf") if value is None else value.mean


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in table.header)
    rows = []
    for row in table.rows:
        cells = [f'<th scope="row">{escape(row[0].text)}</th>']
        for cell in row[1:]:
            value, sign, std = escape(MINUS.sub("−", cell.text)).partition(" ± ")
            text = f"{value}<small>{sign}{std}</small>" if std else value
            cells.append(f"<td><strong>{text}</strong></td>" if cell.bold else f"<td>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    inner = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    note = ""
    if not table.domains and "not shown" in table.about:
        note = '<p class="about">The domains are in the figure below and in the CSV.</p>'
    return f'<div class="wide" tabindex="0"><table>{inner}</table></div>{note}'


def _sources(results: Sequence[Result]) -> str:
    files = [run.path.name for run in results if run.path is not None]
    made = max((run.created for run in results if run.created), default=None)
    parts = []
    if files:
        count = f"{len(files)} result file{'s' * (len(files) != 1)}"
        parts.append(f"Made from {count}: {', '.join(files)}.")
    if made:
        parts.append(f"Last run {made}.")
    return "".join(f"<p>{escape(part)}</p>" for part in parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
