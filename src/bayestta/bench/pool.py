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
    waiting, workers, failures = list(runs), list[_Worker](), Failures()
    try:
        while waiting or any(worker.run for worker in workers):
            for run in [run for run in waiting if run in failures]:
                waiting.remove(run)
                yield Event(run, "failed", error=failures.of(run))
            while waiting and len(workers) < processes:
                workers.append(_Worker(threads, cache_gb))
            for worker in workers:
                if waiting and worker.run is None:
                    run = _choose(waiting, worker, workers)
                    waiting.remove(run)
                    worker.give(run)
                    yield Event(run, "started")
            if not any(worker.run for worker in workers):
                continue
            ready = wait([worker.pipe for worker in workers if worker.run])
            for worker in [worker for worker in workers if worker.pipe in ready]:
                yield (event := worker.hear())
                failures.add(event)
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


class Failures:
    """Data and models that could not be loaded: one time-out is enough for a whole bench."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def add(self, event: Event) -> None:
        if event.kind == "failed" and event.stage:
            key = self._keys(event.run)[event.stage]
            self._known.setdefault(key, f"{event.error} (as in the run {event.run})")

    def __contains__(self, run: Run) -> bool:
        return any(key in self._known for key in self._keys(run).values())

    def of(self, run: Run) -> str:
        """The error that the run would meet."""
        return next(self._known[k] for k in self._keys(run).values() if k in self._known)

    def _keys(self, run: Run) -> dict[str, str]:
        return {
            "data": repr((run.data, run.root, run.split, sorted(run.options.items()))),
            "model": repr((run.model, run.device, run.precision)),
        }


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
        with contextlib.suppress(OSError):  # it has died; hear() reports it
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
            return Event(self.run, "failed", error=value[0], traceback=value[1], stage=value[2])
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
    """The result as JSON, or the error, its traceback and the stage that failed."""
    from bayestta.bench._assembly import check_options, load_run_data, load_run_model
    from bayestta.bench.execution import execute

    begin, step = (None, None) if reporter is None else (reporter.begin, reporter.step)
    stage = ""
    try:
        check_options(run)
        stage = "data"  # which costs less than the weights of a model
        data = load_run_data(run)
        stage = "model"
        model = load_run_model(run)
        stage = ""
        result = execute(run, model=model, data=data, begin=begin, progress=step, cache_gb=cache_gb)
    except Exception as error:
        reason = " ".join(str(error).split()) or "no more is known"
        stage = "" if isinstance(error, MemoryError) else stage
        return "failed", (f"{type(error).__name__}: {reason}", traceback.format_exc(), stage)
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
    """A bench that is killed takes its workers with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
