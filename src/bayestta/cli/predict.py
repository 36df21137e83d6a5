"""`bayestta predict`: label a person's own stream of images."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.cli._options import parse_settings
from bayestta.cli._screen import Bars, Screen

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.data.folder import Folder

COLUMNS = ["path", "label", "confidence", "zero_shot"]
SAVE_EVERY = 10  # batches between two savings of state and answers
Row = dict[str, str]


@app.command(
    epilog=examples(
        "bayestta predict --images photos --classes cat,dog,horse",
        "bayestta predict --images camera --classes names.txt --sort time --out preds.csv",
        "bayestta predict --images camera --classes names.txt --out p.csv --state learnt.state",
    )
)
def predict(
    ctx: typer.Context,
    images: Annotated[Path, typer.Option("--images", "-i", help="Folder, searched at any depth.")],
    classes: Annotated[
        str,
        typer.Option("--classes", "-c", help="File with one name a line, or names with commas."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV: path, label, confidence, zero_shot; else stdout."),
    ] = None,
    model: jobs.Model = jobs.MODEL,
    method: jobs.Method = jobs.METHOD,
    sort: Annotated[
        str,
        typer.Option("--sort", help="Order of the stream: name, or time (taken, or of the file)."),
    ] = "name",
    batch_size: jobs.BatchSize = 64,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Go on from this file where it exists; see above."),
    ] = None,
    set_: jobs.Set = None,
    seed: jobs.Seed = 0,
    templates: jobs.Templates = "data",
    device: jobs.Device = "cpu",
    precision: jobs.Precision = "fp32",
    workers: jobs.Workers = 0,
    strict: jobs.Strict = False,
    quiet: Quiet = False,
) -> None:
    """Label your own images, adapting to them as they come.

    With --state, what was learnt is kept in that file, saved every ten batches together with the
    answers: the same command goes on where it stopped. Images that --out already answers are then
    not answered again, and new ones are added to it. Without --state a run starts fresh and --out
    is replaced when it has ended.
    """
    show = screen(ctx, quiet)
    settings = parse_settings(method, set_ or [])
    jobs.check_out(out)
    jobs.check_out(state)
    jobs.check_device(device, precision)
    rows = read_rows(out) if state is not None and state.exists() and out is not None else []

    from bayestta.bench import pick_templates
    from bayestta.data.folder import Folder
    from bayestta.methods import make_adapter

    data = Folder(root=images, classes=class_names(classes), sort=sort, flat=True)
    paths = data[data.domains[0]].paths
    total, done = len(paths), {os.path.abspath(row["path"]) for row in rows}
    paths[:] = [path for path in paths if os.path.abspath(path) not in done]
    if not paths:
        show.say(f"All {total} images of {images} are answered in {out} already.")
        return
    vlm = jobs.open_model(show, model, device=device, precision=precision)
    prompts = pick_templates(templates, data)
    adapter = make_adapter(method, vlm, data.classes, prompts, seed=seed, **settings)
    if state is not None and state.exists():
        adapter.load(state)
        show.note(f"Going on from {state}, after {adapter.samples} images.")
    options = {"batch_size": batch_size, "seed": seed, "strict": strict, "workers": workers}
    try:
        for i, new in enumerate(answers(show, adapter, data, options), start=1):
            rows += new
            if state is not None and i % SAVE_EVERY == 0:
                save(adapter, rows, state, out)
    except ValueError:
        if not (rows and len(data.skipped) == len(paths)):
            raise  # else: what is left of an earlier run cannot be read, and was told then
    save(adapter, rows, state, out)
    jobs.tell_skipped(show, data)
    jobs.tell_guard(show, adapter.summary().get("guard"))
    if out is not None:
        kept = f", {len(done)} from before" if done else ""
        show.say(f"{len(rows)} images answered{kept}, {len(data.skipped)} skipped -> {out}")


def class_names(classes: str) -> Path | list[str]:
    """A file with one name a line, or names with commas between them."""
    path = Path(classes).expanduser()
    if path.is_file():
        return path
    if "," in classes:
        return [name.strip() for name in classes.split(",")]
    raise ValueError(
        f"{classes} is neither a file nor names with commas: write one name a line into a file, or "
        "--classes cat,dog."
    )


def answers(
    show: Screen, adapter: Adapter, data: Folder, options: dict[str, Any]
) -> Iterator[list[Row]]:
    """The rows of each batch, in the order of the stream."""
    from bayestta.data import stream
    from bayestta.evaluation.steps import steps
    from bayestta.methods import make_adapter

    model, domain = adapter.model, data[data.domains[0]]
    reference = make_adapter("zero-shot", model, adapter.classes, adapter.templates)
    # Norms that move take the sketch along: the pristine model then has to be asked again.
    same = adapter.name == reference.name or not adapter.moves_tower
    batches = stream(data, model.preprocess, order="given", views=adapter.views, **options)
    ours, theirs = tee(batches)
    title = f"{adapter.name} with {model.name} on {data.root}"
    with Bars(show, title, {name: len(data[name]) for name in data.domains}) as bars:
        progress = bars.follow(adapter.name)
        for step, batch in zip(steps(adapter, theirs), ours, strict=False):
            plain = step.sketch if same else None
            if plain is None:
                plain = reference.predict(getattr(batch.x, "plain", batch.x))
            sure, label = step.probabilities.max(1)
            progress(step)
            yield [
                {
                    "path": domain.path(i),
                    "label": adapter.classes[k],
                    "confidence": f"{p:.4f}",
                    "zero_shot": adapter.classes[z],
                }
                for i, k, p, z in zip(
                    batch.index.tolist(),
                    label.tolist(),
                    sure.tolist(),
                    plain.argmax(1).tolist(),
                    strict=True,
                )
            ]


def save(adapter: Adapter, rows: list[Row], state: Path | None, out: Path | None) -> None:
    """State and answers belong together: each is written whole, one right after the other."""
    from bayestta.evaluation.result import write_atomic

    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if state is not None:
        adapter.save(state)
    if out is not None:
        write_atomic(out, file.getvalue())
    else:
        print(file.getvalue(), end="")


def read_rows(path: Path) -> list[Row]:
    """The answers that an earlier run left; another table is refused, not overwritten."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if reader.fieldnames != COLUMNS:
        raise ValueError(
            f"{path} is no table of `bayestta predict` (its columns: {reader.fieldnames}): choose "
            "another --out."
        )
    return rows
