"""What a page shows of an adapter: running numbers, and a bounded trail of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.methods.guard import effective_classes
from bayestta.state import matching

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
        self.sums = torch.zeros(1 + len(NUMBERS) + self.classes, dtype=torch.float64)
        self.samples = 0
        self.every = 1  # steps per point
        self.steps = 0
        self.points: list[dict[str, Any]] = []

    def add(self, probabilities: Tensor, sketch: Tensor, *, drift: float) -> None:
        """Take in probabilities (B,K) of the answer, zero-shot ones and the drift's log e-value."""
        p = probabilities.double().cpu()
        n = len(p)
        differ = (p.argmax(1) != sketch.cpu().argmax(1)).double().sum()
        entropy = torch.special.entr(p).sum()
        new = torch.cat([torch.stack([torch.tensor(float(n)), differ, entropy, p.max(1)[0].sum()])])
        self.sums = self.sums * math.exp(-n / MEMORY) + torch.cat([new, p.sum(0)])
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

    def _shares(self) -> Tensor:
        return self.sums[1 + len(NUMBERS) :] / self.sums[0].clamp_min(1e-12)

    def numbers(self) -> dict[str, float]:
        total = max(float(self.sums[0]), 1e-12)
        means = {key: float(self.sums[1 + i]) / total for i, key in enumerate(NUMBERS)}
        return {**means, "effective_classes": effective_classes(self._shares())}

    def state(self) -> dict[str, Any]:
        counts = {"samples": self.samples, "every": self.every, "steps": self.steps}
        return {"sums": self.sums.clone(), **counts, "points": list(self.points)}

    def load(self, state: Mapping[str, Any]) -> None:
        sums = matching("sums", state.get("sums"), self.sums, least=0)
        points = state.get("points")
        if not isinstance(points, list):
            raise ValueError("points is no list.")
        for key in ("samples", "every", "steps"):
            setattr(self, key, matching(key, state.get(key), 0, least=0))
        self.sums, self.points = sums, points

    def merge(self, other: Trail, share: float) -> None:
        """Each stream keeps its own trail."""
