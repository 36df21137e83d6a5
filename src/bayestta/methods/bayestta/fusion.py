"""The zero-shot sketch and the discriminants in one answer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayestta.methods.guard import effective_classes, shown_classes
from bayestta.state import StatefulPart

STEADY = 64.0  # samples after which a running value counts half
ENOUGH = 15.0  # samples per class at which the discriminants get half of their weight
MIXED, STEEP = 0.9, 6.0  # share of other classes than the largest, as `mixed` has it, below which
# the weight falls, and the power with which it does
FORETOLD = (0.6, 0.7)  # share of the classes' layout that the text tells: Gaussians always have
# their say below, and above only where they mend the use of classes
MENDED = 0.01  # gain in the entropy of the mean answer, in nats, from which they have it in full
NAMED = (0.75, 0.9)  # classes that they name, in parts of an even stream's: not heard below
OTHERS = (0.78, 0.86)  # share of classes but the most named, as `mixed` has it: not heard below
WINDOW = 64.0, 12.0  # half-life of the use of classes, in images: at least, and per class
SURER = (1.1, 0.85)  # times trust: weight of the surer of sketch and discriminants in the
# confidence; where the text tells little they are two witnesses, surer together than either
LEAN, SMOOTH = 0.1, 5.0  # power of the class counts in the answer, and what is added to each
SURE = (0.55, 0.75)  # mean confidence of the sketch: none of it below, all of it above
TINY = 1e-300


class Fusion(StatefulPart):
    """Eq. 27 in units of the sketch: (sketch + a * discriminants) / (1 + a).

    A Gaussian score in D dimensions is of the order of D, a logit of the order of the model's
    scale. The discriminants are scaled to vary over the classes as much as the sketch does, so that
    a weight of 1 counts both alike for every model. The weight grows with the evidence, and falls
    where most of that is of one class, which says little of the others, and where the two agree,
    because there is then nothing to be won: sooner where the stream is even. In answers it also
    falls where there is no sign that the sketch needs mending, see `worth`.

    Parameters
    ----------
    alpha
        The largest weight.
    doubt
        Share of differing answers from which on an uneven stream gets it in full; an even one does
        from a third of it on, and 0 always gives it in full, in answers too.
    alone
        Whether the discriminants answer without the sketch.
    """

    def __init__(self, alpha: float, doubt: float, *, like: Tensor, alone: bool = False) -> None:
        self.most, self.doubt, self.alone = alpha, doubt, alone
        # samples, spread of sketch and of discriminants over the classes, differing answers, and
        # the confidence of the sketch
        self.add_state("gauge", like.new_zeros(5, dtype=torch.float64), merge="sum", least=0)
        use = like.new_zeros(2, len(like), dtype=torch.float64)
        self.add_state("use", use, merge="sum", least=0)  # of classes, by sketch and discriminants

    gauge: Tensor
    use: Tensor

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

    def worth(
        self, foretold: float, others: float = 1.0, evener: float = 0.0, settled: float = 1.0
    ) -> float:
        """The part of their weight that discriminants get in answers.

        All of it where the text has `foretold` little of how the classes lie to each other.
        Where it has foretold most, the sketch is right for its source, and Gaussians win only on a
        stream that makes it prefer some classes. They are then heard if they use classes more
        evenly than the sketch does, and evenly: what names few classes says itself that labels are
        skewed, and so do answers of which few, `others`, are not of the class named most of late.
        What tuning has added to the evenness of the sketch, `evener` nats, it owes to them.
        """
        K, n = self.use.shape[1], float(self.use[0].sum())
        if not n or not self.doubt:
            return 1.0
        sketch, own = map(effective_classes, self.use)
        mends = ramp(math.log(own / sketch) + evener, 0.0, MENDED)
        names = ramp(own / shown_classes(n, K), *NAMED) * ramp(others, *OTHERS)
        return max(1 - ramp(foretold, *FORETOLD), mends * names * settled)

    def remember(self, sketch: Tensor, score: Tensor) -> None:
        """Take in sketch and discriminants (B,K) of a batch."""
        n = sketch.new_tensor(float(len(sketch)), dtype=torch.float64)
        differ = (sketch.argmax(1) != score.argmax(1)).double().sum()
        p = sketch.double().softmax(1)
        spreads = (side.std(1).double().sum() for side in (sketch, score))
        new = torch.stack([n, *spreads, differ, p.amax(1).sum()])
        self.gauge = self.gauge * 0.5 ** (len(sketch) / STEADY) + new
        keep = 0.5 ** (len(sketch) / max(WINDOW[0], WINDOW[1] * self.use.shape[1]))
        self.use = keep * self.use + torch.stack([p.sum(0), self.scaled(score).softmax(1).sum(0)])

    def scaled(self, score: Tensor) -> Tensor:
        """Discriminants in the units of the sketch."""
        return score.double() * (self.gauge[1] / self.gauge[2].clamp_min(TINY))

    def __call__(self, sketch: Tensor, score: Tensor, alpha: float) -> Tensor:
        """The answer (B,K) from both, with no lean towards any class."""
        centred = sketch.double() - sketch.double().mean(1, keepdim=True)
        share = 1.0 if self.alone else alpha / (1 + alpha)
        return torch.lerp(centred, self.scaled(score), share)

    def lean(self, count: Tensor) -> Tensor:
        """What the class counts (K,) add to the answer: a little, as far as one class has most, and
        the sketch is sure of what it says."""
        single: float = 1 - min(1.0, mixed(count) / MIXED) ** (2 * STEEP)
        sure = float(self.gauge[4] / self.gauge[0].clamp_min(TINY))
        log = LEAN * single * ramp(sure, *SURE) * (count + SMOOTH).log()
        return log - log.mean()

    def confidence(
        self,
        answer: Tensor,
        sketch: Tensor,
        score: Tensor,
        alpha: float,
        trust: float,
        foretold: float,
    ) -> Tensor:
        """How sure answers (B,K) ought to be (B,): what both sides give them, nearer to the surer
        one where the stream is even; what the sketch gives them, if the other is hardly heard."""
        best = answer.argmax(1, keepdim=True)
        sides = sketch.double(), self.scaled(score)
        own, other = (side.softmax(1).gather(1, best)[:, 0] for side in sides)
        weight = trust * (SURER[0] + (SURER[1] - SURER[0]) * ramp(foretold, *FORETOLD))
        both = torch.lerp(torch.minimum(own, other), torch.maximum(own, other), weight)
        return torch.lerp(own, both.clamp_max(1), 1.0 if self.alone else min(1.0, alpha))


def ramp(value: float, low: float, high: float) -> float:
    """From 0 at `low` to 1 at `high`.

    >>> ramp(0.25, 0.0, 0.5), ramp(-1.0, 0.0, 0.5), ramp(2.0, 0.0, 0.5)
    (0.5, 0.0, 1.0)
    """
    return min(1.0, max(0.0, (value - low) / (high - low)))


def mixed(count: Tensor) -> float:
    """Share of the counts (K,) outside the largest, over that of an even stream.

    >>> mixed(torch.tensor([4.0, 4.0])), mixed(torch.tensor([6.0, 2.0])), mixed(torch.ones(1))
    (1.0, 0.5, 1.0)
    """
    if len(count) < 2:
        return 1.0
    largest = float(count.max() / count.sum().clamp_min(TINY))
    return (1 - largest) / (1 - 1 / len(count))
