"""Worker processes of one machine: each keeps its model, and the death of one fails one run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from bayestta.bench.event import Event
from bayestta.bench.plan import Run
from bayestta.evaluation.result import Result

if TYPE_CHECKING:
    from bayestta.evaluation.steps import Step

EVERY = 0.25  # seconds between two messages on the progress of a run
PATIENCE = 5.0  # seconds for a process to end before it is killed


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def carry_out(
    runs: Sequence[Run], *, processes: int, threads: int, cache_gb: float
) -> Generator[Event, None, None]:
    """Do the runs in processes of `threads` threads each; leaving the loop ends the processes."""
    waiting, workers = list(runs), list[_Worker]()
    try:
        while waiting or any(worker.run for worker in workers):
            while waiting and len(workers) < processes:
                workers.append(_Worker(threads, cache_gb))
            for worker in workers:
                if waiting and worker.run is None:
                    run = _choose(waiting, worker, workers)
                    waiting.remove(run)
                    worker.give(run)
                    yield Event(run, "started")
            ready = wait([worker.pipe for worker in workers if worker.run])
            for worker in [worker for worker in workers if worker.pipe in ready]:
                yield (event := worker.hear())
                if event.kind in ("done", "failed"):
                    worker.run = None
                if worker.dead:
                    workers.remove(worker)
        for worker in workers:
            worker.pipe.close()  # which a worker takes as its end
    except BaseException:
        for worker in workers:
            worker.process.terminate()
        raise
    finally:
        for worker in workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _choose(waiting: list[Run], worker: _Worker, workers: list[_Worker]) -> Run:
    """Where possible a run of the model, and of the data, that the process has open; else of a
    model that no other has."""
    others = {other.last.model for other in workers if other is not worker and other.last}
    last = worker.last

    def distance(run: Run) -> tuple[bool, bool, bool]:
        if last is None or run.model != last.model:
            return True, run.model in others, False
        return False, False, run.data != last.data

    return min(waiting, key=distance)  # of equals the first: the order of the file


class _Worker:
    """A process, and this side of the pipe to it."""

    def __init__(self, threads: int, cache_gb: float) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads half-way
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads, cache_gb))
        self.process.start()
        theirs.close()
        self.run: Run | None = None
        self.last: Run | None = None
        self.dead = False

    def give(self, run: Run) -> None:
        self.run = self.last = run
        with contextlib.suppress(OSError):  # it has died; hear() will tell
            self.pipe.send(run)

    def hear(self) -> Event:
        """The next message, or the news of its death."""
        assert self.run is not None
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            self.dead = True
            return Event(self.run, "failed", error=_obituary(self.process.exitcode))
        if kind == "done":
            result = Result.from_json(value)
            return Event(self.run, "done", result.n, result.n, result=result)
        if kind == "failed":
            return Event(self.run, "failed", error=value[0], traceback=value[1])
        return Event(self.run, "step", *value)


def _obituary(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}: start again, with fewer --processes."
    return f"its process ended with exit code {code} before it had answered: start again."


# --- in the process ---


def _serve(pipe: Connection, threads: int, cache_gb: float) -> None:
    """Do the runs that come through the pipe, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return
        pipe.send(attempt(run, cache_gb, _Reporter(pipe)))


def attempt(run: Run, cache_gb: float, reporter: _Reporter | None = None) -> tuple[str, Any]:
    """The result as JSON, or the error and its traceback."""
    from bayestta.bench.execution import execute

    begin, step = (None, None) if reporter is None else (reporter.begin, reporter.step)
    try:
        result = execute(run, begin=begin, progress=step, cache_gb=cache_gb)
    except Exception as error:
        told = " ".join(str(error).split()) or "no more is known"
        return "failed", (f"{type(error).__name__}: {told}", traceback.format_exc())
    return "done", result.to_json()


class _Reporter:
    """Sends the number of images so far, not too often."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.images, self.total, self.told = pipe, 0, 0, 0.0

    def begin(self, total: int) -> None:
        self.total = total
        self.pipe.send(("step", (0, total)))

    def step(self, step: Step) -> None:
        self.images += step.n
        if time.monotonic() - self.told >= EVERY:
            self.told = time.monotonic()
            self.pipe.send(("step", (self.images, self.total)))


def _end_with_parent() -> None:
    """A bench that is killed leaves nobody behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
