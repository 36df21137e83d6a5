"""Whether other statistics serve a stream better, judged by answers without labels.

Two witnesses per image, a candidate against the source on the same images: how much surer the
answer is, and what it adds to the evenness with which classes are used. Confidence alone is fooled
by saturated images, evenness alone by noise; neither may clearly speak against a candidate.

A candidate that still names few classes says itself that labels are skewed. If it gives less than
the source to the class that both name most, it takes from the class that both believe in; so does
one that is not clearly surer and names a class far beyond its share. If it mixes the images of the
stream, it must be surer, and evenness counts only if it names many classes: the statistics of one
class spread answers.
One that is much less sure than the source is refused, whatever classes it names: what the source
names for noise may be what is shown.

What gives blurred or noisy photographs the spectrum of photographs back is known to be right, and
needs no proof beyond noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayestta.methods.guard import effective_classes, shown_classes
from bayestta.state import StatefulPart

EVEN = 0.25  # weight of evenness, in nats, beside confidence
SURE = 1.5  # standard errors by which a newcomer must be better
AGAINST = 2.0  # standard errors at which a witness clearly speaks against, or for
MARGIN = 0.005  # of the score, that noise must not cross
STAY = 0.02  # of the score before its price, that statistics in use must still be worth
PRICE = 0.01  # of the score, for statistics of BatchNorm: they mix the images of a stream
MANY = (0.78, 0.82)  # of the classes that as many images of an even stream would show, below which
# a candidate names few: for statistics of pixels, and of BatchNorm
FAIR, CROWD = 1.5, 3.0  # standard errors beyond an even share up to which a class is named like any
# other, and from which on it is named most for a reason
LOSS = 0.12  # of confidence, beyond a standard error: from there on nothing speaks for a candidate
STAKE = 0.08  # of the score, that a newcomer for pixels must promise if it names few classes
LEAST = 16  # images before a candidate is judged
NEVER = -9.0


def witnesses(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Per image (n,): the gain in confidence of probabilities a over b (n,K), and in evenness.

    The mean of the second is exactly the difference of the entropies of the mean answers.
    """

    def even(p: Tensor) -> Tensor:
        return -(p * p.mean(0).clamp_min(1e-9).log()).sum(1)

    return a.amax(1) - b.amax(1), even(a) - even(b)


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean of values (n,), and its standard error."""
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def clearly_less(a: Tensor, b: Tensor, errors: float) -> str:
    """What answers a (n,K) are less than b on the same images, by so many standard errors."""
    means = map(mean_and_error, witnesses(a, b))
    less = (mean + errors * error < 0 for mean, error in means)
    return next((name for name, is_so in zip(("sure", "even"), less, strict=True) if is_so), "")


@dataclass(frozen=True)
class Verdict:
    """What the witnesses say of a candidate: means with their standard errors, over n images."""

    score: float = NEVER
    score_error: float = 0.0
    confidence: float = NEVER
    confidence_error: float = 0.0
    evenness: float = NEVER
    evenness_error: float = 0.0
    n: int = 0
    mixes: bool = False  # the images of a stream, whose statistics one class alone can spoil
    few: bool = False  # are the classes that it names
    robs: bool = False  # the class that the source and it name most
    mends: bool = False  # a source that names few classes: it names many, without mixing images
    restores: str = ""  # "sharpens" or "smooths" images that otherwise look like photographs

    @property
    def refused(self) -> bool:
        """Whether that is so whatever else speaks for it."""
        return self.robs or self.confidence + self.confidence_error < -LOSS

    def accepted(self, *, in_use: bool, moved: bool = False) -> bool:
        """Whether the tower may go by the candidate.

        Not clearly less even; a newcomer better beyond noise and surer, clearly so if it mixes
        images, and by enough if it names few classes; one in use stays while it is worth something,
        and is no less sure, beyond noise if the stream is what it was chosen for.
        One that mends the use of classes need not be surer: what names one class for noise is as
        sure of it as of anything. One that gives photographs their spectrum back is trusted unless
        answers speak against it.
        """
        if self.n < LEAST or self.refused:
            return False
        if self.restores:  # a few classes become more even where sharpening does harm
            crowded = self.few and self.restores == "sharpens"
            return (self.confidence if crowded else self.score) > 0
        if self.evenness + AGAINST * self.evenness_error < 0:
            return False
        if in_use:
            slack = 0.0 if moved or (self.mixes and self.few) else self.confidence_error
            enough = self.score > STAY - PRICE * self.mixes
            return enough and (self.mends or self.confidence + slack > 0)
        surer = self.mends or self.confidence > (self.confidence_error if self.mixes else 0.0)
        stake = STAKE if self.few and not self.mixes else 0.0
        return surer and self.score > max(stake, MARGIN + SURE * self.score_error)


def judge(candidate: Tensor, source: Tensor, *, mixes: bool = False, restores: str = "") -> Verdict:
    """The verdict on answers (n,K) of a candidate beside the source's on the same images."""
    n, K = candidate.shape
    if n < 4:
        return Verdict(n=n)
    sure, even = witnesses(candidate, source)
    use, before = candidate.mean(0), source.mean(0)
    named, named_before = (effective_classes(p) / shown_classes(n, K) for p in (use, before))
    few, error = named < MANY[mixes], ((1 - 1 / K) / (K * n)) ** 0.5  # of an even class's share
    fair, crowd = 1 / K + FAIR * error, 1 / K + CROWD * error
    many = named_before < MANY[0] and named > MANY[1] and float(use[before.argmax()]) < fair
    mends = many and not mixes  # the statistics of one class spread its answers as well
    most = int(use.argmax())
    rise, noise = mean_and_error(candidate[:, most] - source[:, most])
    score = sure + (0.0 if mixes and few else EVEN) * even - PRICE * mixes
    first, second, third = map(mean_and_error, (score, sure, even))
    crowded = mixes and float(use[most]) > crowd and second[0] < AGAINST * second[1]
    robs = (few or crowded) and most == int(before.argmax()) and rise < -noise
    return Verdict(*first, *second, *third, n, mixes, few, robs, mends, restores)


