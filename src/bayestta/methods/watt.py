"""WATT: tune the norms with one template after the other, and average the weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.methods import register
from bayestta.methods._norm_tuner import NormTuner
from bayestta.models._text import TEMPLATES as COMMON
from bayestta.settings import Settings, setting

# The common seven and one more; the first two without a full stop.
TEMPLATES = ["a photo of a {}", "itap of a {}", *COMMON["seven"][1:]]


def agreement_loss(z: Tensor, text: Tensor, scale: float, temperature: float) -> Tensor:
    """Cross-entropy between image-text logits and the similarities inside the batch.

    z (B,D) features, text (K,D) of one template. The targets are normalised by row and then
    transposed, so that they do not sum to one, and gradients flow through them: both as in the
    official code.
    """
    t = text[(z.detach() @ text.T).argmax(1)]  # (B,D) the text of each pseudo-label
    logits = scale * z @ t.T  # (B,B)
    target = ((z @ z.T + t @ t.T) / 2 / temperature).softmax(1)
    return -(target.T * logits.log_softmax(1)).sum(1).mean()


@dataclass(frozen=True)
class WATTSettings(Settings):
    form: str = setting(
        "sequential",
        "sequential (WATT-S): a template goes on from where the one before it stopped; parallel "
        "(WATT-P): each starts from the last average.",
        choices=("sequential", "parallel"),
    )
    lr: float = setting(
        1e-3,
        "Learning rate of Adam; 1e-3 is the authors' for CIFAR, 1e-4 for their other sets.",
        least=0,
    )
    steps_each: int = setting(2, "Adam steps per template.", least=0)
    rounds: int = setting(5, "Averages.", least=1)
    temperature: float = setting(0.01, "Temperature of the similarities.", above=0)
    own_templates: bool = setting(
        True, "The method's eight templates; False: those of the data set."
    )


@register
class WATT(NormTuner):
    """Weight averages over templates: a few steps by each of eight, their mean, and again.

    The pseudo-labels of a step come from the pass that is differentiated; the official code runs
    another one for them, with the same weights.

    """

    Settings = WATTSettings
    settings: WATTSettings
    name = "watt"
    title = "WATT"
    about = "Norms averaged over steps of eight templates."
    citation = "Osowiechi et al., WATT: Weight Average Test-Time Adaptation of CLIP, NeurIPS 2024"
    tunes = "norms of the image tower, anew for every batch"
    cost = "81 forwards + 80 backwards to the norms per image"
    fidelity = (
        "code for LayerNorm (pseudo-labels share the pass of the loss: 80 forwards saved, same "
        "result); tuning BatchNorms, by stored statistics, is an extension"
    )
    reset_every = "batch"
    answer = "after"

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(tensors, lr=self.settings.lr)

    @torch.no_grad()
    def make_text(self) -> Tensor:
        if self.settings.own_templates:
            self.templates = list(TEMPLATES)  # what results are to record
        # Class names go in as they are: the official code keeps their underscores.
        lines = [
            template.replace("{}", name) for template in self.templates for name in self.classes
        ]
        self.each = self.model.encode_text(lines).view(len(self.templates), len(self.classes), -1)
        return functional.normalize(self.each.mean(0), dim=1)

    def _adapt(self, x: Tensor) -> Tensor:
        average = self.tuned.snapshot()
        for turn in range(self.settings.rounds):
            total = {key: torch.zeros_like(value) for key, value in average.items()}
            for text in self.each:
                if self.settings.form == "parallel":
                    self.tuned.assign(average)
                    if turn == 0:  # later rounds keep the moments
                        self.tuned.reset(optimiser_only=True)
                for _ in range(self.settings.steps_each):
                    z = self.model.encode_image(x, self.tuned)
                    loss = agreement_loss(z, text, self.model.scale, self.settings.temperature)
                    self.tuned.step(loss)
                for key, value in self.tuned.snapshot().items():
                    total[key] += value
            average = {key: value / len(self.each) for key, value in total.items()}
            self.tuned.assign(average)
        with torch.no_grad():
            return self._predict(x)
