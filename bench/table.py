"""The README's table from the results of `bayestta bench bench/readme.toml`.

Run it as `python bench/table.py runs/readme`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from bayestta.evaluation.result import Result

Rows = dict[str, list[Result]]


def by_seed(results: list[Result], seeds: set[int] | None = None) -> str:
    chosen = [r.accuracy for r in results if seeds is None or r.seed in seeds]
    return f"{mean(chosen):.2f}" if chosen else "–"


def worst(ours: list[Result], theirs: list[Result]) -> str:
    """The domain that loses most against zero-shot, in the mean over seeds."""
    count = len(ours[0].domains)
    gaps = [
        mean(r.domains[i]["accuracy"] for r in ours)
        - mean(r.domains[i]["accuracy"] for r in theirs)
        for i in range(count)
    ]
    lowest = min(range(count), key=gaps.__getitem__)
    return f"{gaps[lowest]:+.1f} ({ours[0].domains[lowest]['name']})"


def main(folder: str) -> None:
    streams: dict[tuple[str, str], Rows] = defaultdict(lambda: defaultdict(list))
    for path in sorted(Path(folder).glob("*.json")):
        if path.name.endswith(".error.json"):
            continue
        result = Result.load(path)
        preset, alpha = result.settings.get("preset", ""), result.settings.get("alpha")
        name = f"released {alpha:g}" if preset == "released" else preset or result.method
        streams[result.data, result.model][name].append(result)
    print(
        "| stream | model | zero-shot | **default** | gain | worst domain | released, best alpha "
        "(seeds) | paper (seed 1) |\n|---|---|---|---|---|---|---|---|"
    )
    for (data, model), rows in sorted(streams.items()):
        plain, ours = rows["zero-shot"], rows["default"]
        gain = mean(r.accuracy for r in ours) - mean(r.accuracy for r in plain)
        released = {k: v for k, v in rows.items() if k.startswith("released")}
        best = max(released, key=lambda k: mean(r.accuracy for r in released[k] if r.seed == 1))
        seeds = sorted(r.seed for r in released[best])
        shown = f"{by_seed(released[best])}, {best.split()[1]} ({', '.join(map(str, seeds))})"
        print(
            f"| {data} | {model} | {by_seed(plain)} | **{by_seed(ours)}** | {gain:+.2f} | "
            f"{worst(ours, plain)} | {shown} | {by_seed(rows['paper'], {1})} |"
        )


if __name__ == "__main__":
    main(sys.argv[1])
