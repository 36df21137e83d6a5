"""`bayestta train coop`: learn a context from labelled images that no result is reported on."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import MARKUP, Quiet, app, examples, screen
from bayestta.cli._screen import Screen

if TYPE_CHECKING:
    from bayestta.data import Data

TEST = ("test", "all")  # splits that hold the images of the reported streams

train = typer.Typer(
    help="Learn from labelled images, before a stream.",
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    epilog=examples("bayestta train coop --data rmnist --model mini-vit --out ctx.safetensors"),
)
app.add_typer(train, name="train")


@train.callback()
def group() -> None:
    """Learn from labelled images, before a stream."""


@train.command(
    epilog=examples(
        "bayestta train coop --data cifar10-light --model mini-rn --out ctx.safetensors",
        "bayestta train coop --data rmnist --domain 0 --model mini-vit --out upright.safetensors",
        "bayestta train coop --data photos --shots 4 --out ctx.safetensors   (photos/any/class/*)",
        "bayestta run --method coop --set checkpoint=ctx.safetensors --model mini-rn",
    )
)
def coop(
    ctx: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", help="Data set with a held-out split, or a folder domain/class/image."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File for the context: NAME.safetensors.")
    ],
    model: Annotated[
        str, typer.Option("--model", help="Model whose text tower passes gradients.")
    ] = "mini-vit",
    shots: Annotated[int, typer.Option("--shots", min=1, help="Labelled images per class.")] = 16,
    domains: Annotated[
        list[str] | None,
        typer.Option("--domain", help="Domain to draw from; may be repeated (default: all)."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", min=1, help="Epochs (default: 200 from 8 shots on, 100 from 2, else 50)."
        ),
    ] = None,
    context: Annotated[
        str, typer.Option("--context", help="Words to start from.")
    ] = "a photo of a",
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", min=1, help="Number of random vectors to start from instead of words."
        ),
    ] = None,
    lr: Annotated[float, typer.Option("--lr", min=0, help="Learning rate of SGD.")] = 0.002,
    batch_size: jobs.BatchSize = 32,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed for the images drawn and their crops.")
    ] = jobs.SEED,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Part of the data; held-out by default, never test."),
    ] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Folder of the cached data.")] = None,
    device: jobs.Device = "cpu",
    precision: jobs.Precision = "fp32",
    quiet: Quiet = False,
) -> None:
    """Learn the context of CoOp's prompts from labelled images."""
    show = screen(ctx, quiet)
    jobs.check_out(out)
    if out.suffix != ".safetensors":
        raise ValueError(f"{out} should end in .safetensors, as that is what is written.")
    jobs.check_device(device, precision)
    jobs.check_model(model)
    source = labelled(show, data, root, split)

    from bayestta.methods.coop import default_epochs, pick_shots, save_context, train_coop

    chosen = domains or []
    pick_shots(source, shots, seed, chosen)  # too few images are an error before a model is loaded
    vlm = jobs.open_model(show, model, device=device, precision=precision)
    epochs = epochs or default_epochs(shots)
    losses: list[float] = []
    start = time.perf_counter()
    with follow(show, f"coop with {vlm.name} on {source.name}", epochs, losses) as progress:
        learnt = train_coop(
            vlm,
            source,
            shots=shots,
            domains=chosen,
            context=context,
            tokens=tokens,
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            seed=seed,
            progress=progress,
        )
    about = {
        "model": vlm.fingerprint,
        "data": source.name,
        "split": source.split,
        "domains": chosen or source.domains,
        "classes": source.classes,
        "shots": shots,
        "epochs": epochs,
        "lr": lr,
        "batch_size": batch_size,
        "seed": seed,
        "start": f"{tokens} random vectors" if tokens else context,
        "losses": [round(loss, 5) for loss in losses],
    }
    save_context(learnt, out, **about)
    show.say(
        f"{len(learnt)} tokens learnt with {vlm.name} on {shots * len(source.classes)} images of "
        f"{data}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {epochs} epochs, "
        f"{time.perf_counter() - start:.1f} s -> {out}"
    )


def labelled(show: Screen, name: str, root: Path | None, split: str | None) -> Data:
    """Labelled images apart from those that results are reported on."""
    from bayestta.data import load_data
    from bayestta.data._arrays import SPLITS, ArrayData
    from bayestta.data._base import REGISTRY

    if Path(name).is_dir():
        return load_data("folder", root=name)
    jobs.check_data(name)
    cls = REGISTRY[name]
    if name == "folder":
        return load_data("folder", root=root)
    if "split" not in inspect.signature(cls).parameters:
        raise ValueError(
            f"{name!r} has no images apart from its stream, and a context must not learn from "
            "those: give a folder of other images, as domain/class/image."
        )
    if issubclass(cls, ArrayData) and split is None:
        split = "held-out"
    source = jobs.open_data(show, name, root=root, split=split)
    if source.split in TEST or any(part.endswith("/test") for part in source.contains):
        other = " or ".join(part for part in SPLITS if part not in TEST)
        raise ValueError(
            f"split {source.split!r} of {name!r} holds the images that results are reported on, "
            f"and a context must not learn from those: use --split {other}."
        )
    return source


@contextmanager
def follow(
    show: Screen, title: str, epochs: int, losses: list[float]
) -> Iterator[Callable[[int, float], None]]:
    """A bar over the epochs where one can be seen, else ten lines; the losses are kept."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    live = show.err.is_terminal and not show.quiet
    columns = (TextColumn("  epoch"), BarColumn(bar_width=24), MofNCompleteColumn())
    loss_column = TextColumn("loss {task.fields[loss]}")
    show.note(title)
    with Progress(
        *columns, loss_column, TimeElapsedColumn(), console=show.err, disable=not live
    ) as progress:
        task = progress.add_task("", total=epochs, loss="–")

        def update(epoch: int, loss: float) -> None:
            losses.append(loss)
            progress.update(task, completed=epoch + 1, loss=f"{loss:.4f}")
            if not live and (epoch + 1) * 10 // epochs > epoch * 10 // epochs:
                show.note(f"  epoch {epoch + 1} of {epochs}: loss {loss:.4f}")

        yield update
