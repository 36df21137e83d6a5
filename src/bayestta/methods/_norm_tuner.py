"""The base of methods that tune the norms of the image tower and nothing else: TENT and WATT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods._tuned import Tuned
from bayestta.models._norms import norm_parameters
from bayestta.models.base import VLM


class NormTuner(Adapter):
    """Weights and biases of the norms with an optimiser; what moves is saved, reset and merged.

    A subclass has its optimiser's settings before it calls this `__init__`.
    """

    tunes = "norms of the image tower"
    needs_encoder = True

    def __init__(
        self, model: VLM, names: Sequence[str], templates: Sequence[str], *, seed: int = 0
    ) -> None:
        self.tuned = Tuned(norm_parameters(model.visual), self._optimiser)
        super().__init__(model, names, templates, seed=seed)
        if not self.tuned:
            raise ValueError(
                f"the image tower of {model.name!r} has no norm layers, which is all that "
                f"{self.name} tunes: use a method that leaves the tower alone, such as tda."
            )

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        raise NotImplementedError

    def restart(self) -> None:
        super().restart()
        self.tuned.restart()

    def _predict(self, x: Tensor) -> Tensor:
        return self.model.logits(self.model.encode_image(x, self.tuned, self.norms), self.text)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), **self.tuned.state_dict("tuned/")}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.tuned.load_state_dict(state, "tuned/")

    def _merge(self, other: Any) -> None:
        self.tuned.merge(other.tuned, self.samples, other.samples)
