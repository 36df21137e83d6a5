"""A matrix of runs from a TOML file: in parallel, each isolated, and never the same run twice.

A file has a table `[bench]` with what all runs share (`seeds`, `limit`, `batch_size`, …) and a list
`[[runs]]` whose `data`, `models`, `methods` and `seeds` are multiplied out, `set` gives
hyper-parameters and `grid` several values of one. A finished run is one JSON file whose name says
what it was: starting again goes on with what is missing.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayestta.names import unknown
from bayestta.result import Result

if TYPE_CHECKING:
    from bayestta.model import VLM

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


@dataclass(frozen=True)
class Run:
    """One method with one model on one stream."""

    data: str
    model: str
    method: str
    seed: int = 1
    limit: int | None = None
    batch_size: int = 128
    order: str = "time"
    split: str | None = None
    templates: str = "data"
    reset: str | None = None
    hyper: dict[str, Any] = field(default_factory=dict, hash=False)
    provenance: str = "user"  # of the hyper-parameters: user, authors or tuned

    @property
    def file(self) -> str:
        """The name of its result: only what differs from the defaults counts, so that a new field
        of a later version leaves earlier results where they are found."""
        told = {k: v for k, v in asdict(self).items() if v != asdict(_PLAIN)[k]}
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]
        model = self.model.replace("/", "_").replace(":", "_")
        return f"{self.data}-{model}-{self.method}-{self.seed}-{digest}.json"


_PLAIN = Run(data="", model="", method="")


def read_bench(path: str | os.PathLike[str]) -> list[Run]:
    """The runs of a TOML file; an unknown key is refused with the valid ones."""
    try:
        found = tomllib.loads(Path(path).read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML ({error}): correct it.") from None
    shared = found.get("bench", {})
    runs: dict[str, Run] = {}
    for entry in found.get("runs", []):
        for run in _multiply({**shared, **entry}):
            runs.setdefault(run.file, run)
    if not runs:
        raise ValueError(
            f"{path} holds no run: add a [[runs]] table with data, models and methods."
        )
    return list(runs.values())


PLURAL = {"data": "data", "models": "model", "methods": "method", "seeds": "seed"}
SINGLE = ("limit", "batch_size", "order", "split", "templates", "reset", "provenance")


def _multiply(entry: Mapping[str, Any]) -> Iterable[Run]:
    for key in entry:
        if key not in (*PLURAL, *SINGLE, "set", "grid"):
            raise ValueError(unknown("key of a bench file", key, [*PLURAL, *SINGLE, "set", "grid"]))
    missing = [key for key in ("data", "models", "methods") if key not in entry]
    if missing:
        raise ValueError(f"a [[runs]] table lacks {', '.join(missing)}: add them as lists.")
    axes = {name: _listed(entry.get(key, [1])) for key, name in PLURAL.items()}
    grid = {key: _listed(values) for key, values in entry.get("grid", {}).items()}
    single = {key: entry[key] for key in SINGLE if key in entry}
    for chosen in product(*axes.values()):
        for values in product(*grid.values()):
            hyper = {**entry.get("set", {}), **dict(zip(grid, values, strict=True))}
            yield Run(**dict(zip(axes, chosen, strict=True)), hyper=hyper, **single)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


_models: dict[str, VLM] = {}  # one model a process


def execute(run: Run, *, progress: Callable[[Any], object] | None = None) -> Result:
    """Carry out one run in this process."""
    from bayestta.adapter import make_adapter
    from bayestta.data import check_split, load_data, stream
    from bayestta.model import load_model
    from bayestta.run import evaluate
    from bayestta.text import templates

    model = _models.get(run.model) or _models.setdefault(run.model, load_model(run.model))
    data = load_data(run.data, **({"split": run.split} if run.split else {}))
    check_split(model, data)
    prompts = data.templates if run.templates == "data" else templates(run.templates)
    adapter = make_adapter(run.method, model, data.classes, prompts, seed=run.seed, **run.hyper)
    batches = stream(
        data,
        model.preprocess,
        batch_size=run.batch_size,
        seed=run.seed,
        views=adapter.views,
        order=run.order,
        limit=run.limit,
    )
    origin = {key: run.provenance if key in run.hyper else "default" for key in adapter.hyper()}
    meta = {
        "data": run.data,
        "limit": run.limit,
        "batch_size": run.batch_size,
        "order": run.order,
        "split": data.split,
        "provenance": origin,
    }
    return evaluate(adapter, batches, reset=run.reset, progress=progress, meta=meta)


def _worker(run: Run, folder: Path, threads: int) -> Path:
    import torch

    torch.set_num_threads(threads)
    path = folder / run.file
    execute(run).save(path)
    return path


def run_bench(
    runs: list[Run],
    folder: str | os.PathLike[str],
    *,
    processes: int | None = None,
    progress: Callable[[Run, str], object] | None = None,
) -> tuple[list[Result], dict[str, str]]:
    """Carry out what is missing in the folder; results in the order of the runs, and the error of
    each failed run."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    processes = processes or os.cpu_count() or 1
    threads = max(1, (os.cpu_count() or 1) // processes)
    open_runs = [run for run in runs if not (folder / run.file).exists()]
    failed: dict[str, str] = {}
    tell = progress or (lambda run, word: None)
    for run in runs:
        if run not in open_runs:
            tell(run, "kept")
    if open_runs:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(processes, mp_context=context)
        try:
            jobs: dict[Future[Path], Run] = {
                pool.submit(_worker, run, folder, threads): run for run in open_runs
            }
            for job in as_completed(jobs):
                run = jobs[job]
                error = job.exception()
                if error is not None:
                    failed[run.file] = f"{type(error).__name__}: {error}"
                tell(run, "failed" if error else "done")
        finally:
            pool.shutdown(cancel_futures=True)
    done = [folder / run.file for run in runs if (folder / run.file).exists()]
    return [Result.load(path) for path in done], failed
