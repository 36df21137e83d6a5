"""Results as tables (terminal, Markdown, LaTeX, CSV) and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bayestta.evaluation.result import Result, write_atomic
from bayestta.names import unknown
from bayestta.report.formats import FORMATS, render_table
from bayestta.report.html_page import render_page, write_page
from bayestta.report.paper import Paper

__all__ = ["FORMATS", "render_page", "render_table", "write_page", "write_report"]

SUFFIXES = {".html": "page", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".txt": "terminal"}


def write_report(results: Sequence[Result], out: str | Path, *, paper: Paper | None = None) -> None:
    """Write the results in the form that `out` ends in: .html, .md, .tex, .csv or .txt.

    With a `paper`, rows of which it reports a number stand beside it.
    """
    out = Path(out)
    form = SUFFIXES.get(out.suffix.lower())
    if form is None:
        raise ValueError(unknown("ending of a report", out.suffix or out.name, SUFFIXES))
    if form == "page":
        write_page(results, out, paper=paper)
    else:
        write_atomic(out, render_table(results, form, paper=paper))
