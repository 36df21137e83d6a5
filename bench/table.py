"""The table of the README: the default against the pristine model on the same images.

    bayestta bench bench/readme.toml
    python bench/table.py runs/readme

Means over seeds. "Worst domain" is the one that loses most against zero-shot; ECE is the
calibration error of answers and sketch; the estimate of accuracy, mean confidence, needs no labels.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from _tables import is_default, load, sketch

from bayestta.evaluation.result import Result

HEADER = (
    "| stream | model | zero-shot | **BayesTTA** | gain | worst domain | ECE (sketch) | "
    "estimate's error | seeds |"
)


def mean(runs: Sequence[Result], value: Callable[[Result], float]) -> float:
    return fmean(map(value, runs))


def row(runs: Sequence[Result]) -> str:
    first = runs[0]
    ours, zero = mean(runs, lambda run: run.accuracy), mean(runs, sketch)
    worst, where = min(
        (mean(runs, lambda run, i=i: _gain(run, i)), name["name"])  # type: ignore[misc]
        for i, name in enumerate(first.domains)
    )
    ece, sketch_ece = mean(runs, lambda run: run.ece), mean(runs, lambda run: sketch(run, "ece"))
    error = mean(runs, lambda run: (run.estimate or {})["error"])
    seeds = ", ".join(str(run.seed) for run in sorted(runs, key=lambda run: run.seed))
    loss = f"{round(worst, 1) + 0.0:+.1f} ({where})"  # + 0.0: there is no -0.0
    cells = [f"{zero:.2f}", f"**{ours:.2f}**", f"{ours - zero:+.2f}", loss]
    cells += [f"{100 * ece:.1f} ({100 * sketch_ece:.1f})", f"{error:+.1f}", seeds]
    return f"| {first.data} | {first.model} | {' | '.join(cells)} |"


def _gain(run: Result, i: int) -> float:
    return float(run.domains[i]["accuracy"] - run.domains[i]["sketch_accuracy"])


def table(results: Sequence[Result]) -> str:
    found: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for run in filter(is_default, results):
        found[run.data, run.model].append(run)
    lines = [HEADER, "|---|---|---:|---:|---:|---:|---:|---:|---|"]
    return "\n".join([*lines, *(row(runs) for _, runs in sorted(found.items()))])


if __name__ == "__main__":
    print(table(load(sys.argv[1] if len(sys.argv) > 1 else "runs/readme")))
