"""Two monitors of a stream: drift, which needs no label, and harm, which needs a few.

Both are anytime-valid: while nothing is wrong, the chance that one ever raises an alarm is `alpha`
at most, however long the stream and however often one looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayestta.maths import betting
from bayestta.state import matching

EVENTS = 20  # alarms that are listed, the latest
JITTER = 1e-9  # by which equal scores are told apart


class DriftAlarm:
    """Raises an alarm when the images of a stream are no longer like its first ones.

    Each score, such as the entropy of the zero-shot answer, is ranked among the scores before it,
    and a capital bets that ranks are not uniform. After an alarm the next samples become the new
    reference, so that a further drift is noticed too. Neighbouring frames of a video resemble each
    other, which is a kind of drift to this test: give it one frame per scene or a larger reference.

    Parameters
    ----------
    alpha
        Bound on the chance of a false alarm, over the whole stream.
    reference
        Samples that the others are ranked among.
    seed
        Seed of the draws that tell equal ranks apart.

    >>> alarm = DriftAlarm(reference=50)
    >>> alarm.add([0.1 + 0.001 * (7 * i % 50) for i in range(300)])
    0
    >>> alarm.add([1.0] * 30)
    1
    """

    def __init__(self, alpha: float = 0.01, reference: int = 200, *, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"alpha is {alpha}: give a number above 0 and below 1.")
        if reference < 10:
            raise ValueError(f"reference is {reference}: give at least 10 samples.")
        self.alpha, self.reference, self.seed = alpha, reference, seed
        self.reset()

    def reset(self) -> None:
        self.samples = 0
        self.alarms = 0
        self.events: list[dict[str, Any]] = []
        self.peak = 0.0  # highest log e-value of the last batch: an alarm sets the value to 0
        self._restart()

    def _restart(self) -> None:
        self.scores = np.zeros(0)  # of the reference: in order of arrival, then sorted
        self.weights = np.ones(self.reference + 1)  # per gap of the sorted reference
        self.capital = betting.start_capital()
        self.time = 0  # samples since the reference was complete

    def add(self, scores: Tensor | Iterable[float]) -> int:
        """Take in the scores of a batch; the number of alarms that they raised."""
        values = scores.tolist() if isinstance(scores, Tensor) else [float(v) for v in scores]
        if not all(math.isfinite(value) for value in values):
            raise ValueError("scores hold NaN or infinite numbers: leave such samples out.")
        before, self.peak = self.alarms, self.value
        for value in values:
            self._add(value)
        return self.alarms - before

    def _add(self, value: float) -> None:
        self.samples += 1
        # a relative jitter of its own makes the scores distinct and leaves them exchangeable
        value += JITTER * max(1.0, abs(value)) * betting.uniform(self.seed, 2 * self.samples)
        if len(self.scores) < self.reference:
            self.scores = np.append(self.scores, value)
            if len(self.scores) == self.reference:
                self.scores.sort()
            return
        gap = int(np.searchsorted(self.scores, value))
        tie = betting.uniform(self.seed, 2 * self.samples + 1)
        rank = betting.urn_rank(self.weights, gap, tie, self.reference + 1.0 + self.time)
        self.weights[gap] += 1
        self.time += 1
        self.capital = betting.bet(self.capital, rank, self.time)
        value = self.value
        self.peak = max(self.peak, value)
        if value >= -math.log(self.alpha):
            self.alarms += 1
            event = {"sample": self.samples, "after": self.time, "log_evalue": value}
            self.events = [*self.events, event][-EVENTS:]
            self._restart()

    @property
    def value(self) -> float:
        """The logarithm of the e-value."""
        return math.log(float(self.capital.sum()))

    @property
    def alarm(self) -> bool:
        """Whether there ever was an alarm."""
        return self.alarms > 0

    def summary(self) -> dict[str, Any]:
        about = {"alpha": self.alpha, "reference": self.reference, "samples": self.samples}
        return {**about, "log_evalue": self.value, "alarms": self.alarms, "events": self.events}

    def state(self) -> dict[str, Any]:
        arrays = {key: torch.from_numpy(getattr(self, key).copy()) for key in ARRAYS}
        counts = {"samples": self.samples, "alarms": self.alarms, "time": self.time}
        return {**arrays, **counts, "events": list(self.events)}

    def load(self, state: Mapping[str, Any]) -> None:
        like = {key: torch.from_numpy(getattr(self, key)) for key in ARRAYS}
        new = {
            key: matching(key, state.get(key), like[key], grows=key == "scores") for key in ARRAYS
        }
        if len(new["scores"]) > self.reference:
            raise ValueError(
                f"the state holds {len(new['scores'])} scores of reference, and this alarm takes "
                f"{self.reference}: make it with the same reference."
            )
        counts = {key: matching(key, state.get(key), 0, least=0) for key in COUNTS}
        self.events = checked_events(state.get("events"))
        for key, value in new.items():
            setattr(self, key, value.numpy())
        for key, count in counts.items():
            setattr(self, key, count)
        self.peak = self.value

    def merge(self, other: DriftAlarm, share: float) -> None:
        """Each worker watches its own stream; alarms add."""
        self.alarms += other.alarms
        self.events = [*self.events, *other.events][-EVENTS:]


class HarmTest:
    """Says when adaptation does harm, from a few labels of images where answer and sketch differ.

    The sketch is the zero-shot answer. The hypothesis is that the answer is right at least as often
    as the sketch; E_t = prod (1 - stake * D_i), averaged over stakes.

    >>> test = HarmTest()
    >>> for _ in range(7):
    ...     alarm = test.add(answer=1, sketch=0, label=0)
    >>> alarm, test.labels
    (True, 7)
    """

    def __init__(self, alpha: float = 0.05) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"alpha is {alpha}: give a number above 0 and below 1.")
        self.alpha = alpha
        self.reset()

    def reset(self) -> None:
        self.logs = np.zeros(len(betting.STAKES))  # log capital per stake
        self.labels = 0  # that said anything: answer and sketch differ
        self.mended = self.broken = 0
        self.alarm_at = 0  # labels at the alarm; 0: none so far

    def add(self, *, answer: int, sketch: int, label: int) -> bool:
        """Take in a label; whether the test has spoken."""
        if answer != sketch:
            self.labels += 1
            self.mended += int(answer == label)
            self.broken += int(sketch == label)
            self.logs = self.logs + betting.log_harm(answer, sketch, label)
            if not self.alarm_at and self.value >= -math.log(self.alpha):
                self.alarm_at = self.labels
        return self.alarm

    @property
    def value(self) -> float:
        """The logarithm of the e-value."""
        return betting.log_mean(self.logs)

    @property
    def alarm(self) -> bool:
        return self.alarm_at > 0

    def summary(self) -> dict[str, Any]:
        counts = {key: getattr(self, key) for key in HARM_COUNTS}
        return {"alpha": self.alpha, "log_evalue": self.value, "alarm": self.alarm, **counts}

    def state(self) -> dict[str, Any]:
        counts = {key: getattr(self, key) for key in HARM_COUNTS}
        return {"logs": torch.from_numpy(self.logs.copy()), **counts}

    def load(self, state: Mapping[str, Any]) -> None:
        logs = matching("logs", state.get("logs"), torch.from_numpy(self.logs))
        counts = {key: matching(key, state.get(key), 0, least=0) for key in HARM_COUNTS}
        self.logs = logs.numpy()
        for key, count in counts.items():
            setattr(self, key, count)

    def merge(self, other: HarmTest, share: float) -> None:
        """Labels of one hypothesis, seen by two workers: factors multiply, so logarithms add."""
        self.logs = self.logs + other.logs
        self.labels += other.labels
        self.mended += other.mended
        self.broken += other.broken
        if not self.alarm_at and self.value >= -math.log(self.alpha):
            self.alarm_at = self.labels


ARRAYS = ("scores", "weights", "capital")
COUNTS = ("samples", "alarms", "time")
HARM_COUNTS = ("labels", "mended", "broken", "alarm_at")


def checked_events(events: Any) -> list[dict[str, Any]]:
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError("events is no list of alarms.")
    return events[-EVENTS:]


def entropies(logits: Tensor) -> Tensor:
    """The entropy (B,) in nats of the softmax of logits (B,K): the score of the drift alarm."""
    found: Tensor = torch.special.entr(logits.double().softmax(1)).sum(1).cpu()
    return found
