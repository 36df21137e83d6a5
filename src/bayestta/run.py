"""Drive an adapter over a stream: `run` yields its steps, `evaluate` sums them up in a `Result`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayestta.environment import commit, forget_peak_memory, machine, peak_memory, versions
from bayestta.metrics import Score
from bayestta.names import unknown
from bayestta.result import Result, plain

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.data.base import Batch

RESETS = ("never", "domain", "batch")
TRACE = 4096  # entries, after which neighbours are merged: a trace does not grow with the stream
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


def run(adapter: Adapter, batches: Iterable[Batch], *, reset: str | None = None) -> Iterator[Step]:
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
    index, domain = 0, None
    while True:
        began = time.perf_counter()
        batch = next(source, None)
        if batch is None:
            return
        x = batch.x
        if model.device.type != "cpu" and hasattr(x, "to"):  # lazy views move slice by slice
            x = x.to(model.device)
        loaded, encoded = _clock(model.device), model.encode_seconds
        if reset == "batch" or (reset == "domain" and batch.domain != domain):
            adapter.restart()
        logits = adapter.adapt(x)  # all that an adapter is given: labels and domains stop here
        done = _clock(model.device)
        encode = model.encode_seconds - encoded
        domain = batch.domain
        yield Step(
            index=index,
            domain=domain,
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
        )
        index += 1


class Tally:
    """The sums of a labelled run, one step after the other."""

    def __init__(self) -> None:
        self.answers: dict[str, Score] = {}  # per domain, in stream order
        self.sketches: dict[str, Score] = {}
        self.trace: list[dict[str, Any]] = []
        self.seconds = {"data": 0.0, "encode": 0.0, "adapt": 0.0}
        self.steps = 0

    def add(self, step: Step) -> None:
        if step.y is None:
            raise ValueError(
                f"domain {step.domain!r} has no labels, so there is nothing to evaluate: use "
                "`run`, or `bayestta predict`, for unlabelled images."
            )
        entry = {"domain": step.domain, "steps": 1, "n": step.n}
        entry["hits"] = _count(self.answers, step.domain, step.probabilities, step.y)
        if step.sketch is not None:
            zero_shot = step.sketch.double().softmax(dim=1)
            entry["sketch_hits"] = _count(self.sketches, step.domain, zero_shot, step.y)
        self.trace.append({**entry, "record": plain(step.record)} if step.record else entry)
        if len(self.trace) > TRACE:
            self.trace = thin(self.trace)
        for part, spent in step.seconds.items():
            self.seconds[part] += spent
        self.steps += 1

    def to_json(self) -> dict[str, Any]:
        """What was measured, by the names of `Result`."""
        if not self.answers:
            raise ValueError("the stream held no batch: check its domains and limit.")
        total = reduce(add, self.answers.values())
        domains = []
        for name, score in self.answers.items():
            row = {"name": name, **score.to_json()}
            if name in self.sketches:
                zero_shot = self.sketches[name]
                row |= {"sketch_accuracy": zero_shot.accuracy, "sketch_ece": zero_shot.ece}
            domains.append(row)
        return {
            **{key: getattr(total, key) for key in ("n", "accuracy", "ece", "nll", "brier")},
            "accuracy_unweighted": sum(row["accuracy"] for row in domains) / len(domains),
            "domains": domains,
            "sketch": reduce(add, self.sketches.values()).to_json() if self.sketches else None,
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            "steps": self.steps,
            "trace": self.trace,
        }


def evaluate(
    adapter: Adapter,
    batches: Iterable[Batch],
    *,
    reset: str | None = None,
    progress: Callable[[Step], object] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Result:
    """Run a labelled stream to its end and sum it up.

    `progress` is called after each step. `meta` adds to the result what the adapter cannot know
    (`data`, `batch_size`, `limit`, `order`, `split`, `provenance`, `notes`) or says otherwise.
    """
    told = {} if meta is None else dict(meta)
    for key in told:
        if key not in TOLD:
            raise ValueError(unknown("key of meta", key, TOLD))
    model, tally = adapter.model, Tally()
    steps = run(adapter, batches, reset=reset)
    forget_peak_memory()
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(model.device)
    for step in steps:
        tally.add(step)
        if progress is not None:
            progress(step)
    measured, account = tally.to_json(), adapter.summary()
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
        peak_memory_bytes=peak_memory(),
        peak_device_memory_bytes=torch.cuda.max_memory_allocated(model.device) if on_gpu else None,
        versions=versions(),
        commit=commit(),
        environment={**machine(), "threads": torch.get_num_threads()},
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def thin(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbours of one domain two by two: counts add, the later record stays.

    >>> thin([{"domain": "a", "n": 8, "hits": 5}, {"domain": "a", "n": 8, "hits": 6}])
    [{'domain': 'a', 'n': 16, 'hits': 11}]
    """
    merged: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    for entry in trace:
        if last is None or last["domain"] != entry["domain"]:
            last = dict(entry)
            merged.append(last)
            continue
        counts = {k: last.get(k, 0) + v for k, v in entry.items() if k not in ("domain", "record")}
        last.update({**entry, **counts})
        last = None
    return merged


def _count(scores: dict[str, Score], domain: str, probabilities: Tensor, y: Tensor) -> int:
    """Update the domain's score; the hits of this batch."""
    if domain not in scores:
        scores[domain] = Score(probabilities.shape[1])
    before = scores[domain].hits
    scores[domain].update(probabilities, y)
    return scores[domain].hits - before


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # kernels still queued belong to the time before
    return time.perf_counter()
