"""CoTTA: a student, its averaged teacher, and a little of the source put back at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayestta.adapter import Adapter
from bayestta.methods import register
from bayestta.methods._augment import augment
from bayestta.methods._tuned import Averaged, Tuned
from bayestta.settings import Settings, setting


def trainable(visual: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters whose own name is exactly `weight` or `bias`.

    The official code trains and restores by that rule. On a ViT it leaves out the packed attention
    weights, the embeddings and the projection.

    >>> sorted(trainable(nn.MultiheadAttention(4, 1)))
    ['out_proj.bias', 'out_proj.weight']
    """
    return {
        key: value.detach().to(torch.promote_types(value.dtype, torch.float32)).clone()
        for key, value in visual.named_parameters()
        if key.rpartition(".")[2] in ("weight", "bias")
    }


@dataclass(frozen=True)
class CoTTASettings(Settings):
    lr: float = setting(0.01, "Learning rate.", least=0)
    optimiser: str = setting(
        "sgd", "Optimiser; sgd has Nesterov momentum 0.9.", choices=("sgd", "adam")
    )
    loss: str = setting("symmetric", "Consistency loss.", choices=("symmetric", "cross-entropy"))
    teacher_momentum: float = setting(
        0.999, "Teacher <- m teacher + (1-m) student.", least=0, most=1
    )
    restore: float = setting(
        0.001, "Chance of a weight to go back to the source after a step.", least=0, most=1
    )
    threshold: float = setting(
        0.1,
        "Mean confidence of the source below which the teacher answers by augmented passes, above "
        "1 always; the paper's rule is the 5 % quantile of the confidence on source images.",
        least=0,
    )
    augmentations: int = setting(32, "Augmented passes where the source is unsure.", least=1)
    norms: str = setting(
        "batch", "Statistics of the BatchNorms of all networks.", choices=("batch", "source")
    )
    compat_unnormalised: bool = setting(
        False,
        "Augment normalised images as if they were pixels; that published comparisons did so is "
        "inferred from the collapse that they report.",
    )


@register
class CoTTA(Adapter):
    """Learn from the averaged answers of a teacher, and restore random weights to the source.

    The defaults are those of the official ImageNet code. Its CIFAR code is `loss="cross-entropy",
    optimiser="adam", lr=1e-3, restore=0.01`, with threshold 0.92 (CIFAR-10) or 0.72 (CIFAR-100).

    """

    Settings = CoTTASettings
    settings: CoTTASettings
    name = "cotta"
    title = "CoTTA"
    about = "A slow teacher, and weights that are put back."
    citation = "Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022"
    tunes = "all weights and biases of the image tower"
    cost = "3 forwards + 1 full backward per image, + 31 forwards where the source is unsure"
    fidelity = (
        "code (ImageNet file; the CIFAR file by keywords); image tower only, frozen text; values "
        "for CLIP are not published"
    )
    needs_encoder = True
    moves_tower = True

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        if self.settings.optimiser == "adam":
            return torch.optim.Adam(tensors, lr=self.settings.lr)
        return torch.optim.SGD(tensors, lr=self.settings.lr, momentum=0.9, nesterov=True)

    def declare(self) -> None:
        # The average runs over all parameters, but those that nobody trains stay what they are.
        student = Tuned(trainable(self.model.visual), self._optimiser)
        self.student = self.add_state("student", student)
        self.teacher = self.add_state("teacher", Averaged(lambda: student.start))

    def _adapt(self, x: Tensor) -> Tensor:
        student = self._logits(x, self.student)
        with torch.no_grad():
            answer = self._teach(x, self.generator)
        forward = -(answer.softmax(1) * student.log_softmax(1)).sum(1).mean()
        backward = -(student.softmax(1) * answer.log_softmax(1)).sum(1).mean()
        both = self.settings.loss == "symmetric"
        self.student.step(0.5 * forward + 0.5 * backward if both else forward)
        self.teacher.follow(self.student, 1 - self.settings.teacher_momentum)
        self._restore()
        return answer

    def _predict(self, x: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.set_state(self.generator.get_state())  # what `adapt` would draw next
        return self._teach(x, generator)

    def _logits(self, x: Tensor, weights: Mapping[str, Tensor] | None) -> Tensor:
        return self.model.logits(self.model.encode_image(x, weights, self.norms), self.text)

    def _teach(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The teacher's logits: of the batch, or averaged where the source is unsure of it."""
        sure = float(self._logits(x, None).softmax(1).amax(1).mean())  # the anchor is the model
        if sure >= self.settings.threshold:
            return self._logits(x, self.teacher)
        total = torch.zeros(len(x), len(self.classes), device=self.text.device)
        for _ in range(self.settings.augmentations):
            seen = augment(
                self.model, x, generator, compat_unnormalised=self.settings.compat_unnormalised
            )
            total += self._logits(seen, self.teacher)
        return total / self.settings.augmentations

    @torch.no_grad()
    def _restore(self) -> None:
        for key, value in self.student.items():
            mask = torch.rand(value.shape, generator=self.generator) < self.settings.restore
            mask = mask.to(value.device)
            value.copy_(torch.where(mask, self.student.start[key], value))
