"""`--set key=value` and `--option key=value`, read by the signatures that they are for."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bayestta.names import unknown
from bayestta.settings import with_changes

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def parse_settings(method: str, pairs: Iterable[str]) -> dict[str, Any]:
    """The values of `--set`, of the types that the method takes; of a key given twice, the last."""
    from bayestta.methods import METHODS
    from bayestta.settings import describe

    pairs = list(pairs)
    given = [[part.strip() for part in pair.partition("=")] for pair in pairs]
    preset = {key: text for key, _, text in given if key == "preset"}
    kind = type(METHODS.find(method).Settings.default(preset))  # a preset may have its own settings
    schema = {
        row["name"]: inspect.Parameter(
            row["name"],
            inspect.Parameter.KEYWORD_ONLY,
            default=row["default"],
            annotation=kind.__annotations__.get(row["name"], row["type"].replace(" or ", " | ")),
        )
        for row in describe(kind)
    }
    if pairs and not schema:
        name = pairs[0].partition("=")[0]
        raise ValueError(f"{method} has no setting {name!r}, or any other: drop --set.")
    found = _parse("--set", pairs, schema, f"setting of {method}", "alpha=1")
    with_changes(kind.default(found), found, method)  # out of range: said before a model is loaded
    return found


def parse_options(data: str, pairs: Iterable[str]) -> dict[str, Any]:
    """The values of `--option`, of the types that the data set takes."""
    from bayestta.data._base import REGISTRY

    own = {**inspect.signature(REGISTRY[data]).parameters}
    schema = {key: value for key, value in own.items() if key not in ("root", "split")}
    return _parse("--option", pairs, schema, f"option of {data}", "sort=time")


def _parse(
    flag: str,
    pairs: Iterable[str],
    schema: Mapping[str, inspect.Parameter],
    what: str,
    example: str,
) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not (key and equals):
            raise ValueError(
                f"{flag} takes key=value, not {pair!r}: write for example {flag} {example}."
            )
        if key not in schema:
            raise ValueError(unknown(what, key, schema))
        found[key] = parse_value(text, schema[key], flag)
    return found


def parse_value(text: str, parameter: inspect.Parameter, flag: str = "--set") -> Any:
    """Text as one of the types of a parameter's annotation or, without one, of its default.

    >>> alpha = inspect.Parameter(
    ...     "alpha", inspect.Parameter.KEYWORD_ONLY, annotation="float | None"
    ... )
    >>> parse_value("0.5", alpha), parse_value("none", alpha)
    (0.5, None)
    """
    kinds = _kinds(parameter)
    lower = text.lower()
    if "None" in kinds and lower in ("none", "null"):
        return None
    if "bool" in kinds and lower in YES + NO:
        return lower in YES
    for kind, read in (("int", int), ("float", float)):
        if kind in kinds:
            try:
                value = read(text)
            except ValueError:
                continue
            if not math.isnan(value):
                return value
    if "str" in kinds:
        return text
    if "other" in kinds:  # a list or a tuple, as Python writes it
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            pass
    takes = " or ".join(WORDS.get(kind, "a Python value such as [1, 2]") for kind in sorted(kinds))
    raise ValueError(
        f"{parameter.name} takes {takes}, not {text!r}: write {flag} {parameter.name}=…"
    )


WORDS = {
    "None": "none",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "str": "text",
}


def _kinds(parameter: inspect.Parameter) -> set[str]:
    """The plain types that a parameter takes; "other" for anything else."""
    note = parameter.annotation
    if note is inspect.Parameter.empty:
        if parameter.default in (None, inspect.Parameter.empty):
            return {"str", "None"}
        return {type(parameter.default).__name__} & WORDS.keys() or {"other"}
    text = note if isinstance(note, str) else getattr(note, "__name__", str(note))
    text = re.sub(r"Literal\[[^]]*\]", "str", text)
    text = re.sub(r"Optional\[(.*)\]", r"\1 | None", text)
    parts = {part.strip().removeprefix("typing.") for part in text.split("|")}
    return {part if part in WORDS else "other" for part in parts}
