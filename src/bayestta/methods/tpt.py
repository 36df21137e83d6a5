"""TPT: tune the prompt on the views of one image, answer, and forget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods import register
from bayestta.methods._losses import entropy, marginal_entropy
from bayestta.methods._multiview import confident, each_image
from bayestta.models._prompts import PromptLearner
from bayestta.settings import Settings, setting


@dataclass(frozen=True)
class TPTSettings(Settings):
    context: str = setting("a photo of a", "Words that the context starts from.")
    lr: float = setting(5e-3, "Learning rate.", least=0)
    weight_decay: float = setting(0.01, "Weight decay of AdamW.", least=0)
    selection: float = setting(
        0.1, "Share of the views, those of lowest entropy, that count.", above=0, most=1
    )
    updates: int = setting(1, "AdamW steps per image.", least=0)


@register
class TPT(Adapter):
    """Minimise the entropy of the mean answer over confident views, by the prompt's context."""

    Settings = TPTSettings
    settings: TPTSettings
    name = "tpt"
    title = "TPT"
    about = "Lower entropy over views by one prompt."
    citation = (
        "Shu et al., Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language "
        "Models, NeurIPS 2022"
    )
    tunes = "the context of the prompt, anew for every image"
    cost = "64 forwards per image; text tower 2 forwards + 1 backward per image"
    fidelity = (
        "code, in float32: without its gradient scaler, which skips steps silently; prompts are "
        "context + name, not the data set's templates"
    )
    views = 64
    reset_every = "batch"
    answer = "after"
    needs_encoder = True

    def make_text(self) -> Tensor:
        self.templates = [f"{self.settings.context} {{}}."]  # what results are to record
        self.learner = PromptLearner(self.model, self.classes, self.settings.context)
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
            kept = confident(entropy(self.model.logits(z, self.text)), self.settings.selection)
        context = self.learner.start.clone().requires_grad_()
        optimiser = torch.optim.AdamW(
            [context], lr=self.settings.lr, weight_decay=self.settings.weight_decay
        )
        with torch.enable_grad():
            for _ in range(self.settings.updates):
                loss = marginal_entropy(self.model.logits(z[kept], self.learner(context)))
                (context.grad,) = torch.autograd.grad(loss, [context])
                optimiser.step()
        with torch.no_grad():
            tuned = self.learner(context)
            texts = torch.stack([tuned, self.text])
            return torch.stack([self.model.logits(z[0], text) for text in texts])
