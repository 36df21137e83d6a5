"""TPT: tune the prompt on the views of one image, answer, and forget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter, register
from bayestta.models._prompts import PromptLearner
from bayestta.models.base import VLM

CHUNK = 128  # views a pass of the encoder


def entropy(logits: Tensor) -> Tensor:
    """Of the softmax over the last dimension.

    >>> entropy(torch.zeros(2, 4)).exp().tolist()
    [4.0, 4.0]
    """
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def marginal_entropy(logits: Tensor) -> Tensor:
    """The entropy of the mean over views of the probabilities: (...,V,K) -> (...)."""
    log_mean = logits.log_softmax(-1).logsumexp(-2) - math.log(logits.shape[-2])
    return -(log_mean.exp() * log_mean).sum(-1)


def confident(uncertainty: Tensor, share: float) -> Tensor:
    """The positions of the given share, at least one, of the views that are least uncertain.

    >>> confident(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5).tolist()
    [1, 2]
    """
    return uncertainty.argsort(stable=True)[: max(1, int(share * len(uncertainty)))]


def encode_views(model: VLM, x: Tensor) -> Tensor:
    """Features (B,V,D) of (B,V,C,H,W), a few images at a time; V is 1 for plain images."""
    if x.ndim != 5:
        return model.encode_image(x)[:, None]
    V = x.shape[1]
    step = max(1, CHUNK // V)
    z = [model.encode_image(x[i : i + step].flatten(0, 1)) for i in range(0, len(x), step)]
    return torch.cat(z).view(len(x), V, -1)


def check_views(method: Adapter, x: Tensor) -> None:
    """Refuse plain images for a method that works on views."""
    if x.ndim != 5 or x.shape[1] < 2:
        raise ValueError(
            f"{method.name} works on views, and the batch is {tuple(x.shape)} instead of "
            f"(B,V,C,H,W) with V > 1: make the stream with views={method.views}."
        )


def each_image(method: Adapter, x: Tensor) -> Iterator[Tensor]:
    """The views (V,C,H,W) of one image after the other, made when they are needed."""
    check_views(method, x)
    return (x[i : i + 1][0] for i in range(len(x)))


@register
class TPT(Adapter):
    """Minimise the entropy of the mean answer over confident views, by the prompt's context.

    Parameters
    ----------
    context
        The words that the context starts from.
    selection
        The share of views, those of lowest entropy, that count.
    updates
        Steps of AdamW an image.
    """

    name = "tpt"
    title = "TPT"
    citation = (
        "Shu et al., Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language "
        "Models, NeurIPS 2022"
    )
    tunes = "the context of the prompt, anew for every image"
    cost = "64 forwards an image; text tower 2 forwards + 1 backward an image"
    fidelity = (
        "code, in float32: without its gradient scaler, which skips steps silently; prompts are "
        "context + name, not the data set's templates"
    )
    views = 64
    reset = "batch"
    answer = "after"
    needs_encoder = True

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
        selection: float = 0.1,
        updates: int = 1,
    ) -> None:
        self.context, self.lr, self.weight_decay = context, lr, weight_decay
        self.selection, self.updates = selection, updates
        super().__init__(model, names, templates, seed=seed)

    def make_text(self) -> Tensor:
        self.templates = [f"{self.context} {{}}."]  # what results are to record
        self.learner = PromptLearner(self.model, self.names, self.context)
        return self.learner(self.learner.start)

    def _adapt(self, x: Tensor) -> Tensor:
        both = torch.stack([self._answer(views) for views in each_image(self, x)])  # (B,2,K)
        self.sketch = both[:, 1]
        return both[:, 0]

    def _predict(self, x: Tensor) -> Tensor:
        # Nothing is carried from image to image, so the answer is the same as that of `adapt`.
        return torch.stack([self._answer(views)[0] for views in each_image(self, x)])

    def _answer(self, views: Tensor) -> Tensor:
        """The answer of the tuned prompt on the plain view, and that of the first prompt: (2,K)."""
        with torch.no_grad():
            z = self.model.encode_image(views)  # (V,D)
            kept = confident(entropy(self.model.logits(z, self.text)), self.selection)
        context = self.learner.start.clone().requires_grad_()
        optimiser = torch.optim.AdamW([context], lr=self.lr, weight_decay=self.weight_decay)
        with torch.enable_grad():
            for _ in range(self.updates):
                loss = marginal_entropy(self.model.logits(z[kept], self.learner(context)))
                (context.grad,) = torch.autograd.grad(loss, [context])
                optimiser.step()
        with torch.no_grad():
            tuned = self.learner(context)
            texts = torch.stack([tuned, self.text])
            return torch.stack([self.model.logits(z[0], text) for text in texts])

    def _merge(self, other: Any) -> None:
        pass  # there is no evidence
