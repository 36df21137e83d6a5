"""The pictures that `Explain` made: features in the plane, and where in an image a logit lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bayestta.report.groups import Group
from bayestta.report.markup import folded, titled
from bayestta.report.plots import COLOURS, colour

SHAPES = ("circle", "square", "triangle", "diamond")
STYLES = (COLOURS - 1) * len(SHAPES)  # classes that can be told apart; the rest is neutral
SIDE = 300
TSNE = (
    "t-SNE of the image features of single steps, by the pristine model and by the adapted one; "
    "colour and shape are the true class. Distances between clusters mean little."
)
CAM = (
    "Grad-CAM of the logit of the class that was answered, by the pristine model and by the "
    "adapted one; red is where it comes from, and a map without red found nothing in the image "
    "that speaks for the class. Images on which the two disagree come first."
)


def pictures_section(g: Group) -> str:
    """A folded part for each row that was watched, the first method's open; "" for none."""
    parts: list[str] = []
    watched = [row for row in g.rows if any(run.pictures for run in row.runs)]
    first = next((row for row in watched if row is not g.reference), None)
    for row in watched:
        run = next(run for run in row.runs if run.pictures)
        notes = "".join(f'<p class="about">{escape(n)}.</p>' for n in run.pictures.get("notes", []))
        planes = "".join(_tsne(one, run.classes, row.label) for one in run.pictures.get("tsne", []))
        maps = "".join(_cam(one) for one in run.pictures.get("cam", []))
        body = notes
        if planes:
            body += f'<p class="about">{TSNE}</p>{planes}'
        if maps:
            body += f'<p class="about">{CAM}</p><div class="cams">{maps}</div>'
        parts.append(folded(f"{row.label}, seed {run.seed}", body, open_=row is first))
    return titled("Features and attention", "", "".join(parts))


def _tsne(one: Mapping[str, Any], classes: Sequence[str], label: str) -> str:
    """Two planes side by side, or one where both are the same, and the names of the classes."""
    labels = one.get("labels") or [0] * len(one["before"])
    common = [k for k, _ in Counter(labels).most_common(STYLES)]
    styles = {k: i for i, k in enumerate(sorted(common))}
    where = f"step {one['step']}, {one['domain']}"
    same = one.get("after") is None
    planes = [("before and after, which are the same" if same else "before", one["before"])]
    planes += [] if same else [("after", one["after"])]
    figures = "".join(
        f"<figure><h4>{escape(where)}: {name}</h4>"
        f"{_plane(points, labels, styles, classes, f'Features of {label}, {where}, {name}')}"
        "</figure>"
        for name, points in planes
    )
    items = []
    for k, style in styles.items() if one.get("labels") else ():
        mark = f'<svg class="key {_class(style)}" width="14" height="14" viewBox="-7 -7 14 14" '
        items.append(
            f'<li>{mark}aria-hidden="true">{_mark(style, 0, 0)}</svg>{_name(classes, k)}</li>'
        )
    more = len(set(labels)) - len(styles)
    items += [f"<li>{more} more classes in grey</li>"] if more else []
    return f'<div class="figures planes">{figures}</div><ul class="legend">{"".join(items)}</ul>'


def _plane(
    points: Sequence[Sequence[float]],
    labels: Sequence[int],
    styles: Mapping[int, int],
    classes: Sequence[str],
    about: str,
) -> str:
    groups: dict[int, list[str]] = {}
    for (x, y), k in zip(points, labels, strict=True):
        place = (10 + (SIDE - 20) * x, SIDE - 10 - (SIDE - 20) * y)
        groups.setdefault(k, []).append(_mark(styles.get(k), *place))
    parts = [
        f'<g class="{_class(styles.get(k))}"><title>{_name(classes, k)}</title>{"".join(marks)}</g>'
        for k, marks in sorted(groups.items())
    ]
    box = f'<rect class="box" x="1" y="1" width="{SIDE - 2}" height="{SIDE - 2}" rx="6" />'
    return (
        f'<svg class="chart plane" viewBox="0 0 {SIDE} {SIDE}" role="img" '
        f'aria-label="{escape(about)}">{box}{"".join(parts)}</svg>'
    )


def _mark(style: int | None, x: float, y: float) -> str:
    shape = "circle" if style is None else SHAPES[style // (COLOURS - 1)]
    x, y = round(x, 1), round(y, 1)
    if shape == "circle":
        return f'<circle class="dot" cx="{x}" cy="{y}" r="{2.5 if style is None else 4.5}" />'
    outline = {
        "square": f"M{x - 4:g} {y - 4:g}h8v8h-8z",
        "triangle": f"M{x:g} {y - 5:g}l5 9h-10z",
        "diamond": f"M{x:g} {y - 6:g}l5 6l-5 6l-5 -6z",
    }
    return f'<path class="dot" d="{outline[shape]}" />'


def _class(style: int | None) -> str:
    return "c0" if style is None else colour(1 + style % (COLOURS - 1))


def _cam(one: Mapping[str, Any]) -> str:
    truth = one.get("truth")
    shown = [("image", truth, one["png"])]
    for key, name in (("zero_shot", "zero-shot"), ("adapted", "adapted")):
        shown.append((name, one[key]["answer"], one[key]["png"]))
    cells = []
    for name, answer, png in shown:
        right = "" if name == "image" or truth is None else " ✓" if answer == truth else " ✗"
        about = f"{name}: {answer}" if answer else name
        cells.append(
            f'<figure><img src="data:image/png;base64,{escape(png)}" alt="{escape(about)}" '
            f'width="112" height="112" /><figcaption>{escape(name)}<br />'
            f"{escape(answer or '')}{right}</figcaption></figure>"
        )
    where = f"Step {one['step']}, {one['domain']}, image {one['image']}"
    return f'<div class="cam"><p class="about">{escape(where)}</p><div>{"".join(cells)}</div></div>'


def _name(classes: Sequence[str], k: int) -> str:
    return escape(classes[k] if k < len(classes) else f"class {k}")
