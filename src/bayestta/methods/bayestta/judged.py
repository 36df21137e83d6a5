"""Images that tuned tensors and the source both answered: what they say of the tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.methods.bayestta.trials import Pairs, clearly_less, witnesses

KEEP, ENOUGH = 72, 24  # images that are kept, and from which on they are heard
AGAINST = (3.0, 2.0)  # standard errors at which a witness is, at first and after a return
# Signs: the stream has moved, answers are less sure than the source's of late, or worse altogether.
MOVED, SUDDENLY, LESS = 1, 2, 3


class Judged(Pairs):
    """The last probabilities (n,K) of the tensors, `first`, beside the source's, `second`.

    Signs are looked for again and again, and now and then chance gives one. So a sign is a
    suspicion, and `ENOUGH` fresh images decide, by two standard errors.
    """

    def __init__(self, classes: int) -> None:
        super().__init__(KEEP, torch.zeros(classes), classes)
        self.add_state("sign", 0, least=0, most=LESS)  # that is suspected; 0 is none
        self.add_state("wanted", 0, least=0, most=ENOUGH)  # fresh images, until it is decided

    sign: int
    wanted: int

    @property
    def surer(self) -> float:
        """By how much the tensors raise the confidence, which sharp targets do, right or wrong."""
        if len(self.second) < ENOUGH:
            return 0.0
        return max(0.0, float((self.first.amax(1) - self.second.amax(1)).mean()))

    @property
    def evener(self) -> float:
        """By how much the tensors raise the entropy of the mean answer, in nats, if at all."""
        if len(self.second) < ENOUGH:
            return 0.0
        return max(0.0, float(witnesses(self.first, self.second)[1].mean()))

    def suspect(self, sign: int) -> None:
        """Let fresh images decide, unless they do so already."""
        if sign and not self.sign:
            self.sign, self.wanted = sign, ENOUGH

    def add(self, first: Tensor, second: Tensor) -> None:
        super().add(first, second)
        self.wanted = max(0, self.wanted - len(first))

    def decide(self, *, again: bool) -> tuple[int, str]:
        """A sign that fresh images confirm, and what answers are less of than the source's."""
        if not self.sign:
            self.suspect(self._sign(again))
            return 0, ""
        if self.wanted:
            return 0, ""
        sign, self.sign = self.sign, 0
        self.first, self.second = self.first[-ENOUGH:].clone(), self.second[-ENOUGH:].clone()
        less = clearly_less(self.first, self.second, AGAINST[1])
        return (sign, less) if less == "sure" or (less and sign == LESS) else (0, "")

    def _sign(self, again: bool) -> int:
        if self._suddenly_less_sure:
            return SUDDENLY
        enough = len(self.second) >= ENOUGH
        return LESS if enough and clearly_less(self.first, self.second, AGAINST[again]) else 0

    @property
    def _suddenly_less_sure(self) -> bool:
        """Whether the last images speak clearly against tensors that the earlier ones spoke for."""
        old = len(self.second) - ENOUGH
        if old < ENOUGH or clearly_less(self.first[:old], self.second[:old], 0.0):
            return False
        return clearly_less(self.first[old:], self.second[old:], AGAINST[0]) == "sure"
