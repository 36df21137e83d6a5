"""A label-free guard: notices a collapse, and returns an adapter to its last good state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.matching import copied, is_sound
from bayestta.state import matching, taken

EVENTS = 20  # returns that are told in detail, the latest
KEPT = {"random", "samples", "steps", "caution", "guard"}  # what a return leaves as it is
MEMORY = 64.0  # images after which a sign counts half
LEAST = 48.0  # images before the guard may speak; half of it where answers and sketch are no kin
PROVEN = 256.0  # healthy images after which a state is one to return to
KIN = 0.25  # what the sketch gives the answers, in parts of what it gives its own
FEW, MANY = 0.5, 1.3  # classes that answers use, in parts of the sketch's
ALONE, PAIR = 0.1, 1.7  # answers of one class, where the sketch uses two: half is all there is
UNSURE, SPREAD, SURE, NARROW = 0.3, 0.2, 0.15, 0.75  # see `_reason`


def effective_classes(use: Tensor) -> float:
    """exp of the entropy of the use of classes: K when it is even, 1 when one class takes all.

    >>> effective_classes(torch.tensor([8.0, 8.0, 0.0]))
    2.0
    """
    share = use.double() / use.sum().clamp_min(1e-300)
    return math.exp(float(torch.special.entr(share).sum()))


def shown_classes(n: float, K: int) -> float:
    """Classes of K that n images of an even stream are expected to show.

    >>> round(shown_classes(10, 10), 2), round(shown_classes(1000, 10), 2)
    (6.32, 10.0)
    """
    return K * -math.expm1(-n / K)


class Guard:
    """Running evidence of collapse, and the states to return to.

    Answers are compared with the zero-shot sketch of the same images before they are given: how
    many classes they use, how sure they are, and what the sketch gives them. All signs are ratios
    of running sums, this batch included, so that the batch size does not matter. As a running mean
    lags behind, a state is proven not by the signs of its own step but by healthy ones later.

    Parameters
    ----------
    adapter
        Whose state it keeps copies of; the adapter declares the guard as its state `guard`.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter, self.K = adapter, len(adapter.classes)
        self.reset()

    def reset(self) -> None:
        self._forget()
        self.events: list[dict[str, Any]] = []
        self.good: dict[str, Any] = {}  # the state to return to; empty: the start
        self.trial: dict[str, Any] = {}  # the next such

    def _forget(self) -> None:
        # n, agreement, confidence of answers, of the sketch and of the evened sketch, what sketch
        # and evened sketch give the answers; then sums per class of answers, sketch and its logits
        self.sums = torch.zeros(7 + 3 * self.K, dtype=torch.float64)
        self.age = 0.0  # healthy images since the state on trial was set aside

    @property
    def watched(self) -> set[str]:
        return self.adapter.state_names() - KEPT

    def review(self, answer: Tensor, sketch: Tensor) -> tuple[dict[str, Any], bool]:
        """Look at probabilities (b,K) of answers before they are given, beside sketch logits (b,K).

        Returns what was seen, and whether it is bad: the adapter has then been returned to its last
        good state, and the caller answers by the sketch.
        """
        signs = self.step(answer, sketch)
        if signs["collapse"]:
            event = {"step": self.adapter.steps, "reason": signs["collapse"]}
            self.events = [*self.events, event][-EVENTS:]
            self._return()
            return signs, True
        if self.age >= PROVEN:
            self.good, self.trial = self.trial, self.adapter.state(self.watched)
            self.age = 0.0
        return signs, False

    def _return(self) -> None:
        """Back to the last good state; `caution` counts how often."""
        adapter, caution, events = self.adapter, self.adapter.caution + 1, self.events
        if self.good:
            adapter.load_state(self.good, self.watched)
        else:
            kept = adapter.state(KEPT - {"guard"})
            adapter.reset_state()
            adapter.load_state(kept, KEPT - {"guard"})
        adapter.caution, self.events = caution, events
        self._forget()
        self.trial = {key: copied(value) for key, value in self.good.items()}

    @torch.no_grad()
    def step(self, answer: Tensor, sketch: Tensor) -> dict[str, Any]:
        """Take in probabilities and sketch logits of the same images, and say what they show."""
        answer, sketch = answer.double().cpu(), sketch.double().cpu()
        if not bool(torch.isfinite(answer).all()):
            return {"collapse": "answers are not finite"}
        n, K = len(answer), self.K
        p, said = sketch.softmax(1), answer.argmax(1, keepdim=True)
        centred = sketch - sketch.mean(1, keepdim=True)
        self.sums = self.sums * 0.5 ** (n / MEMORY)
        self.sums[0] += n
        self.sums[7:] += torch.cat([answer.sum(0), p.sum(0), centred.sum(0)])
        # the sketch without its preference for classes, which adaptation may rightly mend
        even = (centred - self.sums[-K:] / self.sums[0]).softmax(1)
        agree = (said[:, 0] == sketch.argmax(1)).double()
        sure = [agree, answer.amax(1), p.amax(1), even.amax(1)]
        given = [p.gather(1, said)[:, 0], even.gather(1, said)[:, 0]]
        self.sums[1:7] += torch.stack([values.sum() for values in (*sure, *given)])
        total = float(self.sums[0])
        agreement, mine, theirs, evened, gives, even_gives = (self.sums[1:7] / total).tolist()
        used, expected = map(effective_classes, self.sums[7 : 7 + 2 * K].view(2, K))
        kinship = max(gives / theirs, even_gives / evened)
        reason = self._reason(total, kinship, used, expected, mine, theirs)
        self.age = 0.0 if reason else self.age + n
        return {
            "agreement": agreement,
            "kinship": kinship,
            "confidence": mine,
            "sketch_confidence": theirs,
            "classes": used,
            "sketch_classes": expected,
            "collapse": reason,
        }

    @staticmethod
    def _reason(
        n: float, kinship: float, used: float, expected: float, sure: float, sketch_sure: float
    ) -> str:
        """What is wrong, in a sentence; empty where nothing is."""
        ratio, gap = used / expected, sure - sketch_sure
        if n >= LEAST / 2 and not kinship >= KIN:
            return f"the sketch gives the answers {kinship:.2f} of what it gives its own"
        if n < LEAST:
            return ""
        if ratio < FEW or (expected > PAIR and used - 1 < ALONE * (expected - 1)):
            return f"answers use {used:.1f} classes, the sketch {expected:.1f}"
        if gap < -UNSURE:
            return f"answers are less sure than the sketch, by {-gap:.2f}"
        if gap < -SPREAD and ratio > MANY:
            return f"answers spread over {used:.1f} classes, the sketch over {expected:.1f}"
        if gap > SURE and ratio < NARROW:
            return f"answers are surer than the sketch by {gap:.2f}, on {ratio:.2f} of its classes"
        return ""

    def summary(self) -> dict[str, Any]:
        return {"on": True, "returns": self.adapter.caution, "events": self.events}

    def unsound(self) -> str | None:
        """The sums, if they are; the states that are kept were sound when they were lived in."""
        return None if is_sound(self.sums) else "sums"

    def state(self) -> dict[str, Any]:
        """A copy of the evidence; the states to return to are replaced, never changed."""
        own = {"sums": self.sums.clone(), "age": self.age, "events": list(self.events)}
        for part in ("good", "trial"):
            own |= {f"{part}/{key}": value for key, value in getattr(self, part).items()}
        return own

    def load(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        copies = {part: taken(rest, f"{part}/") for part in ("good", "trial")}
        for kept in copies.values():
            if kept:
                self._check(kept)
        sums = matching("sums", rest.get("sums"), self.sums)
        if bool((sums[: 7 + 2 * self.K] < 0).any()):
            raise ValueError("sums of counts and probabilities are negative.")
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
        self.good, self.trial = (self.adapter.state(self.watched) for _ in range(2))
