"""What adaptation mended and broke, in numbers and a few images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bayestta.evaluation.result import Result
from bayestta.report.groups import Group
from bayestta.report.markup import folded, titled

ABOUT = (
    "Answers that differ from those of the pristine model on the same images: mended ones were "
    "wrong and became right, broken ones were right and became wrong."
)
KINDS = {"mended": "wrong, now right", "broken": "right, now wrong"}


def turned_section(g: Group) -> str:
    """A sentence per row, with images folded below it; "" where no run compared."""
    parts = []
    for row in g.rows:
        runs = [run for run in row.runs if run.turned]
        if row is g.reference or not runs:
            continue
        mended, broken = (sum(run.turned[kind] for run in runs) for kind in KINDS)  # type: ignore[index]
        images = sum(run.n for run in runs)
        said = f"{row.label}: {mended:,} mended, {broken:,} broken of {images:,} images"
        if mended or broken:
            said += f" ({100 * (mended - broken) / images:+.1f} points)"
        shown = "".join(_images(runs[0], kind) for kind in KINDS)
        parts.append(folded(said, shown) if shown else f"<p>{escape(said)}.</p>")
    return titled("Answers that adaptation turned", ABOUT, "".join(parts))


def _images(run: Result, kind: str) -> str:
    rows: Sequence[Mapping[str, Any]] = (run.turned or {}).get("shown", {}).get(kind, [])
    if not rows:
        return ""
    cells = "".join(_image(run.classes, one) for one in rows)
    return f'<h4>{escape(KINDS[kind])}</h4><div class="turned">{cells}</div>'


def _image(classes: Sequence[str], one: Mapping[str, Any]) -> str:
    truth, sketch, answer = (_name(classes, one[key]) for key in ("truth", "sketch", "answer"))
    about = f"{truth}, answered {sketch} by the pristine model and {answer} after adaptation"
    return (
        f'<figure><img src="data:image/png;base64,{escape(one["png"])}" alt="{escape(about)}" '
        f'width="64" height="64" /><figcaption>{escape(sketch)} → <strong>{escape(answer)}</strong>'
        f"<br />{escape(str(one['domain']))}</figcaption></figure>"
    )


def _name(classes: Sequence[str], k: int) -> str:
    return classes[k] if 0 <= k < len(classes) else f"class {k}"
