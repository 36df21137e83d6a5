"""TENT: entropy minimisation by the norms of the image tower."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayestta.methods import register
from bayestta.methods._losses import entropy
from bayestta.methods._norm_tuner import NormTuner
from bayestta.settings import Settings, setting


@dataclass(frozen=True)
class TentSettings(Settings):
    """The official CIFAR values."""

    lr: float = setting(1e-3, "Learning rate; the ImageNet value for sgd is 0.00025.", least=0)
    optimiser: str = setting("adam", "Optimiser; sgd has momentum 0.9.", choices=("adam", "sgd"))
    updates: int = setting(1, "Steps per batch.", least=1)
    norms: str = setting(
        "batch",
        "BatchNorms go by the batch, as in the official code, or by their stored statistics "
        "(source); LayerNorms do not know the difference.",
        choices=("batch", "source"),
    )
    answer: str = setting(
        "before",
        "The answer is that of the pass which gave the last loss, as in the official code, or of "
        "a pass with the updated norms (after).",
        choices=("before", "after"),
    )


@dataclass(frozen=True)
class TentResetSettings(TentSettings):
    """TENT's, with the answer after the step."""

    answer: str = setting(
        "after", "The answer precedes or follows the step.", choices=("before", "after")
    )


@register
class Tent(NormTuner):
    """Lower the mean entropy of each batch by the norms of the image tower, and never go back."""

    Settings = TentSettings
    settings: TentSettings
    name = "tent-continual"
    title = "TENT (continual)"
    about = "Lower entropy by the norms, batch after batch."
    citation = "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021"
    cost = "1 forward + 1 backward to the norms per image (+ 1 forward for answer=after)"
    fidelity = (
        "code for BatchNorm; tuning LayerNorms is an extension, as the official code has nothing "
        "to tune there"
    )

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        if self.settings.optimiser == "adam":
            return torch.optim.Adam(tensors, lr=self.settings.lr)
        return torch.optim.SGD(tensors, lr=self.settings.lr, momentum=0.9)

    def _adapt(self, x: Tensor) -> Tensor:
        for _ in range(self.settings.updates):
            logits = self._predict(x)
            self.tuned.step(entropy(logits).mean())
        if self.answer == "before":
            return logits
        with torch.no_grad():
            return self._predict(x)


@register
class TentReset(Tent):
    """TENT that starts afresh with every batch, and answers after its one step.

    What the comparisons call TENT-reset is inferred from their tables: the official episodic form
    answers before the step, and with stored statistics would be zero-shot to the bit.
    """

    Settings = TentResetSettings
    settings: TentResetSettings
    name = "tent-reset"
    title = "TENT (reset)"
    about = "TENT that starts afresh with every batch."
    cost = "2 forwards + 1 backward to the norms per image"
    fidelity = f"inferred: reset by batch, answer after the step; {Tent.fidelity}"
    reset_every = "batch"
