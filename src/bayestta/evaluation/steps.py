"""Drive an adapter over a stream: `steps` yields one per batch, `evaluate` returns a `Result`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayestta.evaluation._batches import to_step
from bayestta.evaluation._stopwatch import Stopwatch, clock
from bayestta.evaluation.environment import (
    commit,
    forget_peak_memory,
    machine,
    peak_memory,
    versions,
)
from bayestta.evaluation.result import Result
from bayestta.evaluation.totals import Totals
from bayestta.evaluation.watch import Watch
from bayestta.models._inputs import to_batch
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.data._base import Batch

RESETS = ("never", "domain", "batch")
TOLD = (  # what a caller knows better than the adapter
    *("method", "model", "data", "seed", "settings", "provenance", "templates", "answer", "norms"),
    *("split", "limit", "order", "batch_size", "notes"),
)


@dataclass(frozen=True, eq=False)
class Step:
    """One batch, answered. The answer was given without `y` and `domain`."""

    index: int
    domain: str
    logits: Tensor  # (B,K)
    probabilities: Tensor  # (B,K), calibrated
    sketch: Tensor | None  # (B,K) zero-shot logits of the same images by the pristine model
    y: Tensor | None  # (B,)
    n: int
    seconds: dict[str, float]  # data, encode, adapt
    record: dict[str, Any]  # what the method wants to say about this step
    round: int = 1
    x: Any = None  # the batch itself


def steps(
    adapter: Adapter, batches: Iterable[Any], *, reset_every: str | None = None
) -> Iterator[Step]:
    """Adapt to the batches one after the other, and yield what each step gave.

    Parameters
    ----------
    batches
        What `stream` gives, or any iterable of `(x, y)` or of `x` alone, such as a DataLoader;
        `x` is whatever `adapt` takes.
    reset_every
        `never` goes on from batch to batch, `domain` and `batch` start afresh at the start of each
        domain or batch; None leaves it to the method.
    """
    policy = adapter.reset_every if reset_every is None else reset_every
    if policy not in RESETS:
        raise ValueError(unknown("reset_every", policy, RESETS))
    return _steps(adapter, batches, policy)


def _steps(adapter: Adapter, batches: Iterable[Any], reset_every: str) -> Iterator[Step]:
    with Stopwatch(adapter.model) as watch:
        yield from _timed_steps(adapter, batches, reset_every, watch)


def _timed_steps(
    adapter: Adapter, batches: Iterable[Any], reset_every: str, watch: Stopwatch
) -> Iterator[Step]:
    model, source = adapter.model, iter(batches)
    index, place = 0, None
    while True:
        began = time.perf_counter()
        given = next(source, None)
        if given is None:
            return
        batch = to_step(given)
        x = to_batch(model, batch.x, views=adapter.views)
        if model.device.type != "cpu" and hasattr(x, "to"):  # lazy views move slice by slice
            x = x.to(model.device)
        loaded, encoded = clock(model.device), watch.seconds
        before, place = place, (batch.round, batch.domain)
        if reset_every == "batch" or (reset_every == "domain" and place != before):
            adapter.reset()
        logits = adapter.adapt(x)  # all that an adapter is given: labels and domains stop here
        done = clock(model.device)
        encode = watch.seconds - encoded
        yield Step(
            index=index,
            domain=batch.domain,
            logits=logits,
            probabilities=adapter.probabilities(logits),
            sketch=zero_shot(adapter, x),
            y=batch.y,
            n=len(logits),
            seconds={
                "data": loaded - began,
                "encode": encode,
                "adapt": max(0.0, done - loaded - encode),
            },
            record=dict(adapter.record),
            round=batch.round,
            x=x,
        )
        index += 1


def zero_shot(adapter: Adapter, x: Any) -> Tensor:
    """Logits (B,K) of the pristine model: the method's own sketch, where it left the tower alone.

    Where it did not, they take a pass of their own, which no account of seconds holds.
    """
    if adapter.sketch is not None and not adapter.moves_tower:
        return adapter.sketch
    plain = x.plain if hasattr(x, "plain") else x[:, 0] if x.ndim == 5 else x
    with torch.no_grad():
        return adapter.model.logits(adapter.model.encode_image(plain), adapter.text)


def evaluate(
    adapter: Adapter,
    batches: Iterable[Any],
    *,
    reset_every: str | None = None,
    progress: Callable[[Step], object] | None = None,
    meta: Mapping[str, Any] | None = None,
    earlier: Iterable[Batch] | None = None,
) -> Result:
    """Run a labelled stream to its end and sum it up.

    `batches` are what `stream` gives, or any iterable of `(x, y)`, such as a DataLoader.

    `progress` is called after each step. `meta` adds to the result what the adapter cannot know
    (`data`, `batch_size`, `limit`, `order`, `split`, `provenance`, `notes`) or says otherwise.
    `earlier` are batches of domains that the stream came through: `predict` answers them at the
    end, and the result's `forgetting` compares that with the answers given at the time.
    """
    told = {} if meta is None else dict(meta)
    for key in told:
        if key not in TOLD:
            raise ValueError(unknown("key of meta", key, TOLD))
    model, totals, watch = adapter.model, Totals(adapter.model), Watch()
    taken = steps(adapter, batches, reset_every=reset_every)
    forget_peak_memory()
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(model.device)
    for step in taken:
        totals.add(step)
        watch.add(step)
        if progress is not None:
            progress(step)
    measured, account, peak = totals.to_json(), adapter.summary(), peak_memory()
    if earlier is not None:
        measured["forgetting"] = _forgetting(adapter, earlier, totals)
    known: dict[str, Any] = {
        "method": adapter.name,
        "model": model.name,
        "data": "stream",
        "seed": adapter.seed,
        "settings": dict(**adapter.settings),
        "templates": adapter.templates,
        "answer": getattr(adapter, "answer", None),
        "norms": getattr(adapter, "norms", None),
    }
    return Result(
        **{**known, **told},
        **measured,
        **watch.summary(),
        covariance=account.get("covariance"),
        guard=account.get("guard"),
        tower=account.get("tower"),
        refinement=account.get("refinement"),
        classes=list(adapter.classes),
        reset_every=adapter.reset_every if reset_every is None else reset_every,
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


def _forgetting(adapter: Adapter, batches: Iterable[Batch], totals: Totals) -> list[dict[str, Any]]:
    """What is left of earlier domains: `then`, when they were adapted to, against `now`."""
    now = Totals()
    for batch in batches:
        x = batch.x
        if adapter.model.device.type != "cpu" and hasattr(x, "to"):
            x = x.to(adapter.model.device)
        if batch.y is not None:
            now.count(batch.domain, adapter.probabilities(adapter.predict(x)), batch.y)
    return [
        {"domain": name, "then": totals.last(name), "now": score.accuracy, "n": score.n}
        for name, score in now.answers.items()
    ]
