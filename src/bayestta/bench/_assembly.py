"""Put a run together: its options checked, its data and model loaded, its adapter built."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bayestta.bench.plan import Run
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.data import Data
    from bayestta.models.base import VLM

CACHE_GB = 2.0  # of image tensors, under the data folder
_model: tuple[tuple[str, str, str], VLM] | None = None  # the last one of this process


def check_options(run: Run) -> None:
    """Refuse, before anything is loaded, what is certain to fail."""
    from bayestta.evaluation.steps import RESETS
    from bayestta.methods import METHODS
    from bayestta.settings import with_changes

    settings = METHODS.find(run.method).Settings
    with_changes(settings.default(run.settings), run.settings, run.method)
    if run.reset_every is not None and run.reset_every not in RESETS:
        raise ValueError(unknown("reset_every", run.reset_every, RESETS))
    if run.orders < 1:
        raise ValueError(f"orders is {run.orders}: it must be at least 1.")
    check_templates(run.templates)


def load_run_data(run: Run) -> Data:
    """The run's data, with the options of its stream checked."""
    from bayestta.data import load_data

    data = load_data(run.data, root=run.root, split=run.split, **run.options)
    check_stream(run, data)
    return data


def check_stream(run: Run, data: Data) -> None:
    """Refuse options that no stream of the data has, before a model is loaded."""
    from bayestta.data import stream

    options = {"batch_size": run.batch_size, "limit": run.limit, "rounds": run.rounds}
    stream(data, _no_transform, order=run.order, **options)  # type: ignore[arg-type]


def _no_transform(image: Any) -> Any:
    raise NotImplementedError


def load_run_model(run: Run) -> VLM:
    """The run's model; a process keeps the last one, so that runs of one model load it once."""
    global _model
    from bayestta.models.base import load_model

    key = (run.model, run.device, run.precision)
    if _model is None or _model[0] != key:
        _model = None  # free the memory before the next one takes its own
        _model = (key, load_model(run.model, device=run.device, precision=run.precision))
    return _model[1]


def build_adapter(run: Run, model: VLM, data: Data) -> Adapter:
    """The run's method on its model and the classes of its data, guarded where the run says so."""
    from bayestta.data import check_split
    from bayestta.methods import make_adapter
    from bayestta.methods.guarded import Guarded

    check_split(model, data)
    _check_pair(model, data)
    prompts = pick_templates(run.templates, data)
    settings = dict(run.settings)
    if run.guard:
        settings = own_guard(run) | settings
    adapter = make_adapter(run.method, model, data.classes, prompts, seed=run.seed, **settings)
    return Guarded(adapter) if run.guard and "guard" not in adapter.settings else adapter


def own_guard(run: Run) -> dict[str, Any]:
    """The setting that turns a method's own guard on, where it has one."""
    from bayestta.methods import METHODS

    settings = METHODS.find(run.method).Settings
    return {"guard": True} if "guard" in settings.default(run.settings) else {}


def check_templates(name: str) -> None:
    """Refuse an unknown set of templates."""
    from bayestta.models._text import TEMPLATES

    valid = ("data", *TEMPLATES, "eighty")
    if name not in valid:
        raise ValueError(unknown("templates", name, valid))


def pick_templates(name: str, data: Data) -> list[str]:
    """The data set's own templates, or a set by name."""
    from bayestta.models._text import templates

    check_templates(name)
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


def tensor_cache(run: Run, gigabytes: float) -> Any:
    """Where decoded images are kept between runs; None for no gigabytes."""
    if gigabytes <= 0:
        return None
    from bayestta.data._tensors import TensorCache
    from bayestta.files import cache_root

    described = [run.data, run.root, run.split, run.options]
    identity = json.dumps(described, sort_keys=True, default=str)
    return TensorCache(cache_root() / "tensors", gigabytes, identity)
