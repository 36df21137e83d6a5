"""`bayestta run`: one method on one stream, scored."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.cli._options import parse_options, parse_settings
from bayestta.cli._screen import Bars, Screen

if TYPE_CHECKING:
    from bayestta.bench import Run
    from bayestta.evaluation.result import Result
    from bayestta.evaluation.steps import Step


@app.command(
    epilog=examples(
        "bayestta run --data cifar10-light --model lit --limit 512 --out r.json",
        "bayestta run --method zero-shot --data rmnist --model mini-rn --templates single",
        "bayestta run --order skewed:0.5   (half of each domain is one class)",
        "bayestta run --set preset=released --set alpha=10 --seed 2",
        "bayestta run --method tent-continual --guard",
        "bayestta run --data folder --root photos --order given   (photos/domain/class/image)",
        "bayestta run --rounds 3 --out r.json   (and what of the early domains is left at the end)",
        "bayestta run --model features:f.st --data features --root f.st --orders 100",
    )
)
def run(
    ctx: typer.Context,
    method: jobs.Method = jobs.METHOD,
    data: jobs.DataName = "cifar10-light",
    model: jobs.Model = jobs.MODEL,
    limit: jobs.Limit = None,
    batch_size: jobs.BatchSize = 128,
    seed: jobs.Seed = jobs.SEED,
    set_: jobs.Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the result, as JSON.")
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            "--order",
            help="Order of the images: time, shuffled, correlated, sorted (by class), skewed:SHARE "
            "(one class has that share of each domain, such as skewed:0.9) or given.",
        ),
    ] = "time",
    split: jobs.Split = None,
    templates: jobs.Templates = "data",
    reset_every: Annotated[
        str | None,
        typer.Option(
            "--reset-every",
            help="When the method starts afresh: never, domain or batch (default: its own choice).",
        ),
    ] = None,
    guard: jobs.Guard = False,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="File to go on from, if it exists, and to save to at the end."
        ),
    ] = None,
    root: jobs.Root = None,
    device: jobs.Device = "cpu",
    precision: jobs.Precision = "fp32",
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Number of walks through all domains.")
    ] = 1,
    orders: Annotated[
        int,
        typer.Option(
            "--orders",
            min=1,
            help="Orders of the images for the tail accuracy: the mean of the worst tenth of them.",
        ),
    ] = 1,
    option: jobs.Option = None,
    label: Annotated[
        str | None, typer.Option("--label", help="Name of the run in reports.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add t-SNE and Grad-CAM pictures for the report.")
    ] = False,
    log: Annotated[
        str | None,
        typer.Option("--log", help="Log to tensorboard, wandb (offline) or mlflow as well."),
    ] = None,
    log_dir: Annotated[Path, typer.Option("--log-dir", help="Folder for --log.")] = Path("logs"),
    workers: jobs.Workers = 0,
    strict: jobs.Strict = False,
    quiet: Quiet = False,
) -> None:
    """Run one method on a labelled stream and score it.

    State and result are saved together at the end: a run that is killed leaves both as they were,
    or is completed by the next start of the same command.
    """
    show = screen(ctx, quiet)
    settings = parse_settings(method, set_ or [])
    jobs.check_data(data)
    options = parse_options(data, option or [])
    jobs.check_pair(out, state)
    jobs.check_device(device, precision)
    jobs.check_model(model)

    from bayestta.bench import Run, check_options

    described = Run(
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
        orders=orders,
        options=options,
        label=label,
        root=None if root is None else str(root),
        device=device,
        precision=precision,
        explain=explain,
        guard=guard,
    )
    check_options(described)
    with ExitStack() as held:
        if state is not None:
            from bayestta.bench._delivery import deliver

            held.enter_context(jobs.claim_state(state))
            if (earlier := deliver(state, out)) is not None:
                show.note(
                    f"The run before this one was stopped after {state} was saved and before {out} "
                    "was written: it is written now. Start again to go on from the state."
                )
                finish(show, earlier, out)
                return
        finish(show, carry_out(show, described, state, out, log, log_dir, workers, strict), out)


def carry_out(
    show: Screen,
    run: Run,
    state: Path | None,
    out: Path | None,
    log: str | None,
    log_dir: Path,
    workers: int,
    strict: bool,
) -> Result:
    """Load data and model, run with a bar per domain, and save."""
    from bayestta.bench import execute
    from bayestta.bench._assembly import check_stream
    from bayestta.bench.trackers import open_log
    from bayestta.cli._words import warn_of_words
    from bayestta.data._stream import sizes

    with open_log(log, log_dir, run) as write:
        root = None if run.root is None else Path(run.root)
        source = jobs.open_data(show, run.data, root=root, split=run.split, options=run.options)
        check_stream(run, source)
        warn_of_words(show, run.model, source.classes)
        vlm = jobs.open_model(show, run.model, device=run.device, precision=run.precision)
        title = f"{run.method} with {vlm.name} on {source.name}"
        with Bars(show, title, sizes(source, run.limit, run.order, run.seed)) as bars:
            follow = bars.follow(run.method)

            def progress(step: Step) -> None:
                follow(step)
                write.step(step)

            result = execute(
                run,
                model=vlm,
                data=source,
                progress=progress,
                tell=show.note,
                state=state,
                out=out,
                strict=strict,
                workers=workers,
            )
        write.result(result)
    jobs.tell_skipped(show, source.skipped)
    return result


def finish(show: Screen, result: Result, out: Path | None) -> None:
    """Say how it went, beside the zero-shot answers to the same images."""
    from bayestta.report import render_table

    jobs.tell_guard(show, result.guard)
    jobs.tell_monitors(show, result.drift, result.harm)
    if not show.quiet:
        show.say(render_table([result], "terminal"))
    where = f" -> {out}" if out is not None else ""
    show.conclude(
        f"{result.method} with {result.model} on {result.data}, seed {result.seed}: "
        f"{result.accuracy:.2f} % of {result.n} images{beside(result)}, "
        f"{result.seconds['total']:.1f} s{where}"
    )
    if result.tail is not None:
        show.say(
            "worst {share:.0%} of {orders} orders: {tail:.2f} % (mean of all: {mean:.2f} %, "
            "zero-shot: {zero_shot:.2f} %)".format(**result.tail)
        )


def beside(result: Result) -> str:
    """The accuracy of the zero-shot sketch: what the pristine model answers to the same images."""
    if result.sketch is None or result.method == "zero-shot":
        return ""
    gain = result.accuracy - result.sketch["accuracy"]
    return f" (zero-shot sketch: {result.sketch['accuracy']:.2f} %, {gain:+.2f})"
