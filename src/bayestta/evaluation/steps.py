"""Drive an adapter over a stream: `steps` yields one per batch, `evaluate` returns a `Result`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayestta.evaluation.environment import (
    commit,
    forget_peak_memory,
    machine,
    peak_memory,
    versions,
)
from bayestta.evaluation.result import Result
from bayestta.evaluation.totals import Tally
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.data._base import Batch

RESETS = ("never", "domain", "batch")
TOLD = (  # what a caller knows better than the adapter
    *("method", "model", "data", "seed", "hyper", "provenance", "templates", "answer", "norms"),
    *("split", "limit", "order", "batch_size", "notes"),
)


@dataclass(frozen=True, eq=False)
class Step:
    """One batch, answered. The answer was given without `y` and `domain`."""

    index: int
    domain: str
    logits: Tensor  # (B,K)
    probabilities: Tensor  # (B,K), calibrated
    sketch: Tensor | None  # (B,K) zero-shot logits of the same batch, if the method has them
    y: Tensor | None  # (B,)
    n: int
    seconds: dict[str, float]  # data, encode, adapt
    record: dict[str, Any]  # what the method wants to say about this step
    round: int = 1


def steps(
    adapter: Adapter, batches: Iterable[Batch], *, reset: str | None = None
) -> Iterator[Step]:
    """Adapt to the batches one after the other, and yield what each step gave.

    `reset`: "never" goes on from batch to batch, "domain" and "batch" start afresh at the start of
    each domain or batch; None leaves it to the method.
    """
    policy = adapter.reset if reset is None else reset
    if policy not in RESETS:
        raise ValueError(unknown("reset", policy, RESETS))
    return _steps(adapter, batches, policy)


def _steps(adapter: Adapter, batches: Iterable[Batch], reset: str) -> Iterator[Step]:
    model, source = adapter.model, iter(batches)
    index, place = 0, None
    while True:
        began = time.perf_counter()
        batch = next(source, None)
        if batch is None:
            return
        x = batch.x
        if model.device.type != "cpu" and hasattr(x, "to"):  # lazy views move slice by slice
            x = x.to(model.device)
        loaded, encoded = _clock(model.device), model.encode_seconds
        before, place = place, (batch.round, batch.domain)
        if reset == "batch" or (reset == "domain" and place != before):
            adapter.restart()
        logits = adapter.adapt(x)  # all that an adapter is given: labels and domains stop here
        done = _clock(model.device)
        encode = model.encode_seconds - encoded
        yield Step(
            index=index,
            domain=batch.domain,
            logits=logits,
            probabilities=adapter.probabilities(logits),
            sketch=adapter.sketch,
            y=batch.y,
            n=len(logits),
            seconds={
                "data": loaded - began,
                "encode": encode,
                "adapt": max(0.0, done - loaded - encode),
            },
            record=dict(adapter.record),
            round=batch.round,
        )
        index += 1


def evaluate(
    adapter: Adapter,
    batches: Iterable[Batch],
    *,
    reset: str | None = None,
    progress: Callable[[Step], object] | None = None,
    meta: Mapping[str, Any] | None = None,
    earlier: Iterable[Batch] | None = None,
) -> Result:
    """Run a labelled stream to its end and sum it up.

    `progress` is called after each step. `meta` adds to the result what the adapter cannot know
    (`data`, `batch_size`, `limit`, `order`, `split`, `provenance`, `notes`) or says otherwise.
    `earlier` are batches of domains that the stream came through: `predict` answers them at the
    end, and the result's `forgetting` compares that with the answers given at the time.
    """
    told = {} if meta is None else dict(meta)
    for key in told:
        if key not in TOLD:
            raise ValueError(unknown("key of meta", key, TOLD))
    model, tally = adapter.model, Tally()
    taken = steps(adapter, batches, reset=reset)
    forget_peak_memory()
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(model.device)
    for step in taken:
        tally.add(step)
        if progress is not None:
            progress(step)
    measured, account, peak = tally.to_json(), adapter.summary(), peak_memory()
    if earlier is not None:
        measured["forgetting"] = _forgetting(adapter, earlier, tally)
    known: dict[str, Any] = {
        "method": adapter.name,
        "model": model.name,
        "data": "stream",
        "seed": adapter.seed,
        "hyper": adapter.hyper(),
        "templates": adapter.templates,
        "answer": getattr(adapter, "answer", None),
        "norms": getattr(adapter, "norms", None),
    }
    return Result(
        **{**known, **told},
        **measured,
        covariance=account.get("covariance"),
        guard=account.get("guard"),
        classes=list(adapter.names),
        reset=adapter.reset if reset is None else reset,
        device=str(model.device),
        precision=str(model.dtype).removeprefix("torch."),
        fingerprint=model.fingerprint,
        peak_memory_bytes=peak,
        peak_device_memory_bytes=torch.cuda.max_memory_allocated(model.device) if on_gpu else None,
        versions=versions(),
        commit=commit(),
        environment={**machine(), "threads": torch.get_num_threads()},
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _forgetting(adapter: Adapter, batches: Iterable[Batch], tally: Tally) -> list[dict[str, Any]]:
    """What is left of earlier domains: `then`, when they were adapted to, against `now`."""
    now = Tally()
    for batch in batches:
        x = batch.x
        if adapter.model.device.type != "cpu" and hasattr(x, "to"):
            x = x.to(adapter.model.device)
        if batch.y is not None:
            now.count(batch.domain, adapter.probabilities(adapter.predict(x)), batch.y)
    return [
        {"domain": name, "then": tally.last(name), "now": score.accuracy, "n": score.n}
        for name, score in now.answers.items()
    ]


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # kernels still queued belong to the time before
    return time.perf_counter()