class Answers(StatefulPart):
    """Answers of the candidates to the images of a trial, as a piece of state."""

    def __init__(self, candidates: int, classes: int) -> None:
        self.C, self.K = candidates, classes
        self.add_state("rows", torch.zeros(0, self.C, self.K), grows=True)  # (n,C,K)
        self.add_state("tried", torch.zeros(0, self.C, dtype=torch.bool), grows=True)

    rows: Tensor
    tried: Tensor

    def keep(self, n: int) -> None:
        """Leave the last n images."""
        start = max(0, len(self.rows) - n)
        self.rows, self.tried = self.rows[start:].clone(), self.tried[start:].clone()

    def add(self, rows: Mapping[int, Tensor]) -> None:
        """Probabilities (n,K) of the same images, by candidate."""
        n = len(next(iter(rows.values())))
        new, tried = torch.zeros(n, self.C, self.K), torch.zeros(n, self.C, dtype=torch.bool)
        for c, values in rows.items():
            new[:, c], tried[:, c] = values.float(), True
        self.rows, self.tried = torch.cat([self.rows, new]), torch.cat([self.tried, tried])

    def pair(self, c: int) -> tuple[Tensor, Tensor]:
        """The answers of a candidate and of the source where both were asked."""
        both = self.tried[:, c] & self.tried[:, 0]
        return self.rows[both, c], self.rows[both, 0]

    def check_state(self) -> None:
        if len(self.rows) != len(self.tried):
            raise ValueError(f"{len(self.rows)} answers do not match {len(self.tried)} trials.")


class Pairs(StatefulPart):
    """At most so many recent pairs of tensors: images with their features, or answers of two.

    `like` is a first of them, of no elements where its shape is not known; a second has `width`.
    """

    def __init__(self, most: int, like: Tensor, width: int) -> None:
        self.most, self.like = most, like
        self.add_state("first", like.new_zeros(0, *like.shape), grows=True)
        # probabilities, or features of length 1
        self.add_state("second", torch.zeros(0, width), grows=True, least=-1.01, most=1.01)

    first: Tensor
    second: Tensor

    def add(self, first: Tensor, second: Tensor) -> None:
        first, second = first.detach().to(self.like), second.detach().to(self.second)
        if len(self.second):
            earlier = self.first.to(first.device)  # a file has no device
            first, second = torch.cat([earlier, first]), torch.cat([self.second, second])
        self.first, self.second = first[-self.most :].clone(), second[-self.most :].clone()

    def check_state(self) -> None:
        n, m = len(self.first), len(self.second)
        if n != m or m > self.most:
            raise ValueError(f"{n} and {m} entries are not at most {self.most} pairs.")
