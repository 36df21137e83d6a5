"""Charts as inline SVG that takes its colours from the page, so that it follows light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from bayestta.report.scales import ticks

COLOURS = 7  # .c0 to .c6 in style.py, .c0 being the neutral one of the reference
DASHES = ("", "7 4", "2 4")
LETTER = 7.0  # width of a letter at the chart's size of type
NAME = 14  # letters of a name under an axis; all of it is in the tooltip


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    std: float | None = None
    title: str = ""  # what pointing at it says


@dataclass(frozen=True)
class Series:
    """A curve; `style` picks colour and dash, the same for one method all over the page."""

    label: str
    points: Sequence[Point]
    style: int = 0
    dots: bool = True
    dashed: bool = False


@dataclass(frozen=True)
class Frame:
    """The plane of a chart and the scales of its axes."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 560
    height: int = 320
    left: int = 46
    right: int = 24
    top: int = 34
    bottom: int = 52

    def at(self, x: float, y: float) -> tuple[float, float]:
        across, up = (
            (x - self.x[0]) / (self.x[1] - self.x[0]),
            (y - self.y[0]) / (self.y[1] - self.y[0]),
        )
        return (
            round(self.left + across * (self.width - self.left - self.right), 1),
            round(self.height - self.bottom - up * (self.height - self.top - self.bottom), 1),
        )


@dataclass(frozen=True)
class Axis:
    """Positions with names; `spans` are stretches with a name, such as the domains of a stream."""

    title: str
    ticks: Sequence[tuple[float, str]] = ()
    spans: Sequence[tuple[float, float, str]] = field(default=())


def line_chart(
    series: Sequence[Series],
    x: Axis,
    *,
    y_title: str,
    about: str,
    limits: tuple[float, float] = (0.0, 100.0),
) -> str:
    """Curves over a common axis, with a band of one standard deviation, within `limits`."""
    points = [p for s in series for p in s.points]
    ends = [
        *(t for t, _ in x.ticks),
        *(e for a, b, _ in x.spans for e in (a, b)),
        *(p.x for p in points),
    ]
    low = min(p.y - (p.std or 0) for p in points)
    high = max(p.y + (p.std or 0) for p in points)
    y_ticks = ticks(max(limits[0], low), min(limits[1], high))
    left, right = min(ends), max(ends)
    if left == right:
        left, right = left - 1, right + 1
    slanted = _slanted(x.ticks)
    longest = min(NAME, max((len(name) for _, name in x.ticks), default=0))
    frame = Frame(
        (left, right),
        (y_ticks[0], y_ticks[-1]),
        left=max(46, round(7.5 * longest)) if slanted else 46,
        top=58 if x.spans else 36,
        bottom=round(54 + 6.2 * longest) if slanted else 52,
    )
    parts = [
        *_spans(frame, x.spans),
        *grid(frame, y_ticks),
        *names(frame, x.ticks, slanted=slanted),
    ]
    parts += [
        text(4, 14, y_title, "start"),
        text(frame.width - frame.right, frame.height - 8, x.title, "end"),
    ]
    for one in series:
        parts += _curve(frame, one)
    return svg(frame, about, parts)


def reliability_chart(curves: Sequence[tuple[Series, Sequence[int]]], *, about: str) -> str:
    """Accuracy over confidence, both from 0 to 1; a dot's area is its share of the images."""
    frame = Frame((0, 1), (0, 1), width=300, height=300)
    marks = [0, 0.25, 0.5, 0.75, 1]
    (x0, y0), (x1, y1) = frame.at(0, 0), frame.at(1, 1)
    parts = [*grid(frame, marks), *names(frame, [(m, f"{m:g}") for m in marks], slanted=False)]
    parts.append(f'<line class="ideal" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" />')
    parts += [
        text(4, 14, "accuracy", "start"),
        text(frame.width - frame.right, frame.height - 8, "confidence", "end"),
    ]
    for series, counts in curves:
        parts += _curve(frame, series, [2 + 7 * math.sqrt(n / max(1, sum(counts))) for n in counts])
    return svg(frame, about, parts)


def legend(series: Sequence[Series]) -> str:
    """The names of the curves, as a list that wraps where the page is narrow."""
    items = []
    for one in series:
        key = f'<line class="curve" x1="1" y1="6" x2="27" y2="6"{_dash(one)} />'
        key += '<circle class="dot" cx="14" cy="6" r="3.5" />' if one.dots else ""
        size = 'width="28" height="12" viewBox="0 0 28 12" aria-hidden="true"'
        svg = f'<svg class="key {colour(one.style)}" {size}>{key}</svg>'
        items.append(f"<li>{svg}{escape(one.label)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def svg(frame: Frame, about: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{escape(about)}">{"".join(parts)}</svg>'
    )


