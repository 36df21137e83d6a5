"""AdaPrompt: three prompts, tuned on a balanced buffer of confident images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.adapter import Adapter, register
from bayestta.methods._tuned import Tuned
from bayestta.models._prompts import PromptLearner
from bayestta.models.base import VLM
from bayestta.names import unknown

CONTEXTS = ("an image of a", "a colorful image of a", "a noisy picture of a")
LOSSES = ("double_softmax", "cross_entropy")


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


@register
class AdaPrompt(Adapter):
    """Tune three prompts by the labels that their first forms give to confident images.

    Parameters
    ----------
    confidence
        From which on an image enters the buffer.
    capacity
        Of the buffer; there is no update before it is full.
    loss
        `double_softmax`: cross-entropy of the softmax of probabilities, as in the official code,
        whose gradients are very small; `cross_entropy`: what was meant.
    carry
        `restart` keeps the prompts and takes them for the first forms, as in the official code,
        whose prompts escape the reset that was meant; False is that reset.
    """

    name = "adaprompt"
    title = "AdaPrompt"
    citation = "Zhang et al., Robust Test-Time Adaptation for Zero-Shot Prompt Tuning, AAAI 2024"
    tunes = "the contexts of 3 prompts"
    cost = "1 forward an image; text tower 6 forwards + 3 backwards a batch"
    fidelity = (
        "code, in float32 without its gradient scaler; the buffer keeps features instead of "
        "images; a new domain clears buffer and optimiser but carries the prompts, which the code "
        "fails to reset (carry=False does, reset=never clears nothing); prompts are its own, not "
        "the data set's templates"
    )
    answer = "after"
    reset = "domain"
    needs_encoder = True

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        lr: float = 5e-3,
        weight_decay: float = 0.01,
        confidence: float = 0.7,
        capacity: int = 64,
        loss: str = "double_softmax",
        carry: bool = True,
    ) -> None:
        if loss not in LOSSES:
            raise ValueError(unknown("loss of adaprompt", loss, LOSSES))
        self.lr, self.weight_decay, self.confidence = lr, weight_decay, confidence
        self.capacity, self.loss, self.carry = capacity, loss, carry
        super().__init__(model, names, templates, seed=seed)

    def make_text(self) -> Tensor:
        self.templates = [f"{context} {{}}." for context in CONTEXTS]  # what results record
        self.learners = {c: PromptLearner(self.model, self.names, c) for c in CONTEXTS}
        start = {context: learner.start for context, learner in self.learners.items()}
        self.tuned = Tuned(start, self._optimiser)
        return self._text().detach()

    def _text(self) -> Tensor:
        """The mean over prompts (K,D), not normalised: its logits are the mean of theirs."""
        texts = [learner(self.tuned[context]) for context, learner in self.learners.items()]
        return torch.stack(texts).mean(0)

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(tensors, lr=self.lr, weight_decay=self.weight_decay)

    def restart(self) -> None:
        super().restart()
        self.tuned.restart(optimiser_only=self.carry)
        self.origin = self._text().detach() if self.carry else self.text
        self.buffer: list[Item] = []

    def _adapt(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z = self.model.encode_image(x)
            self.sketch = self.model.logits(z, self.text)
            p = self.model.logits(z, self.origin).softmax(1)
        for feature, row in zip(z, p, strict=True):
            item = Item(feature.clone(), int(row.argmax()), float(row.max()))
            if item.confidence > self.confidence:
                self.buffer = insert(self.buffer, item, self.capacity, self.generator)
        if len(self.buffer) >= self.capacity:
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
        if self.loss == "double_softmax":
            logits = logits.softmax(1)
        self.tuned.step(functional.cross_entropy(logits, labels))

    def state_dict(self) -> dict[str, Tensor]:
        state = {**super().state_dict(), **self.tuned.state_dict("tuned/")}
        state["origin"] = self.origin.clone()
        features = [item.feature for item in self.buffer]
        state["buffer/features"] = torch.stack(features) if features else torch.zeros(0)
        labels, sure = [i.label for i in self.buffer], [i.confidence for i in self.buffer]
        state["buffer/labels"] = torch.tensor(labels, dtype=torch.int64)
        state["buffer/confidence"] = torch.tensor(sure, dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.tuned.load_state_dict(state, "tuned/")
        self.origin = state["origin"].to(self.text, copy=True)
        features = state["buffer/features"].to(self.text, copy=True)
        about = (state[f"buffer/{key}"].tolist() for key in ("labels", "confidence"))
        self.buffer = [Item(*item) for item in zip(features, *about, strict=True)]

    def _merge(self, other: AdaPrompt) -> None:
        self.tuned.merge(other.tuned, self.samples, other.samples)
        for item in other.buffer:
            self.buffer = insert(self.buffer, item, self.capacity, self.generator)
