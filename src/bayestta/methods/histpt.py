"""HisTPT: text embeddings of the past, in three banks, teach the prompt (derived)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.adapter import Adapter
from bayestta.methods import register
from bayestta.methods._losses import entropy
from bayestta.methods._multiview import each_image, encode_views
from bayestta.methods._records import Records
from bayestta.methods._tuned import Tuned
from bayestta.models._prompts import PromptLearner
from bayestta.settings import Settings, setting


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


@dataclass(frozen=True)
class HisTPTSettings(Settings):
    context: str = setting("a photo of a", "Words that the context starts from.")
    lr: float = setting(5e-3, "Learning rate.", least=0)
    weight_decay: float = setting(0.01, "Weight decay of AdamW.", least=0)
    bank: int = setting(32, "Entries of the local and of the hard bank.", least=1)
    hardest: int = setting(16, "Local entries that make a hard one.", least=1)
    decay: float = setting(0.99, "Decay of the global bank.", least=0, most=1)
    order: str = setting(
        "before",
        "Banks take a sample in before its loss (official) or after it (the port).",
        choices=("before", "after"),
    )
    long_term: str = setting(
        "oldest",
        "The global bank follows the oldest entries (official) or the prototypes (the port).",
        choices=("oldest", "prototypes"),
    )
    fusion: str = setting(
        "logits",
        "The three answers are fused as logits (official) or probabilities (the port).",
        choices=("logits", "probabilities"),
    )
    label: str = setting(
        "hard", "Pseudo labels are hard (official) or soft (the port).", choices=("hard", "soft")
    )
    entropy: str = setting(
        "softmax",
        "Entropy of the softmax, or raw: the official sum over raw logits as if they were "
        "log-probabilities.",
        choices=("softmax", "raw"),
    )
    normalise: bool = setting(
        True, "Bring the means of the banks to unit norm, as the port does and the code does not."
    )


@register
class HisTPT(Adapter):
    """Tune one lasting prompt towards what remembered text embeddings say of each image (derived).

    The official code is for segmentation only. The banks are its own; the wrapper for
    classification is derived from a third-party port, and its rate from TPT's protocol.

    """

    Settings = HisTPTSettings
    settings: HisTPTSettings
    name = "histpt"
    title = "HisTPT"
    about = "One lasting prompt, and banks of past ones."
    citation = (
        "Zhang et al., Historical Test-time Prompt Tuning for Vision Foundation Models, "
        "NeurIPS 2024"
    )
    tunes = "the context of one prompt; banks of 64 text embeddings"
    cost = "2 forwards per image; text tower 2 forwards + 1 backward per image"
    fidelity = (
        "derived: banks as in the official segmentation code, classification after a third-party "
        "port, rate from TPT; prompts are context + name, not the data set's templates"
    )
    views = 2
    answer = "after"
    needs_encoder = True
    no_merge = "its banks are queues, and two streams have no common order."

    def make_text(self) -> Tensor:
        self.templates = [f"{self.settings.context} {{}}."]  # what results are to record
        self.learner = PromptLearner(self.model, self.classes, self.settings.context)
        start = {"context": self.learner.start}
        self.tuned = Tuned(start, self._optimiser)
        return self.learner(self.learner.start)

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        own = self.settings
        return torch.optim.AdamW(tensors, lr=own.lr, weight_decay=own.weight_decay)

    def declare(self) -> None:
        self.add_state("tuned", self.tuned)
        like = Banks.start(self.text, self.text.new_zeros(()), self.settings.bank)
        banks = Records(like, 1, lambda mine, theirs: mine)  # empty before the first sample
        self.banks = self.add_state("banks", banks)

    def _adapt(self, x: Tensor) -> Tensor:
        each_image(self, x)  # refuses plain images
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
        own = self.settings
        banks = self.banks[0] if self.banks else Banks.start(now, uncertainty, own.bank)
        pushed = banks.push(now, uncertainty, own.hardest, own.decay, own.long_term)
        p = self._teach(z[0], pushed if own.order == "before" else banks)
        self.banks[:] = [pushed]
        target = functional.one_hot(p.argmax(), len(p)).to(p) if own.label == "hard" else p
        self.tuned.step(-(target * augmented.log_softmax(0)).sum())
        with torch.no_grad():
            return self.model.logits(z[0], self.learner(self.tuned["context"]))

    def _uncertainty(self, logits: Tensor) -> Tensor:
        return -(logits * logits.exp()).sum() if self.settings.entropy == "raw" else entropy(logits)

    def _teach(self, z: Tensor, banks: Banks) -> Tensor:
        """Probabilities (K,): the three banks' answers, the surer ones weighing more."""
        texts = banks.prototypes(self.settings.normalise)
        logits = torch.stack([self.model.logits(z, text) for text in texts])  # (3,K)
        weight = (-entropy(logits)).softmax(0)
        if self.settings.fusion == "probabilities":
            return weight @ logits.softmax(1)
        return (weight @ logits).softmax(0)
