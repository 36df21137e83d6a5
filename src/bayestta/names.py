"""One sentence for a name that is not known, with the nearest that are."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The message for an unknown name.

    >>> unknown("method", "bayesta", ["zero-shot", "bayestta"])
    "unknown method 'bayesta': did you mean 'bayestta'? Valid: bayestta, zero-shot."
    """
    known = sorted(valid)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"unknown {kind} {name!r}:{hint} Valid: {', '.join(known)}."
