"""`--set key=value`, read by the method's own signature, and where each setting came from."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.adapter import Adapter

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def parse_settings(method: str, pairs: Iterable[str]) -> dict[str, Any]:
    """The values of `--set`, of the types that the method takes; of a key given twice, the last."""
    from bayestta.adapter import hyperparameters, methods

    known = methods()
    if method not in known:
        raise ValueError(unknown("method", method, known))
    schema, found = hyperparameters(known[method]), {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not (key and equals):
            raise ValueError(
                f"--set takes key=value, not {pair!r}: write for example --set alpha=1."
            )
        if key not in schema:
            if not schema:
                raise ValueError(
                    f"{method} has no hyper-parameter {key!r}, or any other: drop --set."
                )
            raise ValueError(unknown(f"hyper-parameter of {method}", key, schema))
        found[key] = parse_value(text, schema[key])
    return found


def parse_value(text: str, parameter: inspect.Parameter) -> Any:
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
        f"{parameter.name} takes {takes}, not {text!r}: write --set {parameter.name}=…"
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


def provenance(adapter: Adapter, given: dict[str, Any]) -> dict[str, str]:
    """Where each hyper-parameter came from: the user, the preset named, or the default."""
    rest = f"preset {given['preset']}" if "preset" in given else "default"
    return {key: "user" if key in given else rest for key in adapter.hyper()}
