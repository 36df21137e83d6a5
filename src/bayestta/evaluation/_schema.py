"""The types of a result's fields, checked when a file is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

Rows = list[dict[str, Any]]
# The keys of nested tables that reports read: a type, a table, or a list with the table of its
# rows; "?" marks keys that may be missing.
SCORE: dict[str, Any] = {
    "n": int,
    "accuracy": float,
    **dict.fromkeys(("ece?", "brier?", "sketch_accuracy?", "sketch_ece?"), float),
    "nll?": float | None,  # null where it is infinite
    **dict.fromkeys(("hits?", "classes?", "mended?", "broken?"), int),
    "bins?": list[list[float]],
    "confusion?": list[list[int]],
}
TURN = {"name": str, "accuracy": float, "n": int}  # a domain of a round
TURNED = {**dict.fromkeys(("truth", "answer", "sketch"), int), "domain": str, "png": str}
TABLES: dict[str, dict[str, Any]] = {
    "domains": {"name": str, "estimate?": float, **SCORE},
    "sketch": {**SCORE, "ece": float, "bins": list[list[float]]},
    "rounds": {"round": int, "accuracy": float, "n": int, "domains": [TURN]},
    "forgetting": {"domain": str, "then": float, "now": float, "n": int},
    "trace": {
        "domain": str,
        "n": int,
        "hits": int,
        "steps?": int,
        "round?": int,
        "sketch_hits?": int,
        "record?": dict[str, Any],
    },
    "seconds": dict.fromkeys(("data?", "encode?", "adapt?", "total"), float),
    "guard": {"on?": bool, "returns?": int, "events?": Rows},
    "turned": {
        "mended": int,
        "broken": int,
        "shown?": {"mended?": [TURNED], "broken?": [TURNED]},
    },
    "estimate": dict.fromkeys(("accuracy?", "error?", "worst_domain_error?"), float),
    "pictures": {"tsne?": Rows, "cam?": Rows, "notes?": list[str]},
    "notes": {"label?": str, "options?": dict[str, Any], "state?": str, "skipped?": int},
}
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def complaint(values: Mapping[str, Any], hints: Mapping[str, Any]) -> str | None:
    """What is wrong with the first field that has another type than its hint; None if all fit.

    >>> complaint({"n": "3"}, {"n": int})
    "n is '3' instead of a whole number"
    """
    for key, value in values.items():
        if key not in hints:
            continue
        if not fits(value, hints[key]):
            return f"{key} is {short(value)} instead of {in_words(hints[key])}"
        if key in TABLES and value is not None:
            rows = value if isinstance(value, list) else [value]
            for row in rows:
                if wrong := _row(key, row, TABLES[key]):
                    return wrong
    return None


def _row(where: str, row: Mapping[str, Any], keys: Mapping[str, Any]) -> str | None:
    for key, hint in keys.items():
        name, optional = key.removesuffix("?"), key.endswith("?")
        if optional and name not in row:
            continue
        value: Any = row.get(name)
        if isinstance(hint, (dict, list)):
            rows = value if isinstance(hint, list) else [value]
            kind = hint[0] if isinstance(hint, list) else hint
            if not fits(rows, Rows):
                return f"{where}.{name} is {short(value)} instead of {in_words(Rows)}"
            for inside in rows:
                if wrong := _row(f"{where}.{name}", inside, kind):
                    return wrong
            continue
        if not fits(value, hint):
            return f"{where}.{name} is {short(value)} instead of {in_words(hint)}"
        if name == "n" and value < 1:
            return f"{where}.n is {value} instead of at least 1"
    return None if "classes" not in row else _score(where, row)


def _score(where: str, row: Mapping[str, Any]) -> str | None:
    """A confusion matrix and bins have the shapes that `Score.to_json` writes."""
    classes, cells = row["classes"], row.get("confusion")
    if cells is not None and classes is not None:
        square = len(cells) == classes and all(len(line) == classes for line in cells)
        listed = all(len(c) == 3 and min(c) >= 0 and max(c[:2]) < classes for c in cells)
        if not (square or listed) or any(count < 0 for line in cells for count in line):
            return f"{where}.confusion is no matrix of {classes} classes"
    if any(len(line) != 3 for line in row.get("bins") or []):
        return f"{where}.bins is no list of count, confidence and hits"
    return None


def fits(value: Any, hint: Any) -> bool:
    """Whether a value that JSON holds is of the type; a whole number is also a number."""
    if hint is Any:
        return True
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in inside)
    if hint is None or hint is type(None):
        return value is None
    if origin is list:
        return isinstance(value, list) and all(fits(item, inside[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, inside[1]) for item in value.values())
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is hint


def in_words(hint: Any) -> str:
    """A type as a person says it."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(in_words(option) for option in inside)
    if hint is None or hint is type(None):
        return "null"
    if origin is list:
        return f"a list of {'tables' if inside[0] is Any else in_words(inside[0])}"
    return "a table" if origin is dict else WORDS.get(hint, str(hint))


def short(value: Any) -> str:
    """A value for a message."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
