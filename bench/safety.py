"""The table of bench/safety.toml and its held-out sisters: gain over zero-shot by order.

    python bench/safety.py runs/safety

Each cell is the gain of the whole stream and, in brackets, that of the worst domain, in points
against the pristine model on the same images. A domain of 300 images loses two points by six
answers, so the sentence below the table also counts the losses that chance does not explain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from _tables import gain, load, markdown_table
from scipy.stats import binomtest

from bayestta.evaluation.result import Result

ORDERS = ("time", "shuffled", "correlated", "sorted", "skewed:0.5", "skewed:0.9")
STREAM, DOMAIN = -0.5, -2.0  # what must not be undercut
ERROR = 0.05  # chance that any domain of a table is called a loss where nothing is lost


def worst_domain(result: Result) -> float:
    """In points, to a thousandth: six images of 300 are two points, however they are divided."""
    return round(min(row["accuracy"] - row["sketch_accuracy"] for row in result.domains), 3)


def losses(results: Sequence[Result]) -> tuple[int, int]:
    """Domains that lose more than chance explains, and domains in all.

    A sign test of the answers that adaptation turned to wrong against those it turned to right,
    with Bonferroni's correction for the number of domains.
    """
    turned = [(row["broken"], row["mended"]) for run in results for row in run.domains]
    tests = [binomtest(b, b + m, alternative="greater").pvalue for b, m in turned if b + m]
    return sum(p < ERROR / len(turned) for p in tests), len(turned)


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
    beyond, domains = losses(results)
    return (
        f"{markdown_table(['stream, model, batch', *orders], rows)}\n\n"
        f"{len(gains)} streams: mean {sum(gains) / len(gains):+.2f}, lowest {min(gains):+.2f} "
        f"({sum(g < STREAM for g in gains)} below {STREAM}); lowest domain {min(worst):+.1f} "
        f"({sum(w < DOMAIN for w in worst)} streams with one below {DOMAIN}). "
        f"Beyond chance, {beyond} of {domains:,} domains lose (sign test of the answers turned to "
        f"wrong and to right, {100 * ERROR:.0f} % for all domains together)."
    )


if __name__ == "__main__":
    print(table(load(sys.argv[1] if len(sys.argv) > 1 else "runs/safety")))
