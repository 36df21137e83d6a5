"""A label-free guard for any adapter: notices a collapse, and returns to the last good state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.state import matching, taken

PROBE = 16  # one image in sixteen also goes through the pristine tower
EVENTS = 20  # returns that are told in detail, the latest
KEPT = {"random", "samples", "steps", "caution", "guard"}  # what a return leaves as it is
MEMORY = 256.0  # samples over which evidence is averaged
SHARE = 0.5  # of the sketch's classes, below which answers have collapsed
LEAST = 96.0  # samples before the guard may speak


def effective_classes(mean: Tensor) -> float:
    """exp of the entropy of a class distribution: K when it is even, 1 when one class takes all.

    >>> effective_classes(torch.tensor([0.5, 0.5, 0.0]))
    2.0
    """
    return math.exp(float(torch.special.entr(mean.double()).sum()))


class Guard:
    """Running evidence of collapse, and the states to return to.

    Three numbers per step, each of the answer against the zero-shot sketch of the same images: how
    often they agree, the mean entropy, and the effective number of predicted classes. Collapse is
    said when the answer uses fewer than half of the classes that the sketch uses, or agrees with it
    less often than chance would. As a mean over many samples lags behind, a state is proven not by
    the signs of its own step, but by healthy ones a memory later.

    Parameters
    ----------
    adapter
        Whose state it keeps copies of; the adapter declares the guard as its state `guard`.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter, self.classes = adapter, len(adapter.classes)
        self._forget()
        self.events: list[dict[str, Any]] = []
        self.good: dict[str, Any] = {}  # the state to return to; empty: the start
        self.trial: dict[str, Any] = {}  # the next such

    def reset(self) -> None:
        self._forget()
        self.events, self.good, self.trial = [], {}, {}

    def _forget(self) -> None:
        # n, agreements, the entropy of both, the summed answers of both
        self.sums = torch.zeros(4 + 2 * self.classes, dtype=torch.float64)
        self.age = 0.0  # samples since the state on trial was set aside

    @property
    def watched(self) -> set[str]:
        return self.adapter.state_names() - KEPT

    def review(self, answer: Tensor, sketch: Tensor) -> tuple[dict[str, Any], bool]:
        """Look at probabilities (b,K) of answers before they are given, beside the sketch's.

        Returns what was seen, and whether the adapter has been returned to its last good state: the
        caller then answers otherwise.
        """
        signs = self.step(answer, sketch)
        if signs["collapse"]:
            event = {"step": self.adapter.steps, "reason": signs["collapse"]}
            self.events = [*self.events, event][-EVENTS:]
            self._return()
            return signs, True
        if signs["proven"]:
            self.good, self.trial = self.trial, self.adapter.state(self.watched)
            self.age = 0.0
        return signs, False

    def _return(self) -> None:
        """Back to the last good state; slower and less trusting from there on."""
        adapter, caution = self.adapter, self.adapter.caution + 1
        if self.good:
            adapter.load_state(self.good, self.watched)
        else:
            self._restart()
        adapter.caution = caution
        self._forget()
        self.trial = self.good

    def _restart(self) -> None:
        kept = self.adapter.state(KEPT - {"guard"})
        events = self.events
        self.adapter.reset_state()
        self.adapter.load_state(kept, KEPT - {"guard"})
        self.events = events

    def step(self, answer: Tensor, sketch: Tensor) -> dict[str, Any]:
        """Take in probabilities (b,K) of the same images and say what they show."""
        answer, sketch = answer.double().cpu(), sketch.double().cpu()
        n, K = len(answer), self.classes
        agree = (answer.argmax(1) == sketch.argmax(1)).sum()
        entropies = [torch.special.entr(p).sum() for p in (answer, sketch)]
        new = torch.stack([torch.tensor(float(n)), agree, *entropies])
        new = torch.cat([new, answer.sum(0), sketch.sum(0)])
        self.sums = self.sums * math.exp(-n / MEMORY) + new
        self.age += n
        total, *means = self.sums[:4].tolist()
        agreement, entropy, sketch_entropy = (mean / total for mean in means)
        used = effective_classes(self.sums[4 : 4 + K] / total)
        expected = effective_classes(self.sums[4 + K :] / total)
        reason = ""
        if total >= LEAST and not used >= SHARE * expected:  # so that NaN is a collapse
            reason = f"answers use {used:.1f} classes, the zero-shot sketch {expected:.1f}"
        elif total >= LEAST and agreement < 1 / K:
            reason = f"answers agree with the zero-shot sketch on {100 * agreement:.0f} % of images"
        certain = min(2 / K, 0.5 + 0.5 / K)  # twice chance, which two classes cannot exceed
        healthy = used > 0.5 * (1 + SHARE) * expected and agreement > certain
        return {
            "agreement": agreement,
            "entropy": entropy,
            "sketch_entropy": sketch_entropy,
            "classes": used,
            "sketch_classes": expected,
            "healthy": healthy,
            "proven": healthy and self.age >= MEMORY,
            "collapse": reason,
        }

    def summary(self) -> dict[str, Any]:
        return {"on": True, "returns": self.adapter.caution, "events": self.events}

    def state(self) -> dict[str, Any]:
        own = {"sums": self.sums.clone(), "age": self.age, "events": self.events}
        for part in ("good", "trial"):
            own |= {f"{part}/{key}": value for key, value in getattr(self, part).items()}
        return own

    def load(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        copies = {part: taken(rest, f"{part}/") for part in ("good", "trial")}
        for kept in copies.values():
            if kept:
                self._check(kept)
        sums = matching("sums", rest.get("sums"), self.sums, least=0)
        age = matching("age", rest.get("age"), 0.0, least=0)
        events = rest.get("events")
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise ValueError("events is no list of what the guard did.")
        self.sums, self.age, self.events = sums, age, events
        self.good, self.trial = copies["good"], copies["trial"]

    def _check(self, kept: Mapping[str, Any]) -> None:
        """A copy is sound if the adapter can take it."""
        now = self.adapter.state(self.watched)
        try:
            self.adapter.load_state(kept, self.watched)
        finally:
            self.adapter.load_state(now, self.watched)

    def merge(self, other: Guard, share: float) -> None:
        """The merged state is the one to return to; evidence of collapse is each worker's own."""
        self.good = self.trial = self.adapter.state(self.watched)


class _Inner:
    """The guarded adapter, as a piece of state."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.reset, self.state, self.load = adapter.reset, adapter.state, adapter.load_state

    def merge(self, other: _Inner, share: float) -> None:
        self.adapter.merge(other.adapter)


class Guarded(Adapter):
    """Any adapter, watched: where its answers collapse it returns to its last good state.

    Parameters
    ----------
    adapter
        What `make_adapter` or a class gave; use it only through the guarded one from then on.

    >>> import bayestta as bt
    >>> model = bt.load_model("mini-rn")
    >>> adapter = Guarded(bt.make_adapter("tent-continual", model, ["cat", "dog"]))
    >>> adapter.adapt(torch.zeros(4, 3, 64, 64)).shape
    torch.Size([4, 2])
    """

    def __init__(self, adapter: Adapter) -> None:
        self.inner_adapter = adapter
        for key in ("name", "title", "citation", "tunes", "cost", "fidelity", "views", "answer"):
            setattr(self, key, getattr(adapter, key))
        for key in ("norms", "reset_every", "needs_encoder", "moves_tower", "no_merge", "Settings"):
            setattr(self, key, getattr(adapter, key))
        self.title = f"{adapter.title}, guarded"
        model, about = adapter.model, (adapter.classes, adapter.templates)
        super().__init__(model, *about, seed=adapter.seed, settings=adapter.settings)

    def make_text(self) -> Tensor:
        self.templates = self.inner_adapter.templates
        return self.inner_adapter.text

    def declare(self) -> None:
        self.add_state("inner", _Inner(self.inner_adapter))
        self.guard = Guard(self)
        self.add_state("guard", self.guard)

    def _adapt(self, x: Tensor) -> Tensor:
        answer = self.inner_adapter.adapt(x)
        self.sketch, self.record = self.inner_adapter.sketch, dict(self.inner_adapter.record)
        chosen, sketch = self._pristine(x)
        probabilities = self.probabilities(answer[chosen])
        signs, returned = self.guard.review(probabilities, sketch.softmax(1))
        self.record["guard"] = signs
        return self.inner_adapter.predict(x) if returned else answer

    def _pristine(self, x: Tensor) -> tuple[slice, Tensor]:
        """Some images of a batch, and their zero-shot logits by the pristine tower."""
        if self.sketch is not None and not self.inner_adapter.moves_tower:
            return slice(None), self.sketch
        chosen = slice(self.steps % min(PROBE, len(x)), None, PROBE)
        plain = x.plain[chosen] if hasattr(x, "plain") else x[chosen]
        plain = plain[:, 0] if plain.ndim == 5 else plain
        with torch.no_grad():
            return chosen, self.model.logits(self.model.encode_image(plain), self.text)

    def _predict(self, x: Tensor) -> Tensor:
        return self.inner_adapter.predict(x)

    def probabilities(self, logits: Tensor) -> Tensor:
        return self.inner_adapter.probabilities(logits)

    def header(self) -> dict[str, Any]:
        return {**super().header(), "method": f"guarded {self.name}"}

    def summary(self) -> dict[str, Any]:
        return {**self.inner_adapter.summary(), "guard": self.guard.summary()}
