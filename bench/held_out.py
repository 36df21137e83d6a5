"""The tables of bench/held_out.toml: gains over zero-shot on held-out streams.

python bench/held_out.py runs/held_out
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean

from _tables import gain, load, markdown_table, pivot, sketch, spread, stream

from bayestta.evaluation.result import Result
from bayestta.report.groups import name

PARTS = ("features", "tower", "both", "default")
PER_CLASS = "per class, no guard"


def parts(results: Sequence[Result]) -> str:
    """What each part adds to zero-shot, and the mean over streams per model."""
    here = [run for run in results if name(run) in PARTS and run.order == "time"]
    where = sorted({stream(run) for run in here}, key=lambda text: text.split(", ")[::-1])
    rows = []
    for one in where:
        mine = [run for run in here if stream(run) == one]
        cells = [spread([gain(r) for r in mine if name(r) == part], sign=True) for part in PARTS]
        passed = [100 * run.refinement["passed"] for run in mine if run.refinement]
        rows.append([one, spread(map(sketch, mine)), *cells, spread(passed)])
    for model in dict.fromkeys(run.model for run in here):
        mine = [run for run in here if run.model == model]
        means = [[gain(r) for r in mine if name(r) == part] for part in PARTS]
        cells = [f"{fmean(gains):+.2f}" if gains else "–" for gains in means]
        rows.append([f"**mean**, {model}", f"{fmean(map(sketch, mine)):.2f}", *cells, ""])
    return markdown_table(["stream", "zero-shot", *PARTS, "images past the gate, %"], rows)


def orders(results: Sequence[Result]) -> str:
    """The default where labels are skewed, or sorted."""
    here = [run for run in results if run.order != "time"]
    here.sort(key=lambda run: (run.order == "sorted", run.order, stream(run)))
    cells = ("zero-shot", sketch), ("answers", lambda run: run.accuracy), ("gain", gain)
    rows = []
    for key in dict.fromkeys((stream(run), run.order) for run in here):
        mine = [run for run in here if (stream(run), run.order) == key]
        figures = [spread(map(read, mine), sign=title == "gain") for title, read in cells]
        worst = min(d["accuracy"] - d["sketch_accuracy"] for run in mine for d in run.domains)
        rows.append([f"{key[0]}, {key[1]}", *figures, f"{worst:+.1f}"])
    return markdown_table(
        ["stream, order", *(title for title, _ in cells), "worst domain of a seed"], rows
    )


def per_class(results: Sequence[Result]) -> str:
    """One covariance per class by force, beside the shared one."""
    here = [run for run in results if name(run) == PER_CLASS]
    where = {stream(run) for run in here}
    here += [
        run
        for run in results
        if name(run) == "both" and run.order == "time" and stream(run) in where
    ]
    titles = {"both": "shared", PER_CLASS: "one per class, no guard"}
    rows = sorted(here, key=lambda run: (run.model, run.data, name(run)))
    return pivot(rows, stream, lambda run: titles[name(run)], lambda run: run.accuracy, "accuracy")


def tables(results: Sequence[Result]) -> str:
    """All of which there are results."""
    made = {
        "Gain over zero-shot of the statistics of the features, those of the tower, both, and "
        "the default, which adds refinement.": parts(results),
        "One class makes up the share (`skewed`), or classes come one after the other.": orders(
            results
        ),
        "A covariance per class, forced and unguarded, against the shared one.": per_class(results),
    }
    return "\n\n".join(f"{about}\n\n{table}" for about, table in made.items() if "\n| " in table)


if __name__ == "__main__":
    print(tables(load(sys.argv[1] if len(sys.argv) > 1 else "runs/held_out")))
