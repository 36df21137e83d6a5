"""Confusion matrices, one per domain, as heat maps, and the most frequent confusions in words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bayestta.evaluation.result import confusion
from bayestta.report.groups import Group, Row
from bayestta.report.markup import folded, titled
from bayestta.report.tables import Cell, Table, by_columns

LEVELS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)  # shares of a class, from which a shade begins
NAMED = 12  # classes whose names fit beside the matrix
MOST = 100  # classes that a map can show
CELLS = 20_000  # of all maps of a group: beyond, only zero-shot and the best method are shown
SIDE, MARGIN = 200, 92
NOTE = (
    "True classes by row, answers by column, both in the same order; a shade is the share of the "
    "true class. Blue: right; orange: wrong. Seeds are added up."
)

Matrix = list[list[int]]


def matrices(row: Row) -> dict[str, Matrix]:
    """The counts of each domain over all seeds; domains without a matrix are left out."""
    found: dict[str, Matrix] = {}
    for run in row.runs:
        for domain in run.domains:
            if not domain.get("confusion") or domain.get("classes", MOST + 1) > MOST:
                continue
            more, name = confusion(domain), str(domain["name"])
            if name in found and len(found[name]) == len(more):
                pairs = zip(found[name], more, strict=True)
                more = [[a + b for a, b in zip(x, y, strict=True)] for x, y in pairs]
            found[name] = more
    return found


def worst(matrix: Matrix, classes: Sequence[str], most: int = 3) -> list[str]:
    """The most frequent confusions, each with its share of the true class.

    >>> worst([[9, 1, 0], [4, 4, 0], [0, 0, 2]], ["cat", "dog", "ship"])
    ['dog → cat 50 %', 'cat → dog 10 %']
    """
    cells = [
        (count, truth, answer)
        for truth, line in enumerate(matrix)
        for answer, count in enumerate(line)
        if count and truth != answer
    ]
    cells.sort(key=lambda cell: (-cell[0], cell[1:]))
    return [
        f"{_name(classes, truth)} → {_name(classes, answer)} {100 * n / sum(matrix[truth]):.0f} %"
        for n, truth, answer in cells[:most]
    ]


def confusion_table(g: Group) -> Table | None:
    """The most frequent confusions of zero-shot and the best method in each domain."""
    rows = [(row, matrices(row)) for row in (g.reference, g.best) if row is not None]
    rows = [(row, found) for row, found in rows if found]
    if not rows:
        return None
    columns = [("domain", [Cell(name) for name in g.domains])]
    for row, found in rows:
        classes = row.runs[0].classes
        words = [", ".join(worst(found.get(name, []), classes)) or "–" for name in g.domains]
        columns.append((row.label, [Cell(word) for word in words]))
    about = "true class → answer, and the share of the true class that it makes up"
    return by_columns(f"{g.title}: most frequent confusions", about, columns)


def confusion_section(g: Group) -> str:
    """A folded part a row, with a map for each domain; "" where nothing was counted."""
    rows = g.shown()
    size = sum(len(m) ** 2 for row in rows for m in matrices(row).values())
    if size > CELLS:
        rows = [row for row in rows if row in (g.reference, g.best)]
    parts = []
    for row in rows:
        classes = row.runs[0].classes
        figures = []
        for name, matrix in matrices(row).items():
            n, hits = sum(map(sum, matrix)), sum(matrix[k][k] for k in range(len(matrix)))
            words = "<br />".join(
                escape(w).replace(" %", "&#160;%") for w in worst(matrix, classes)
            )
            caption = f"{100 * hits / max(1, n):.1f} % of {n:,}<br />{words}"
            about = f"Confusion of {row.label} in {name} on {g.title}"
            figures.append(
                f"<figure><h4>{escape(name)}</h4>{heat_map(matrix, classes, about=about)}"
                f"<figcaption>{caption}</figcaption></figure>"
            )
        if figures:
            body = f'<div class="figures maps">{"".join(figures)}</div>'
            parts.append(folded(f"{row.label}, {len(figures)} domains", body))
    return titled("Confusion matrices", NOTE, "".join(parts))


def heat_map(matrix: Matrix, classes: Sequence[str], *, about: str) -> str:
    """Squares whose shade is the share of the true class, few paths instead of many cells."""
    K = len(matrix)
    named = K <= NAMED
    left = MARGIN if named else 2
    cell = SIDE / K
    paths: dict[tuple[str, int], list[str]] = {}
    for truth, line in enumerate(matrix):
        total = sum(line)
        for answer, count in enumerate(line):
            level = sum(count >= share * total for share in LEVELS) if count else 0
            if level:
                where = f"M{left + answer * cell:.4g} {2 + truth * cell:.4g}"
                square = f"{where}h{cell:.4g}v{cell:.4g}h-{cell:.4g}z"
                paths.setdefault(("hit" if truth == answer else "miss", level), []).append(square)
    parts = [
        f'<path class="{kind}" fill-opacity="{(level + 1) / (len(LEVELS) + 1):.3g}" '
        f'd="{"".join(squares)}" />'
        for (kind, level), squares in sorted(paths.items())
    ]
    parts.append(f'<rect class="box" x="{left}" y="2" width="{SIDE}" height="{SIDE}" />')
    for k in range(K if named else 0):
        y = 2 + (k + 0.5) * cell + 4
        parts.append(
            f'<text class="row" x="{left - 6}" y="{y:.4g}" text-anchor="end">'
            f"{escape(_name(classes, k)[:11])}</text>"
        )
    size = f"0 0 {left + SIDE + 2} {SIDE + 4}"
    return (
        f'<svg class="chart heat" viewBox="{size}" role="img" aria-label="{escape(about)}">'
        f"{''.join(parts)}</svg>"
    )


def _name(classes: Sequence[str], k: int) -> str:
    return classes[k] if k < len(classes) else f"class {k}"
