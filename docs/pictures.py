"""The picture of the README, from a run: `make pictures` writes docs/pictures/light.svg.

The light in CIFAR-10 test images changes from dark to over-exposed; `mini-rn` classifies them, as
it is and adapted. The same images in the same order, seed 1; the labels are used for scoring alone.
"""

from __future__ import annotations

from pathlib import Path

import bayestta as bt
from bayestta.files import replacing
from bayestta.report.plots import Axis, Point, Series, line_chart, text

OUT = Path(__file__).parent / "pictures" / "light.svg"
LIMIT, BATCH, POINT = 256, 32, 128  # images per level of light, per batch and per point of a curve
STYLE = """
svg { font: 13px system-ui, sans-serif; background: #ffffff; --text: #59636e; --rule: #d8dde3;
  --span: #f1f3f6; --c0: #6b7580; --c1: #0072b2; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171a; --text: #a2acb6; --rule: #363d44; --span: #1f2428; --c0: #9aa5b0;
    --c1: #56b4e9; }
}
text { fill: var(--text); }
.grid { stroke: var(--rule); }
.span { fill: transparent; } .span.odd { fill: var(--span); }
.c0 { color: var(--c0); } .c1 { color: var(--c1); }
.curve { fill: none; stroke: currentColor; stroke-width: 2.5; stroke-linejoin: round; }
.dot { fill: currentColor; } .target { fill: transparent; }
.c0 text, text.c0 { fill: var(--c0); } text.c1 { fill: var(--c1); font-weight: 600; }
"""


def main() -> None:
    model, data = bt.load_model("mini-rn"), bt.load_data("cifar10-light")
    adapter = bt.BayesTTA(model, data.classes, data.templates, seed=1)
    hits: list[tuple[float, float]] = []  # per image: the zero-shot answer, and the adapted one
    batches = bt.stream(data, model.preprocess, batch_size=BATCH, seed=1, limit=LIMIT)
    for step in bt.steps(adapter, batches):
        answers = (step.sketch, step.logits)
        both = [(answer.argmax(1) == step.y).float().tolist() for answer in answers]
        hits += zip(*both, strict=True)
    means = [100 * sum(one) / len(hits) for one in zip(*hits, strict=True)]
    labels = [f"zero-shot: {means[0]:.1f} %", f"BayesTTA: {means[1]:.1f} %"]
    series = []
    for which, label in enumerate(labels):
        points = []
        for start in range(0, len(hits), POINT):
            part = [hit[which] for hit in hits[start : start + POINT]]
            points.append(Point(start + POINT / 2, 100 * sum(part) / len(part)))
        series.append(Series(label, points, style=which))
    spans = [(LIMIT * i, LIMIT * (i + 1), f"light {name}") for i, name in enumerate(data.domains)]
    marks = [(n, f"{n:,}") for n in range(0, len(hits) + 1, 2 * LIMIT)]
    about = f"Accuracy while the light changes. {'; '.join(labels)}."
    axis = Axis("images seen", marks, spans)
    chart = line_chart(series, axis, y_title="accuracy in %, per 128 images", about=about)
    places = [(i, 536 - 150 * (1 - i), label) for i, label in enumerate(labels)]
    key = "".join(text(x, 14, label, "end", kind=f"c{i}") for i, x, label in places)
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="840" height="480"'
    chart = chart.replace("<svg", head, 1).replace("</svg>", f"{key}</svg>")
    where = chart.index(">") + 1
    page = f"{chart[:where]}<style>{STYLE}</style>{chart[where:]}\n"
    with replacing(OUT) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(f"Wrote {OUT}: {about}")


if __name__ == "__main__":
    main()
