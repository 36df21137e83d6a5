"""DynaPrompt: a buffer of prompts that live on along the stream, a few chosen for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayestta.adapter import Adapter, register
from bayestta.methods.tpt import confident, each_image, entropy, marginal_entropy
from bayestta.models._prompts import PromptLearner
from bayestta.models.base import VLM
from bayestta.names import unknown

SELECTIONS = ("code", "paper")
GAPS = ("logits", "probability")


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


@register
class DynaPrompt(Adapter):
    """Choose prompts by entropy and by the gap between plain and augmented views; tune those.

    Parameters
    ----------
    prompts
        In the buffer: 12 in the official script, 10 in the paper.
    selection
        `code` or `paper`; see `choose`.
    gap
        What drops from the plain view to the others: the largest of the raw `logits`, as in the
        official code, or the `probability` of the class predicted on the plain view, as in the
        paper.
    views_kept
        The share of views, those of lowest entropy, that count.
    """

    name = "dynaprompt"
    title = "DynaPrompt"
    citation = "Xiao et al., DynaPrompt: Dynamic Test-Time Prompt Tuning, ICLR 2025"
    tunes = "a buffer of 12 prompt contexts"
    cost = "64 forwards an image; text tower 12 + 2|S| forwards + |S| backwards an image"
    fidelity = (
        "code; selection='paper' and gap='probability' give the paper's rule; ties, as at the "
        "start, go to the first prompt; prompts are context + name, not the data set's templates"
    )
    views = 64
    answer = "after"
    needs_encoder = True
    no_merge = "its prompts are ordered by last use, and two streams have no common order."

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        prompts: int = 12,
        selection: str = "code",
        gap: str = "logits",
        context: str = "a photo of a",
        lr: float = 5e-3,
        weight_decay: float = 0.01,
        views_kept: float = 0.1,
    ) -> None:
        if selection not in SELECTIONS:
            raise ValueError(unknown("selection of dynaprompt", selection, SELECTIONS))
        if gap not in GAPS:
            raise ValueError(unknown("gap of dynaprompt", gap, GAPS))
        if prompts < 1:
            raise ValueError(f"{prompts} prompts given: dynaprompt needs at least 1.")
        self.prompts, self.selection, self.gap, self.context = prompts, selection, gap, context
        self.lr, self.weight_decay, self.views_kept = lr, weight_decay, views_kept
        super().__init__(model, names, templates, seed=seed)

    def make_text(self) -> Tensor:
        self.templates = [f"{self.context} {{}}."]  # what results are to record
        self.learner = PromptLearner(self.model, self.names, self.context)
        return self.learner(self.learner.start)

    def restart(self) -> None:
        super().restart()
        offsets = self.learner.start.new_zeros(self.prompts, *self.learner.start.shape)
        self.buffer = Buffer(offsets, list(range(self.prompts)), [0] * self.prompts)

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
        chosen = choose(entropy(logits).mean(1), self._gap(logits), order[0], self.selection)
        for m in chosen:
            order.remove(m)
            order.append(m)
            uses[m] += 1
        kept = confident(entropy(logits[chosen]).mean(0), self.views_kept)
        offsets.requires_grad_()
        optimiser = torch.optim.AdamW([offsets], lr=self.lr, weight_decay=self.weight_decay)
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
        if self.gap == "logits":
            top = logits.amax(2)  # (M,V), of whatever class
        else:
            p, predicted = logits.softmax(2), logits[:, 0].argmax(1)
            top = p[torch.arange(len(p)), :, predicted]
        return (top[:, :1] - top[:, 1:]).mean(1)

    def state_dict(self) -> dict[str, Tensor]:
        state = {**super().state_dict(), "offsets": self.buffer.offsets.clone()}
        state["order"] = torch.tensor(self.buffer.order)
        state["uses"] = torch.tensor(self.buffer.uses)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        offsets = state["offsets"].to(self.learner.start, copy=True)
        self.buffer = Buffer(offsets, state["order"].tolist(), state["uses"].tolist())
