"""The zero-shot sketch and the discriminants in one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.maths.discriminant import Discriminant
from bayestta.methods.bayestta.presets import BayesTTASettings
from bayestta.models.base import VLM
from bayestta.state import matching

STEADY = 32  # samples over which spreads are smoothed: matters for small batches only


class Fusion:
    """Eq. 27: the sketch plus alpha times the discriminants, in the units of the settings.

    In units of `spread`, discriminants are scaled to vary over the classes as much as the sketch
    does, and alpha falls where the two agree. Both are running values, of which a large batch makes
    up most: one image alone says little.
    """

    def __init__(self, model: VLM, settings: BayesTTASettings) -> None:
        self.model, self.set = model, settings
        self.reset()

    def reset(self) -> None:
        # spread over the classes of sketch and discriminants, and how often their answers differ
        self.gauge = torch.zeros(3, dtype=torch.float64, device=self.model.device)
        self.sharpness = 0.0  # spread of the answer over that of the sketch; 0 before the first

    def __call__(
        self, sketch: Tensor, classes: Discriminant, z: Tensor, *, alpha: float, remember: bool
    ) -> tuple[Tensor, float]:
        """The answer (B,K) and the alpha that it came from, at most the one given."""
        unit = 1.0
        if self.set.units == "spread":
            score = classes.contrast(z).to(sketch.dtype)
            gauge = self._gauge(sketch, score)
            unit = float(gauge[0] / gauge[1].clamp_min(1e-12))
            # where both say the same, the sketch needs no help
            if self.set.doubt and self.set.fusion == "both":
                alpha *= min(1.0, float(gauge[2]) / self.set.doubt)
            if remember:
                self.gauge = gauge
        else:
            score = classes(z).to(sketch.dtype)
        score = alpha * unit * score
        fused = score if self.set.fusion == "gda" else self.base(sketch) + score
        if remember:
            share = len(z) / (len(z) + STEADY) if self.sharpness else 1.0
            ratio = float(fused.std(1).mean() / sketch.std(1).mean().clamp_min(1e-12))
            self.sharpness += share * (ratio - self.sharpness)
        return fused, alpha

    def base(self, sketch: Tensor) -> Tensor:
        """The sketch in the units that the discriminants are added to."""
        if self.set.units == "cosine":
            return (sketch - self.model.bias) / self.model.scale
        return sketch

    def _gauge(self, sketch: Tensor, score: Tensor) -> Tensor:
        differ = (sketch.argmax(1) != score.argmax(1)).double().mean()
        now = torch.stack([sketch.std(1).mean().double(), score.std(1).mean().double(), differ])
        share = len(sketch) / (len(sketch) + STEADY) if self.gauge[0] > 0 else 1.0
        return torch.lerp(self.gauge, now, share)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Softmax, with answers as sharp on average as the sketch at `temperature` 1."""
        sharpness = max(self.sharpness, 1e-12) if self.sharpness else 1.0
        return (logits.float() / (self.set.temperature * sharpness)).softmax(1)

    def merge(self, other: Fusion, share: float) -> None:
        """Move by `share` towards another's running values."""
        self.gauge = torch.lerp(self.gauge, other.gauge, share)
        self.sharpness += share * (other.sharpness - self.sharpness)

    def state(self) -> dict[str, Any]:
        return {"gauge": self.gauge.clone(), "sharpness": self.sharpness}

    def load(self, state: Mapping[str, Any]) -> None:
        gauge = matching("gauge", state.get("gauge"), self.gauge, least=0)
        self.sharpness = matching("sharpness", state.get("sharpness"), 0.0, least=0)
        self.gauge = gauge
