"""Both monitors over the steps of a stream, as `evaluate`, `predict` and the service use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayestta.evaluation.monitors import ARRAYS, DriftAlarm, HarmTest, entropies

if TYPE_CHECKING:
    from bayestta.evaluation.steps import Step


class Watch:
    """The drift alarm on the entropy of the zero-shot answers, the harm test where labels are.

    The zero-shot answer depends on the image alone, so that an alarm speaks of the stream and not
    of the method. In an evaluation the harm test only reports; the service acts on it.

    >>> import torch
    >>> watch = Watch()
    >>> watch.look(torch.zeros(4, 2))
    0
    >>> watch.summary()["drift"]["samples"]
    4
    """

    def __init__(self) -> None:
        self.drift, self.harm = DriftAlarm(), HarmTest()
        self.domains: list[str] = []  # in which alarms of drift were raised

    def look(self, sketch: Tensor) -> int:
        """Take in zero-shot logits (B,K); the number of alarms that they raised."""
        return self.drift.add(entropies(sketch))

    def label(self, logits: Tensor, sketch: Tensor, y: Tensor) -> None:
        """Take in true classes (B,) of answered images."""
        rows = (logits.argmax(1).tolist(), sketch.argmax(1).tolist(), y.tolist())
        for answer, plain, truth in zip(*rows, strict=True):
            self.harm.add(answer=answer, sketch=plain, label=truth)

    def add(self, step: Step) -> bool:
        """Take in a step; whether it raised an alarm of drift."""
        if step.sketch is None:
            return False
        raised = self.look(step.sketch)
        self.domains += [step.domain] * raised
        if step.y is not None:
            self.label(step.logits, step.sketch, step.y)
        return raised > 0

    def to_json(self) -> dict[str, Any]:
        """The drift alarm, for the header of a state that goes on later."""
        state = self.drift.state()
        return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in state.items()}

    def load_json(self, given: Any) -> None:
        """Take back what `to_json` gave; ValueError for anything else."""
        state = dict(given) if isinstance(given, dict) else {}
        for key in ARRAYS:
            try:
                state[key] = torch.tensor(state.get(key), dtype=torch.float64)
            except (TypeError, ValueError, RuntimeError):
                raise ValueError(f"{key} of the drift alarm is no list of numbers.") from None
        self.drift.load(state)

    def summary(self) -> dict[str, Any]:
        """The entries `drift` and `harm` of a result."""
        drift = self.drift.summary()
        named = self.domains[-len(drift["events"]) :] if drift["events"] else []
        events = [
            {**event, "domain": domain}
            for event, domain in zip(drift["events"], named, strict=False)
        ]
        return {
            "drift": {**drift, "events": events or drift["events"]},
            "harm": self.harm.summary(),
        }
