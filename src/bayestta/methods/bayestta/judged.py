"""Images that tuned tensors and the source both answered: what they say of the tensors."""

from __future__ import annotations

import torch

from bayestta.methods.bayestta.trials import Pairs, clearly_less, witnesses

KEEP, ENOUGH = 72, 24  # images that are kept, and from which on they are heard
AGAINST = (3.0, 2.0)  # standard errors at which a witness is, at first and after a return


class Judged(Pairs):
    """The last probabilities (n,K) of the tensors, `first`, beside the source's, `second`."""

    def __init__(self, classes: int) -> None:
        super().__init__(KEEP, torch.zeros(classes), classes)

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

    @property
    def suddenly_less_sure(self) -> bool:
        """Whether the last images speak clearly against tensors that the earlier ones spoke for."""
        old = len(self.second) - ENOUGH
        if old < ENOUGH or clearly_less(self.first[:old], self.second[:old], 0.0):
            return False
        return clearly_less(self.first[old:], self.second[old:], AGAINST[0]) == "sure"

    def less(self, *, again: bool) -> str:
        """What the answers of the tensors clearly are less than the source's."""
        if len(self.second) < ENOUGH:
            return ""
        return clearly_less(self.first, self.second, AGAINST[again])
