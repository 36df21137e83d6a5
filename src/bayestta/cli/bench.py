"""`bayestta bench`: a matrix of runs from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.cli._screen import Screen

if TYPE_CHECKING:
    from bayestta.bench import Run

CACHE_GB = 2.0


@app.command(
    epilog=examples(
        "bayestta bench bench/readme.toml",
        "bayestta bench bench/readme.toml --folder runs/mine --out table.md",
        "bayestta bench bench/readme.toml --limit 64 --processes 1",
        "bayestta bench bench/readme.toml --ray",
    )
)
def bench(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="Bench file: the runs, as TOML.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder for the results (default: runs/NAME).")
    ] = None,
    out: jobs.Reports = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", "-p", min=1, help="Number of processes (default: one per core)."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Images per domain, instead of the file's.")
    ] = None,
    cache_gb: Annotated[
        float,
        typer.Option(
            "--cache-gb",
            min=0,
            help="Gigabytes of disk for decoded images; 0 decodes in every run.",
        ),
    ] = CACHE_GB,
    ray: Annotated[
        bool, typer.Option("--ray", help="Hand the runs to Ray: here, or on $RAY_ADDRESS.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Carry out a matrix of runs, in parallel.

    Started again, it goes on with what is missing. The folder gets one JSON file per run and
    report.html over all of them. A run that fails leaves NAME.error.json and stops no other; the
    exit code is then 1. Data or a model that cannot be loaded is tried once for all runs. A damaged
    result is renamed, and its run is done again.
    """
    show = screen(ctx, quiet)
    jobs.check_reports(out or [])
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is not there: pass a bench file such as bench/readme.toml."
        )

    from dataclasses import replace

    from bayestta.bench import TimeLeft, read_bench, run_bench
    from bayestta.bench.pool import cores
    from bayestta.cli._progress import BenchBars
    from bayestta.report import render_table, write_report
    from bayestta.report.paper import Paper

    runs = read_bench(file)
    if limit is not None:
        runs = [replace(run, limit=limit) for run in runs]
    where = folder or Path("runs") / file.stem
    unavailable = fetch(show, [run for run in runs if not (where / run.file).exists()])
    left = TimeLeft(runs, processes=min(processes or cores(), len(runs)))
    with BenchBars(show, file.stem, runs, left) as bars:
        results, failed = run_bench(
            runs,
            where,
            processes=processes,
            progress=bars,
            cache_gb=cache_gb,
            ray=ray,
            unavailable=unavailable,
        )
    for error, names in by_cause(failed).items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        show.error(f"{names[0]}{more}: {error}")
    if results:
        reported = file.parent / "paper.json"  # the paper's numbers, where they lie beside the file
        paper = Paper.load(reported) if reported.is_file() else None
        show.say(render_table(results, "terminal", paper=paper).rstrip("\n"))
        for path in [where / "report.html", *(out or [])]:
            write_report(results, path, paper=paper)
            show.say(str(path))
    if failed:
        show.error(f"{len(failed)} of {len(runs)} runs failed: start again to try these alone.")
        raise typer.Exit(1)


def by_cause(failed: Mapping[str, str]) -> dict[str, list[str]]:
    """The results that are missing, by the error that they have in common.

    >>> by_cause({"a": "no disk", "b": "no disk (as in the run a)"})
    {'no disk': ['a', 'b']}
    """
    causes: dict[str, list[str]] = {}
    for name, error in failed.items():
        causes.setdefault(error.partition(" (as in the run ")[0], []).append(name)
    return causes


def fetch(show: Screen, runs: list[Run]) -> dict[tuple[str, str | None], str]:
    """Get the data before the first run; the errors, by data set and root, of what is not there."""
    from bayestta.data._sources import DownloadError

    missing: dict[tuple[str, str | None], str] = {}
    for data, root in dict.fromkeys((run.data, run.root) for run in runs):
        try:
            jobs.fetch_data(show, data, None if root is None else Path(root))
        except (ValueError, OSError, DownloadError) as error:
            missing[data, root] = f"{type(error).__name__}: {error}"
    return missing
