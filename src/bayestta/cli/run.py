"""`bayestta run`: one method on one stream, scored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayestta.cli import jobs
from bayestta.cli.app import Quiet, app, examples, screen
from bayestta.cli.screen import Bars
from bayestta.cli.settings import parse_settings, provenance


@app.command(
    epilog=examples(
        "bayestta run --data cifar10-light --model lit --limit 512 --out r.json",
        "bayestta run --method zero-shot --data rmnist --model mini-rn --templates single",
        "bayestta run --set preset=released --set alpha=10 --seed 2",
        "bayestta run --data folder --root photos --order given   (photos/domain/class/image)",
    )
)
def run(
    ctx: typer.Context,
    method: jobs.Method = jobs.METHOD,
    data: Annotated[
        str, typer.Option("--data", "-d", help="See `bayestta list data`.")
    ] = "cifar10-light",
    model: jobs.Model = jobs.MODEL,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Images a domain, at most.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1)] = 128,
    seed: jobs.Seed = 0,
    set_: jobs.Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the result goes, as JSON.")
    ] = None,
    order: Annotated[
        str, typer.Option("--order", help="Of the stream: time, shuffled, correlated or given.")
    ] = "time",
    split: Annotated[
        str | None, typer.Option("--split", help="Which images, such as test or all.")
    ] = None,
    templates: jobs.Templates = "data",
    reset: Annotated[
        str | None,
        typer.Option("--reset", help="never, domain or batch; by default the method's own choice."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Go on from this file if it exists; save to it at the end."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder of the cached data, or of your images.")
    ] = None,
    device: jobs.Device = "cpu",
    precision: jobs.Precision = "fp32",
    workers: jobs.Workers = 0,
    strict: jobs.Strict = False,
    quiet: Quiet = False,
) -> None:
    """Run one method on a labelled stream and score it."""
    show = screen(ctx, quiet)
    hyper = parse_settings(method, set_ or [])
    jobs.check_data(data)
    jobs.check_out(out)
    jobs.check_out(state)
    jobs.check_device(device, precision)

    from bayestta.adapter import make_adapter
    from bayestta.data import check_split, stream
    from bayestta.report import render_table
    from bayestta.run import evaluate

    vlm = jobs.open_model(show, model, device=device, precision=precision)
    source = jobs.open_data(show, data, root=root, split=split)
    check_split(vlm, source)
    prompts = jobs.pick_templates(templates, source)
    adapter = make_adapter(method, vlm, source.classes, prompts, seed=seed, **hyper)
    notes: dict[str, object] = {}
    if state is not None and state.exists():
        adapter.load(state)
        notes["state"] = f"went on from {state} after {adapter.samples} images"
        show.note(f"Going on from {state}, after {adapter.samples} images.")
    batches = stream(
        source,
        vlm.preprocess,
        batch_size=batch_size,
        seed=seed,
        views=adapter.views,
        order=order,
        limit=limit,
        strict=strict,
        workers=workers,
    )
    sizes = {d: min(len(source[d]), limit or len(source[d])) for d in source.domains}
    meta = {
        "data": data,
        "batch_size": batch_size,
        "limit": limit,
        "order": order,
        "split": source.split,
        "provenance": provenance(adapter, hyper),
        "notes": notes,
    }
    with Bars(show, f"{method} with {vlm.name} on {data}", sizes) as bars:
        result = evaluate(adapter, batches, reset=reset, progress=bars.follow(method), meta=meta)
    jobs.tell_skipped(show, source)
    jobs.tell_guard(show, result.guard)
    if source.skipped:
        notes["skipped"] = len(source.skipped)
        result.notes = notes
    if out is not None:
        result.save(out)
    if state is not None:
        adapter.save(state)
    if not show.quiet:
        show.say(render_table([result], "terminal"))
    where = f" -> {out}" if out is not None else ""
    show.say(
        f"{method} with {result.model} on {data}, seed {seed}: {result.accuracy:.2f} % of "
        f"{result.n} images, {result.seconds['total']:.1f} s{where}"
    )
