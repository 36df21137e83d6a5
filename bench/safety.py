"""The table of bench/safety.toml and its held-out sisters: gain over zero-shot by order.

    python bench/safety.py runs/safety

Each cell is the gain of the whole stream and, in brackets, that of the worst domain, in points
against the pristine model on the same images.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from _tables import gain, load, markdown_table

from bayestta.evaluation.result import Result

ORDERS = ("time", "shuffled", "correlated", "sorted", "skewed:0.5", "skewed:0.9")
STREAM, DOMAIN = -0.5, -2.0  # what must not be undercut


def worst_domain(result: Result) -> float:
    return min(float(row["accuracy"] - row["sketch_accuracy"]) for row in result.domains)


def table(results: Sequence[Result]) -> str:
    """Streams by orders, and a sentence on the lowest of them."""
    found: dict[tuple[str, str, int, int], dict[str, Result]] = {}
    for result in results:
        key = (result.model, result.data, int(result.batch_size or 0), result.seed)
        found.setdefault(key, {})[str(result.order)] = result
    rows, orders = [], [o for o in ORDERS if any(o in row for row in found.values())]
    many = len({result.seed for result in results}) > 1
    for (model, data, size, seed), row in sorted(found.items()):
        cells = [
            f"{gain(row[o]):+.1f} ({worst_domain(row[o]):+.1f})" if o in row else "–"
            for o in orders
        ]
        rows.append([f"{data}, {model}, batch {size}{f', seed {seed}' if many else ''}", *cells])
    gains, worst = [gain(run) for run in results], [worst_domain(run) for run in results]
    return (
        f"{markdown_table(['stream, model, batch', *orders], rows)}\n\n"
        f"{len(gains)} streams: mean {sum(gains) / len(gains):+.2f}, lowest {min(gains):+.2f} "
        f"({sum(g < STREAM for g in gains)} below {STREAM}); lowest domain {min(worst):+.1f} "
        f"({sum(w < DOMAIN for w in worst)} streams with one below {DOMAIN})."
    )


if __name__ == "__main__":
    print(table(load(sys.argv[1] if len(sys.argv) > 1 else "runs/safety")))
