"""`execute`: one run from its description to its result, for every command that runs a method."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayestta.bench.plan import Run
from bayestta.evaluation.result import Result
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.data import Data
    from bayestta.evaluation.steps import Step
    from bayestta.models.base import VLM

CACHE_GB = 2.0  # of image tensors, under the data folder
_model: tuple[tuple[str, str, str], VLM] | None = None  # the last one of this process


def execute(
    run: Run,
    *,
    model: VLM | None = None,
    data: Data | None = None,
    progress: Callable[[Step], object] | None = None,
    tell: Callable[[str], object] | None = None,
    begin: Callable[[int], object] | None = None,
    state: str | os.PathLike[str] | None = None,
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
    forgetting
        Whether to answer all domains but the last again at the end; by default after more than
        one round.
    cache_gb
        Image tensors are kept on disk within so many gigabytes; 0 decodes them every time.
    strict, workers
        See `stream`.
    """
    from bayestta.data import check_split, load_data, stream
    from bayestta.data._stream import sizes
    from bayestta.evaluation.steps import evaluate
    from bayestta.methods import make_adapter

    model = model or load(run)
    if data is None:
        data = load_data(run.data, root=run.root, split=run.split, **run.options)
    check_split(model, data)
    _check_pair(model, data)
    prompts = pick_templates(run.templates, data)
    adapter = make_adapter(run.method, model, data.classes, prompts, seed=run.seed, **run.settings)
    said = {"label": run.label, "options": run.options}
    notes: dict[str, Any] = {key: value for key, value in said.items() if value}
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
        "cache": _cache(run, cache_gb),
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
    if watch is not None:
        result.pictures = watch.pictures()
    if data.skipped:
        result.notes["skipped"] = len(data.skipped)
    if state is not None:
        adapter.save(state)
    return result


def load(run: Run) -> VLM:
    """The run's model; a process keeps the last one, so that runs of one model load it once."""
    global _model
    from bayestta.models.base import load_model

    key = (run.model, run.device, run.precision)
    if _model is None or _model[0] != key:
        _model = None  # free the memory before the next one takes its own
        _model = (key, load_model(run.model, device=run.device, precision=run.precision))
    return _model[1]


def pick_templates(name: str, data: Data) -> list[str]:
    """The data set's own templates, or a set by name."""
    from bayestta.models._text import TEMPLATES, templates

    valid = ("data", *TEMPLATES, "eighty")
    if name not in valid:
        raise ValueError(unknown("templates", name, valid))
    return list(data.templates) if name == "data" else templates(name)


def provenance(adapter: Adapter, run: Run) -> dict[str, str]:
    """Where each setting came from: who gave it, the preset named, or the default."""
    rest = f"preset {run.settings['preset']}" if "preset" in run.settings else "default"
    return {key: run.provenance if key in run.settings else rest for key in adapter.settings}


def _check_pair(model: VLM, data: Data) -> None:
    """Cached features go with the model that made them, and with no other."""
    made_by, cached = getattr(data, "made_by", None), hasattr(model, "features_of")
    if cached and made_by is None:
        raise ValueError(
            f"model {model.name!r} stands for cached features and cannot encode the images of "
            f"{data.name!r}: use --data features --root FILE, with the same file."
        )
    if made_by is not None and (not cached or made_by != model.fingerprint):
        raise ValueError(
            f"these features of {data.name!r} were made by a model with fingerprint {made_by}, and "
            f"{model.name!r} {'has ' + model.fingerprint if cached else 'takes images'}: use "
            "--model features:FILE, with the same file."
        )


def _cache(run: Run, gigabytes: float) -> Any:
    if gigabytes <= 0:
        return None
    from bayestta.data._tensors import TensorCache
    from bayestta.files import cache_root

    told = [run.data, run.root, run.split, run.options]
    identity = json.dumps(told, sort_keys=True, default=str)
    return TensorCache(cache_root() / "tensors", gigabytes, identity)
