"""`bayestta run`: one method on one stream, scored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.cli._options import parse_options, parse_settings
from bayestta.cli._screen import Bars

if TYPE_CHECKING:
    from bayestta.evaluation.steps import Step


@app.command(
    epilog=examples(
        "bayestta run --data cifar10-light --model lit --limit 512 --out r.json",
        "bayestta run --method zero-shot --data rmnist --model mini-rn --templates single",
        "bayestta run --set preset=released --set alpha=10 --seed 2",
        "bayestta run --data folder --root photos --order given   (photos/domain/class/image)",
        "bayestta run --rounds 3 --out r.json   (and what of the early domains is left at the end)",
        "bayestta run --model features:f.st --data features --root f.st --set refine=false",
    )
)
def run(
    ctx: typer.Context,
    method: jobs.Method = jobs.METHOD,
    data: jobs.DataName = "cifar10-light",
    model: jobs.Model = jobs.MODEL,
    limit: jobs.Limit = None,
    batch_size: jobs.BatchSize = 128,
    seed: jobs.Seed = 0,
    set_: jobs.Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the result goes, as JSON.")
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            "--order",
            help="Order of the images: time, shuffled, correlated, sorted, skewed:SHARE or given.",
        ),
    ] = "time",
    split: jobs.Split = None,
    templates: jobs.Templates = "data",
    reset_every: Annotated[
        str | None,
        typer.Option(
            "--reset-every", help="never, domain or batch; by default the method's own choice."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Go on from this file if it exists; save to it at the end."),
    ] = None,
    root: jobs.Root = None,
    device: jobs.Device = "cpu",
    precision: jobs.Precision = "fp32",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Walks through all domains.")] = 1,
    option: jobs.Option = None,
    label: Annotated[str | None, typer.Option("--label", help="Its name in reports.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add t-SNE and Grad-CAM pictures for the report.")
    ] = False,
    log: Annotated[
        str | None, typer.Option("--log", help="Also to tensorboard, wandb (offline) or mlflow.")
    ] = None,
    log_dir: Annotated[Path, typer.Option("--log-dir", help="Where --log writes.")] = Path("logs"),
    workers: jobs.Workers = 0,
    strict: jobs.Strict = False,
    quiet: Quiet = False,
) -> None:
    """Run one method on a labelled stream and score it."""
    show = screen(ctx, quiet)
    settings = parse_settings(method, set_ or [])
    jobs.check_data(data)
    options = parse_options(data, option or [])
    jobs.check_out(out)
    jobs.check_out(state)
    jobs.check_device(device, precision)

    from bayestta.bench import Run, execute
    from bayestta.bench.logs import open_log
    from bayestta.data._stream import sizes
    from bayestta.report import render_table

    told = Run(
        data=data,
        model=model,
        method=method,
        seed=seed,
        limit=limit,
        batch_size=batch_size,
        order=order,
        split=split,
        templates=templates,
        reset_every=reset_every,
        settings=settings,
        rounds=rounds,
        options=options,
        label=label,
        root=None if root is None else str(root),
        device=device,
        precision=precision,
        explain=explain,
    )
    with open_log(log, log_dir, told) as write:
        vlm = jobs.open_model(show, model, device=device, precision=precision)
        source = jobs.open_data(show, data, root=root, split=split, options=options)
        title = f"{method} with {vlm.name} on {source.name}"
        with Bars(show, title, sizes(source, limit, order, seed)) as bars:
            follow = bars.follow(method)

            def progress(step: Step) -> None:
                follow(step)
                write.step(step)

            result = execute(
                told,
                model=vlm,
                data=source,
                progress=progress,
                tell=show.note,
                state=state,
                strict=strict,
                workers=workers,
            )
        write.result(result)
    jobs.tell_skipped(show, source)
    jobs.tell_guard(show, result.guard)
    if out is not None:
        result.save(out)
    if not show.quiet:
        show.say(render_table([result], "terminal"))
    where = f" -> {out}" if out is not None else ""
    show.say(
        f"{method} with {result.model} on {result.data}, seed {seed}: {result.accuracy:.2f} % of "
        f"{result.n} images, {result.seconds['total']:.1f} s{where}"
    )
