"""`bayestta data get`: fetch a data set before it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayestta.cli import jobs
from bayestta.cli.app import MARKUP, Quiet, app, examples, screen

data = typer.Typer(
    help="Get data sets.",
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    epilog=examples("bayestta data get cifar10-light"),
)
app.add_typer(data, name="data")


@data.callback()
def group() -> None:
    """Get data sets."""


@data.command(
    epilog=examples(
        "bayestta data get rmnist", "bayestta data get cifar10 mnist --root /data/bayestta"
    )
)
def get(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="See `bayestta list data`.")],
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder of the cache (default: BAYESTTA_DATA).")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Download, verify and cache data sets, unless they are there."""
    show = screen(ctx, quiet)
    for name in names:
        folder = jobs.fetch_data(show, name, root)
        show.say(f"{name}: nothing to get" if folder is None else f"{name}: {folder}")
