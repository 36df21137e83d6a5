"""What a page shows of an adapter: running numbers, and a bounded trail of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr

from bayestta.state import matching

Floats = NDArray[np.float32]

MEMORY = 256.0  # samples over which numbers are averaged
POINTS = 240  # of the trail, after which neighbours are merged
SHARES = 12  # classes whose share over time is kept, the first ones by name
NUMBERS = ("disagreement", "entropy", "accuracy")


class Trail:
    """Means over the last samples, and how they came to be.

    `disagreement` is the share of images where the answer differs from the zero-shot one,
    `entropy` that of the answers in nats, `accuracy` an estimate without labels: the mean
    confidence.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.reset()

    def reset(self) -> None:
        self.sums = np.zeros(1 + len(NUMBERS) + self.classes)
        self.samples = 0
        self.every = 1  # steps per point
        self.steps = 0
        self.points: list[dict[str, Any]] = []

    def add(self, probabilities: Floats, sketch: Floats, *, drift: float) -> None:
        """Take in probabilities (B,K) of the answer, zero-shot ones and the drift's log e-value."""
        p = probabilities.astype(np.float64)
        n, differ = len(p), (p.argmax(1) != sketch.argmax(1)).sum()
        new = [n, differ, entr(p).sum(), p.max(1).sum()]
        self.sums = self.sums * math.exp(-n / MEMORY) + np.concatenate([new, p.sum(0)])
        self.samples += n
        self.steps += 1
        if self.steps % self.every == 0:
            self.points.append(self._point(drift))
        if len(self.points) > POINTS:
            self.points, self.every = self.points[1::2], 2 * self.every

    def _point(self, drift: float) -> dict[str, Any]:
        numbers = {key: round(value, 4) for key, value in self.numbers().items()}
        shares = [round(value, 3) for value in self._shares()[:SHARES].tolist()]
        return {"samples": self.samples, **numbers, "drift": round(drift, 3), "shares": shares}

    def _shares(self) -> NDArray[np.float64]:
        shares: NDArray[np.float64] = self.sums[1 + len(NUMBERS) :] / max(self.sums[0], 1e-12)
        return shares

    def numbers(self) -> dict[str, float]:
        total = max(float(self.sums[0]), 1e-12)
        means = {key: float(self.sums[1 + i]) / total for i, key in enumerate(NUMBERS)}
        return {**means, "effective_classes": math.exp(float(entr(self._shares()).sum()))}

    def state(self) -> dict[str, Any]:
        counts = {"samples": self.samples, "every": self.every, "steps": self.steps}
        return {"sums": torch.from_numpy(self.sums.copy()), **counts, "points": list(self.points)}

    def load(self, state: Mapping[str, Any]) -> None:
        sums = matching("sums", state.get("sums"), torch.from_numpy(self.sums), least=0)
        points = state.get("points")
        if not isinstance(points, list):
            raise ValueError("points is no list.")
        for key in ("samples", "every", "steps"):
            setattr(self, key, matching(key, state.get(key), 0, least=0))
        self.sums, self.points = sums.numpy(), points

    def merge(self, other: Trail, share: float) -> None:
        """Each stream keeps its own trail."""
