"""Checks of how a method describes itself and its settings."""

from __future__ import annotations

import math
from typing import Any

from bayestta.adapter import Adapter
from bayestta.checks._case import CLASSES, TEMPLATES, Case, CheckFailed, expect
from bayestta.methods import METHODS, make_adapter, settings_of
from bayestta.settings import describe

WRONG: dict[str, list[Any]] = {  # per type, values that are no such thing
    "bool": ["no", 1],
    "int": ["8", 1.5, True],
    "float": ["8", math.nan, True],
    "str": [8],
    "dict": ["a=b"],
}


def describes_itself(case: Case) -> None:
    """A method has a name, a title, a citation with a year, a cost, and known policies."""
    adapter = case.make()
    for key in ("name", "title", "citation", "tunes", "cost"):
        expect(bool(getattr(adapter, key)), f"{key} is empty: say it in one line")
    expect("20" in adapter.citation or "19" in adapter.citation, "the citation has no year")
    expect(bool(adapter.__doc__), "the class has no docstring")
    expect(adapter.views >= 1, f"views are {adapter.views}: at least 1 is needed")
    for key, valid in (("reset_every", ("never", "domain", "batch")), ("answer", ANSWERS)):
        value = getattr(adapter, key)
        expect(value in valid, f"{key} is {value!r} instead of one of {', '.join(valid)}")


ANSWERS = ("before", "after")


def settings_documented(case: Case) -> None:
    """Every setting has a type that is checked, a default, and a sentence."""
    for row in describe(case.make().Settings):
        kinds = row["type"].split(" or ")
        known = all(kind in WRONG for kind in kinds)
        expect(known, f"{row['name']} is of type {row['type']}: use {', '.join(WRONG)}")
        expect(row["doc"].endswith("."), f"{row['name']} has no sentence: declare it by setting()")


def settings_checked(case: Case) -> None:
    """Unknown names, wrong types and values out of range are refused with a ValueError."""
    adapter = case.make()
    for row in describe(adapter.Settings):
        name = row["name"]
        _refused(case, f"{name}x", row["default"])
        kinds = row["type"].split(" or ")
        for value in WRONG[kinds[0]] if len(kinds) == 1 else []:
            _refused(case, name, value)
        if row["takes"].startswith("one of"):
            _refused(case, name, "nonsense")
    _refused(case, "nonsense", 1)


def _refused(case: Case, name: str, value: Any) -> None:
    try:
        case.make(**{name: value})
    except ValueError as error:
        expect(name in str(error), f"the refusal of {name}={value!r} does not name it: {error}")
        return
    raise CheckFailed(f"{name}={value!r} is accepted")


def settings_round_trip(case: Case) -> None:
    """`make_adapter(name, model, classes, **settings_of(adapter))` has the same settings."""
    adapter = case.make()
    told = settings_of(adapter)
    expect({**told, **case.settings} == told, "the settings given are not those in force")
    _equal(adapter, _again(case, adapter))
    for row in describe(adapter.Settings):
        if row["type"] != "float":
            continue
        try:
            changes: dict[str, Any] = {row["name"]: math.inf}
            infinite = case.make(**changes)
        except ValueError:  # out of its range
            continue
        _equal(infinite, _again(case, infinite))


def _again(case: Case, adapter: Adapter) -> Adapter:
    if METHODS.get(adapter.name) is case.method:
        return make_adapter(adapter.name, case.model, CLASSES, **settings_of(adapter))
    return case.method(case.model, CLASSES, TEMPLATES, **settings_of(adapter))


def _equal(one: Adapter, two: Adapter) -> None:
    mine, theirs = settings_of(one), settings_of(two)
    wrong = [key for key in mine if mine[key] != theirs.get(key)]
    expect(not wrong and one.settings == two.settings, f"{', '.join(wrong)} came back changed")
