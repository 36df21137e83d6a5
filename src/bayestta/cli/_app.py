"""The Typer app: options that every command shares, and errors as one sentence."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from bayestta.cli._screen import Screen
from bayestta.files import FULL

# Boxes and colours are for people; a pipe or a log gets plain text.
MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None


def examples(*lines: str) -> str:
    """The last part of a command's help, one command per line."""
    if MARKUP is None:
        return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    return "\n\n".join(["[bold]Examples[/]", *(f"[cyan]$ {line}[/]" for line in lines)])


class Commands(TyperGroup):
    """Runs a command; what the user can mend is one sentence on stderr, with exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            Screen().error("interrupted: files hold what was last saved.")
            raise typer.Exit(130) from None
        except Exception as error:
            sentence = explain(error)
            if sentence is None or debugging(ctx):
                raise
            Screen().error(sentence)
            raise typer.Exit(2) from None


def debugging(ctx: Any) -> bool:
    return bool(ctx.params.get("debug")) or os.environ.get("BAYESTTA_DEBUG", "0") not in ("", "0")


def explain(error: Exception) -> str | None:
    """The sentence for an error of the user's or of the machine's; None for a defect of ours."""
    if isinstance(error, BrokenPipeError):
        return None  # the reader has gone: Typer ends quietly
    if isinstance(error, OSError) and error.errno in FULL:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}the disk is full: free some space, or choose another place."
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}: check the path and its permissions."
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or _out_of_memory(error, text):
        return f"memory ran out ({text[:120] or 'of unknown size'}): use a smaller --batch-size."
    if isinstance(error, (ValueError, OSError, ImportError, NotImplementedError)):
        return text or type(error).__name__
    return text if type(error).__name__ == "DownloadError" else None


def _out_of_memory(error: Exception, text: str) -> bool:
    """Torch has a type of its own on a GPU, and on a CPU only the text."""
    full = "can't allocate memory" in text or type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, RuntimeError) and full


app = typer.Typer(
    cls=Commands,
    name="bayestta",
    help="Adapt a vision-language model to a stream of images that drifts, while it answers.",
    epilog=examples(
        "bayestta demo",
        "bayestta run --method bayestta --data cifar10-light --model lit --out r.json",
        "bayestta predict --images photos --classes cat,dog,horse --out preds.csv",
    ),
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the outcome alone, without progress.")
]


def _version(wanted: bool) -> None:
    if wanted:
        import bayestta

        typer.echo(f"bayestta {bayestta.__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    quiet: Quiet = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (or BAYESTTA_DEBUG=1).")
    ] = False,
) -> None:
    ctx.obj = {"quiet": quiet}


def screen(ctx: typer.Context, quiet: bool) -> Screen:
    """`--quiet` is understood before and after the command."""
    return Screen(quiet=quiet or bool((ctx.obj or {}).get("quiet")))
