"""`bayestta predict`: label a person's own stream of images."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayestta.cli import _preparation as jobs
from bayestta.cli._app import Quiet, app, examples, screen
from bayestta.cli._options import parse_settings
from bayestta.cli._screen import Screen

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.cli._answers import Photographs, Source
    from bayestta.cli._transaction import Journal

SAVE_EVERY = 10  # batches between two commits of state and answers


@app.command(
    epilog=examples(
        "bayestta predict --images photos --classes cat,dog,horse",
        "bayestta predict --images camera --classes names.txt --sort time --out preds.csv",
        "bayestta predict --images camera --classes names.txt --out p.jsonl --state learnt.state",
        "bayestta predict --watch inbox --classes cat,dog --out p.csv --state learnt.state",
        "bayestta predict --video film.mp4 --fps 2 --classes cat,dog --out p.csv",
    )
)
def predict(
    ctx: typer.Context,
    classes: Annotated[
        str,
        typer.Option(
            "--classes", "-c", help="File with one name per line, or names with commas between."
        ),
    ],
    images: Annotated[
        Path | None,
        typer.Option("--images", "-i", help="Folder, searched at any depth, or one image."),
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option("--watch", help="Folder whose files are answered as they arrive."),
    ] = None,
    video: Annotated[
        str | None,
        typer.Option("--video", help="Video file, address (rtsp://, http://) or camera number."),
    ] = None,
    fps: Annotated[
        float, typer.Option("--fps", help="With --video: frames per second that are answered.")
    ] = 1.0,
    idle: Annotated[
        float | None,
        typer.Option("--idle", min=0, help="With --watch: seconds without a new file that end it."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File for the answers: .csv, .json or .jsonl."),
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
        typer.Option("--state", help="File that keeps what was learnt; see above."),
    ] = None,
    set_: jobs.Set = None,
    top_k: Annotated[
        int, typer.Option("--top-k", min=1, help="Number of labels per image, the best first.")
    ] = 2,
    guard: jobs.Guard = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed for the method.")] = jobs.SEED,
    templates: Annotated[
        str, typer.Option("--templates", help="Prompts: single, seven or eighty.")
    ] = "seven",
    device: jobs.Device = "cpu",
    precision: jobs.Precision = "fp32",
    workers: jobs.Workers = 0,
    strict: jobs.Strict = False,
    quiet: Quiet = False,
) -> None:
    """Label your own images, adapting to them as they come.

    Give one of --images, --watch (files are answered as they arrive) and --video. An alarm of
    drift, which needs no label, is told when the images are no longer like those before.

    Answers go to --out, or are printed: path, label and confidence, the runner-up (--top-k adds
    more), the zero-shot label, the time of the picture and what the guard saw. Images that cannot
    be read are listed in NAME.skipped.csv beside --out, with the reason.

    With --state, what was learnt is kept in that file and saved every ten batches together with
    the answers. Started again, even after a crash, the same command goes on where it stopped:
    every image is answered and learnt from once. Without --state a run starts fresh, and --out is
    replaced when it has ended. --watch and cameras have no end but Ctrl-C: they save after every
    batch, which takes a --state where there is an --out.
    """
    show = screen(ctx, quiet)
    settings = parse_settings(method, set_ or [])
    jobs.check_pair(out, state)
    jobs.check_device(device, precision)
    jobs.check_model(model)

    from bayestta.bench import Run, build_adapter, check_options
    from bayestta.cli._answers import Photographs, answers, columns
    from bayestta.cli._live import Origin
    from bayestta.cli._table import Table
    from bayestta.cli._transaction import Journal
    from bayestta.cli._words import warn_of_words
    from bayestta.evaluation.watch import Watch

    origin = Origin(images, watch, video, sort, fps, idle)
    origin.check(out, state)

    run = Run(
        data="folder",
        model=model,
        method=method,
        seed=seed,
        batch_size=batch_size,
        order="given",
        templates=templates,
        settings=settings,
        device=device,
        precision=precision,
        guard=guard,
    )
    check_options(run)
    journal = Journal(Table(out, columns(top_k)), state)
    with ExitStack() as held:
        if state is not None:
            held.enter_context(jobs.claim_state(state))
        data = origin.open(class_names(classes), journal.open())
        if top_k > len(data.classes):
            raise ValueError(
                f"--top-k is {top_k}, and there are {len(data.classes)} classes: give at most that."
            )
        if isinstance(data, Photographs) and nothing_new(data, out, strict=strict):
            count = len(data.stream.answered)
            show.say(f"All {count} readable images of {images} are answered in {out} already.")
            return
        warn_of_words(show, model, data.classes)
        vlm = jobs.open_model(show, model, device=device, precision=precision)
        adapter = build_adapter(run, vlm, data)
        if state is not None and state.exists():
            adapter.load(state)
            show.note(f"Going on from {state}, after {adapter.samples} images.")
        monitors = Watch()
        if journal.monitors is not None:
            monitors.load_json(journal.monitors)
        earlier, began = journal.rows, time.perf_counter()
        options = {"batch_size": batch_size, "seed": seed, "strict": strict, "workers": workers}
        journal.begin(adapter)
        count = earlier
        done = answers(show, adapter, data, monitors, top_k, options)
        interrupted = False
        try:
            for i, rows in enumerate(done, start=1):
                journal.add(rows)
                journal.monitors = monitors.to_json()
                count += len(rows)
                if data.live:
                    journal.show()
                if data.live or i % SAVE_EVERY == 0:
                    save(journal, adapter, data)
        except ValueError:
            if data.live or strict or not (count and count == earlier):
                raise  # else: the rest of an earlier run cannot be read, and is listed
        except KeyboardInterrupt:
            if not data.live:
                raise
            interrupted = True  # the batch under way is not saved
        if state is None or not interrupted:
            save(journal, adapter, data, last=True)
        spent = time.perf_counter() - began
    finish(show, adapter, data, out, count, earlier)
    if data.live:
        rate = f" ({fps:g} frames per second of the video)" if video is not None else ""
        new = count - earlier
        show.note(f"{new} new images{rate}, {new / spent:.1f} per second, waiting included.")


def save(journal: Journal, adapter: Adapter, data: Source, *, last: bool = False) -> None:
    """Commit answers and state, and list what was skipped."""
    from bayestta.cli._table import write_skipped

    if last:
        journal.close(adapter)
    else:
        journal.commit(adapter)
    if journal.out is not None and (last or journal.transactional):
        write_skipped(journal.out, data.left_out())


def finish(
    show: Screen, adapter: Adapter, data: Source, out: Path | None, count: int, earlier: int
) -> None:
    """Say what was done."""
    from bayestta.cli._table import skipped_file

    skipped = data.left_out()
    jobs.tell_skipped(show, [f"{path}: {why}" for path, why in skipped], out and skipped_file(out))
    jobs.tell_guard(show, adapter.summary().get("guard"))
    if out is not None:
        before = f", {earlier} from before" if earlier else ""
        show.say(f"{count} images answered{before}, {len(skipped)} skipped -> {out}")


def nothing_new(data: Photographs, out: Path | None, *, strict: bool) -> bool:
    """Whether all images are answered, or unreadable since before they were last tried."""
    from bayestta.cli._table import read_skipped

    waiting = data.unanswered()
    if not data.stream.answered or out is None or (strict and waiting):
        return False
    skipped, when = read_skipped(out)
    return all(str(path) in skipped and path.stat().st_mtime <= when for path in waiting)


def class_names(classes: str) -> Path | list[str]:
    """A file with one name per line, or names with commas between them."""
    path = Path(classes).expanduser()
    if path.is_file():
        return path
    if "," in classes:
        return [name.strip() for name in classes.split(",")]
    raise ValueError(
        f"{classes} is neither a file nor names with commas: write one name per line into a file, "
        "or --classes cat,dog."
    )
