"""What several commands do before their own work: check, get the data, load the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayestta.bench.plan import SEED as SEED
from bayestta.cli._screen import Screen
from bayestta.files import clear_parts
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.data import Data
    from bayestta.models.base import VLM

METHOD = "bayestta"
MODEL = "lit"
PRECISIONS = ("fp32", "bf16", "fp16")

Method = Annotated[
    str, typer.Option("--method", "-m", help="Method; `bayestta list methods` shows them.")
]
Model = Annotated[
    str,
    typer.Option("--model", help="Model: a name, open_clip:NAME/TAG, hf:ID or a checkpoint."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Setting of the method (`bayestta list methods NAME`); may be repeated.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed for the image order and the method.")]
Guard = Annotated[
    bool,
    typer.Option(
        "--guard", help="Watch for a collapse of the answers, and return to the last good state."
    ),
]
Templates = Annotated[
    str, typer.Option("--templates", help="Prompts: data (its own), single, seven or eighty.")
]
DataName = Annotated[
    str, typer.Option("--data", "-d", help="Data set; `bayestta list data` shows them.")
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Largest number of images per domain.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", "-b", min=1, help="Images per batch.")]
Split = Annotated[
    str | None, typer.Option("--split", help="Part of the data, such as test or all.")
]
Root = Annotated[
    Path | None, typer.Option("--root", help="Folder of the cached data, or of your images.")
]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Option of the data set; may be repeated."),
]
Reports = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        metavar="<path>",
        help="Report to write: .html, .md, .tex, .csv or .txt; may be repeated.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="Device, such as cpu, cuda or cuda:1.")]
Precision = Annotated[
    str, typer.Option("--precision", help="Precision of the weights: fp32, bf16 or fp16.")
]
Workers = Annotated[
    int,
    typer.Option("--workers", min=0, help="Processes that open images; 0 opens them in this one."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Stop at an image that cannot be read, not skip it.")
]


def check_out(path: Path | None) -> None:
    """Refuse, before the work, a file that could not be written after it."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file in it.")
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ValueError(
            f"{path} cannot be written, as {folder} does not allow it: choose another."
        )
    clear_parts(path)


def check_reports(paths: Sequence[Path]) -> None:
    """Refuse reports that could not be written, all of them before the work."""
    from bayestta.report import SUFFIXES

    for path in paths:
        check_out(path)
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(unknown("ending of a report", path.suffix or path.name, SUFFIXES))


def check_pair(out: Path | None, state: Path | None) -> None:
    """The same for an output and a state, which must not be one file."""
    check_out(out)
    check_out(state)
    if out is not None and state is not None and os.path.realpath(out) == os.path.realpath(state):
        raise ValueError(f"--out and --state are both {out}: give two files.")


@contextmanager
def claim_state(state: Path) -> Iterator[None]:
    """Hold a state for this process alone: two would each lose what the other learnt."""
    from bayestta.locks import claim

    with claim(state, "wait for its end, or use another --state."):
        yield


def check_model(name: str) -> None:
    """Refuse an unknown name before anything is loaded; what lies behind a known one shows then."""
    from bayestta.models.base import MODELS

    if name in MODELS or ":" in name or "/" in name or Path(name).suffix or Path(name).exists():
        return
    raise ValueError(unknown("model", name, MODELS))


def check_device(device: str, precision: str) -> None:
    """Refuse what is certain to fail before data are fetched."""
    import torch

    if precision not in PRECISIONS:
        raise ValueError(unknown("precision", precision, PRECISIONS))
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0][:150]
        raise ValueError(f"device {device!r} cannot be used ({first}): use --device cpu.") from None


def fetch_data(
    screen: Screen, name: str, root: Path | None = None, *, verify: bool = False
) -> Path | None:
    """Get the files of a data set, saying so while it lasts; None where there is nothing to get.

    With `verify`, files that are there are checked, and fetched again where they are damaged.
    """
    from bayestta.data import get_data, list_data
    from bayestta.data._base import REGISTRY
    from bayestta.data._origins import SOURCES
    from bayestta.files import cache_root

    list_data()  # registers them
    source = getattr(REGISTRY[name], "source", None) if name in REGISTRY else name
    if source not in SOURCES:
        return get_data(name, root=root)
    folder = cache_root(root) / source
    there = folder.exists()
    if there and not verify:  # load_data verifies what it reads
        return folder
    said = f"Downloading {source} into {folder}: once, up to a few minutes …"
    with screen.wait(f"Verifying {source} in {folder} …" if there else said):
        return get_data(name, root=root)


def open_data(
    screen: Screen,
    name: str,
    *,
    root: Path | None = None,
    split: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Data:
    """`load_data`, with a word on the download."""
    from bayestta.data import load_data

    check_data(name)
    fetch_data(screen, name, root)
    return load_data(name, root=root, split=split, **(options or {}))


def check_data(name: str) -> None:
    """Refuse an unknown name before anything is loaded."""
    from bayestta.data import list_data

    names = [info.name for info in list_data()]
    if name not in names:
        raise ValueError(unknown("data set", name, names))


def open_model(screen: Screen, name: str, *, device: str = "cpu", precision: str = "fp32") -> VLM:
    from bayestta.models.base import load_model

    with screen.wait(f"Loading {name} …"):
        return load_model(name, device=device, precision=precision)


def tell_skipped(screen: Screen, skipped: Sequence[str], file: Path | None = None) -> None:
    """Name images that could not be read, and the file that lists them all."""
    if skipped:
        shown = "; ".join(skipped[:3]) + "; …" * (len(skipped) > 3)
        count = f"{len(skipped)} image{'s' * (len(skipped) > 1)}"
        listed = f" (all are listed in {file})" if file is not None else ""
        screen.note(f"Skipped {count}: {shown}{listed}")


def tell_monitors(
    screen: Screen, drift: dict[str, Any] | None, harm: dict[str, Any] | None
) -> None:
    """Report what the drift alarm and the harm test say of a stream."""
    if drift and drift["alarms"]:
        first = drift["events"][0]
        times = f"{drift['alarms']} time{'s' * (drift['alarms'] > 1)}"
        known = "first" if drift["alarms"] == len(drift["events"]) else "of the latest the first"
        place = f" (domain {first['domain']})" if "domain" in first else ""
        screen.note(f"The drift alarm spoke {times}, {known} at image {first['sample']}{place}.")
    if harm and harm["alarm"]:
        screen.note(
            f"The harm test spoke after {harm['alarm_at']} labels of images where answer and "
            f"zero-shot differ: {harm['broken']} answers were made wrong, {harm['mended']} right."
        )


def tell_guard(screen: Screen, guard: dict[str, Any] | None) -> None:
    """Report a collapse that was caught."""
    if guard and guard.get("returns"):
        reason = next((event["reason"] for event in guard.get("events", [])), "")
        times = f"{guard['returns']} time{'s' * (guard['returns'] > 1)}"
        screen.note(f"The guard went back to the last good state {times}, as {reason}.")
