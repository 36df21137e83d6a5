"""Tables and folded parts of the page as HTML."""

from __future__ import annotations

import re
from html import escape

from bayestta.report.tables import Table

MINUS = re.compile("^-(?=[0-9])")


def html_table(table: Table) -> str:
    """In a box of its own that scrolls sideways; the first column stays."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in table.header)
    rows = []
    for row in table.rows:
        cells = [f'<th scope="row">{escape(row[0].text)}</th>']
        for cell in row[1:]:
            value, sign, std = escape(MINUS.sub("−", cell.text)).partition(" ± ")
            text = f"{value}<small>{sign}{std}</small>" if std else value
            cells.append(f"<td><strong>{text}</strong></td>" if cell.bold else f"<td>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    inner = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide" tabindex="0"><table>{inner}</table></div>'


def titled(title: str, note: str, body: str) -> str:
    """A part of a section; "" where there is nothing in it."""
    if not body:
        return ""
    about = f'<p class="about">{escape(note)}</p>' if note else ""
    return f"<h3>{escape(title[:1].upper() + title[1:])}</h3>{about}{body}"


def sentence(words: str) -> str:
    """Words that stand alone.

    >>> sentence("accuracy in %")
    'Accuracy in %.'
    """
    return f"{words[:1].upper()}{words[1:]}."


def folded(summary: str, body: str, *, open_: bool = False) -> str:
    """A part that is opened by hand, or open from the start."""
    state = ' open="open"' if open_ else ""
    return f'<details class="figure"{state}><summary>{escape(summary)}</summary>{body}</details>'
