"""The zero-shot sketch and the discriminants in one answer."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.state import StatefulPart

STEADY = 64.0  # samples after which a running value counts half
ENOUGH = 15.0  # samples per class at which the discriminants get half of their weight
MIXED, STEEP = 0.9, 6.0  # share of other classes than the largest, as `mixed` has it, below which
# the weight falls, and the power with which it does
LEAN, SMOOTH = 0.1, 5.0  # power of the class counts in the answer, and what is added to each
TINY = 1e-300


class Fusion(StatefulPart):
    """Eq. 27 in units of the sketch: (sketch + a * discriminants) / (1 + a).

    A Gaussian score in D dimensions is of the order of D, a logit of the order of the model's
    scale. The discriminants are scaled to vary over the classes as much as the sketch does, so that
    a weight of 1 counts both alike for every model. The weight grows with the evidence, and falls
    where most of that is of one class, which says little of the others, and where the two agree,
    because there is then nothing to be won: sooner where the stream is even.

    Parameters
    ----------
    alpha
        The largest weight.
    doubt
        Share of differing answers from which on an uneven stream gets it in full; an even one does
        from a third of it on, and 0 always gives it in full.
    """

    def __init__(self, alpha: float, doubt: float, *, like: Tensor) -> None:
        self.most, self.doubt = alpha, doubt
        # samples, spread of sketch and of discriminants over the classes, differing answers
        self.add_state("gauge", like.new_zeros(4, dtype=torch.float64), merge="sum", least=0)

    gauge: Tensor

    @property
    def ready(self) -> bool:
        """Whether there were discriminants to compare with the sketch."""
        return bool(self.gauge[0] > 0)

    def weight(self, count: Tensor, trust: float) -> float:
        """The weight of the discriminants, given the evidence per class (K,)."""
        each = float(count.mean())
        others: float = min(1.0, mixed(count) / MIXED) ** STEEP
        grown = self.most * others * each / (each + ENOUGH)
        if not self.doubt:
            return grown
        differing = float(self.gauge[3] / self.gauge[0].clamp_min(TINY)) / self.doubt
        return grown * (trust * min(1.0, 3 * differing) + (1 - trust) * min(1.0, differing))

    def remember(self, sketch: Tensor, score: Tensor) -> None:
        """Take in sketch and discriminants (B,K) of a batch."""
        n = sketch.new_tensor(float(len(sketch)), dtype=torch.float64)
        differ = (sketch.argmax(1) != score.argmax(1)).double().sum()
        new = torch.stack([n, sketch.std(1).double().sum(), score.std(1).double().sum(), differ])
        self.gauge = self.gauge * 0.5 ** (len(sketch) / STEADY) + new

    def scaled(self, score: Tensor) -> Tensor:
        """Discriminants in the units of the sketch."""
        return score * (self.gauge[1] / self.gauge[2].clamp_min(TINY))

    def __call__(self, sketch: Tensor, score: Tensor, alpha: float) -> Tensor:
        """The answer (B,K) from both, with no lean towards any class."""
        centred = sketch.double() - sketch.double().mean(1, keepdim=True)
        return (centred + alpha * self.scaled(score)) / (1 + alpha)


def mixed(count: Tensor) -> float:
    """Share of the counts (K,) outside the largest, over that of an even stream.

    >>> mixed(torch.tensor([4.0, 4.0])), mixed(torch.tensor([6.0, 2.0])), mixed(torch.ones(1))
    (1.0, 0.5, 1.0)
    """
    if len(count) < 2:
        return 1.0
    largest = float(count.max() / count.sum().clamp_min(TINY))
    return (1 - largest) / (1 - 1 / len(count))


def lean(count: Tensor) -> Tensor:
    """What the class counts (K,) add to the answer: a little, and nothing on average."""
    log = LEAN * (count + SMOOTH).log()
    return log - log.mean()
