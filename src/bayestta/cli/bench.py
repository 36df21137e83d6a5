"""`bayestta bench`: a matrix of runs from a TOML file."""

from __future__ import annotations

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
    file: Annotated[Path, typer.Argument(help="The runs, as TOML.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Of the results (default: runs/NAME).")
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", "-o", help="A report: .html, .md, .tex, .csv or .txt; may be repeated."
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", "-p", min=1, help="By default one a core.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Images a domain, instead of the file's.")
    ] = None,
    cache_gb: Annotated[
        float,
        typer.Option("--cache-gb", min=0, help="Disk for decoded images; 0 decodes in every run."),
    ] = CACHE_GB,
    ray: Annotated[
        bool, typer.Option("--ray", help="Hand the runs to Ray: here, or on $RAY_ADDRESS.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Carry out a matrix of runs, in parallel; started again, it goes on with what is missing.

    Results are one JSON file a run, and report.html over all of them, in the folder. A run that
    fails leaves NAME.error.json and stops no other; the exit code is then 1.
    """
    show = screen(ctx, quiet)
    for path in out or []:
        jobs.check_out(path)
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
    fetch(show, runs)
    left = TimeLeft(runs, processes=min(processes or cores(), len(runs)))
    with BenchBars(show, file.stem, runs, left) as bars:
        results, failed = run_bench(
            runs, where, processes=processes, progress=bars, cache_gb=cache_gb, ray=ray
        )
    for name, error in failed.items():
        show.error(f"{name}: {error}")
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


def fetch(show: Screen, runs: list[Run]) -> None:
    """Get the data before the first run; what cannot be had fails the runs that need it."""
    from bayestta.data._sources import DownloadError

    for data, root in dict.fromkeys((run.data, run.root) for run in runs):
        try:
            jobs.fetch_data(show, data, None if root is None else Path(root))
        except (ValueError, OSError, DownloadError) as error:
            show.note(f"{data}: {error}")
