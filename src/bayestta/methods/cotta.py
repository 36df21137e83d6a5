"""CoTTA: a student, its averaged teacher, and a little of the source put back at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayestta.adapter import Adapter, register
from bayestta.methods._augment import augment
from bayestta.methods._tuned import Tuned
from bayestta.models.base import VLM
from bayestta.names import unknown

LOSSES = ("symmetric", "cross-entropy")
OPTIMISERS = ("sgd", "adam")


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


@register
class CoTTA(Adapter):
    """Learn from the averaged answers of a teacher, and restore random weights to the source.

    The defaults are those of the official ImageNet code. Its CIFAR code is `loss="cross-entropy",
    optimiser="adam", lr=1e-3, restore=0.01`, with threshold 0.92 (CIFAR-10) or 0.72 (CIFAR-100).

    Parameters
    ----------
    teacher_momentum
        Of the teacher: teacher <- m teacher + (1-m) student.
    restore
        The chance of a weight to go back to the source after a step.
    threshold
        Below this mean confidence of the source the teacher answers by the mean of `augmentations`
        passes. The paper's rule is the 5 % quantile of the confidence on source images.
    norms
        `batch`: BatchNorms of all three networks go by the batch, as in the official code.
    compat_unnormalised
        Augment normalised images as if they were pixels; see `bayestta.methods._augment`. That
        published comparisons did so is inferred from the collapse that they report.
    """

    name = "cotta"
    title = "CoTTA"
    citation = "Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022"
    tunes = "all weights and biases of the image tower"
    cost = "3 forwards + 1 full backward an image, + 31 forwards where the source is unsure"
    fidelity = (
        "code (ImageNet file; the CIFAR file by keywords); image tower only, frozen text; values "
        "for CLIP are not published"
    )
    needs_encoder = True

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        lr: float = 0.01,
        optimiser: str = "sgd",
        loss: str = "symmetric",
        teacher_momentum: float = 0.999,
        restore: float = 0.001,
        threshold: float = 0.1,
        augmentations: int = 32,
        norms: str = "batch",
        compat_unnormalised: bool = False,
    ) -> None:
        if loss not in LOSSES:
            raise ValueError(unknown("loss of cotta", loss, LOSSES))
        if optimiser not in OPTIMISERS:
            raise ValueError(unknown("optimiser of cotta", optimiser, OPTIMISERS))
        self.lr, self.optimiser, self.loss = lr, optimiser, loss
        self.teacher_momentum, self.restore = teacher_momentum, restore
        self.threshold, self.augmentations, self.norms = threshold, augmentations, norms
        self.compat_unnormalised = compat_unnormalised
        # The average runs over all parameters, but those that nobody trains stay what they are.
        self.student = Tuned(trainable(model.visual), self._optimiser)
        super().__init__(model, names, templates, seed=seed)

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        if self.optimiser == "adam":
            return torch.optim.Adam(tensors, lr=self.lr)
        return torch.optim.SGD(tensors, lr=self.lr, momentum=0.9, nesterov=True)

    def restart(self) -> None:
        super().restart()
        self.student.restart()
        self.teacher = self.student.snapshot()

    def _adapt(self, x: Tensor) -> Tensor:
        student = self._logits(x, self.student)
        with torch.no_grad():
            answer = self._teach(x, self.generator)
        forward = -(answer.softmax(1) * student.log_softmax(1)).sum(1).mean()
        backward = -(student.softmax(1) * answer.log_softmax(1)).sum(1).mean()
        both = self.loss == "symmetric"
        self.student.step(0.5 * forward + 0.5 * backward if both else forward)
        self._follow()
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
        if sure >= self.threshold:
            return self._logits(x, self.teacher)
        total = torch.zeros(len(x), len(self.names), device=self.text.device)
        for _ in range(self.augmentations):
            seen = augment(self.model, x, generator, compat_unnormalised=self.compat_unnormalised)
            total += self._logits(seen, self.teacher)
        return total / self.augmentations

    @torch.no_grad()
    def _follow(self) -> None:
        for key, value in self.teacher.items():
            value.lerp_(self.student[key], 1 - self.teacher_momentum)

    @torch.no_grad()
    def _restore(self) -> None:
        for key, value in self.student.items():
            mask = torch.rand(value.shape, generator=self.generator) < self.restore
            mask = mask.to(value.device)
            value.copy_(torch.where(mask, self.student.start[key], value))

    def state_dict(self) -> dict[str, Tensor]:
        teacher = {f"teacher/{key}": value.clone() for key, value in self.teacher.items()}
        return {**super().state_dict(), **self.student.state_dict("student/"), **teacher}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.student.load_state_dict(state, "student/")
        for key, value in self.teacher.items():
            value.copy_(state[f"teacher/{key}"])

    def _merge(self, other: CoTTA) -> None:
        self.student.merge(other.student, self.samples, other.samples)
        if other.samples:
            share = other.samples / (self.samples + other.samples)
            for key, value in self.teacher.items():
                value.lerp_(other.teacher[key], share)
