"""WATT: tune the norms with one template after the other, and average the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.adapter import register
from bayestta.methods._norm_tuner import NormTuner
from bayestta.models._text import TEMPLATES as COMMON
from bayestta.models.base import VLM
from bayestta.names import unknown

FORMS = ("sequential", "parallel")
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


@register
class WATT(NormTuner):
    """Weight averages over templates: a few steps by each of eight, their mean, and again.

    The pseudo-labels of a step come from the pass that is differentiated; the official code runs
    another one for them, with the same weights.

    Parameters
    ----------
    form
        `sequential` (WATT-S): a template goes on from where the one before it stopped; `parallel`
        (WATT-P): each starts from the last average.
    lr
        Of Adam; 1e-3 is the authors' for CIFAR, 1e-4 for all their other data sets.
    steps_each, rounds
        Adam steps by each template, and averages.
    own_templates
        The method's eight; False: those of the data set.
    """

    name = "watt"
    title = "WATT"
    citation = "Osowiechi et al., WATT: Weight Average Test-Time Adaptation of CLIP, NeurIPS 2024"
    tunes = "norms of the image tower, anew for every batch"
    cost = "81 forwards + 80 backwards to the norms an image"
    fidelity = (
        "code for LayerNorm (pseudo-labels share the pass of the loss: 80 forwards saved, same "
        "result); tuning BatchNorms, by stored statistics, is an extension"
    )
    reset = "batch"
    answer = "after"

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        form: str = "sequential",
        lr: float = 1e-3,
        steps_each: int = 2,
        rounds: int = 5,
        temperature: float = 0.01,
        own_templates: bool = True,
    ) -> None:
        if form not in FORMS:
            raise ValueError(unknown("form of watt", form, FORMS))
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}: give 1 or more.")
        self.form, self.lr, self.steps_each, self.rounds = form, lr, steps_each, rounds
        self.temperature, self.own_templates = temperature, own_templates
        super().__init__(model, names, TEMPLATES if own_templates else templates, seed=seed)

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(tensors, lr=self.lr)

    @torch.no_grad()
    def make_text(self) -> Tensor:
        # Class names go in as they are: the official code keeps their underscores.
        lines = [template.replace("{}", name) for template in self.templates for name in self.names]
        self.each = self.model.encode_text(lines).view(len(self.templates), len(self.names), -1)
        return functional.normalize(self.each.mean(0), dim=1)

    def _adapt(self, x: Tensor) -> Tensor:
        average = self.tuned.snapshot()
        for turn in range(self.rounds):
            total = {key: torch.zeros_like(value) for key, value in average.items()}
            for text in self.each:
                if self.form == "parallel":
                    self.tuned.assign(average)
                    if turn == 0:  # later rounds keep the moments
                        self.tuned.restart(optimiser_only=True)
                for _ in range(self.steps_each):
                    z = self.model.encode_image(x, self.tuned)
                    loss = agreement_loss(z, text, self.model.scale, self.temperature)
                    self.tuned.step(loss)
                for key, value in self.tuned.snapshot().items():
                    total[key] += value
            average = {key: value / len(self.each) for key, value in total.items()}
            self.tuned.assign(average)
        with torch.no_grad():
            return self._predict(x)
