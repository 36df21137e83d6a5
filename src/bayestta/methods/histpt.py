"""HisTPT: text embeddings of the past, in three banks, teach the prompt (derived)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.adapter import Adapter, register
from bayestta.methods._tuned import Tuned
from bayestta.methods.tpt import check_views, encode_views, entropy
from bayestta.models._prompts import PromptLearner
from bayestta.models.base import VLM
from bayestta.names import unknown

CHOICES = {
    "order": ("before", "after"),
    "long_term": ("oldest", "prototypes"),
    "fusion": ("logits", "probabilities"),
    "label": ("hard", "soft"),
    "entropy": ("softmax", "raw"),
}


class Banks(NamedTuple):
    """What is remembered, the newest first."""

    local: Tensor  # (N,K,D)
    entropies: Tensor  # (N,), of the samples that came with the local entries
    hard: Tensor  # (N,K,D)
    long_term: Tensor  # (K,D)

    @classmethod
    def start(cls, text: Tensor, uncertainty: Tensor, size: int) -> Banks:
        """At first use all entries are copies of the current embeddings."""
        many = text.repeat(size, 1, 1)
        return cls(many, uncertainty.repeat(size), many.clone(), text.clone())

    def push(
        self, text: Tensor, uncertainty: Tensor, hardest: int, decay: float, how: str
    ) -> Banks:
        """Take in the embeddings of a sample; the oldest entries go."""
        local = torch.cat([text[None], self.local[:-1]])
        entropies = torch.cat([uncertainty[None], self.entropies[:-1]])
        picked = entropies.argsort(descending=True, stable=True)[:hardest]
        hard = torch.cat([local[picked].mean(0, keepdim=True), self.hard[:-1]])
        news = (local[-1], hard[-1]) if how == "oldest" else (local.mean(0), hard.mean(0))
        long_term = decay * self.long_term + (1 - decay) * 0.5 * (news[0] + news[1])
        return Banks(local, entropies, hard, long_term)

    def prototypes(self, normalise: bool) -> Tensor:
        """The embeddings that answer, (3,K,D): global, local, hard."""
        found = torch.stack([self.long_term, self.local.mean(0), self.hard.mean(0)])
        return functional.normalize(found, dim=-1) if normalise else found


@register
class HisTPT(Adapter):
    """Tune one lasting prompt towards what remembered text embeddings say of each image (derived).

    The official code is for segmentation only. The banks are its own; the wrapper for
    classification is derived from a third-party port, and its rate from TPT's protocol.

    Parameters
    ----------
    bank, hardest
        Entries of the local and of the hard bank, and how many local ones make a hard one.
    decay
        Of the global bank.
    order
        Banks take a sample in `before` its loss (official) or `after` (the port).
    long_term
        The global bank follows the `oldest` entries (official) or the `prototypes` (the port).
    fusion
        Of the three answers: weighted `logits` (official) or `probabilities` (the port).
    label
        Pseudo labels are `hard` (official) or `soft` (the port).
    entropy
        `softmax`, or `raw`, the official sum over raw logits as if they were log-probabilities.
    normalise
        Bring the means of the banks to unit norm (the port does, the official code does not).
    """

    name = "histpt"
    title = "HisTPT"
    citation = (
        "Zhang et al., Historical Test-time Prompt Tuning for Vision Foundation Models, "
        "NeurIPS 2024"
    )
    tunes = "the context of one prompt; banks of 64 text embeddings"
    cost = "2 forwards an image; text tower 2 forwards + 1 backward an image"
    fidelity = (
        "derived: banks as in the official segmentation code, classification after a third-party "
        "port, rate from TPT; prompts are context + name, not the data set's templates"
    )
    views = 2
    answer = "after"
    needs_encoder = True
    no_merge = "its banks are queues, and two streams have no common order."
    growing: ClassVar[tuple[str, ...]] = ("@", "banks/")

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        context: str = "a photo of a",
        lr: float = 5e-3,
        weight_decay: float = 0.01,
        bank: int = 32,
        hardest: int = 16,
        decay: float = 0.99,
        order: str = "before",
        long_term: str = "oldest",
        fusion: str = "logits",
        label: str = "hard",
        entropy: str = "softmax",
        normalise: bool = True,
    ) -> None:
        self.context, self.lr, self.weight_decay = context, lr, weight_decay
        self.bank, self.hardest, self.decay = bank, hardest, decay
        self.order, self.long_term, self.fusion = order, long_term, fusion
        self.label, self.entropy, self.normalise = label, entropy, normalise
        for key, valid in CHOICES.items():
            if getattr(self, key) not in valid:
                raise ValueError(unknown(f"{key} of histpt", getattr(self, key), valid))
        super().__init__(model, names, templates, seed=seed)

    def make_text(self) -> Tensor:
        self.templates = [f"{self.context} {{}}."]  # what results are to record
        self.learner = PromptLearner(self.model, self.names, self.context)
        start = {"context": self.learner.start}
        self.tuned = Tuned(start, self._optimiser)
        return self.learner(self.learner.start)

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(tensors, lr=self.lr, weight_decay=self.weight_decay)

    def restart(self) -> None:
        super().restart()
        self.tuned.restart()
        self.banks: Banks | None = None

    def _adapt(self, x: Tensor) -> Tensor:
        check_views(self, x)
        with torch.no_grad():
            z = encode_views(self.model, x)[:, :2]  # plain, augmented
        self.sketch = self.model.logits(z[:, 0], self.text)
        return torch.stack([self._step(pair) for pair in z])

    def _predict(self, x: Tensor) -> Tensor:
        plain = x.plain if hasattr(x, "plain") else x if x.ndim == 4 else x[:, 0]
        text = self.learner(self.tuned["context"])
        return self.model.logits(self.model.encode_image(plain), text)

    def _step(self, z: Tensor) -> Tensor:
        """Learn from an image, z (2,D); logits (K,) of its plain view with the updated prompt."""
        text = self.learner(self.tuned["context"])
        augmented = self.model.logits(z[1], text)
        now, uncertainty = text.detach(), self._uncertainty(augmented.detach())
        banks = self.banks or Banks.start(now, uncertainty, self.bank)
        pushed = banks.push(now, uncertainty, self.hardest, self.decay, self.long_term)
        p = self._teach(z[0], pushed if self.order == "before" else banks)
        self.banks = pushed
        target = functional.one_hot(p.argmax(), len(p)).to(p) if self.label == "hard" else p
        self.tuned.step(-(target * augmented.log_softmax(0)).sum())
        with torch.no_grad():
            return self.model.logits(z[0], self.learner(self.tuned["context"]))

    def _uncertainty(self, logits: Tensor) -> Tensor:
        return -(logits * logits.exp()).sum() if self.entropy == "raw" else entropy(logits)

    def _teach(self, z: Tensor, banks: Banks) -> Tensor:
        """Probabilities (K,): the three banks' answers, the surer ones weighing more."""
        texts = banks.prototypes(self.normalise)
        logits = torch.stack([self.model.logits(z, text) for text in texts])  # (3,K)
        weight = (-entropy(logits)).softmax(0)
        if self.fusion == "probabilities":
            return weight @ logits.softmax(1)
        return (weight @ logits).softmax(0)

    def state_dict(self) -> dict[str, Tensor]:
        state = {**super().state_dict(), **self.tuned.state_dict("tuned/")}
        if self.banks is not None:
            state |= {f"banks/{key}": value.clone() for key, value in self.banks._asdict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.tuned.load_state_dict(state, "tuned/")
        self.banks = None
        if "banks/local" in state:
            keys = [f"banks/{key}" for key in Banks._fields]
            self.banks = Banks(*[state[key].to(self.text, copy=True) for key in keys])
