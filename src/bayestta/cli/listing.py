"""`bayestta list`: what there is, as a table, in detail or as JSON."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.cli._screen import Screen

COLUMNS = {  # of the table; NAME shows the rest, and JSON everything
    "methods": ("name", "about", "cost per image"),
    "data": ("name", "title", "domains", "classes"),
    "models": ("name", "about"),
}
LINE = 80


@app.command(
    "list",
    epilog=examples(
        "bayestta list methods",
        "bayestta list methods bayestta",
        "bayestta list data rmnist",
        "bayestta list models --json",
    ),
)
def list_(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(metavar="WHAT", help="One of methods, data or models.")],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show everything about this one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """List methods, data sets or models, or show one in detail."""
    if what not in COLUMNS:
        raise ValueError(unknown("list", what, COLUMNS))
    rows = {"methods": _methods, "data": _data, "models": _models}[what]()
    if name is not None:
        names = [row["name"] for row in rows]
        if name not in names:
            raise ValueError(unknown(f"name in the list of {what}", name, names))
        rows = [row for row in rows if row["name"] == name]
    show = screen(ctx, quiet)
    if as_json:
        show.say(json.dumps(rows, indent=2, ensure_ascii=False))
    elif show.quiet:
        show.say("\n".join(row["name"] for row in rows))
    elif name is not None:
        _detail(show, rows[0])
    else:
        table = [{**row, "cost per image": _passes(row.get("cost", ""))} for row in rows]
        header = COLUMNS[what]
        show.table(
            header, [["–" if row[k] is None else str(row[k]) for k in header] for row in table]
        )


def _detail(show: Screen, row: dict[str, Any]) -> None:
    """All that is known of one thing, within 80 columns."""
    settings, options = row.pop("settings", None), row.pop("options", None)
    show.say(row.pop("name"))
    width = max(len(key) for key in row) + 4
    for key, value in row.items():
        if value is not None and value != "":
            label = f"  {key.replace('_', ' ')}".ljust(width)
            show.say(_wrapped(str(value), label, " " * width))
    if settings:
        show.say("\n  settings (--set NAME=VALUE)")
        for each in settings:
            default = each["default"] if each["default"] is not None else "none"
            shown = default if isinstance(default, str) else json.dumps(default)
            head = f"    {each['name']} = {shown}"
            show.say(_wrapped(f"({each['takes']})", head + "  ", " " * 8))
            show.say(_wrapped(each["doc"], " " * 8, " " * 8))
    if options:
        show.say("\n  options (--option NAME=VALUE)")
        for each in options:
            show.say(f"    {each['name']} = {each['default']}")


def _wrapped(text: str, first: str, rest: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        LINE,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _passes(cost: str) -> str:
    """The passes of the image tower that a cost line names.

    >>> _passes("1 forward + 1 backward to the norms per image (+ 1/16 forward for the guard)")
    '1 fwd + 1 bwd'
    """
    image = cost.split(";")[0].partition(" (")[0].partition(",")[0]
    counts = re.findall(r"(\d+) (?:full )?(forward|backward)s?\b(?! in the)", image)
    return " + ".join(f"{n} {kind[0]}wd" for n, kind in counts)


def _methods() -> list[dict[str, Any]]:
    from bayestta.evaluation.result import plain
    from bayestta.methods import methods
    from bayestta.settings import describe

    keys = ("title", "citation", "tunes", "views", "reset_every", "answer", "cost", "fidelity")
    return [
        {
            "name": name,
            "about": cls.about or _sentence(cls),
            "does": _sentence(cls) if cls.about else None,
            **{key: _default(cls, key) for key in keys},
            "settings": plain(describe(cls.Settings)),
        }
        for name, cls in methods().items()
    ]


def _sentence(cls: type) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0]


def _default(cls: type[Adapter], key: str) -> Any:
    """What holds unless a setting of that name changes it."""
    from bayestta.adapter import FROM_SETTINGS

    if key in FROM_SETTINGS and key in (usual := cls.Settings.default({})):
        return usual[key]
    return getattr(cls, key)


def _data() -> list[dict[str, Any]]:
    from bayestta.data import list_data
    from bayestta.data._base import REGISTRY

    return [{**asdict(info), "options": _options(REGISTRY[info.name])} for info in list_data()]


def _options(cls: type) -> list[dict[str, str]]:
    own = inspect.signature(cls).parameters.values()
    empty = inspect.Parameter.empty
    return [
        {"name": each.name, "default": "" if each.default is empty else str(each.default)}
        for each in own
        if each.name != "root"
    ]


def _models() -> list[dict[str, Any]]:
    from bayestta.models.base import list_models

    return [dict(row) for row in list_models()]
