"""`bayestta list`: what there is, as a table or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.names import unknown

COLUMNS = {  # of the table; the JSON has them all
    "methods": ("name", "title", "tunes", "views", "reset_every", "cost", "fidelity"),
    "data": ("name", "title", "domains", "classes", "get"),
    "models": ("name", "about"),
}


@app.command(
    "list",
    epilog=examples("bayestta list methods", "bayestta list data", "bayestta list models --json"),
)
def list_(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(metavar="WHAT", help="methods, data or models.")],
    as_json: Annotated[bool, typer.Option("--json", help="Everything known, as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """List methods, data sets or models."""
    if what not in COLUMNS:
        raise ValueError(unknown("list", what, COLUMNS))
    rows = {"methods": _methods, "data": _data, "models": _models}[what]()
    show = screen(ctx, quiet)
    if as_json:
        show.say(json.dumps(rows, indent=2, ensure_ascii=False))
    elif show.quiet:
        show.say("\n".join(row["name"] for row in rows))
    else:
        header = COLUMNS[what]
        cells = [["–" if row[k] is None else str(row[k]) for k in header] for row in rows]
        show.table(header, cells)


def _methods() -> list[dict[str, Any]]:
    from bayestta.evaluation.result import plain
    from bayestta.methods import methods
    from bayestta.settings import describe

    keys = ("title", "citation", "tunes", "views", "reset_every", "answer", "cost", "fidelity")
    return [
        {
            "name": name,
            **{key: _default(cls, key) for key in keys},
            "settings": plain(describe(cls.Settings)),
        }
        for name, cls in methods().items()
    ]


def _default(cls: type[Adapter], key: str) -> Any:
    """What holds unless a setting of that name changes it."""
    if key in FROM_SETTINGS and key in (usual := cls.Settings.default({})):
        return usual[key]
    return getattr(cls, key)


def _data() -> list[dict[str, Any]]:
    from bayestta.data import list_data

    return [asdict(info) for info in list_data()]


def _models() -> list[dict[str, Any]]:
    from bayestta.models.base import list_models

    return [dict(row) for row in list_models()]
