"""`run_bench`: the missing ones of a list of runs, each saved as soon as it has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

from bayestta.bench.event import Event
from bayestta.bench.execution import CACHE_GB
from bayestta.bench.plan import Run
from bayestta.bench.pool import carry_out, cores
from bayestta.evaluation.result import Result, write_atomic


def run_bench(
    runs: Sequence[Run],
    folder: str | os.PathLike[str],
    *,
    processes: int | None = None,
    progress: Callable[[Event], object] | None = None,
    cache_gb: float = CACHE_GB,
    ray: bool = False,
) -> tuple[list[Result], dict[str, str]]:
    """Carry out what is missing in the folder; results in the order of the runs, and the error of
    each failed run by the name of its result.

    Only this process writes into the folder, every file at once: whenever it is killed, what was
    finished stays, and the next start does the rest. A failed run leaves `NAME.error.json` and is
    tried again by the next start.

    Parameters
    ----------
    processes
        By default one a core; the cores are shared out among them, unless `$OMP_NUM_THREADS` says
        how many threads each gets.
    progress
        Called with every `Event`.
    cache_gb
        What cached image tensors may take on disk; 0 decodes images in every run.
    ray
        Hand the runs to Ray (extra `ray`) instead of processes of this machine.
    """
    # Not the number of open runs: threads change the last digits, and a start that goes on must
    # give the numbers of one that was never stopped.
    processes = min(processes or cores(), max(1, len(runs)))
    told = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(told) if told.isdecimal() else max(1, cores() // processes)
    tell = progress or (lambda event: None)
    with _claim(Path(folder)) as home:
        found = {r.file: Result.load(home / r.file) for r in runs if (home / r.file).exists()}
        for run in runs:
            if run.file in found:
                tell(Event(run, "kept", result=found[run.file]))
        open_runs = [run for run in runs if run.file not in found]
        failed: dict[str, str] = {}
        if ray:
            from bayestta.bench.cluster import carry_out_on_ray

            events = carry_out_on_ray(open_runs, threads=threads, cache_gb=cache_gb)
        else:
            events = carry_out(open_runs, processes=processes, threads=threads, cache_gb=cache_gb)
        with closing(events):  # ends the processes, whatever happens here
            for event in events:
                name = event.run.file
                if event.result is not None:
                    event.result.save(home / name)
                    error_file(home / name).unlink(missing_ok=True)
                    found[name] = event.result
                elif event.kind == "failed":
                    failed[name] = event.error
                    _save_error(home / name, event)
                tell(event)
    return [found[run.file] for run in runs if run.file in found], failed


def error_file(path: Path) -> Path:
    """Where the error of a failed run stands, beside the place of its result."""
    return path.with_name(path.name.removesuffix(".json") + ".error.json")


def _save_error(path: Path, event: Event) -> None:
    told = {
        "error": event.error,
        "traceback": event.traceback,
        "run": asdict(event.run),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    write_atomic(error_file(path), json.dumps(told, indent=1, default=str) + "\n")


@contextmanager
def _claim(folder: Path) -> Iterator[Path]:
    """The folder for this process alone; the system gives it up with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder / ".bench.pid"
    lock = FileLock(folder / ".bench.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        who = owner.read_text().strip() if owner.exists() else "unknown"
        raise ValueError(
            f"{folder} is in use by another bench (process {who}): wait for its end, or use "
            "another --folder."
        ) from None
    try:
        owner.write_text(f"{os.getpid()}\n")
        for stale in folder.glob(".*.json.*.part"):  # of a process that was killed while writing
            stale.unlink(missing_ok=True)
        yield folder
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
