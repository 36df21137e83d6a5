"""`bayestta report`: results as a table or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen


@app.command(
    epilog=examples(
        "bayestta report runs/*.json",
        "bayestta report runs/*.json --out report.html",
        "bayestta report zero-shot.json bayestta.json --out table.md --out table.tex",
        "bayestta report runs/ct_tta/*.json --paper bench/paper.json --out report.html",
    )
)
def report(
    ctx: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES", help="Files that `bayestta run --out` wrote.")
    ],
    out: jobs.Reports = None,
    paper: Annotated[
        Path | None,
        typer.Option(
            "--paper", help="File of reported numbers to compare with, such as bench/paper.json."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare results in a table or a page.

    Without --out the table is printed; with it, its ending says what to write.
    """
    show = screen(ctx, quiet)

    from bayestta.evaluation.result import Result
    from bayestta.report import render_table, write_report
    from bayestta.report.paper import Paper

    jobs.check_reports(out or [])
    if paper is not None and not paper.is_file():
        raise FileNotFoundError(f"{paper} is not there: pass bench/paper.json of the repository.")
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(files)} files are not there ({', '.join(missing[:3])}): "
            "pass files that `bayestta run --out` wrote."
        )
    failed = [path for path in files if path.name.endswith(".error.json")]
    if failed and len(failed) < len(files):  # `runs/*.json` of a bench in which some failed
        show.note(f"Left out {len(failed)} of {len(files)} files: they describe runs that failed.")
        files = [path for path in files if path not in failed]
    results = [Result.load(path) for path in files]
    reported = None if paper is None else Paper.load(paper)
    if not out:
        show.say(render_table(results, "terminal", paper=reported).rstrip("\n"))
    for path in out or []:
        write_report(results, path, paper=reported)
        show.say(str(path))
