"""AdaPrompt: three prompts, tuned on a balanced buffer of confident images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.adapter import Adapter
from bayestta.methods import register
from bayestta.methods._records import Records
from bayestta.methods._tuned import Tuned
from bayestta.models._prompts import PromptLearner
from bayestta.settings import Settings, setting

CONTEXTS = ("an image of a", "a colorful image of a", "a noisy picture of a")


class Item(NamedTuple):
    """A confident image. The image tower is frozen, so that its feature is all that is needed."""

    feature: Tensor  # (D,)
    label: int
    confidence: float


def insert(items: list[Item], item: Item, capacity: int, generator: torch.Generator) -> list[Item]:
    """The buffer with a new item, in the place of the least confident one of a largest class.

    >>> one = [Item(torch.zeros(1), 0, c) for c in (0.9, 0.8)]
    >>> [i[1:] for i in insert(one, Item(torch.zeros(1), 1, 0.75), 2, torch.Generator())]
    [(0, 0.9), (1, 0.75)]
    >>> [i[1:] for i in insert(one, Item(torch.zeros(1), 0, 0.75), 2, torch.Generator())]
    [(0, 0.9), (0, 0.8)]
    """
    if len(items) < capacity:
        return [*items, item]
    labels = [old.label for old in items]
    most = max(labels.count(label) for label in labels)
    largest = sorted({label for label in labels if labels.count(label) == most})
    target = item.label
    if target not in largest:
        target = largest[int(torch.randint(len(largest), (), generator=generator))]
    lowest = min((i for i in items if i.label == target), key=lambda old: old.confidence)
    if target == item.label and item.confidence < lowest.confidence:
        return items
    return [old for old in items if old is not lowest] + [item]


@dataclass(frozen=True)
class AdaPromptSettings(Settings):
    lr: float = setting(5e-3, "Learning rate.", least=0)
    weight_decay: float = setting(0.01, "Weight decay of AdamW.", least=0)
    confidence: float = setting(
        0.7, "Confidence from which on an image enters the buffer.", least=0, most=1
    )
    capacity: int = setting(
        64, "Images in the buffer; there is no update before it is full.", least=1
    )
    loss: str = setting(
        "double_softmax",
        "Cross-entropy of the softmax of probabilities, as in the official code (double_softmax), "
        "or of the logits, which was meant (cross_entropy).",
        choices=("double_softmax", "cross_entropy"),
    )
    carry: bool = setting(
        True,
        "A reset keeps the prompts and takes them for the first forms, as in the official code, "
        "whose prompts escape the reset that was meant; False is that reset.",
    )


@register
class AdaPrompt(Adapter):
    """Tune three prompts by the labels that their first forms give to confident images."""

    Settings = AdaPromptSettings
    settings: AdaPromptSettings
    name = "adaprompt"
    title = "AdaPrompt"
    about = "Three prompts, tuned by their own first labels."
    citation = "Zhang et al., Robust Test-Time Adaptation for Zero-Shot Prompt Tuning, AAAI 2024"
    tunes = "the contexts of 3 prompts"
    cost = "1 forward per image; text tower 6 forwards + 3 backwards per batch"
    fidelity = (
        "code, in float32 without its gradient scaler; the buffer keeps features instead of "
        "images; a new domain clears buffer and optimiser but carries the prompts, which the code "
        "fails to reset (carry=False does, reset_every=never clears nothing); prompts are its "
        "own, not the data set's templates"
    )
    answer = "after"
    reset_every = "domain"
    needs_encoder = True

    def make_text(self) -> Tensor:
        self.templates = [f"{context} {{}}." for context in CONTEXTS]  # what results record
        self.learners = {c: PromptLearner(self.model, self.classes, c) for c in CONTEXTS}
        start = {context: learner.start for context, learner in self.learners.items()}
        self.tuned = Tuned(start, self._optimiser)
        return self._text().detach()

    def _text(self) -> Tensor:
        """The mean over prompts (K,D), not normalised: its logits are the mean of theirs."""
        texts = [learner(self.tuned[context]) for context, learner in self.learners.items()]
        return torch.stack(texts).mean(0)

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        own = self.settings
        return torch.optim.AdamW(tensors, lr=own.lr, weight_decay=own.weight_decay)

    def declare(self) -> None:
        self.add_state("tuned", self.tuned)
        self.origin = self.add_state("origin", self.text)  # (K,D) text of the first forms
        K, capacity = self.text.shape[0], self.settings.capacity

        def add(items: list[Item], item: Item) -> list[Item]:
            return insert(items, item, capacity, self.generator)

        like = Item(torch.zeros_like(self.text[0]), 0, 0.0)
        limits = {"label": (0, K - 1), "confidence": (0, 1)}
        self.buffer = Records(like, capacity, add, **limits)
        self.add_state("buffer", self.buffer)

    def reset(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            carried = self.tuned.snapshot()
            super().reset()
            if self.settings.carry:
                self.tuned.assign(carried)
                self.origin = self._text()

    def _adapt(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z = self.model.encode_image(x)
            self.sketch = self.model.logits(z, self.text)
            p = self.model.logits(z, self.origin).softmax(1)
        for feature, row in zip(z, p, strict=True):
            item = Item(feature.clone(), int(row.argmax()), float(row.max()))
            if item.confidence > self.settings.confidence:
                self.buffer.insert_record(item)
        if len(self.buffer) >= self.settings.capacity:
            self._update()
        return self._answer(z)

    def _predict(self, x: Tensor) -> Tensor:
        return self._answer(self.model.encode_image(x))

    @torch.no_grad()
    def _answer(self, z: Tensor) -> Tensor:
        return self.model.logits(z, self._text())

    def _update(self) -> None:
        z = torch.stack([item.feature for item in self.buffer])
        labels = torch.tensor([item.label for item in self.buffer], device=z.device)
        logits = self.model.logits(z, self._text())
        if self.settings.loss == "double_softmax":
            logits = logits.softmax(1)
        self.tuned.step(functional.cross_entropy(logits, labels))
