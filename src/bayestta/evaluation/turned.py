"""Answers that adaptation turned: from wrong to right, and from right to wrong."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

if TYPE_CHECKING:
    from bayestta.evaluation.steps import Step
    from bayestta.models.base import VLM

SHOWN = 6  # images of each kind that a result keeps
SIDE, COLOURS = 64, 48  # of their pictures: pixels, and entries of the palette


class Turned:
    """Counts per domain of what adaptation mended and broke, with a few images of each.

    Parameters
    ----------
    model
        By which pixels are made visible again; None keeps no images.
    """

    def __init__(self, model: VLM | None = None) -> None:
        self.model = model
        self.counts: dict[str, dict[str, int]] = {}
        self.shown: dict[str, list[dict[str, Any]]] = {"mended": [], "broken": []}

    def add(self, step: Step) -> None:
        """Compare the answers of a step with the zero-shot ones of the same images."""
        if step.y is None or step.sketch is None:
            return
        answer, sketch = step.logits.argmax(1).cpu(), step.sketch.argmax(1).cpu()
        y = step.y.cpu()
        found = {
            "mended": (answer == y) & (sketch != y),
            "broken": (answer != y) & (sketch == y),
        }
        count = self.counts.setdefault(step.domain, {"mended": 0, "broken": 0})
        for kind, rows in found.items():
            count[kind] += int(rows.sum())
            room = SHOWN - len(self.shown[kind])
            for i in rows.nonzero().flatten().tolist()[: max(0, room)]:
                self._keep(kind, step, i, int(answer[i]), int(sketch[i]))

    def _keep(self, kind: str, step: Step, i: int, answer: int, sketch: int) -> None:
        pixels = getattr(step.x, "plain", step.x)
        if self.model is None or not isinstance(pixels, Tensor) or pixels.ndim != 4:
            return
        about = {"domain": step.domain, "truth": int(step.y[i])}  # type: ignore[index]
        picture = png(visible(self.model, pixels[i]), SIDE, COLOURS)
        self.shown[kind].append({**about, "answer": answer, "sketch": sketch, "png": picture})

    def to_json(self) -> dict[str, Any] | None:
        """Totals and images; None where there was nothing to compare with."""
        if not self.counts:
            return None
        kinds = ("mended", "broken")
        totals = {kind: sum(row[kind] for row in self.counts.values()) for kind in kinds}
        return {**totals, "shown": self.shown}


def visible(model: VLM, image: Tensor) -> Tensor:
    """The image (C,H,W) as the model sees it, in 0..1."""
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (model.mean, model.std))
    return (image.detach().float().cpu() * std + mean).clamp(0, 1)


def png(image: Tensor, side: int, colours: int) -> str:
    """A small PNG of an image (3,H,W) in 0..1, as base64."""
    grey = (image.permute(1, 2, 0) * 255).round().byte().numpy()
    small = Image.fromarray(grey).resize((side, side), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.quantize(colours).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
