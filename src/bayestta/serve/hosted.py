"""An adapter as the service keeps it: with its monitors, its trail, and what was decided."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.evaluation.monitors import DriftAlarm, HarmTest, entropies
from bayestta.evaluation.steps import zero_shot
from bayestta.serve.journal import Record
from bayestta.serve.trail import Trail
from bayestta.state import taken

LABELLED = 4096  # labels whose repetition is recognised
SPARK = 40  # points of the small curve on the page
PARTS = ("drift", "harm", "trail")


@dataclass(frozen=True)
class Answer:
    """Probabilities (B,K) of the answer and of the zero-shot sketch."""

    request_id: str
    step: int
    adapted: bool  # whether this request was learnt, now or when it first came
    repeated: bool
    probabilities: NDArray[np.float32]
    sketch: NDArray[np.float32]


class Hosted:
    """Deterministic: the same records give the same state, bit for bit."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.drift, self.harm = DriftAlarm(), HarmTest()
        self.trail = Trail(len(adapter.classes))
        self.returned = False  # the harm test has spoken: answers are the sketch
        self.labelled: dict[str, int] = {}  # "request id/index" -> label

    @property
    def takes_features(self) -> bool:
        return self.adapter.model.input_shape == (self.adapter.model.dim,)

    def learn(self, x: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Answer and learn: all of the step or nothing."""
        adapter = self.adapter
        if self.returned:
            probabilities, sketch = self.look(x)
        else:
            logits = adapter.adapt(x)
            probabilities, sketch = adapter.probabilities(logits), zero_shot(adapter, x)
        self.drift.add(entropies(sketch))
        answers = as_array(probabilities), as_array(sketch.float().softmax(1))
        self.trail.add(*answers, drift=self.drift.peak)
        return answers

    def answer(self, x: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Answer and change nothing."""
        probabilities, sketch = self.look(x)
        return as_array(probabilities), as_array(sketch.float().softmax(1))

    def look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        adapter = self.adapter
        with torch.no_grad():
            sketch = adapter.model.logits(adapter.model.encode_image(x), adapter.text)
        if self.returned:
            return sketch.float().softmax(1), sketch
        return adapter.probabilities(adapter.predict(x)), sketch

    def feedback(self, about: Mapping[str, Any]) -> bool:
        """Take in a label; True when the harm test speaks: from then on answers are the sketch."""
        self.labelled[f"{about['id']}/{about['index']}"] = about["label"]
        for old in list(self.labelled)[: max(0, len(self.labelled) - LABELLED)]:
            del self.labelled[old]
        marks = {key: about[key] for key in ("answer", "sketch", "label")}
        spoken = self.harm.add(**marks) and not self.returned
        if spoken:
            self.returned = True
            self.adapter.reset()
        return spoken

    def repeat(self, record: Record) -> None:
        """Do again what a record of the journal says."""
        if record.kind == "learn":
            self.learn(torch.from_numpy(record.arrays["features"]))
        elif record.kind == "feedback":
            self.feedback(record.about)

    def reset(self) -> None:
        self.adapter.reset()
        for part in PARTS:
            getattr(self, part).reset()
        self.returned, self.labelled = False, {}

    def state(self) -> dict[str, Any]:
        found = {f"adapter/{key}": value for key, value in self.adapter.state().items()}
        for part in PARTS:
            found |= {f"{part}/{key}": v for key, v in getattr(self, part).state().items()}
        return {**found, "returned": self.returned, "labelled": dict(self.labelled)}

    def load(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        self.adapter.load_state(taken(rest, "adapter/"))
        for part in PARTS:
            getattr(self, part).load(taken(rest, f"{part}/"))
        self.returned, self.labelled = bool(rest["returned"]), dict(rest["labelled"])

    def summary(self) -> dict[str, Any]:
        """What the page and the metrics show."""
        adapter = self.adapter
        return {
            "samples": self.trail.samples,
            "steps": adapter.steps,
            "guard_returns": adapter.caution,
            "returned": self.returned,
            **self.trail.numbers(),
            "spark": [point["accuracy"] for point in self.trail.points[-SPARK:]],
            "drift": {**self.drift.summary(), "peak": self.drift.peak},
            "harm": self.harm.summary(),
        }


class Turn:
    """One at a time, and readers first: a reader waits for the step that runs, for no other."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._busy, self._readers = False, 0

    def enter(self, *, reading: bool) -> None:
        with self._change:
            self._readers += reading
            self._change.wait_for(lambda: not self._busy and (reading or not self._readers))
            self._readers -= reading
            self._busy = True

    def leave(self) -> None:
        with self._change:
            self._busy = False
            self._change.notify_all()


def as_array(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().float().cpu().numpy()
    return array


OnChange = Callable[[str, dict[str, Any], list[dict[str, Any]]], None]
