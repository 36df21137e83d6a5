"""From the runs of a group to the figures of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from bayestta.report.groups import Group, Row, Value
from bayestta.report.plots import Axis, Point, Series, legend, line_chart, reliability_chart
from bayestta.report.scales import ticks
from bayestta.report.tables import number

POINTS = 60  # of a curve over the stream: single batches are too noisy to compare
DENSE = 20  # domains, from which dots run into each other
CROWD = 3  # curves, from which bands hide each other
SKETCH = "zero-shot sketch"


def by_domain(g: Group, styles: Mapping[str, int]) -> str:
    """Accuracy in each domain, the domains in the order of time."""
    series = []
    dense = len(g.domains) > DENSE
    for row in g.shown():
        points = []
        for i, name in enumerate(g.domains):
            value = row.domain(name)
            if value is not None:
                title = f"{row.label}, {name}: {number(value)} %"
                std = None if len(g.rows) > (CROWD if dense else 2 * CROWD) else value.std
                points.append(Point(i, value.mean, std, title))
        series.append(Series(row.label, points, styles.get(row.label, 0), dots=not dense))
    axis = Axis("domain, in the order of the stream", list(enumerate(g.domains)))
    return figure("Accuracy by domain", series, axis, g)


def by_stream(g: Group, styles: Mapping[str, int]) -> str:
    """Accuracy while the stream goes by, over the number of images seen."""
    spans: list[tuple[float, float, str]] = []
    series = []
    for row in g.shown():
        traces = [run.trace for run in row.runs if run.trace]
        if not traces:
            continue
        points = []
        for x, value, name in stream_points(traces):
            std = None if len(g.rows) > CROWD else value.std
            points.append(Point(x, value.mean, std, f"{row.label}, {name}: {number(value)} %"))
        series.append(Series(row.label, points, styles.get(row.label, 0), dots=False))
        spans = spans or _spans(traces[0])
    if not series:
        return ""
    end = spans[-1][1]
    marks = [(mark, f"{mark:,.0f}") for mark in ticks(0, end) if mark <= end]
    return figure("Accuracy over the stream", series, Axis("images seen", marks, spans), g)


def stream_points(traces: Sequence[Sequence[Mapping[str, Any]]]) -> list[tuple[float, Value, str]]:
    """(images seen, accuracy over the seeds, domain) for stretches of a stream within one domain.

    Seeds whose steps differ from the first's in number or size cannot be averaged with it, and are
    left to the curve by domain.
    """
    shape = [(*visit(e), e["n"]) for e in traces[0]]
    same = [t for t in traces if [(*visit(e), e["n"]) for e in t] == shape]
    stretch = -(-len(shape) // POINTS)
    points, seen, first = [], 0, 0
    for (domain, _), entries in groupby(shape, key=lambda step: step[:2]):
        sizes = [n for _, _, n in entries]
        for start in range(0, len(sizes), stretch):
            n = sum(sizes[start : start + stretch])
            where = slice(first + start, first + min(start + stretch, len(sizes)))
            value = Value.of([100 * sum(e["hits"] for e in t[where]) / n for t in same])
            if value is not None:
                points.append((seen + n / 2, value, str(domain)))
            seen += n
        first += len(sizes)
    return points


def visit(entry: Mapping[str, Any]) -> tuple[str, int]:
    """The domain and the round of an entry of a trace."""
    return entry["domain"], entry.get("round", 1)


def calibration(g: Group, styles: Mapping[str, int]) -> str:
    """Reliability of the answers and, dashed, of the zero-shot sketch of the same images."""
    figures = []
    for row in g.shown():
        bins = [d.get("bins") for run in row.runs for d in run.domains]
        answer = reliability(row.label, bins, styles.get(row.label, 0))
        if answer is None:
            continue
        curves, error = [answer], f"ECE {number(_ece(row, sketch=False))} %"
        sketch = reliability(SKETCH, [run.sketch["bins"] for run in row.runs if run.sketch], 0)
        if sketch is not None and row is not g.reference:
            curves.insert(0, sketch)
            error += f"<br />sketch {number(_ece(row, sketch=True))} %"
        svg = reliability_chart(curves, about=f"Calibration of {row.label} on {g.title}")
        caption = f"<figcaption>{error}</figcaption>"
        figures.append(f"<figure><h4>{escape(row.label)}</h4>{svg}{caption}</figure>")
    if not figures:
        return ""
    note = (
        '<p class="about">Accuracy of the answers given with a certain confidence. A calibrated '
        "method follows the dotted line, an overconfident one runs below it. Dashed: the zero-shot "
        "sketch of the same images. The larger a dot, the more images; bins of fewer than one in a "
        "thousand are left out.</p>"
    )
    return f'<h3>Calibration</h3>{note}<div class="figures small">{"".join(figures)}</div>'


def reliability(
    label: str, bins: Sequence[Sequence[Sequence[float]] | None], style: int
) -> tuple[Series, list[int]] | None:
    """Calibration bins of several runs and domains added up, as a curve and its images a dot."""
    known = [one for one in bins if one]
    if not known:
        return None
    points, counts = [], []
    total = sum(cell[0] for one in known for cell in one)
    for cells in zip(*known, strict=True):
        n, confidence, hits = (sum(cell[i] for cell in cells) for i in range(3))
        if n and 1000 * n >= total:
            x, y = confidence / n, hits / n
            title = f"{label}: confidence {x:.2f}, accuracy {y:.2f}, {n:,.0f} images"
            points.append(Point(x, y, title=title))
            counts.append(round(n))
    return Series(label, points, style, dashed=label == SKETCH), counts


def _ece(row: Row, *, sketch: bool) -> Value | None:
    """In percent, of the answer or of the sketch."""
    if sketch:
        return row.value(lambda run: 100 * run.sketch["ece"] if run.sketch else None)
    return row.value(lambda run: None if run.ece is None else 100 * run.ece)


def figure(
    title: str,
    series: Sequence[Series],
    axis: Axis,
    g: Group,
    *,
    y_title: str = "accuracy (%)",
    limits: tuple[float, float] = (0.0, 100.0),
    whole: bool = False,
) -> str:
    """A chart with its title and the names of its curves; "" where there are no points.

    Unless it is `whole`, it says how many of the group's rows it leaves out.
    """
    if not any(one.points for one in series):
        return ""
    about = f"{title} on {g.title}"
    svg = line_chart(series, axis, y_title=y_title, about=about, limits=limits)
    note = "" if whole else _left_out(g)
    return f"<figure><h3>{escape(title)}</h3>{svg}{legend(series)}{note}</figure>"


def _left_out(g: Group) -> str:
    few = len(g.shown())
    if few == len(g.rows):
        return ""
    return f'<p class="about">The {few} most accurate of {len(g.rows)} rows.</p>'


def _spans(trace: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, str]]:
    spans, seen = [], 0
    for (domain, _), entries in groupby(trace, key=visit):
        n = sum(e["n"] for e in entries)
        spans.append((float(seen), float(seen + n), str(domain)))
        seen += n
    return spans
