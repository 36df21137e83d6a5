"""The command line; torch and the rest are imported by the command that needs them."""

from __future__ import annotations

from bayestta.cli._app import app

# Each file adds its commands to the app; the order is that of `bayestta --help`.
from bayestta.cli import demo, run, predict, bench, report, features  # isort: skip
from bayestta.cli import listing, data, train  # isort: skip

__all__ = [
    "app",
    "bench",
    "data",
    "demo",
    "features",
    "listing",
    "main",
    "predict",
    "report",
    "run",
    "train",
]


def main() -> None:
    """The entry point of the `bayestta` command."""
    app(prog_name="bayestta")