def text(
    x: float, y: float, text: str, anchor: str = "middle", *, kind: str = "", more: str = ""
) -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x}" y="{y}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def grid(frame: Frame, marks: Sequence[float]) -> list[str]:
    parts = []
    for mark in marks:
        x, y = frame.at(frame.x[0], mark)
        parts.append(
            f'<line class="grid" x1="{x}" y1="{y}" x2="{frame.width - frame.right}" y2="{y}" />'
        )
        parts.append(text(x - 7, y + 4, f"{mark:g}".replace("-", "−"), "end"))
    return parts


def _slanted(marks: Sequence[tuple[float, str]]) -> bool:
    """Whether names of a few domains are too long to stand side by side."""
    longest = max((len(name) for _, name in marks), default=0)
    return 1 < len(marks) <= 14 and longest * LETTER * len(marks) > 490


def names(frame: Frame, marks: Sequence[tuple[float, str]], *, slanted: bool) -> list[str]:
    parts = []
    longest = min(NAME, max((len(name) for _, name in marks), default=0)) + 1.5
    room = (frame.width - frame.left - frame.right) / LETTER
    every = 1 if slanted else math.ceil(len(marks) * longest / room) if marks else 1
    for i, (position, name) in enumerate(marks):
        if i % every:
            continue
        x, y = frame.at(position, frame.y[0])
        short = name if len(name) <= NAME else name[: NAME - 1] + "…"
        kind = "spare" if (i // every) % 2 and not slanted else ""  # a narrow screen drops these
        turn = f' transform="rotate(-35 {x} {y + 14})"' if slanted else ""
        drop = 18 if slanted else 22
        parts.append(text(x, y + drop, short, "end" if slanted else "middle", kind=kind, more=turn))
    return parts


def _spans(frame: Frame, spans: Sequence[tuple[float, float, str]]) -> list[str]:
    parts = []
    wide = max((len(name) for _, _, name in spans), default=1) * LETTER + 14
    for i, (start, end, name) in enumerate(spans):
        (x0, y), (x1, _) = frame.at(start, frame.y[0]), frame.at(end, frame.y[0])
        shade = "span odd" if i % 2 else "span"
        size = f'width="{max(x1 - x0, 0.5):.1f}" height="{y - frame.top:.1f}"'
        box = f'<rect class="{shade}" x="{x0}" y="{frame.top}" {size}>'
        parts.append(f"{box}<title>{escape(name)}</title></rect>")
        every = math.ceil(wide / max(x1 - x0, 1))
        if i % every == 0:
            kind = "span-name spare" if (i // every) % 2 else "span-name"
            parts.append(text((x0 + x1) / 2, frame.top - 12, name[:NAME], kind=kind))
    return parts


def _curve(frame: Frame, series: Series, radii: Sequence[float] | None = None) -> list[str]:
    if not series.points:
        return []
    places = [frame.at(p.x, p.y) for p in series.points]
    parts = []
    if any(p.std for p in series.points):
        floor, top = frame.y
        upper = [frame.at(p.x, min(top, p.y + (p.std or 0))) for p in series.points]
        lower = [frame.at(p.x, max(floor, p.y - (p.std or 0))) for p in reversed(series.points)]
        parts.append(f'<polygon class="band" points="{_path([*upper, *lower])}" />')
    parts.append(f'<polyline class="curve"{_dash(series)} points="{_path(places)}" />')
    for i, ((x, y), point) in enumerate(zip(places, series.points, strict=True)):
        tip = f"<title>{escape(point.title)}</title>" if point.title else ""
        if series.dots:
            radius = f"{radii[i]:.1f}" if radii else "3.5"
            parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="{radius}" />')
        if tip:  # a wide, unseen target: a finger or a mouse need not hit the dot itself
            parts.append(f'<circle class="target" cx="{x}" cy="{y}" r="10">{tip}</circle>')
    return [f'<g class="{colour(series.style)}">{"".join(parts)}</g>']


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def colour(style: int) -> str:
    """The class of a style's colour: zero is the neutral one."""
    return f"c{1 + (style - 1) % (COLOURS - 1)}" if style else "c0"


def _dash(series: Series) -> str:
    round_ = 0 if series.style == 0 else (series.style - 1) // (COLOURS - 1)  # through the colours
    pattern = "4 4" if series.dashed else DASHES[round_ % len(DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""
