"""How far the Gaussians may be trusted to label the stream themselves: as far as it is even."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.methods.bayestta.fusion import mixed, ramp
from bayestta.methods.guard import effective_classes
from bayestta.state import StatefulPart

EVEN = (0.8, 0.95)  # effective classes of the sketch over K: no trust below, all of it above

CROWDED, TEACHES = 0.6, 0.7  # share of other classes than the most named of late, as `mixed` has
# it: below the first one class is named too often, above the second the stream may teach
RECENT = 64.0  # images after which an answer counts half in what was named of late
SOFT = 0.5  # temperature of responsibilities that the fused answer gives alone


def responsibilities(sketch: Tensor, fused: Tensor, trust: float) -> Tensor:
    """What weighs a sample in each class (B,K): a mixture, by trust, of two answers.

    The fused answer q alone; and p o q / sqrt(p . q), the joint answer of sketch p and q, weighed
    by their agreement. The second is stable by construction: a class that the sketch does not see
    gets nothing, however sure the Gaussians are of it.
    """
    joint = sketch.double().log_softmax(1) + fused.double().log_softmax(1)
    careful = (joint - 0.5 * joint.logsumexp(1, keepdim=True)).exp()
    return trust * (fused.double() / SOFT).softmax(1) + (1 - trust) * careful


class Trust(StatefulPart):
    """Running class use of the sketch, over the memory of the statistics.

    Gaussians that label their own samples follow a drift well while all classes are in memory.
    Under label skew (a camera that sees one thing for an hour) they split the one cluster that
    there is over many classes. Without labels a skewed stream looks like a sketch that prefers a
    class; both are reasons to let the sketch have its say in every label.

    >>> trust = Trust(torch.zeros(4, 2))
    >>> trust.update(torch.full((8, 4), 0.25), keep=1.0)
    >>> trust.value
    1.0
    """

    def __init__(self, text: Tensor) -> None:
        start = text.new_zeros(len(text), dtype=torch.float64)
        self.add_state("used", start, merge="sum", least=0)  # (K,)
        self.add_state("named", start, merge="sum", least=0)  # (K,)
        self._known = start, 0.0  # a `used`, which is replaced and never changed, and its value

    used: Tensor
    named: Tensor

    def update(self, sketch: Tensor, keep: float) -> None:
        """Count probabilities (B,K) of the sketch, after forgetting all but `keep`."""
        self.used = keep * self.used + sketch.double().sum(0)

    @property
    def value(self) -> float:
        """From 0, the sketch has its say, to 1, the fused answer labels alone."""
        if self._known[0] is not self.used:
            share = effective_classes(self.used) / len(self.used)
            self._known = self.used, ramp(share, *EVEN)
        return self._known[1]

    def name(self, answer: Tensor) -> None:
        """Count the classes that answers (B,K) name."""
        new = torch.bincount(answer.argmax(1), minlength=answer.shape[1])
        self.named = 0.5 ** (len(answer) / RECENT) * self.named + new

    @property
    def mixed(self) -> float:
        """Share of other classes than the most named of late, over that of an even stream."""
        return mixed(self.named)

    @property
    def crowded(self) -> bool:
        """Whether one class is named too often for labels that are even."""
        return self.mixed < CROWDED

    @property
    def teaches(self) -> bool:
        """Whether the stream is even enough, of late and over the memory, to learn weights from."""
        return self.value > 0 and self.mixed > TEACHES
