"""RoTTA: robust batch norms, a balanced memory of images, and a slow teacher."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayestta.adapter import Adapter
from bayestta.methods import register
from bayestta.methods._augment import augment
from bayestta.methods._records import from_columns, to_columns
from bayestta.methods._tuned import Averaged, Tuned
from bayestta.models._norms import (
    RobustStatistics,
    norm_layers,
    norm_parameters,
    running_statistics,
)
from bayestta.settings import Settings, setting
from bayestta.state import matching


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

    def __init__(self, K: int, capacity: int, like: Tensor | None = None) -> None:
        self.K, self.capacity = K, capacity
        self.like = like  # an image, where it is known what they are
        self.reset()

    def reset(self) -> None:
        self.clock = 0  # counts samples, stored or not
        self.classes: list[list[Item]] = [[] for _ in range(self.K)]

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
        image = image if self.like is None else image.to(self.like)
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

    def state(self) -> dict[str, Any]:
        first = self.items[0].image if self.items else torch.zeros(0)
        like = Item(first if self.like is None else self.like, 0, 0.0, 0)
        return {**to_columns(self.items, like), "clock": self.clock}

    def load(self, state: Mapping[str, Any]) -> None:
        images, clock = state.get("image"), matching("clock", state.get("clock"), 0, least=0)
        given = images.new_zeros(images.shape[1:]) if isinstance(images, Tensor) else torch.zeros(0)
        like = Item(given if self.like is None else self.like, 0, 0.0, 0)
        limits = {"label": (0, self.K - 1), "born": (-math.inf, clock)}
        items = from_columns(state, like, limits, self.capacity)
        self.reset()
        self.clock = clock
        for item in items:
            self.classes[item.label].append(item)

    def merge(self, other: Memory, share: float) -> None:
        for item in other.items:
            self.add(item.image, item.label, item.uncertainty, other.age(item))


def tuned_norms(visual: nn.Module) -> dict[str, Tensor]:
    """Weights and biases of the BatchNorms; of all norms where there is no BatchNorm."""
    batch = {key for key, m in norm_layers(visual).items() if isinstance(m, _BatchNorm)}
    found = norm_parameters(visual)
    return {key: v for key, v in found.items() if key.rpartition(".")[0] in batch} or found


@dataclass(frozen=True)
class RoTTASettings(Settings):
    lr: float = setting(1e-3, "Learning rate of Adam.", least=0)
    capacity: int = setting(
        64, "Images in the memory; they are kept as the model takes them.", least=1
    )
    every: int = setting(64, "Samples between two updates.", least=1)
    teacher_rate: float = setting(
        0.001, "Teacher <- (1 - rate) teacher + rate student, after an update.", least=0, most=1
    )
    momentum: float = setting(
        0.05, "Share of the batch in the statistics of the robust batch norms.", least=0, most=1
    )
    compat_unnormalised: bool = setting(
        False, "Augment normalised images as if they were pixels (see CoTTA)."
    )


@register
class RoTTA(Adapter):
    """Train the norms on a balanced memory against a slow teacher, which answers."""

    Settings = RoTTASettings
    settings: RoTTASettings
    name = "rotta"
    title = "RoTTA"
    about = "Norms trained on a balanced memory of images."
    citation = "Yuan et al., Robust Test-Time Adaptation in Dynamic Scenarios, CVPR 2023"
    tunes = "BatchNorms of the image tower (LayerNorms where there are none) and their statistics"
    cost = "3 forwards + 1 backward to the norms per image; memory of 64 images"
    fidelity = (
        "code; on towers without BatchNorm, where the official code has nothing to train, the "
        "LayerNorms are trained instead (extension rotta_ln); values for CLIP are not published"
    )
    norms = "robust"
    needs_encoder = True
    moves_tower = True

    def declare(self) -> None:
        own, start = self.settings, tuned_norms(self.model.visual)
        student = Tuned(start, lambda tensors: torch.optim.Adam(tensors, lr=own.lr))
        self.student = self.add_state("student", student)
        self.teacher = self.add_state("teacher", Averaged(lambda: start))
        shape, kind = self.model.input_shape, torch.promote_types(self.model.dtype, torch.float32)
        image = None if shape is None else torch.zeros(shape, dtype=kind, device=self.model.device)
        self.memory = self.add_state("memory", Memory(len(self.classes), own.capacity, image))
        first = running_statistics(self.model.visual)
        self.statistics = self.add_state("statistics", Averaged(lambda: first))  # the student's
        self.teacher_statistics = self.add_state("teacher_statistics", Averaged(lambda: first))

    def _adapt(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            answer = self._predict(x)
        p = answer.softmax(1)
        uncertainty = -(p * (p + 1e-6).log()).sum(1)
        for i, image in enumerate(x):
            self.memory.add(image.detach().clone(), int(p[i].argmax()), float(uncertainty[i]))
            self.memory.clock += 1
            if (self.samples + i + 1) % self.settings.every == 0:
                self._update()
        return answer

    def _predict(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x, {**self.teacher, **self.teacher_statistics})
        return self.model.logits(z, self.text)

    def _update(self) -> None:
        items = self.memory.items
        x = torch.stack([item.image for item in items])
        strong = augment(
            self.model, x, self.generator, compat_unnormalised=self.settings.compat_unnormalised
        )
        with torch.no_grad():
            teacher = self._robust(x, self.teacher, self.teacher_statistics)
        student = self._robust(strong, self.student, self.statistics)
        ages = torch.tensor([self.memory.age(item) for item in items]).to(student)
        young = torch.exp(-ages / self.settings.capacity)
        loss = -(teacher.softmax(1) * student.log_softmax(1)).sum(1)
        self.student.step((young / (1 + young) * loss).mean())
        self.teacher.follow(self.student, self.settings.teacher_rate)

    def _robust(self, x: Tensor, weights: Mapping[str, Tensor], statistics: Averaged) -> Tensor:
        """Logits by blended statistics, which are kept."""
        stored = statistics.tensors
        with RobustStatistics(stored, self.settings.momentum) as robust:
            z = self.model.encode_image(x, {**weights, **stored})
        statistics.tensors = robust.updated
        return self.model.logits(z, self.text)
