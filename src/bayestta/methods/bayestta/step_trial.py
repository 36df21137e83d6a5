"""A step of the weights on trial: the next images judge it before it answers any."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayestta.methods._tuned import Averaged
from bayestta.methods.bayestta.trials import Pairs
from bayestta.state import StatefulPart

ASKED = 6  # images that judge a step


class StepTrial(StatefulPart):
    """Tensors that a step led to, and what the images that came since say of them.

    No image is kept for it: answers go by the tensors before the step until enough images have
    been asked under both.

    Parameters
    ----------
    start
        The tensors that are tuned, by name.
    text
        Prototypes (K,D).
    """

    def __init__(self, start: Mapping[str, Tensor], text: Tensor) -> None:
        K = len(text)
        self.tensors = Averaged(lambda: start)
        self.answers = Pairs(ASKED, torch.zeros(K), K)  # of the step, beside the source's
        self.add_state("tensors", self.tensors)
        self.add_state("answers", self.answers)
        self.add_state("left", 0, least=0, most=ASKED)
        self.add_state("change", 0.0, least=0, most=ASKED)
        self.add_state("shift", torch.zeros_like(text[0], dtype=torch.float32), least=-2, most=2)

    left: int  # images that are still to be asked; 0 where no step is on trial
    change: float  # sum over images of the total variation from the answer before the step
    shift: Tensor  # (D,) by how much the step moves features, on average

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        self.reset()
        self.tensors.tensors = {key: value.detach().clone() for key, value in tensors.items()}
        self.left = ASKED

    def add(self, shift: Tensor, new: Tensor, old: Tensor, source: Tensor) -> None:
        """Take in images: by how much the step moves their features (n,D), and what answers (n,K)
        they get from it, before it and from the source."""
        asked, n = ASKED - self.left, len(new)
        self.left = self.left - n if bool(new.isfinite().all()) else 0  # which is known at once
        self.change += float((new - old).abs().sum()) / 2
        self.shift = torch.lerp(self.shift, shift.mean(0).to(self.shift), n / (asked + n))
        self.answers.add(new.cpu(), source)

    @property
    def leap(self) -> float:
        """The mean change of the answers that were asked; NaN where the step gives no numbers."""
        return self.change / max(1, len(self.answers.second))

    def merge(self, other: StepTrial, share: float) -> None:
        """The tensors that the step started from are no more."""
        self.reset()
