"""Runs as tasks of Ray, on this machine or on a cluster; their results come back to the driver."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Sequence
from typing import Any

from bayestta.bench.event import Event
from bayestta.bench.plan import Run
from bayestta.bench.pool import attempt
from bayestta.evaluation.result import Result


def carry_out_on_ray(
    runs: Sequence[Run], *, threads: int, cache_gb: float
) -> Generator[Event, None, None]:
    """Do the runs as tasks of `threads` cores each, on the cluster of `$RAY_ADDRESS` or else here.

    Every node needs bayestta and the data. Runs of one model come one after the other, so that a
    process of Ray that gets several has it loaded.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ImportError(
            "--ray needs Ray, which is not installed: pip install 'bayestta[ray]'."
        ) from error
    if not runs:
        return
    here = not ray.is_initialized()
    if here:
        address = os.environ.get("RAY_ADDRESS")
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    task = ray.remote(num_cpus=threads, max_retries=0)(_task)
    jobs: dict[Any, Run] = {}
    try:
        for run in sorted(runs, key=lambda run: (run.model, run.data)):
            jobs[task.remote(run, threads, cache_gb)] = run
        while jobs:
            (ready,), _ = ray.wait(list(jobs), num_returns=1)
            run = jobs.pop(ready)
            try:
                kind, value = ray.get(ready)
            except ray.exceptions.RayError as error:  # its process or its node has died
                reason = " ".join(str(error).split())[:300]
                yield Event(run, "failed", error=f"{type(error).__name__}: {reason}")
                continue
            if kind == "done":
                result = Result.from_json(value)
                yield Event(run, "done", result.n, result.n, result=result)
            else:
                yield Event(run, "failed", error=value[0], traceback=value[1])
    finally:
        for job in jobs:
            ray.cancel(job, force=True)
        if here:
            ray.shutdown()


def _task(run: Run, threads: int, cache_gb: float) -> tuple[str, Any]:
    import torch

    torch.set_num_threads(threads)
    return attempt(run, cache_gb)
