"""Calibration of the default in every folder of results, beside the sketch's on the same images.

    python bench/calibration.py runs

ECE in points, as means over seeds, for each folder, stream, model, order and batch size. Those of
the answers should be at most 1 point above the sketch's, and lit's at most 8. The estimate of
accuracy, mean confidence, needs no label; its error is estimate less truth, and the worst domain's
beside it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from _tables import is_default, load, markdown_table, sketch, stream

from bayestta.evaluation.result import Result

MOST, LIT = 1.0, 8.0  # points of ECE above the sketch's, and of lit's answers
HEADER = (
    *("stream, model", "order", "batch", "images", "seeds", "ECE", "sketch's ECE", "excess"),
    *("estimate's error", "worst domain's"),
)
Case = tuple[str, str, str, int, int]  # folder, stream, order, batch, limit


def cases(folders: Mapping[str, Sequence[Result]]) -> dict[Case, list[Result]]:
    found: dict[Case, list[Result]] = defaultdict(list)
    for folder, results in folders.items():
        for run in filter(is_default, results):
            sizes = int(run.batch_size or 0), int(run.limit or 0)
            found[(folder, stream(run), str(run.order), *sizes)].append(run)
    return found


def excess(runs: Sequence[Result]) -> float:
    return fmean(100 * (run.ece - sketch(run, "ece")) for run in runs)


def row(case: Case, runs: Sequence[Result]) -> list[str]:
    ece, zero = fmean(100 * r.ece for r in runs), fmean(100 * sketch(r, "ece") for r in runs)
    errors = [run.estimate or {} for run in runs]
    error = fmean(one["error"] for one in errors)
    worst = max((one["worst_domain_error"] for one in errors), key=abs)
    _, where, order, batch, _ = case
    figures = [
        f"{ece:.1f}",
        f"{zero:.1f}",
        f"{excess(runs):+.1f}",
        f"{error:+.1f}",
        f"{worst:+.1f}",
    ]
    return [where, order, str(batch), f"{runs[0].n:,}", str(len(runs)), *figures]


def verdict(found: Mapping[Case, Sequence[Result]]) -> str:
    """The largest excess, how many are above the bounds, and lit's largest error."""
    by_excess = {case: excess(runs) for case, runs in found.items()}
    worst = max(by_excess, key=lambda case: by_excess[case])
    above = sum(value > MOST for value in by_excess.values())
    parts = [
        f"{len(found)} cases: the largest excess is {by_excess[worst]:+.2f} points "
        f"({worst[1]}, {worst[2]}, batch {worst[3]}, {worst[0]}); {above} above {MOST:g}."
    ]
    lit = {c: fmean(100 * r.ece for r in runs) for c, runs in found.items() if "lit" in c[1]}
    if lit:
        parts.append(f"Largest ECE of lit: {max(lit.values()):.1f} (bound {LIT:g}).")
    errors = [abs(fmean((r.estimate or {})["error"] for r in runs)) for runs in found.values()]
    parts.append(
        f"Estimate of accuracy: mean absolute error {fmean(errors):.1f}, largest {max(errors):.1f}."
    )
    return " ".join(parts)


def tables(folder: str | Path, *, skip: Sequence[str] = ()) -> str:
    """A table per folder of results, and a verdict on all of them."""
    places = [path for path in sorted(Path(folder).iterdir()) if path.is_dir()]
    found = cases({path.name: load(path) for path in places if path.name not in skip})
    if not found:
        return ""
    parts = [verdict(found)]
    for name in dict.fromkeys(case[0] for case in found):
        rows = [row(case, runs) for case, runs in sorted(found.items()) if case[0] == name]
        parts.append(f"`{name}`\n\n{markdown_table(HEADER, rows)}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(tables(sys.argv[1] if len(sys.argv) > 1 else "runs"))
