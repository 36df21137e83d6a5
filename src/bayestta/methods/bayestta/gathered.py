"""What images have brought for the next step: their gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from bayestta.methods._tuned import Averaged
from bayestta.state import StatefulPart


class Gathered(StatefulPart):
    """The sum of gradients of some images, by the names of the tensors `start`.

    >>> gathered = Gathered({"w": torch.zeros(2)})
    >>> gathered.add([torch.ones(2)], 4)
    >>> gathered.mean["w"].tolist()
    [0.25, 0.25]
    """

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        self.total = Averaged(lambda: {key: torch.zeros_like(v) for key, v in start.items()})
        self.add_state("total", self.total)
        self.add_state("count", 0, merge="sum", least=0)

    count: int  # images in the gradient

    @property
    def mean(self) -> dict[str, Tensor]:
        """The gradient per image."""
        return {key: total / self.count for key, total in self.total.items()}

    def add(self, gradient: Iterable[Tensor], n: int) -> None:
        """Take in the sum of the gradients of n images."""
        for key, part in zip(self.total, gradient, strict=True):
            self.total.tensors[key] = self.total[key] + part
        self.count += n

    def merge(self, other: Gathered, share: float) -> None:
        """Gradients add."""
        both = {key: self.total[key] + other.total[key] for key in self.total}
        self.merge_state(other, share)
        self.total.tensors = both
