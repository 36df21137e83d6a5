"""Accuracy against seconds: what a method gains, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bayestta.report.groups import Group
from bayestta.report.plots import Frame, colour, grid, names, svg, text
from bayestta.report.scales import scale, ticks
from bayestta.report.tables import accuracy, number

MOST = 30  # numbered dots, before they cover each other


@dataclass(frozen=True)
class Dot:
    number: int
    label: str
    seconds: float
    accuracy: float
    style: int
    title: str


def trade_off(g: Group, styles: Mapping[str, int]) -> str:
    """A numbered dot a row; "" where fewer than two rows were timed."""
    dots: list[Dot] = []
    for row in g.shown(MOST):
        spent, value = row.value(lambda run: run.seconds.get("total")), row.value(accuracy)
        if spent is not None and value is not None and spent.mean > 0:
            title = f"{row.label}: {number(value)} %, {spent.mean:.3g} s"
            style = styles.get(row.label, 0)
            dots.append(Dot(len(dots) + 1, row.label, spent.mean, value.mean, style, title))
    if len(dots) < 2:
        return ""
    title = "Accuracy against seconds"
    items = "".join(
        f'<li><svg class="key {colour(dot.style)}" width="22" height="22" viewBox="-11 -11 22 22" '
        f'aria-hidden="true">{_mark(dot, 0, 0)}</svg>{escape(dot.label)}</li>'
        for dot in dots
    )
    chart = _chart(dots, f"{title} on {g.title}")
    return f'<figure><h3>{title}</h3>{chart}<ul class="legend">{items}</ul></figure>'


def _chart(dots: Sequence[Dot], about: str) -> str:
    seconds = [dot.seconds for dot in dots]
    axis = scale(seconds)
    across = axis.round_marks(seconds)
    up = ticks(min(dot.accuracy for dot in dots), max(dot.accuracy for dot in dots))
    frame = Frame((across[0][0], across[-1][0]), (up[0], up[-1]))
    parts = [*grid(frame, up), *names(frame, across, slanted=False)]
    parts += [
        text(4, 14, "accuracy (%)", "start"),
        text(frame.width - frame.right, frame.height - 8, f"seconds{axis.about}", "end"),
    ]
    for dot in reversed(dots):  # the first rows on top
        x, y = frame.at(axis.place(dot.seconds), dot.accuracy)
        tip = f"<title>{escape(dot.title)}</title>"
        parts.append(f'<g class="{colour(dot.style)}">{tip}{_mark(dot, x, y)}</g>')
    return svg(frame, about, parts)


def _mark(dot: Dot, x: float, y: float) -> str:
    circle = f'<circle class="dot spot" cx="{x}" cy="{y}" r="10" />'
    return circle + text(x, y, str(dot.number), kind="inside")
