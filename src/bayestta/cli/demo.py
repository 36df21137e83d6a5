"""`bayestta demo`: zero-shot falls as the world drifts, BayesTTA holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayestta.cli import jobs
from bayestta.cli.app import Quiet, app, examples, screen
from bayestta.cli.screen import Bars, Screen

if TYPE_CHECKING:
    from bayestta.result import Result

STREAMS = (("lit", "cifar10-light"), ("mini-rn", "rmnist"))
METHODS = ("zero-shot", "bayestta")
BATCH = 128
PAGE = Path("demo.html")
LIMIT = 384  # whole batches; about three minutes for both streams on two cores


@app.command(
    epilog=examples("bayestta demo", "bayestta demo --limit 1000 --seed 2 --out light.html")
)
def demo(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Images a domain.")] = LIMIT,
    seed: jobs.Seed = 1,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = PAGE,
    quiet: Quiet = False,
) -> None:
    """Zero-shot against BayesTTA on two streams that drift.

    The light changes in CIFAR-10 photographs, under `lit`, and the digits of MNIST turn, under
    `mini-rn`. Data are downloaded at the first run. The outcome is a table, and a page with the
    accuracy curves.
    """
    show = screen(ctx, quiet)
    jobs.check_out(out)

    from bayestta.report import render_table, write_page

    for _, data in STREAMS:
        jobs.fetch_data(show, data)
    results = [
        result
        for model, data in STREAMS
        for result in compare(show, model, data, limit=limit, seed=seed)
    ]
    write_page(results, out)
    show.say(render_table(results, "terminal"))
    show.say(f"Page with the curves: {out.absolute()}")


def compare(show: Screen, model: str, data: str, *, limit: int, seed: int) -> list[Result]:
    """The methods on one and the same stream, one after the other."""
    from bayestta.adapter import make_adapter
    from bayestta.data import check_split, stream
    from bayestta.run import evaluate

    vlm = jobs.open_model(show, model)
    source = jobs.open_data(show, data)
    check_split(vlm, source)
    sizes = {domain: min(limit, len(source[domain])) for domain in source.domains}
    meta = {"data": data, "batch_size": BATCH, "limit": limit, "order": "time"}
    results = []
    with Bars(show, f"{model} on {data}: {' against '.join(METHODS)}", sizes) as bars:
        for method in METHODS:
            adapter = make_adapter(method, vlm, source.classes, source.templates, seed=seed)
            batches = stream(
                source,
                vlm.preprocess,
                batch_size=BATCH,
                seed=seed,
                limit=limit,
                views=adapter.views,
            )
            told = {
                **meta,
                "split": source.split,
                "provenance": dict.fromkeys(adapter.hyper(), "default"),
            }
            results.append(evaluate(adapter, batches, progress=bars.follow(method), meta=told))
    return results
