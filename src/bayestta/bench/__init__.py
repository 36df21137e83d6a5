"""A matrix of runs from a TOML file: in parallel, each isolated, and never the same run twice.

A file has a table `[bench]` with what all runs share (`seeds`, `limit`, `batch_size`, …) and a list
`[[runs]]` whose `data`, `models`, `methods`, `seeds`, `batch_size` and `order` are multiplied out,
`set` gives settings and `grid` several values of one. A finished run is one JSON file whose
name says what it was: starting again goes on with what is missing.
"""

from __future__ import annotations

from bayestta.bench._assembly import build_adapter, check_options
from bayestta.bench.event import Event, TimeLeft
from bayestta.bench.execution import execute
from bayestta.bench.matrix import run_bench
from bayestta.bench.plan import SEED, Run, read_bench

__all__ = [
    "SEED",
    "Event",
    "Run",
    "TimeLeft",
    "build_adapter",
    "check_options",
    "execute",
    "read_bench",
    "run_bench",
]
