"""Settings of a method, declared once: type, range or choices, and a line of documentation.

Python, `--set`, bench files, the documentation and the service all read the same declaration:

>>> @dataclass(frozen=True)
... class Example(Settings):
...     lr: float = setting(1e-3, "Learning rate of Adam.", above=0)
...     form: str = setting("code", "Which published form.", choices=("code", "paper"))
>>> Example(lr="fast")
Traceback (most recent call last):
...
ValueError: lr is 'fast', a str: give a number above 0.
>>> dict(**Example(form="paper"))
{'lr': 0.001, 'form': 'paper'}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from bayestta.names import unknown

S = TypeVar("S", bound="Settings")
KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    dict: "a table",
}


def setting(
    default: Any,
    doc: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a field: its default, a sentence, and the values that it takes.

    `least` and `most` are included in the range, `above` is not.
    """
    about = {"doc": doc, "least": least, "most": most, "above": above, "choices": choices}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Settings:
    """The base of every method's settings: values are checked when they are made.

    An instance unpacks like a dict (`make_adapter(name, model, classes, **adapter.settings)`).
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value = check(type(self), each, getattr(self, each.name))
            object.__setattr__(self, each.name, value)

    def keys(self) -> list[str]:
        return [each.name for each in fields(self)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    @classmethod
    def default(cls: type[S], changes: Mapping[str, Any]) -> S:
        """What the given changes are made to."""
        return cls()

    def changes(self) -> dict[str, Any]:
        """The settings that differ from the default."""
        usual = self.default(dict(self))
        return {key: self[key] for key in self if self[key] != usual[key]}


def with_changes(base: S, changes: Mapping[str, Any], owner: str) -> S:
    """A copy with changes; an unknown name is refused with the nearest valid ones."""
    valid = base.keys()
    for key in changes:
        if key not in valid:
            raise ValueError(unknown(f"setting of {owner}", key, valid))
    return replace(base, **changes)


def wanted(each: Field[Any], kinds: tuple[type, ...]) -> str:
    """The values that a field takes, in words."""
    about = each.metadata
    if about.get("choices"):
        return f"one of {', '.join(about['choices'])}"
    words = " or ".join(KINDS.get(kind, kind.__name__) for kind in kinds if kind is not type(None))
    if about.get("least") is not None and about.get("most") is not None:
        words += f" from {about['least']:g} to {about['most']:g}"
    elif about.get("least") is not None:
        words += f" of {about['least']:g} or more"
    elif about.get("above") is not None:
        words += f" above {about['above']:g}"
        if about.get("most") is not None:
            words += f", {about['most']:g} at most"
    return words


@cache
def field_kinds(cls: type) -> dict[str, tuple[type, ...]]:
    """The plain types that each field takes."""
    found = {}
    for key, hint in get_type_hints(cls).items():
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        found[key] = tuple(get_origin(option) or option for option in options)
    return found


def check(cls: type, each: Field[Any], value: Any) -> Any:
    """The value in the type of its field, or a ValueError with fact and cure."""
    kinds, about, name = field_kinds(cls)[each.name], each.metadata, each.name
    if value is None and type(None) in kinds:
        return value
    if getattr(value, "shape", None) == ():  # a number of NumPy or torch, as sweeps give them
        value = value.item()
    if float in kinds and type(value) is int:
        value = float(value)
    if type(value) not in kinds:
        fact = f"{name} is {value!r}, a {type(value).__name__}"
        raise ValueError(f"{fact}: give {wanted(each, kinds)}.")
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{name} is not a number (NaN): give {wanted(each, kinds)}.")
    choices = about.get("choices")
    if choices and value not in choices:
        raise ValueError(unknown(f"value of {name}", str(value), choices))
    low, high, above = (about.get(key) for key in ("least", "most", "above"))
    if (
        (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
    ):
        raise ValueError(f"{name} is {value}: give {wanted(each, kinds)}.")
    return value


def describe(cls: type[Settings]) -> list[dict[str, Any]]:
    """One row per setting: name, type, default, what it takes, and its sentence."""
    rows, whose = [], cast(type, cls)  # a dataclass defines __eq__, yet its class can be hashed
    for each in fields(cls):
        kinds = field_kinds(whose)[each.name]
        default = each.default if each.default is not MISSING else None
        if each.default is MISSING and each.default_factory is not MISSING:
            default = each.default_factory()
        words = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        row = {"name": each.name, "type": words, "default": default}
        rows.append({**row, "takes": wanted(each, kinds), "doc": each.metadata.get("doc", "")})
    return rows
