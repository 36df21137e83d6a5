"""`bayestta bench`: a matrix of runs from a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayestta.cli import jobs
from bayestta.cli.app import Quiet, app, examples, screen

if TYPE_CHECKING:
    from bayestta.bench import Run


@app.command(
    epilog=examples(
        "bayestta bench bench/readme.toml",
        "bayestta bench bench/readme.toml --folder runs/mine --out table.md",
        "bayestta bench bench/readme.toml --limit 64 --processes 1",
    )
)
def bench(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="The runs, as TOML.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Of the results (default: runs/NAME).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A report: .html, .md, .tex, .csv or .txt.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", "-p", min=1, help="By default one a core.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Images a domain, instead of the file's.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Carry out a matrix of runs, in parallel; started again, it goes on with what is missing."""
    show = screen(ctx, quiet)
    jobs.check_out(out)

    from dataclasses import replace

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    from bayestta.bench import read_bench, run_bench
    from bayestta.report import render_table, write_report

    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is not there: pass a bench file such as bench/readme.toml."
        )
    runs = read_bench(file)
    if limit is not None:
        runs = [replace(run, limit=limit) for run in runs]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Left())
    terminal = show.err.is_terminal and not show.quiet
    with Progress(*columns, console=show.err, disable=not terminal) as bars:
        task = bars.add_task(file.stem, total=len(runs))

        def tell(run: Run, word: str) -> None:
            bars.advance(task)
            if word != "kept":
                show.note(
                    f"{word}: {run.method} {run.hyper or ''} {run.model} {run.data} {run.seed}"
                )

        where = folder or Path("runs") / file.stem
        results, failed = run_bench(runs, where, processes=processes, progress=tell)
    if results:
        show.say(render_table(results, "terminal").rstrip("\n"))
        if out is not None:
            write_report(results, out)
            show.say(str(out))
    for name, error in failed.items():
        show.error(f"{name}: {error}")
    if failed:
        show.error(f"{len(failed)} of {len(runs)} runs failed: start again to try these alone.")
        raise typer.Exit(1)
