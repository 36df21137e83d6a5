"""DynaPrompt: a buffer of prompts that live on along the stream, a few chosen for each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods import register
from bayestta.methods._losses import entropy, marginal_entropy
from bayestta.methods._multiview import confident, each_image
from bayestta.models._prompts import PromptLearner
from bayestta.settings import Settings, setting


class Buffer(NamedTuple):
    """The prompts: offsets to the first context, ids from the least recently used on, uses."""

    offsets: Tensor  # (M,n,W)
    order: list[int]
    uses: list[int]


def choose(e: Tensor, g: Tensor, r: int, selection: str) -> list[int]:
    """The prompts for an image, by entropy e (M,), gap g (M,) and the fresh prompt r.

    `paper`: those with no more entropy and no smaller gap than the fresh one. `code`: what the
    official code makes of it. It cuts both rankings at the entropy rank of the fresh prompt, and
    takes the ids that are left as places in the ranking by entropy; r may then occur twice.

    >>> e, g = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 0.0])
    >>> choose(e, g, 0, "paper"), choose(e, g, 2, "paper"), choose(e, g, 2, "code")
    ([1, 0], [1, 2], [2, 2])
    """
    if selection == "paper":
        return [m for m in range(len(e)) if m != r and e[m] <= e[r] and g[m] >= g[r]] + [r]
    by_entropy = e.argsort(descending=True, stable=True).tolist()
    rank = by_entropy.index(r)
    lower = by_entropy[rank + 1 :] or [r]
    steady = g.argsort(descending=True, stable=True).tolist()[:rank]
    return [by_entropy[i] for i in sorted(set(lower) & set(steady))] + [r]


@dataclass(frozen=True)
class DynaPromptSettings(Settings):
    prompts: int = setting(
        12, "Prompts in the buffer: 12 in the official script, 10 in the paper.", least=1
    )
    selection: str = setting("code", "Rule of selection; see `choose`.", choices=("code", "paper"))
    gap: str = setting(
        "logits",
        "What drops from the plain view to the others: the largest of the raw logits, as in the "
        "official code, or the probability of the class predicted on the plain view (paper).",
        choices=("logits", "probability"),
    )
    context: str = setting("a photo of a", "Words that the context starts from.")
    lr: float = setting(5e-3, "Learning rate.", least=0)
    weight_decay: float = setting(0.01, "Weight decay of AdamW.", least=0)
    views_kept: float = setting(
        0.1, "Share of the views, those of lowest entropy, that count.", above=0, most=1
    )


@register
class DynaPrompt(Adapter):
    """Choose prompts by entropy and by the gap between plain and augmented views; tune those."""

    Settings = DynaPromptSettings
    settings: DynaPromptSettings
    name = "dynaprompt"
    title = "DynaPrompt"
    about = "A buffer of prompts, some tuned for each image."
    citation = "Xiao et al., DynaPrompt: Dynamic Test-Time Prompt Tuning, ICLR 2025"
    tunes = "a buffer of 12 prompt contexts"
    cost = "64 forwards per image; text tower 12 + 2|S| forwards + |S| backwards per image"
    fidelity = (
        "code; selection='paper' and gap='probability' give the paper's rule; ties, as at the "
        "start, go to the first prompt; prompts are context + name, not the data set's templates"
    )
    views = 64
    answer = "after"
    needs_encoder = True
    no_merge = "its prompts are ordered by last use, and two streams have no common order."

    def make_text(self) -> Tensor:
        self.templates = [f"{self.settings.context} {{}}."]  # what results are to record
        self.learner = PromptLearner(self.model, self.classes, self.settings.context)
        return self.learner(self.learner.start)

    def declare(self) -> None:
        M, start = self.settings.prompts, self.learner.start
        self.offsets = self.add_state("offsets", start.new_zeros(M, *start.shape))  # (M,n,W)
        self.order = self.add_state("order", torch.arange(M), least=0, most=M - 1)  # (M,)
        self.uses = self.add_state("uses", torch.zeros(M, dtype=torch.int64), least=0)  # (M,)

    @property
    def buffer(self) -> Buffer:
        return Buffer(self.offsets, self.order.tolist(), self.uses.tolist())

    @buffer.setter
    def buffer(self, new: Buffer) -> None:
        self.offsets, self.order = new.offsets, torch.tensor(new.order)
        self.uses = torch.tensor(new.uses)

    def _adapt(self, x: Tensor) -> Tensor:
        answers, sketches = [], []
        for views in each_image(self, x):
            with torch.no_grad():
                z = self.model.encode_image(views)
            answer, self.buffer = self._answer(z, self.buffer)
            answers.append(answer)
            sketches.append(self.model.logits(z[0], self.text))
        self.sketch = torch.stack(sketches)
        return torch.stack(answers)

    def _predict(self, x: Tensor) -> Tensor:
        """What each image would get if it came next; what is learnt of it is dropped."""
        encode = self.model.encode_image
        found = [self._answer(encode(views), self.buffer)[0] for views in each_image(self, x)]
        return torch.stack(found)

    def _answer(self, z: Tensor, buffer: Buffer) -> tuple[Tensor, Buffer]:
        """Tune the chosen prompts on the views z (V,D): logits (K,) of the first, new buffer."""
        offsets, order, uses = buffer.offsets.clone(), list(buffer.order), list(buffer.uses)
        if 0 not in uses:
            offsets[order[0]], uses[order[0]] = 0.0, 0
        logits = self._logits(z, self._texts(offsets, uses))  # (M,V,K)
        chosen = choose(
            entropy(logits).mean(1), self._gap(logits), order[0], self.settings.selection
        )
        for m in chosen:
            order.remove(m)
            order.append(m)
            uses[m] += 1
        kept = confident(entropy(logits[chosen]).mean(0), self.settings.views_kept)
        offsets.requires_grad_()
        optimiser = torch.optim.AdamW(
            [offsets], lr=self.settings.lr, weight_decay=self.settings.weight_decay
        )
        with torch.enable_grad():
            loss = marginal_entropy(self._logits(z[kept], self._chosen(offsets, chosen))).mean()
            (offsets.grad,) = torch.autograd.grad(loss, [offsets])
        optimiser.step()  # on all: decay reaches the others too
        offsets = offsets.detach()
        with torch.no_grad():
            answer = self._logits(z[:1], self._chosen(offsets, chosen)).mean(0)[0]
        return answer, Buffer(offsets, order, uses)

    @torch.no_grad()
    def _texts(self, offsets: Tensor, uses: list[int]) -> Tensor:
        """The prototypes (M,K,D) of all prompts; unused ones are still the first context."""
        texts = self.text.repeat(len(offsets), 1, 1)
        used = [m for m, times in enumerate(uses) if times]
        if used:
            texts[used] = self.learner(self.learner.start + offsets[used])
        return texts

    def _chosen(self, offsets: Tensor, chosen: list[int]) -> Tensor:
        unique = sorted(set(chosen))
        texts = self.learner(self.learner.start + offsets[unique])
        return texts[[unique.index(m) for m in chosen]]  # (S,K,D)

    def _logits(self, z: Tensor, texts: Tensor) -> Tensor:
        return torch.stack([self.model.logits(z, text) for text in texts])  # (M,V,K)

    def _gap(self, logits: Tensor) -> Tensor:
        if self.settings.gap == "logits":
            top = logits.amax(2)  # (M,V), of whatever class
        else:
            p, predicted = logits.softmax(2), logits[:, 0].argmax(1)
            top = p[torch.arange(len(p)), :, predicted]
        return (top[:, :1] - top[:, 1:]).mean(1)
