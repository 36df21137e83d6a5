"""`execute`: one run from its description to its result, for every command that scores a method."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayestta.bench._assembly import (
    build_adapter,
    check_options,
    check_stream,
    load_run_data,
    load_run_model,
    provenance,
    tensor_cache,
)
from bayestta.bench._delivery import save_both
from bayestta.bench.plan import Run
from bayestta.evaluation.result import Result

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.data import Data
    from bayestta.evaluation.steps import Step
    from bayestta.models.base import VLM


def execute(
    run: Run,
    *,
    model: VLM | None = None,
    data: Data | None = None,
    progress: Callable[[Step], object] | None = None,
    tell: Callable[[str], object] | None = None,
    begin: Callable[[int], object] | None = None,
    state: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    forgetting: bool | None = None,
    cache_gb: float = 0.0,
    strict: bool = False,
    workers: int = 0,
) -> Result:
    """Carry out one run in this process.

    Parameters
    ----------
    model, data
        What the run names, where the caller has it already.
    progress
        Called after every step.
    tell
        Called with sentences that a person may want to read.
    begin
        Called before the first step with the number of images.
    state
        Go on from this file if it exists, and save to it at the end.
    out
        Write the result there, together with the state.
    forgetting
        Whether to answer all domains but the last again at the end; by default after more than
        one round.
    cache_gb
        Image tensors are kept on disk within so many gigabytes; 0 decodes them every time.
    strict, workers
        See `stream`.
    """
    from bayestta.data import stream
    from bayestta.data._stream import sizes
    from bayestta.evaluation.steps import evaluate

    check_options(run)
    if data is None:
        data = load_run_data(run)
    else:
        check_stream(run, data)
    model = model or load_run_model(run)
    adapter = build_adapter(run, model, data)
    described = {"label": run.label, "options": run.options}
    notes: dict[str, Any] = {key: value for key, value in described.items() if value}
    if state is not None and Path(state).exists():
        adapter.load(state)
        notes["state"] = f"went on from {state} after {adapter.samples} images"
        if tell is not None:
            tell(f"Going on from {state}, after {adapter.samples} images.")
    options: dict[str, Any] = {
        "batch_size": run.batch_size,
        "seed": run.seed,
        "views": adapter.views,
        "limit": run.limit,
        "strict": strict,
        "workers": workers,
        "cache": tensor_cache(run, cache_gb),
    }
    batches = stream(data, model.preprocess, order=run.order, rounds=run.rounds, **options)
    if begin is not None:
        begin(run.rounds * sum(sizes(data, run.limit, run.order, run.seed).values()))
    visited: dict[str, None] = {}

    watch = None
    if run.explain:
        from bayestta.explain.observer import Explain

        watch = Explain(adapter)
        batches = watch.watch(batches)

    def follow(step: Step) -> None:
        visited[step.domain] = None
        if watch is not None:
            watch.see(step)
        if progress is not None:
            progress(step)

    def earlier() -> Any:  # asked for at the end, when the order of the domains is known
        inside = "time" if run.order == "shuffled" else run.order
        yield from stream(
            data, model.preprocess, order=inside, domains=list(visited)[:-1], **options
        )

    result = evaluate(
        adapter,
        batches,
        reset_every=run.reset_every,
        progress=follow,
        earlier=earlier() if (run.rounds > 1 if forgetting is None else forgetting) else None,
        meta={
            "data": data.name,
            "limit": run.limit,
            "batch_size": run.batch_size,
            "order": run.order,
            "split": data.split,
            "provenance": provenance(adapter, run),
            "notes": notes,
        },
    )
    result.key = run.file
    if run.orders > 1:
        if tell is not None:
            tell(f"Running {run.orders} orders of the images for the tail accuracy.")
        result.tail = _tail(run, model, data, options)
    if watch is not None:
        result.pictures = watch.pictures()
    if data.skipped:
        result.notes["skipped"] = len(data.skipped)
    if state is not None:
        save_both(adapter, result, Path(state), None if out is None else Path(out))
    elif out is not None:
        result.save(Path(out))
    return result


def _tail(run: Run, model: VLM, data: Data, options: dict[str, Any]) -> dict[str, Any]:
    """The tail accuracy of the run's method over orders whose seeds count up from the run's."""
    from bayestta.data import stream
    from bayestta.evaluation.tail import tail_accuracy

    def make(i: int) -> Adapter:
        return build_adapter(replace(run, seed=run.seed + i), model, data)

    def batches(i: int) -> Any:
        told = {**options, "order": run.order, "seed": run.seed + i, "rounds": run.rounds}
        return stream(data, model.preprocess, **told)

    return tail_accuracy(make, batches, orders=run.orders)
