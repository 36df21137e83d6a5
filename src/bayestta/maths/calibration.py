"""A temperature that keeps answers as sure as they ought to be, learnt along the stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.state import matching

MEMORY = 256.0  # samples after which what was seen counts half
STEP, RANGE = 0.5, 3.0  # of the logarithm of the temperature: the most per batch, and in all


class Temperature:
    """Softmax at a running temperature at which mean confidence meets a target.

    Newton's method on running sums, so that a batch of one moves it no more than it should.

    >>> temperature = Temperature()
    >>> logits = torch.tensor([[4.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    >>> for _ in range(200):
    ...     temperature.update(logits, torch.tensor([0.7, 0.7], dtype=torch.float64))
    >>> bool((temperature(logits).amax(1).mean() - 0.7).abs() < 0.02)
    True
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # samples, their confidence, its derivative by log T, and the target, all summed
        self.sums = torch.zeros(4, dtype=torch.float64)
        self.log_t = 0.0

    @property
    def value(self) -> float:
        """What logits are divided by."""
        return math.exp(self.log_t)

    def __call__(self, logits: Tensor) -> Tensor:
        """Probabilities (B,K)."""
        return (logits.double() / self.value).softmax(1)

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Move towards the temperature at which logits (B,K) have the mean confidence `target`."""
        x = logits.double() / self.value
        p = x.softmax(1)
        top, best = p.max(1)
        slope = top * ((p * x).sum(1) - x.gather(1, best[:, None])[:, 0])
        new = torch.stack([top.new_tensor(float(len(x))), top.sum(), slope.sum(), target.sum()])
        self.sums = self.sums * 0.5 ** (len(x) / MEMORY) + new.cpu()
        n, confidence, steep, goal = self.sums.tolist()
        move = min(max((goal - confidence) / min(steep, -1e-3 * n), -STEP), STEP)
        move = min(max(self.log_t + move, -RANGE), RANGE) - self.log_t
        self.log_t += move
        self.sums[1] += move * steep  # what the confidence would have been

    @property
    def target(self) -> float | None:
        """The running mean of the target; None before the first sample."""
        return float(self.sums[3] / self.sums[0]) if self.sums[0] > 0 else None

    def state(self) -> dict[str, Any]:
        return {"sums": self.sums.clone(), "log_t": self.log_t}

    def load(self, state: Mapping[str, Any]) -> None:
        sums = matching("sums", state.get("sums"), self.sums)
        self.log_t = matching("log_t", state.get("log_t"), 0.0, least=-RANGE, most=RANGE)
        self.sums = sums

    def merge(self, other: Temperature, share: float) -> None:
        self.sums = self.sums + other.sums
        self.log_t += share * (other.log_t - self.log_t)
