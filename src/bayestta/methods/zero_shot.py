"""Zero-shot CLIP with the data set's templates, and the ensemble of eighty."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods import register
from bayestta.models._text import classifier, templates


@register
class ZeroShot(Adapter):
    """CLIP as it is: logits are scaled cosines between image and text prototypes (Radford et al.,
    ICML 2021).

    With the data set's templates it is the text classifier that every other method starts from;
    `--templates single` gives the paper's row.
    """

    name = "zero-shot"
    title = "CLIP zero-shot"
    about = "CLIP as it is: scaled cosines to the prompts."
    citation = (
        "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, "
        "ICML 2021"
    )
    fidelity = (
        "code; the comparisons' row is --templates single, which for their drifting streams is "
        "inferred"
    )

    @torch.no_grad()
    def _adapt(self, x: Tensor) -> Tensor:
        self.sketch = self._predict(x)
        return self.sketch

    def _predict(self, x: Tensor) -> Tensor:
        return self.model.logits(self.model.encode_image(x), self.text)


@register
class Ensemble(ZeroShot):
    """Zero-shot with the 80 ImageNet templates of CLIP, whatever the data set's own are."""

    name = "ensemble"
    title = "CLIP, 80 templates"
    about = "Zero-shot with the 80 ImageNet templates."
    fidelity = "code; its own 80 templates, whatever the data set's are"

    def make_text(self) -> Tensor:
        self.templates = templates("eighty")  # what results and state files record
        return classifier(self.model, self.classes, self.templates)
