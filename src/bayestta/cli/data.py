"""`bayestta data`: fetch a data set before it is needed, and see what is on disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import MARKUP, Quiet, app, examples, screen
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.cli._screen import Screen
    from bayestta.data import Part

data = typer.Typer(
    help="Get data sets, and see what is on disk.",
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    epilog=examples("bayestta data get cifar10-light", "bayestta data check"),
)
app.add_typer(data, name="data")

Root = Annotated[
    Path | None, typer.Option("--root", help="Folder of the data (default: BAYESTTA_DATA).")
]


@data.callback()
def group() -> None:
    """Get data sets, and see what is on disk."""


@data.command(
    epilog=examples(
        "bayestta data get rmnist", "bayestta data get cifar10 mnist --root /data/bayestta"
    )
)
def get(
    ctx: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Data sets; `bayestta list data` shows them."),
    ],
    root: Root = None,
    quiet: Quiet = False,
) -> None:
    """Download, verify and cache data sets, unless they are there."""
    show = screen(ctx, quiet)
    for name in names:
        folder = jobs.fetch_data(show, name, root, verify=True)
        if folder is None:
            _by_hand(name, root)
        show.say(f"{name}: nothing to get" if folder is None else f"{name}: {folder}")


def _by_hand(name: str, root: Path | None) -> None:
    """Refuse a set that no command can fetch, unless it is there."""
    from bayestta.data import check_files, list_data

    if any(not part.found for part in check_files(name, root=root)):
        where = next(info.get for info in list_data() if info.name == name)
        raise ValueError(
            f"{name!r} cannot be fetched by a command: get {where}; "
            f"`bayestta data check {name}` says where to put it."
        )


@data.command(
    epilog=examples(
        "bayestta data check", "bayestta data check yearbook fmow --root /data", "… --json"
    )
)
def check(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Data sets (default: all).")
    ] = None,
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Say what is on disk and what is missing.

    For what is missing it says where to get it and where to put it. The exit code is 1 where sets
    were named and one of them is not there.
    """
    from bayestta.data import list_data
    from bayestta.files import cache_root

    show, infos = screen(ctx, quiet), {info.name: info for info in list_data()}
    for name in names or ():
        if name not in infos:
            raise ValueError(unknown("data set", name, infos))
    rows = [_row(name, infos[name].get, root) for name in names or infos]
    if as_json:
        show.say(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        show.note(f"Data are looked for in {cache_root(root)}; --root or BAYESTTA_DATA change it.")
        _print(show, rows)
    if names and not all(row["ready"] for row in rows):
        raise typer.Exit(1)


def _row(name: str, where: str, root: Path | None) -> dict[str, Any]:
    from bayestta.data import check_files

    parts = check_files(name, root=root)
    state = _state(parts)
    return {
        "name": name,
        "state": state,
        "ready": state in ("ready", "your own files"),
        "parts": [asdict(part) for part in parts],
        "get": where,
    }


def _state(parts: list[Part]) -> str:
    found = [part.found for part in parts]
    if not found:
        return "your own files"
    return "ready" if all(found) else "incomplete" if any(found) else "missing"


def _print(show: Screen, rows: list[dict[str, Any]]) -> None:
    if show.quiet:
        show.say("\n".join(f"{row['name']}: {row['state']}" for row in rows))
    elif show.out.is_terminal:
        from rich.table import Table
        from rich.text import Text

        table = Table("name", "state", header_style="bold", show_lines=True)
        for column in ("files", "get"):
            table.add_column(column, overflow="fold")  # an address that is cut is of no use
        for row in rows:
            where = "" if row["ready"] else row["get"]
            cells = (row["name"], row["state"], "\n".join(_lines(row)), where)
            table.add_row(*(Text(cell) for cell in cells))
        show.out.print(table)
    else:
        for row in rows:
            show.say(f"{row['name']}: {row['state']}")
            for line in _lines(row) + ([] if row["ready"] else [f"get: {row['get']}"]):
                show.say(f"  {line}")


def _lines(row: dict[str, Any]) -> list[str]:
    return [
        f"{'found' if part['found'] else 'missing'}: {part['path']}"
        + (f" ({part['note']})" if part["note"] else "")
        for part in row["parts"]
    ]
