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
from pathlib import Path

from bayestta.evaluation.result import Result

HEADER = (
    "| stream | model | zero-shot | **BayesTTA** | gain | worst domain | ECE (sketch) | "
    "estimate's error | seeds |"
)


def mean(runs: Sequence[Result], value: Callable[[Result], float]) -> float:
    return sum(value(run) for run in runs) / len(runs)


def sketch(run: Result, key: str) -> float:
    if run.sketch is None:
        raise ValueError(f"{run.path} holds no zero-shot answers: run the bench again.")
    return float(run.sketch[key])


def row(runs: Sequence[Result]) -> str:
    first = runs[0]
    ours, zero = mean(runs, lambda run: run.accuracy), mean(runs, lambda r: sketch(r, "accuracy"))
    worst, where = min(
        (mean(runs, lambda run, i=i: _gain(run, i)), name["name"])  # type: ignore[misc]
        for i, name in enumerate(first.domains)
    )
    ece, sketch_ece = mean(runs, lambda run: run.ece), mean(runs, lambda run: sketch(run, "ece"))
    error = mean(runs, lambda run: (run.estimate or {})["error"])
    seeds = ", ".join(str(run.seed) for run in sorted(runs, key=lambda run: run.seed))
    cells = [f"{zero:.2f}", f"**{ours:.2f}**", f"{ours - zero:+.2f}", f"{worst:+.1f} ({where})"]
    cells += [f"{100 * ece:.1f} ({100 * sketch_ece:.1f})", f"{error:+.1f}", seeds]
    return f"| {first.data} | {first.model} | {' | '.join(cells)} |"


def _gain(run: Result, i: int) -> float:
    return float(run.domains[i]["accuracy"] - run.domains[i]["sketch_accuracy"])


def main(folder: str) -> None:
    found: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for path in sorted(Path(folder).glob("*.json")):
        if path.name.endswith(".error.json"):
            continue
        run = Result.load(path)
        if run.method == "bayestta" and run.settings.get("preset") == "default":
            found[run.data, run.model].append(run)
    print(HEADER)
    print("|---|---|---:|---:|---:|---:|---:|---:|---|")
    for _, runs in sorted(found.items()):
        print(row(runs))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/readme")
