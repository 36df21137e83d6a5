"""The table of bench/guard.toml: what is left of a stream under absurd settings.

    python bench/guard.py runs/guard

"First" is the number of images after which the guard, or refinement by itself, first stepped back;
"noticed" is what the result says of a forced covariance that its classes cannot carry.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from _tables import gain, load, markdown_table, sketch

from bayestta.evaluation.result import Result
from bayestta.report.groups import name

HEADER = (
    *("setting", "model", "batch", "zero-shot", "answers", "difference", "guard returned"),
    *("guard first", "refinement first", "noticed"),
)


def first(result: Result, key: str) -> str:
    """Images until a step says that something was taken back; a dash where none does."""
    seen = 0
    for entry in result.trace:
        seen += entry["n"]
        record = entry.get("record", {})
        said = record.get("guard", {}).get("collapse") if key == "guard" else record.get(key)
        if said:
            return f"{seen:,}"
    return "–"


def table(results: Sequence[Result]) -> str:
    rows = []
    for run in results:
        figures = [f"{sketch(run):.2f}", f"{run.accuracy:.2f}", f"{gain(run):+.2f}"]
        returns = str((run.guard or {}).get("returns", "–"))
        covariance = run.covariance or {}
        forced = covariance.get("test") == "per-class" and covariance.get("waits")
        noticed = str(covariance.get("reason")).partition(", but ")[2] if forced else "–"
        told = [returns, first(run, "guard"), first(run, "refinement"), noticed]
        rows.append([name(run), run.model, str(run.batch_size), *figures, *told])
    return markdown_table(HEADER, rows)


if __name__ == "__main__":
    print(table(load(sys.argv[1] if len(sys.argv) > 1 else "runs/guard")))
