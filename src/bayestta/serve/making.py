"""How the service makes an adapter from a specification."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods import METHODS, make_adapter
from bayestta.models.base import VLM
from bayestta.models.features import Features
from bayestta.serve.refusals import Refusal

METHOD = "bayestta"
TEXTS = 64  # text classifiers that are kept


class SharedFeatures(Features):
    """One stand-in for the model that all adapters share; prompts are embedded once."""

    def __init__(self, model: VLM) -> None:
        super().__init__(model)
        self._texts: OrderedDict[tuple[str, ...], Tensor] = OrderedDict()
        self._guard = threading.Lock()
        self._place = model.device, model.dtype  # of a model that stays where it is

    @property
    def device(self) -> torch.device:
        return self._place[0]

    @property
    def dtype(self) -> torch.dtype:
        return self._place[1]

    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        key = tuple(prompts)
        with self._guard:
            if key not in self._texts:
                with self.source.lock:
                    self._texts[key] = self.source.encode_text(prompts)
            self._texts.move_to_end(key)
            while len(self._texts) > TEXTS:
                self._texts.popitem(last=False)
            return self._texts[key].clone()


def complete(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with its defaults: no gradient, so that one encoder pass serves all."""
    method = spec.get("method") or METHOD
    settings = dict(spec.get("settings") or {})
    known = METHODS.find(method)
    if "refine" in known.Settings().keys():  # noqa: SIM118 - settings are no dict
        settings.setdefault("refine", False)
    return {
        "classes": list(spec["classes"]),
        "templates": spec.get("templates"),
        "method": method,
        "settings": settings,
        "seed": int(spec.get("seed") or 0),
        "own_encoder": bool(spec.get("own_encoder"))
        or known.needs_encoder
        or settings.get("refine") is True,
    }


def make(spec: Mapping[str, Any], model: VLM, features: Features) -> Adapter:
    """The adapter: on features, unless it runs the encoder itself."""
    adapter = make_adapter(
        spec["method"],
        model if spec["own_encoder"] else features,
        spec["classes"],
        spec["templates"],
        seed=spec["seed"],
        **spec["settings"],
    )
    if adapter.views > 1:
        raise Refusal(
            400,
            "method",
            f"method {spec['method']!r} needs {adapter.views} views per image, and the service "
            "makes one",
            "choose a method with one view, such as bayestta, tda or dota",
            views=adapter.views,
        )
    return adapter
