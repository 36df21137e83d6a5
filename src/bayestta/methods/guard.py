"""A label-free guard: notices a collapse by what is answered against the zero-shot sketch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def effective_classes(mean: Tensor) -> float:
    """exp of the entropy of a class distribution: K when it is even, 1 when one class takes all.

    >>> effective_classes(torch.tensor([0.5, 0.5, 0.0]))
    2.0
    """
    return math.exp(float(torch.special.entr(mean.double()).sum()))


@dataclass
class Guard:
    """Running evidence of collapse over about `memory` samples.

    Three numbers a step, each of the answer against the zero-shot sketch of the same images: how
    often they agree, the mean entropy, and the effective number of predicted classes. Collapse is
    said when the answer uses fewer than `share` of the classes that the sketch uses, or agrees with
    it less often than chance would. As a mean over many samples lags behind, a state is `proven`
    not by the signs of its own step, but by healthy ones a memory later.
    """

    classes: int
    memory: float = 256.0
    share: float = 0.5
    least: float = 96.0  # samples before it may speak

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was seen."""
        # n, agreements, the entropy of both, the summed answers of both
        self.sums = torch.zeros(4 + 2 * self.classes, dtype=torch.float64)
        self.age = 0.0  # samples since the state on trial was set aside

    def step(self, answer: Tensor, sketch: Tensor) -> dict[str, Any]:
        """Take in probabilities (b,K) of the same images and say what they show."""
        answer, sketch = answer.double().cpu(), sketch.double().cpu()
        n, K = len(answer), self.classes
        agree = (answer.argmax(1) == sketch.argmax(1)).sum()
        entropies = [torch.special.entr(p).sum() for p in (answer, sketch)]
        new = torch.stack([torch.tensor(float(n)), agree, *entropies])
        new = torch.cat([new, answer.sum(0), sketch.sum(0)])
        self.sums = self.sums * math.exp(-n / self.memory) + new
        self.age += n
        total, *means = self.sums[:4].tolist()
        agreement, entropy, sketch_entropy = (mean / total for mean in means)
        used = effective_classes(self.sums[4 : 4 + K] / total)
        expected = effective_classes(self.sums[4 + K :] / total)
        reason = ""
        if total >= self.least and not used >= self.share * expected:  # so that NaN is a collapse
            reason = f"answers use {used:.1f} classes, the zero-shot sketch {expected:.1f}"
        elif total >= self.least and agreement < 1 / K:
            reason = f"answers agree with the zero-shot sketch on {100 * agreement:.0f} % of images"
        certain = min(2 / K, 0.5 + 0.5 / K)  # twice chance, which two classes cannot exceed
        healthy = used > 0.5 * (1 + self.share) * expected and agreement > certain
        return {
            "agreement": agreement,
            "entropy": entropy,
            "sketch_entropy": sketch_entropy,
            "classes": used,
            "sketch_classes": expected,
            "healthy": healthy,
            "proven": healthy and self.age >= self.memory,
            "collapse": reason,
        }

    def state_dict(self) -> dict[str, Tensor]:
        return {"sums": self.sums.clone(), "age": torch.tensor(self.age, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.sums, self.age = state["sums"].clone(), float(state["age"])
