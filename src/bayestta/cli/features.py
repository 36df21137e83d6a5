"""`bayestta features`: embed a data set once, for methods that work on features."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.cli._options import parse_options
from bayestta.cli._screen import Bars


@app.command(
    epilog=examples(
        "bayestta features --data rmnist --split all --model lit --out rmnist-lit.safetensors",
        "bayestta run --model features:rmnist-lit.safetensors --data features "
        "--root rmnist-lit.safetensors --method tda",
    )
)
def features(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, as safetensors.")],
    data: jobs.DataName = "cifar10-light",
    model: jobs.Model = jobs.MODEL,
    limit: jobs.Limit = None,
    batch_size: jobs.BatchSize = 128,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed that decides which images --limit picks.")
    ] = jobs.SEED,
    split: jobs.Split = None,
    templates: Annotated[
        list[str] | None,
        typer.Option(
            "--templates",
            metavar="<str>",
            help="Prompts beside the data's own: single, seven or eighty; may be repeated.",
        ),
    ] = None,
    root: jobs.Root = None,
    option: jobs.Option = None,
    device: jobs.Device = "cpu",
    precision: jobs.Precision = "fp32",
    workers: jobs.Workers = 0,
    strict: jobs.Strict = False,
    quiet: Quiet = False,
) -> None:
    """Cache the embeddings of a data set by a model.

    Methods that work on features (zero-shot, tda, dota, bca, dpe, oga, stata, bayestta …) then
    run over them in seconds; give `run` the file as --model features:FILE and as --root. Prompts
    are embedded too: `single` always, `ensemble` needs --templates eighty.
    """
    show = screen(ctx, quiet)
    jobs.check_data(data)
    options = parse_options(data, option or [])
    jobs.check_out(out)
    jobs.check_device(device, precision)
    jobs.check_model(model)

    from bayestta.data import check_split
    from bayestta.data._stream import sizes
    from bayestta.evaluation.embedding import write_features
    from bayestta.models._text import templates as template_set

    lines = [line for name in ["single", *(templates or [])] for line in template_set(name)]
    source = jobs.open_data(show, data, root=root, split=split, options=options)
    vlm = jobs.open_model(show, model, device=device, precision=precision)
    check_split(vlm, source)
    with Bars(show, f"{vlm.name} on {source.name}", sizes(source, limit)) as bars:
        follow: Any = bars.follow("features")
        count = write_features(
            out,
            vlm,
            source,
            templates=lines,
            limit=limit,
            seed=seed,
            batch_size=batch_size,
            progress=lambda domain, n: follow(SimpleNamespace(domain=domain, n=n, y=None, round=1)),
            workers=workers,
            strict=strict,
        )
    jobs.tell_skipped(show, source.skipped)
    show.say(f"{count} images of {source.name} by {vlm.name}, {vlm.dim} features -> {out}")
