"""The table of bench/safety.toml: gain over zero-shot per stream, order and batch size.

    python bench/safety.py runs/safety

Each cell is the gain of the whole stream and, in brackets, that of the worst domain, in points
against the pristine model on the same images.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bayestta.evaluation.result import Result

ORDERS = ("time", "shuffled", "correlated", "sorted", "skewed:0.5", "skewed:0.9")
STREAM, DOMAIN = -0.5, -2.0  # what must not be undercut


def gains(result: Result) -> tuple[float, float]:
    """Of the stream, and of its worst domain."""
    if result.sketch is None:
        raise ValueError(f"{result.path} holds no zero-shot answers: run the bench again.")
    worst = min(row["accuracy"] - row["sketch_accuracy"] for row in result.domains)
    return result.accuracy - result.sketch["accuracy"], worst


def main(folder: str) -> None:
    files = sorted(Path(folder).glob("*.json"))
    results = [Result.load(path) for path in files if not path.name.endswith(".error.json")]
    table: dict[tuple[str, str, int], dict[str, tuple[float, float]]] = {}
    for result in results:
        key = (result.model, result.data, int(result.batch_size or 0))
        table.setdefault(key, {})[str(result.order)] = gains(result)
    print("| model | stream | batch | " + " | ".join(ORDERS) + " |")
    print("|---|---|---:|" + "---:|" * len(ORDERS))
    for (model, data, size), row in sorted(table.items()):
        cells = [f"{row[o][0]:+.1f} ({row[o][1]:+.1f})" if o in row else "–" for o in ORDERS]
        print(f"| {model} | {data} | {size} | " + " | ".join(cells) + " |")
    found = [pair for row in table.values() for pair in row.values()]
    streams = sum(gain < STREAM for gain, _ in found)
    domains = sum(worst < DOMAIN for _, worst in found)
    mean = sum(gain for gain, _ in found) / len(found)
    print(
        f"\n{len(found)} streams: mean {mean:+.2f}, lowest {min(g for g, _ in found):+.2f} "
        f"({streams} below {STREAM}); lowest domain {min(w for _, w in found):+.1f} "
        f"({domains} streams with one below {DOMAIN})."
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/safety")
