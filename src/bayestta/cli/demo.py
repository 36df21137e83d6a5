"""`bayestta demo`: zero-shot falls as the world drifts, BayesTTA holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.cli._screen import Bars, Screen

if TYPE_CHECKING:
    from bayestta.evaluation.result import Result

STREAMS = (("lit", "cifar10-light"), ("mini-rn", "rmnist"))
METHODS = ("zero-shot", "bayestta")
PAGE = Path("demo.html")
LIMIT = 384  # whole batches; about three minutes for both streams on two cores


@app.command(
    epilog=examples("bayestta demo", "bayestta demo --limit 1000 --seed 2 --out light.html")
)
def demo(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Images per domain.")] = LIMIT,
    seed: jobs.Seed = jobs.SEED,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write, as HTML.")] = PAGE,
    quiet: Quiet = False,
) -> None:
    """Compare zero-shot with BayesTTA on two streams that drift.

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
    from bayestta.bench import Run, execute
    from bayestta.data._stream import sizes

    source = jobs.open_data(show, data)
    vlm = jobs.open_model(show, model)
    title = f"{model} on {data}: {' against '.join(METHODS)}"
    with Bars(show, title, sizes(source, limit)) as bars:
        return [
            execute(
                Run(data, model, method, seed=seed, limit=limit),
                model=vlm,
                data=source,
                progress=bars.follow(method),
            )
            for method in METHODS
        ]
