"""BayesTTA as it was published: the authors' code, and the paper's equations.

What sets the two apart are settings (presets.py), not branches: the steps below read them one by
one, in the order of the paper. Both are checked against slow literal transcriptions.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayestta.maths.covariance import shrink
from bayestta.maths.discriminant import Discriminant
from bayestta.maths.stats import GaussianStats
from bayestta.methods._tuned import Tuned
from bayestta.methods.bayestta.accounts import covariance_account
from bayestta.methods.bayestta.homogeneity import Homogeneity
from bayestta.methods.bayestta.method import BayesTTA
from bayestta.methods.bayestta.presets import PublishedSettings
from bayestta.models._norms import norm_parameters
from bayestta.state import StatefulPart

STEADY = 32  # samples over which sharpness is smoothed: matters for small batches only


class Published(BayesTTA):
    """The presets `released` and `paper` of BayesTTA."""

    Settings = PublishedSettings  # type: ignore[assignment]
    settings: PublishedSettings  # type: ignore[assignment]

    def _norms(self) -> dict[str, Tensor]:
        """What refinement tunes."""
        self.moves_tower = self.settings.refine
        if not self.settings.refine:
            return {}
        start = norm_parameters(self.model.visual, self.settings.norm_rule)
        if not start:
            raise ValueError(
                f"model {self.model.name!r} has 0 norm layers to refine, as cached features have "
                "no tower: use refine=False."
            )
        return start

    def declare(self) -> None:
        own = self.settings
        self.tuned = Tuned(self._norms(), lambda tensors: torch.optim.Adam(tensors, lr=own.lr))
        self.test = Homogeneity(own.test, self.text)
        self.stats = GaussianStats(  # Eq. 17: means start at the text prototypes, worth one sample
            self.text,
            structure=self.test.structure,
            centre=own.centre,
            prior_scatter=own.prior_scatter,
            epsilon=own.epsilon,
            wide=self.text.dtype,
        )
        self.sharpness = Sharpness()
        for name in ("tuned", "test", "stats", "sharpness"):
            self.add_state(name, getattr(self, name))
        self._fitted = None

    _fitted: tuple[Tensor, Discriminant] | None  # type: ignore[assignment]  # factored

    def _adapt(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.settings.refine):
            z = self.model.encode_image(x, self.tuned)
            sketch = self.model.logits(z, self.text)  # Eq. 6
        features, self.sketch = z.detach().double(), sketch.detach()  # all statistics are float64
        self.test.ask_batch(features, self.sketch)
        self._estimate(features, self.sketch)
        answer = self._fuse(features, self.sketch)
        self.sharpness.update(answer, self.sketch)
        self.record = {"structure": self.test.structure, **self.test.outcome}
        if self.settings.refine:
            self._refine(sketch, answer)
        return answer

    def encode(self, x: Tensor) -> Tensor:
        return self.model.encode_image(x, self.tuned)

    def _predict(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        return self._fuse(z, self.model.logits(z, self.text))

    def _estimate(self, z: Tensor, sketch: Tensor) -> None:
        own = self.settings
        self._follow_test()
        responsibilities = sketch.softmax(1)  # Eq. 18
        known = own.prior_scatter > 0 or bool(self.stats.seen.sum() > 0)
        if own.responsibilities == "posterior" and known:
            responsibilities = self._classes()(z).to(sketch.dtype).softmax(1)
        if own.window:
            structure = self.stats.structure
            self.stats.reset()
            self.stats = self.stats.per_class() if structure == "per-class" else self.stats
        self.stats.update(z, responsibilities)  # Eqs. 19 to 22
        if own.write_back:  # the arrow of Eq. 23
            weight = self.stats.weight.to(self.stats.scatter.dtype)[..., None, None]
            self.stats.scatter = self._regularised() * weight

    def _regularised(self) -> Tensor:
        """Eq. 23."""
        own = self.settings
        return shrink(self.stats.scatter, own.shrinkage, own.variance, scale=1 / self.stats.weight)

    def _classes(self) -> Discriminant:
        """The Gaussians of Eq. 25, fitted once per change of the statistics."""
        own, seen = self.settings, self.stats.seen  # replaced, never changed in place
        if self._fitted is None or self._fitted[0] is not seen:
            prior = self.stats.proportion.log()  # Eq. 24
            if own.class_prior == "uniform":
                prior = torch.full_like(prior, -math.log(len(self.classes)))
            rtol = own.pinv_rtol or self.model.dim * torch.finfo(torch.float32).eps
            # where it is written back it was regularised already
            cov = self.stats.covariance() if own.write_back else self._regularised()
            kind = torch.promote_types(self.text.dtype, cov.dtype)
            self._fitted = seen, Discriminant(self.stats.mean, cov.to(kind), prior, rtol=rtol)
        return self._fitted[1]

    def _fuse(self, z: Tensor, sketch: Tensor) -> Tensor:
        """Eq. 27."""
        if self.stats.seen.sum() <= 0:
            return self._base(sketch)
        score = self.settings.alpha * self._classes()(z).to(sketch.dtype)
        return score if self.settings.fusion == "gda" else self._base(sketch) + score

    def _base(self, sketch: Tensor) -> Tensor:
        """The sketch in the units that the discriminants are added to."""
        if self.settings.units == "cosine":
            return (sketch - self.model.bias) / self.model.scale
        return sketch

    def _refine(self, sketch: Tensor, answer: Tensor) -> None:
        """Eqs. 29 and 30: cross-entropy of the sketch against the fixed answer, a smoothed step."""
        sketch, target = self._base(sketch), answer.softmax(1)
        loss = -(target * sketch.log_softmax(1)).sum(1).mean()
        self.tuned.step(loss, keep=self.settings.beta)

    def probabilities(self, logits: Tensor) -> Tensor:
        return self.sharpness.probabilities(logits)

    def summary(self) -> dict[str, Any]:
        return {"covariance": covariance_account(self)}


class Sharpness(StatefulPart):
    """How much further the answer spreads over the classes than the sketch, on average.

    A softmax of Gaussian scores is one-hot: probabilities are the answer divided by this.
    """

    def __init__(self) -> None:
        self.add_state("value", 0.0, merge="mean", least=0)  # 0 before the first answer

    value: float

    def update(self, answer: Tensor, sketch: Tensor) -> None:
        n = len(answer)
        share = n / (n + STEADY) if self.value else 1.0
        ratio = float(answer.std(1).mean() / sketch.std(1).mean().clamp_min(1e-12))
        self.value += share * (ratio - self.value)

    def probabilities(self, logits: Tensor) -> Tensor:
        return (logits.float() / (max(self.value, 1e-12) if self.value else 1.0)).softmax(1)
