"""One HTML page that needs nothing but itself: tables, curves, and what the methods recorded."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bayestta.evaluation.result import Result, write_atomic
from bayestta.report.confusion import confusion_section
from bayestta.report.curves import by_domain, by_stream, calibration
from bayestta.report.decisions import covariance_section
from bayestta.report.explanations import pictures_section
from bayestta.report.facts import details, records, seeds
from bayestta.report.groups import Group, group
from bayestta.report.markup import html_table, sentence, titled
from bayestta.report.mended import turned_section
from bayestta.report.paper import Paper
from bayestta.report.reported import reported_tables
from bayestta.report.rounds import rounds_section
from bayestta.report.sensitivity import sensitivity_section
from bayestta.report.style import CSS
from bayestta.report.tables import comparison, number
from bayestta.report.trade import trade_off

# A browser may fetch and run nothing; pictures are in the page itself.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_page(results: Sequence[Result], path: str | Path, *, paper: Paper | None = None) -> None:
    """Write the page, whole or not at all."""
    write_atomic(path, render_page(results, paper=paper))


def render_page(results: Sequence[Result], *, paper: Paper | None = None) -> str:
    """The page as text: no scripts, no fonts, no pictures from elsewhere.

    With a `paper`, rows of which it reports a number stand beside it.
    """
    groups = group(results)
    # A method has one colour all over the page, and zero-shot the neutral one.
    rows = [row for g in groups for row in g.rows if row is not g.reference]
    rows.sort(key=lambda row: row.label != row.method)  # variants come after the methods themselves
    styles = {label: i for i, label in enumerate(dict.fromkeys(r.label for r in rows), start=1)}
    names = list(dict.fromkeys(g.data for g in groups))
    title = f"BayesTTA: {', '.join(names[:4])}{' …' * (len(names) > 4)}"
    body = "".join(_section(g, styles, paper) for g in groups)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" />'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}" />'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{_lede(results)}</header><main>{body}</main>"
        f"<footer>{_sources(results, paper)}</footer></body></html>\n"
    )


def _lede(results: Sequence[Result]) -> str:
    images = sum(run.n for run in results)
    runs = f"{len(results)} run{'s' * (len(results) != 1)}"
    spent = _duration(sum(run.seconds.get("total") or 0 for run in results))
    return (
        f'<p class="about">{runs} over {images:,} images, {seeds([r.seed for r in results])}, '
        f"{spent}. Accuracy in percent; the average weighs every image alike. Labels were used "
        "for scoring only. The estimate of accuracy needs none: it is the mean confidence of the "
        "answers, and in brackets its error.</p>"
    )


def _section(g: Group, styles: dict[str, int], paper: Paper | None) -> str:
    table = comparison(g)
    charts = [by_domain(g, styles), by_stream(g, styles), trade_off(g, styles)]
    hidden = ""
    if not table.domains:
        hidden = '<p class="about">The domains are in the figure below and in the CSV.</p>'
    return "".join(
        [
            f'<section><h2>{escape(g.title)}</h2><p class="about">{escape(g.about)}</p>',
            _headline(g),
            html_table(table.summary_first()),
            hidden,
            *(
                titled(one.title.removeprefix(f"{g.title}: "), sentence(one.about), html_table(one))
                for one in reported_tables(g, paper)
            ),
            f'<div class="figures">{"".join(charts)}</div>',
            rounds_section(g, styles),
            sensitivity_section(g, styles),
            calibration(g, styles),
            confusion_section(g),
            pictures_section(g),
            turned_section(g),
            covariance_section(g),
            records(g, "tower", "Statistics of the image tower at the end of the stream"),
            records(g, "refinement", "Refinement of the image tower"),
            records(g, "guard", "Guard against collapse"),
            records(g, "tail", "Accuracy in the worst of many orders"),
            "<h3>Settings and environment</h3>",
            *(details(row) for row in g.rows),
            "</section>",
        ]
    )


def _headline(g: Group) -> str:
    """The finding in one sentence: the best method against zero-shot."""
    best = g.best
    if g.reference is None or best is None:
        return ""
    gain = best.difference(g.reference)
    more = f", {number(gain, sign=True)} points" if gain else ""
    value, base = (row.value(lambda run: run.accuracy) for row in (best, g.reference))
    return (
        f'<p class="headline"><strong>{escape(best.label)}</strong> reaches {number(value)} %, '
        f"zero-shot {number(base)} %{more}.</p>"
    )


def _sources(results: Sequence[Result], paper: Paper | None) -> str:
    files = [run.path.name for run in results if run.path is not None]
    made = max((run.created for run in results if run.created), default=None)
    parts = []
    if files:
        count = f"{len(files)} result file{'s' * (len(files) != 1)}"
        parts.append(f"Made from {count}: {', '.join(files)}.")
    if made:
        parts.append(f"Last run {made}.")
    if paper is not None and paper.citation:
        parts.append(f"Reported numbers: {paper.citation}.")
    return "".join(f"<p>{escape(part)}</p>" for part in parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
