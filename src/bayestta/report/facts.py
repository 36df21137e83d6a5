"""What runs say of themselves as small tables: test and guard records, settings, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bayestta.report.groups import Group, Row
from bayestta.report.tables import NONE

NAMES = {  # where the key alone would not do
    "f": "F",
    "statistic": "F",
    "critical": "critical value",
    "df1": "df₁",
    "df2": "df₂",
    "pvalue": "p",
    "usable": "could reject",
    "pixels": "stream's share in pixels",
    "batch_norms": "stream's share in BatchNorms",
    "spectrum": "change of the spectrum, nats",
    "passed": "share of images past the gate",
    "tail": "mean of the worst",
    "share": "worst share",
}
FIRST = ("structure", "F", *NAMES)  # the order of columns; other facts follow
SETTINGS = (
    *("reset_every", "answer", "norms", "batch_size", "device", "precision", "fingerprint"),
    *("commit", "created"),
)
LIST = 6  # items that a cell can hold


def records(g: Group, key: str, title: str) -> str:
    """The runs' records under `key`, a line for each; "" if there are none."""
    found: list[tuple[str, list[int], dict[str, Any]]] = []
    for row in g.rows:
        for run in row.runs:
            record = flat(getattr(run, key) or {})
            if found and found[-1][0] == row.label and found[-1][2] == record:
                found[-1][1].append(run.seed)  # word for word the same
            elif record:
                found.append((row.label, [run.seed], record))
    if not found:
        return ""
    facts = list(dict.fromkeys(name for _, _, record in found for name in record))
    facts.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    header = ["method", "seeds", *(NAMES.get(name, name.replace("_", " ")) for name in facts)]
    rows = [
        [label, ", ".join(map(str, where)), *(show(record.get(name)) for name in facts)]
        for label, where, record in found
    ]
    return f"<h3>{escape(title)}</h3>{_table(header, rows)}"


def details(row: Row) -> str:
    """Settings with where they came from, and what the row's first run ran on, folded."""
    run = row.runs[0]
    settings = [
        [key, show(value), run.provenance.get(key, "")] for key, value in run.settings.items()
    ]
    facts = [[k.replace("_", " "), show(getattr(run, k))] for k in SETTINGS if getattr(run, k)]
    facts += [[f"{part} seconds", f"{spent:.2f}"] for part, spent in run.seconds.items()]
    if run.peak_memory_bytes:
        facts.append(["peak memory", f"{run.peak_memory_bytes / 2**20:,.0f} MiB"])
    for pairs in (run.versions, run.environment):
        facts += [[key, show(value)] for key, value in pairs.items()]
    templates = run.templates if isinstance(run.templates, list) else [run.templates]
    facts.append(["templates", " · ".join(show(template) for template in templates)])
    tables = _table(["setting", "value"], facts, code=True)
    if settings:
        header = ["setting", "value", "from"]
        width = 3 if any(source for _, _, source in settings) else 2
        tables = _table(header[:width], [line[:width] for line in settings], code=True) + tables
    summary = f"{escape(row.label)}, {seeds(row.seeds)}"
    return f"<details><summary>{summary}</summary>{tables}</details>"


def seeds(numbers: Sequence[int]) -> str:
    """The seeds of some runs, in words.

    >>> seeds([2, 1, 2]), seeds([7])
    ('seeds 1, 2', 'seed 7')
    """
    known = sorted(set(numbers))
    return f"seed{'s' * (len(known) > 1)} {', '.join(map(str, known))}"


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested facts side by side; long lists are left to the JSON file.

    >>> flat({"F": 1.5, "first": {"usable": True}, "history": list(range(100))})
    {'F': 1.5, 'first usable': True}
    """
    facts: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            facts |= flat(value, f"{prefix}{key} ")
        elif not (isinstance(value, (list, tuple)) and len(value) > LIST):
            facts[f"{prefix}{key}"] = value
    return facts


def show(value: Any) -> str:
    """A fact as a person reads it.

    >>> show(True), show(None), show(0.061234), show([1, 2.5])
    ('yes', '–', '0.06123', '1, 2.5')
    """
    if value is None or value == []:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(show(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={show(item)}" for key, item in value.items())
    return str(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, code: bool = False) -> str:
    """The second column holds values that a user could type, if `code`."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in header)
    lines = []
    for first, *rest in rows:
        cells = [f'<th scope="row">{escape(first)}</th>']
        for i, text in enumerate(rest):
            typed = f"<code>{escape(text)}</code>" if code and i == 0 else escape(text)
            cells.append(f"<td>{typed}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="wide" tabindex="0"><table>{body}</table></div>'
