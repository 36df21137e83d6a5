"""`run_bench`: the missing ones of a list of runs, each saved as soon as it has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from bayestta.bench._assembly import CACHE_GB
from bayestta.bench.event import Event
from bayestta.bench.plan import Run
from bayestta.bench.pool import carry_out, cores
from bayestta.evaluation.result import Result, write_atomic
from bayestta.locks import claim

Tell = Callable[[Event], object]


def run_bench(
    runs: Sequence[Run],
    folder: str | os.PathLike[str],
    *,
    processes: int | None = None,
    progress: Tell | None = None,
    cache_gb: float = CACHE_GB,
    ray: bool = False,
    unavailable: Mapping[tuple[str, str | None], str] | None = None,
) -> tuple[list[Result], dict[str, str]]:
    """Carry out what is missing in the folder; results in the order of the runs, and the error of
    each failed run by the name of its result.

    Only this process writes into the folder, every file at once: whenever it is killed, what was
    finished stays, and the next start does the rest. A failed run leaves `NAME.error.json` and is
    tried again by the next start. A file that is damaged, or holds the result of another run, is
    renamed to `NAME.json.set-aside`, and its run is done again.

    Parameters
    ----------
    processes
        By default one per core; the cores are shared out among them, unless `$OMP_NUM_THREADS` says
        how many threads each gets.
    progress
        Called with every `Event`.
    cache_gb
        What cached image tensors may take on disk; 0 decodes images in every run.
    ray
        Hand the runs to Ray (extra `ray`) instead of processes of this machine.
    unavailable
        Data sets, by name and root, that are known not to be there, and why: their runs fail
        without another try.
    """
    # Not the number of open runs: threads change the last digits, and a start that goes on must
    # give the numbers of one that was never stopped.
    processes = min(processes or cores(), max(1, len(runs)))
    given = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(given) if given.isdecimal() else max(1, cores() // processes)
    tell = progress or (lambda event: None)
    missing = unavailable or {}
    with _claim(Path(folder)) as home:
        finished = {run.file: kept for run in runs if (kept := _kept(home, run, tell)) is not None}
        for run in runs:
            if run.file in finished:
                tell(Event(run, "kept", result=finished[run.file]))
        open_runs = [run for run in runs if run.file not in finished]
        failed: dict[str, str] = {}
        events = _events(open_runs, missing, processes, threads, cache_gb, ray)
        with closing(events):  # ends the processes, whatever happens here
            for event in events:
                name = event.run.file
                if event.result is not None:
                    event.result.save(home / name)
                    error_file(home / name).unlink(missing_ok=True)
                    finished[name] = event.result
                elif event.kind == "failed":
                    failed[name] = event.error
                    _save_error(home / name, event)
                tell(event)
    return [finished[run.file] for run in runs if run.file in finished], failed


def _events(
    runs: Sequence[Run],
    missing: Mapping[tuple[str, str | None], str],
    processes: int,
    threads: int,
    cache_gb: float,
    ray: bool,
) -> Generator[Event, None, None]:
    for run in runs:
        if (run.data, run.root) in missing:
            yield Event(run, "failed", error=missing[run.data, run.root], stage="data")
    rest = [run for run in runs if (run.data, run.root) not in missing]
    if ray:
        from bayestta.bench.ray_tasks import carry_out_on_ray

        yield from carry_out_on_ray(rest, threads=threads, cache_gb=cache_gb)
    else:
        yield from carry_out(rest, processes=processes, threads=threads, cache_gb=cache_gb)


def _kept(home: Path, run: Run, tell: Tell) -> Result | None:
    """The result of an earlier start; a file that is none of this run is set aside."""
    path = home / run.file
    if not path.exists():
        return None
    try:
        result = Result.load(path)
    except ValueError as error:
        reason = str(error)
    else:
        if result.key == run.file:
            return result
        reason = f"{path} holds the result of {result.key or 'a run outside this bench'}"
    aside, number = path.with_name(f"{path.name}.set-aside"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.set-aside-{number}")
    os.replace(path, aside)
    tell(Event(run, "set aside", error=f"{reason} It is now {aside.name}; the run is done again."))
    return None


def error_file(path: Path) -> Path:
    """Where the error of a failed run stands, beside the place of its result."""
    return path.with_name(path.name.removesuffix(".json") + ".error.json")


def _save_error(path: Path, event: Event) -> None:
    about = {
        "error": event.error,
        "traceback": event.traceback,
        "run": asdict(event.run),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    write_atomic(error_file(path), json.dumps(about, indent=1, default=str) + "\n")


@contextmanager
def _claim(folder: Path) -> Iterator[Path]:
    """The folder for this process alone; the system gives it up with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    cure = "wait for its end, or use another --folder."
    with claim(folder / "bench", cure, user="bench", title=str(folder)):
        for stale in folder.glob(".*.json.*.part"):  # of a process that was killed while writing
            stale.unlink(missing_ok=True)
        yield folder
