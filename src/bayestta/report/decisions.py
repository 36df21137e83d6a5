"""What a method decided on the way, in sentences that need no statistics to be read."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from bayestta.report.groups import Group
from bayestta.report.markup import titled

ABOUT = (
    "Should all classes share one covariance (the spread of their features), or does each get its "
    "own? A test of homogeneity (Box's M) asks whether the spreads differ by more than chance: F "
    "is its figure, and above the critical value they do. A spread per class also needs many "
    "images of every class, about ten per dimension of the features: with fewer, answers collapse."
)


def covariance_sentence(record: Mapping[str, Any]) -> str:
    """The outcome of the homogeneity test for a layman.

    >>> covariance_sentence(
    ...     {"structure": "shared", "decided": False, "statistic": 2.2, "critical": 1.1}
    ...     | {"rejects": True, "usable": True, "waits": True}
    ... )
    'One covariance for all classes: the spreads do differ (F 2.20, critical value 1.10), but not \
every class has been seen often enough to carry a covariance of its own.'
    """
    own = record.get("structure") == "per-class"
    kept = "A covariance per class" if own else "One covariance for all classes"
    if record.get("test") in ("shared", "per-class"):
        if record.get("waits"):
            return f"{kept}: {record.get('reason')} that it takes to estimate one. Use test='box'."
        return f"{kept}: the settings say so, nothing was tested."
    f, critical = record.get("statistic"), record.get("critical")
    if f is None or critical is None:
        reason = record.get("reason") or "nothing was seen"
        few = "there were too few images per class"
        return f"{kept}: no test was carried out, as {few} ({reason})."
    numbers = f"F {f:.2f}, critical value {critical:.2f}"
    if not record.get("usable", True):
        reason = record.get("reason") or "the approximation does not hold"
        return f"{kept}: the test could not decide ({numbers}), as {reason}."
    if own:
        return f"{kept}: the spreads differ ({numbers}), and every class has enough images."
    if record.get("rejects") and record.get("waits"):
        return (
            f"{kept}: the spreads do differ ({numbers}), but not every class has been seen often "
            "enough to carry a covariance of its own."
        )
    if record.get("rejects"):
        return f"{kept}: the spreads do differ ({numbers}), but {record.get('reason')}."
    return f"{kept}: the spreads do not differ by more than chance would make them ({numbers})."


def covariance_section(g: Group) -> str:
    """One sentence per row and outcome; "" where no method tested."""
    said: dict[str, list[str]] = {}
    for row in g.rows:
        for run in row.runs:
            if run.covariance:
                where = said.setdefault(f"{row.label}: {covariance_sentence(run.covariance)}", [])
                where.append(str(run.seed))
    items = [
        f'<li>{escape(words)} <span class="about">Seed {", ".join(seeds)}.</span></li>'
        for words, seeds in said.items()
    ]
    return titled("Shape of the classes", ABOUT, f"<ul>{''.join(items)}</ul>" if items else "")
