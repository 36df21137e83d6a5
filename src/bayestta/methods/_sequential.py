"""The base of methods that see one sample after the other: TDA, DPE, DOTA, BCA and ADAPT."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods._losses import entropy
from bayestta.methods._multiview import confident, encode_views
from bayestta.settings import Settings, setting


@dataclass(frozen=True)
class SequentialSettings(Settings):
    """What these methods have in common."""

    views: int = setting(1, "Views per image; above 1 the confident ones are averaged.", least=1)
    selection: float = setting(
        0.1, "Share of the views, those of lowest entropy, that count.", above=0, most=1
    )


class Sequential(Adapter):
    """One encoder pass per batch, then sample by sample: features decide, not the batch size.

    The arithmetic of a sample has the same shapes whatever the batch, so that given the same
    features the answers are bit for bit those of batch size one.

    With `views` above 1 a sample is the `selection` of its views that are least uncertain.
    """

    settings: SequentialSettings

    @torch.no_grad()
    def _adapt(self, x: Tensor) -> Tensor:
        z = encode_views(self.model, x)
        self.sketch = self.model.logits(z[:, 0], self.text)
        # A row of a matrix may start at an odd address, and sum up in another order there.
        return torch.stack([self._sample(views.clone(), learn=True) for views in z])

    def _predict(self, x: Tensor) -> Tensor:
        z = encode_views(self.model, x)
        return torch.stack([self._sample(views.clone(), learn=False) for views in z])

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        """The answer (K,) to one sample, the views (V,D) of an image; plain: V is 1."""
        raise NotImplementedError

    def _confident(self, z: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of the views that are least uncertain: (v,D) and (v,K)."""
        logits = self.model.logits(z, text)
        if len(z) == 1:
            return z, logits
        chosen = confident(entropy(logits), self.settings.selection)
        return z[chosen], logits[chosen]
