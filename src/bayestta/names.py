"""One sentence for a name that is not known, with the nearest that are."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# What other libraries call a setting of ours.
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "learningrate", "rate", "step_size", "eta"), "lr"),
    **dict.fromkeys(("optimizer", "optim"), "optimiser"),
    **dict.fromkeys(("temp", "tau"), "temperature"),
    **dict.fromkeys(("steps", "n_steps", "iterations", "epochs"), "updates"),
    **dict.fromkeys(("n_views", "num_views", "augmentations"), "views"),
    **dict.fromkeys(("names", "class_names", "labels"), "classes"),
    **dict.fromkeys(("shrink", "regularisation", "regularization"), "shrinkage"),
    **dict.fromkeys(("queue_size", "memory_size", "cache_size"), "capacity"),
    "decay": "half_life",
    "reset": "reset_every",
    "hyper": "settings",
}


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The message for an unknown name.

    >>> unknown("method", "bayesta", ["zero-shot", "bayestta"])
    "unknown method 'bayesta': did you mean 'bayestta'? Valid: bayestta, zero-shot."
    >>> unknown("setting", "learning_rate", ["lr", "alpha"])
    "unknown setting 'learning_rate': did you mean 'lr'? Valid: alpha, lr."
    >>> unknown("order", "upwards", ["time", "given"])
    "unknown order 'upwards'. Valid: given, time."
    >>> unknown("column", "time", ["path", "two" + chr(10) + "lines"])  # the message keeps to one
    "unknown column 'time'. Valid: path, 'two\\\\nlines'."
    """
    known = sorted(valid)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    meant = SYNONYMS.get(name.lower().replace("-", "_"))
    if meant in known:
        near = [meant]
    hint = f": did you mean {' or '.join(repr(n) for n in near)}?" if near else "."
    shown = (n if n.isprintable() else repr(n) for n in known)
    return f"unknown {kind} {name!r}{hint} Valid: {', '.join(shown)}."
