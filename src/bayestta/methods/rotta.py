"""RoTTA: robust batch norms, a balanced memory of images, and a slow teacher."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayestta.adapter import Adapter, register
from bayestta.methods._augment import augment
from bayestta.methods._tuned import Tuned
from bayestta.models._norms import (
    RobustStatistics,
    norm_layers,
    norm_parameters,
    running_statistics,
)
from bayestta.models.base import VLM


class Item(NamedTuple):
    """An image of the memory."""

    image: Tensor  # (C,H,W)
    label: int
    uncertainty: float
    born: int  # by the clock of the memory


class Memory:
    """At most `capacity` images, as balanced over pseudo labels as the stream allows.

    >>> memory = Memory(2, capacity=4)
    >>> for label in (0, 0, 0, 0, 1):
    ...     memory.add(torch.zeros(1), label, 0.1)
    >>> [len(items) for items in memory.classes]
    [2, 1]
    """

    def __init__(self, K: int, capacity: int) -> None:
        self.capacity, self.clock = capacity, 0  # the clock counts samples, stored or not
        self.classes: list[list[Item]] = [[] for _ in range(K)]

    @property
    def items(self) -> list[Item]:
        return [item for items in self.classes for item in items]

    def age(self, item: Item) -> int:
        return self.clock - item.born

    def score(self, item: Item) -> float:
        """How much an image deserves to go: old and uncertain ones first."""
        timely = 1 / (1 + math.exp(-self.age(item) / self.capacity))
        return timely + item.uncertainty / math.log(len(self.classes))

    def add(self, image: Tensor, label: int, uncertainty: float, age: int = 0) -> None:
        """Insert, if there is room or a worse image to take the place of."""
        item = Item(image, label, uncertainty, self.clock - age)
        own, quota = self.classes[label], self.capacity / len(self.classes)
        rivals = [own]
        if len(own) < quota:
            sizes = [len(items) for items in self.classes]
            if sum(sizes) < self.capacity:
                own.append(item)
                return
            most = max(sizes)
            rivals = [items for items in self.classes if len(items) == most]
        candidates = [
            (self.score(old), items, i) for items in rivals for i, old in enumerate(items)
        ]
        worst = max(score for score, _, _ in candidates)
        if worst > self.score(item):
            _, items, i = [entry for entry in candidates if entry[0] == worst][-1]
            del items[i]
            own.append(item)


def tuned_norms(visual: nn.Module) -> dict[str, Tensor]:
    """Weights and biases of the BatchNorms; of all norms where there is no BatchNorm."""
    batch = {key for key, m in norm_layers(visual).items() if isinstance(m, _BatchNorm)}
    found = norm_parameters(visual)
    return {key: v for key, v in found.items() if key.rpartition(".")[0] in batch} or found


@register
class RoTTA(Adapter):
    """Train the norms on a balanced memory against a slow teacher, which answers.

    Parameters
    ----------
    capacity
        Of the memory, in images; they are kept as the model takes them.
    every
        Samples between two updates; the memory may still be partly filled.
    teacher_rate
        teacher <- (1 - rate) teacher + rate student, after an update.
    momentum
        Of the robust batch norms: the share of the batch in the statistics.
    """

    name = "rotta"
    title = "RoTTA"
    citation = "Yuan et al., Robust Test-Time Adaptation in Dynamic Scenarios, CVPR 2023"
    tunes = "BatchNorms of the image tower (LayerNorms where there are none) and their statistics"
    cost = "3 forwards + 1 backward to the norms an image; memory of 64 images"
    fidelity = (
        "code; on towers without BatchNorm, where the official code has nothing to train, the "
        "LayerNorms are trained instead (extension rotta_ln); values for CLIP are not published"
    )
    norms = "robust"
    needs_encoder = True

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        lr: float = 1e-3,
        capacity: int = 64,
        every: int = 64,
        teacher_rate: float = 0.001,
        momentum: float = 0.05,
        compat_unnormalised: bool = False,
    ) -> None:
        self.lr, self.capacity, self.every = lr, capacity, every
        self.teacher_rate, self.momentum = teacher_rate, momentum
        self.compat_unnormalised = compat_unnormalised
        start = tuned_norms(model.visual)
        self.student = Tuned(start, lambda tensors: torch.optim.Adam(tensors, lr=lr))
        super().__init__(model, names, templates, seed=seed)

    def restart(self) -> None:
        super().restart()
        self.student.restart()
        self.teacher = self.student.snapshot()
        self.statistics = running_statistics(self.model.visual)  # of the student
        self.teacher_statistics = running_statistics(self.model.visual)
        self.memory = Memory(len(self.names), self.capacity)

    def _adapt(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            answer = self._predict(x)
        p = answer.softmax(1)
        uncertainty = -(p * (p + 1e-6).log()).sum(1)
        for i, image in enumerate(x):
            self.memory.add(image.detach().clone(), int(p[i].argmax()), float(uncertainty[i]))
            self.memory.clock += 1
            if (self.samples + i + 1) % self.every == 0:
                self._update()
        return answer

    def _predict(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x, {**self.teacher, **self.teacher_statistics})
        return self.model.logits(z, self.text)

    def _update(self) -> None:
        items = self.memory.items
        x = torch.stack([item.image for item in items])
        strong = augment(
            self.model, x, self.generator, compat_unnormalised=self.compat_unnormalised
        )
        with torch.no_grad():
            teacher, self.teacher_statistics = self._robust(
                x, self.teacher, self.teacher_statistics
            )
        student, self.statistics = self._robust(strong, self.student, self.statistics)
        ages = torch.tensor([self.memory.age(item) for item in items]).to(student)
        young = torch.exp(-ages / self.capacity)
        loss = -(teacher.softmax(1) * student.log_softmax(1)).sum(1)
        self.student.step((young / (1 + young) * loss).mean())
        with torch.no_grad():
            for key, value in self.teacher.items():
                value.lerp_(self.student[key], self.teacher_rate)

    def _robust(
        self, x: Tensor, weights: Mapping[str, Tensor], statistics: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits by blended statistics, and these."""
        with RobustStatistics(statistics, self.momentum) as robust:
            z = self.model.encode_image(x, {**weights, **statistics})
        return self.model.logits(z, self.text), robust.updated

    # --- state ---

    def _averaged(self) -> dict[str, Tensor]:
        parts = {"statistics/": self.statistics, "teacher_statistics/": self.teacher_statistics}
        parts["teacher/"] = self.teacher
        return {f"{part}{key}": v for part, own in parts.items() for key, v in own.items()}

    def state_dict(self) -> dict[str, Tensor]:
        state = {**super().state_dict(), **self.student.state_dict("student/")}
        state |= {key: value.clone() for key, value in self._averaged().items()}
        items = self.memory.items
        images = [item.image for item in items]
        state["memory/images"] = torch.stack(images) if images else torch.zeros(0)
        state["memory/labels"] = torch.tensor([item.label for item in items], dtype=torch.int64)
        state["memory/ages"] = torch.tensor(list(map(self.memory.age, items)), dtype=torch.int64)
        uncertainty = [item.uncertainty for item in items]
        state["memory/uncertainty"] = torch.tensor(uncertainty, dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.student.load_state_dict(state, "student/")
        for key, value in self._averaged().items():
            value.copy_(state[key])
        self.memory = Memory(len(self.names), self.capacity)
        columns = [state[f"memory/{key}"].tolist() for key in ("labels", "uncertainty", "ages")]
        images = state["memory/images"].to(self.text.device, copy=True)
        for image, label, uncertainty, age in zip(images, *columns, strict=True):
            self.memory.classes[label].append(Item(image, label, uncertainty, -age))

    def _merge(self, other: RoTTA) -> None:
        if other.samples == 0:
            return
        self.student.merge(other.student, self.samples, other.samples)
        share, theirs = other.samples / (self.samples + other.samples), other._averaged()
        for key, value in self._averaged().items():
            value.lerp_(theirs[key], share)
        for item in other.memory.items:
            self.memory.add(item.image, item.label, item.uncertainty, other.memory.age(item))
