"""The base of methods that tune the norms of the image tower and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods._tuned import Tuned
from bayestta.models._norms import norm_parameters


class NormTuner(Adapter):
    """Weights and biases of the norms with an optimiser, which a subclass makes."""

    tunes = "norms of the image tower"
    needs_encoder = True
    moves_tower = True

    def declare(self) -> None:
        self.tuned = Tuned(norm_parameters(self.model.visual), self._optimiser)
        if not self.tuned:
            raise ValueError(
                f"the image tower of {self.model.name!r} has no norm layers, which is all that "
                f"{self.name} tunes: use a method that leaves the tower alone, such as tda."
            )
        self.add_state("tuned", self.tuned)

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        raise NotImplementedError

    def _predict(self, x: Tensor) -> Tensor:
        return self.model.logits(self.model.encode_image(x, self.tuned, self.norms), self.text)
