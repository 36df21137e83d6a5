"""Tables as text: for a terminal, in Markdown, in LaTeX, and as CSV."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from bayestta.evaluation.result import Result
from bayestta.names import unknown
from bayestta.report.confusion import confusion_table
from bayestta.report.groups import Group, group
from bayestta.report.lines import COLUMNS, lines
from bayestta.report.paper import Paper
from bayestta.report.reported import reported_tables
from bayestta.report.rounds import forgetting_table, round_table
from bayestta.report.sensitivity import sensitivity_tables
from bayestta.report.tables import Cell, Table, comparison

FORMATS = ("terminal", "markdown", "latex", "csv")


def render_table(
    results: Sequence[Result],
    format: str = "terminal",
    *,
    width: int | None = None,
    bold: bool | None = None,
    paper: Paper | None = None,
) -> str:
    """One table for each pair of data and model; in CSV one line for each method and domain.

    More tables follow where there is something to say: the paper's numbers, rounds, forgetting,
    what was swept, and, but not on a terminal, the most frequent confusions.

    `width` and `bold` matter to "terminal": a table that is wider is turned round or leaves its
    domains out, and the best is bold or has a star. None: as the terminal is; a file has no width.
    """
    if format not in FORMATS:
        raise ValueError(unknown("format", format, FORMATS))
    groups = group(results)
    if format == "csv":
        return _csv(groups, paper)
    tables = [table for g in groups for table in all_tables(g, paper)]
    if format == "terminal":
        screen = sys.stdout.isatty()
        if bold is None:
            bold = screen and "NO_COLOR" not in os.environ
        if width is None and screen:
            width = shutil.get_terminal_size().columns
        tables = [table for table in tables if "confusions" not in table.title]
        parts = [_terminal(table, width=width, bold=bold) for table in tables]
    elif format == "markdown":
        parts = [markdown(table) for table in tables]
    else:
        parts = ["% \\usepackage{booktabs}", *(_latex(table) for table in tables)]
    return "\n\n".join(parts) + "\n"


def all_tables(g: Group, paper: Paper | None) -> list[Table]:
    """Everything about a group that fits into tables, the comparison first."""
    found = [comparison(g), *reported_tables(g, paper), round_table(g), forgetting_table(g)]
    return [t for t in (*found, *sensitivity_tables(g), confusion_table(g)) if t is not None]


def _terminal(table: Table, *, width: int | None, bold: bool) -> str:
    forms = [table, table.turned(), table.without_domains()] if table.domains else [table]
    for form in forms:
        lines = _aligned(form, bold=bold)
        if width is None or len(_visible(lines[0])) <= width:
            break
    rule = "─" * len(_visible(lines[0]))
    about = form.about if width is None else textwrap.fill(form.about, width)
    return "\n".join([table.title, rule, lines[0], rule, *lines[1:], rule, about])


def _aligned(table: Table, *, bold: bool) -> list[str]:
    star = "" if bold else "*"
    texts = [table.header] + [[c.text + star * c.bold for c in row] for row in table.rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(table.header))]
    lines = []
    for number, row in enumerate(texts):
        cells = []
        for i, text in enumerate(row):
            # A star stands behind the number, so that the others leave it a column of its own.
            space = star and i and not text.endswith("*") and any(r[i].endswith("*") for r in texts)
            padded = (
                text.ljust(widths[i]) if i == 0 else (text + " " * bool(space)).rjust(widths[i])
            )
            strong = bold and number > 0 and table.rows[number - 1][i].bold
            cells.append(padded.replace(text, f"\x1b[1m{text}\x1b[0m") if strong else padded)
        lines.append("  ".join(cells))
    return lines


def _visible(line: str) -> str:
    return re.sub("\x1b\\[[0-9]*m", "", line)


def markdown(table: Table) -> str:
    """One table in Markdown, with its title as a heading."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def text(cell: Cell) -> str:
        # Names come from users' folders: neither columns nor markup may start in them.
        safe = re.sub(r"([\\|*_`<\[])", r"\\\1", " ".join(cell.text.split()))
        return f"**{safe}**" if cell.bold else safe

    rule = ["---"] + ["---:"] * (len(table.header) - 1)
    header = line([text(Cell(title)) for title in table.header])
    rows = [line([text(cell) for cell in row]) for row in table.rows]
    return "\n".join(
        [f"### {text(Cell(table.title))}", "", header, line(rule), *rows, "", table.about + "."]
    )


TEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "–": "--",
    "·": "$\\cdot$",
    "…": "\\dots{}",
    "→": "$\\to$",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
}


def _latex(table: Table) -> str:
    def text(cell: Cell) -> str:
        safe = "".join(TEX.get(c, c) for c in cell.text)
        safe = re.sub(r"^([+-][0-9.]+)", r"$\1$", safe)  # a minus, not a hyphen
        return f"\\textbf{{{safe}}}" if cell.bold else safe

    def line(cells: Sequence[Cell]) -> str:
        return f"{' & '.join(text(cell) for cell in cells)} \\\\"

    return "\n".join(
        [
            "\\begin{table}\\centering",
            f"\\caption{{{text(Cell(table.title))}: {text(Cell(table.about))}.}}",
            f"\\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            "\\toprule",
            line([Cell(title) for title in table.header]),
            "\\midrule",
            *(line(row) for row in table.rows),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
        ]
    )


def _csv(groups: Sequence[Group], paper: Paper | None) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for g in groups:
        writer.writerows(lines(g, paper))
    return file.getvalue()
