"""BayesTTA in the order of the paper: sketch, test, statistics, discriminants, refinement.

What sets the default, the released code and the paper's equations apart are settings (presets.py),
not branches: the steps below read them one by one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.maths.covariance import shrink
from bayestta.maths.discriminant import Discriminant
from bayestta.maths.stats import GaussianStats
from bayestta.methods import register
from bayestta.methods._tuned import Tuned
from bayestta.methods.bayestta.fusion import Fusion
from bayestta.methods.bayestta.homogeneity import Homogeneity
from bayestta.methods.bayestta.presets import BayesTTASettings
from bayestta.methods.guard import Guard
from bayestta.models._norms import norm_parameters


@register
class BayesTTA(Adapter):
    """Adapt by Gaussian discriminant analysis of the features and small updates of the norms.

    >>> from bayestta import load_model
    >>> adapter = BayesTTA(load_model("mini-rn"), ["cat", "dog"], alpha=1.0)
    >>> adapter.adapt(torch.zeros(4, 3, 64, 64)).shape
    torch.Size([4, 2])
    >>> adapter
    BayesTTA(model='mini-rn', 2 classes, 4 samples, alpha=1.0)
    """

    Settings = BayesTTASettings
    settings: BayesTTASettings
    name = "bayestta"
    title = "BayesTTA"
    citation = (
        "Cui et al., BayesTTA: Continual-Temporal Test-Time Adaptation for Vision-Language Models "
        "via Gaussian Discriminant Analysis, arXiv 2507.08607, 2025"
    )
    tunes = "norms of the image tower; Gaussian statistics of the features"
    cost = "1 forward + 1 backward to the norms per image (+ 1/16 forward for the guard)"
    fidelity = (
        "preset=released follows the authors' code, preset=paper the equations; the default is our "
        "best form"
    )

    def declare(self) -> None:
        own, model = self.settings, self.model
        start = norm_parameters(model.visual, own.norm_rule) if own.refine else {}
        if own.refine and not start:
            raise ValueError(
                f"model {model.name!r} has 0 norm layers to refine, as cached features have no "
                "tower: use refine=False."
            )
        self.moves_tower = own.refine
        self.tuned = Tuned(start, self._optimiser)
        self.test = Homogeneity(own.test)
        self.stats = GaussianStats(  # Eq. 17: means start at the text prototypes, worth one sample
            self.text,
            structure=self.test.structure,
            centre=own.centre,
            prior_scatter=own.prior_scatter,
            epsilon=own.epsilon,
            wide=self.text.dtype,
        )
        self.fusion = Fusion(model, own)
        self.guard = Guard(self)
        for name in ("tuned", "test", "stats", "fusion", "guard"):
            self.add_state(name, getattr(self, name))
        self._fitted: tuple[Tensor, Discriminant] | None = None  # the classes, factored

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(tensors, lr=self.settings.lr * 0.1**self.caution)

    @property
    def structure(self) -> str | None:
        """Of the covariance; None until the test has spoken."""
        return self.test.chosen

    # --- one step ---

    def _adapt(self, x: Tensor) -> Tensor:
        own = self.settings
        with torch.set_grad_enabled(own.refine):
            z = self.model.encode_image(x, self.tuned)
            sketch = self.model.logits(z, self.text)  # Eq. 6
        features, self.sketch = z.detach().double(), sketch.detach()  # all statistics are float64
        self.test.ask_batch(features, self.sketch)
        self._estimate(features)
        answer, _ = self._fuse(features, self.sketch, remember=True)
        self.record = {"structure": self.test.structure, **self.test.outcome}
        if own.guard:
            self.record["guard"], returned = self.guard.review(x, answer)
            if returned:
                self.tuned.reset(optimiser_only=True)
                self.record["structure"] = self.test.structure
                with torch.no_grad():
                    return self._predict(x)
        if own.refine:
            self._refine(sketch, answer)
        return answer

    def _predict(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x, self.tuned)
        return self._fuse(z, self.model.logits(z, self.text))[0]

    # --- debiased temporal distribution estimation ---

    def _estimate(self, z: Tensor) -> None:
        own = self.settings
        self._follow_test()
        responsibilities = self._responsibilities(z)  # Eq. 18
        if own.window:
            structure = self.stats.structure
            self.stats.reset()
            self.stats = self.stats.per_class() if structure == "per-class" else self.stats
        if own.half_life < math.inf:
            self.stats.forget(0.5 ** (len(z) / own.half_life))
        self.stats.update(z, responsibilities)  # Eqs. 19 to 22
        if own.write_back:  # the arrow of Eq. 23
            weight = self.stats.weight.to(self.stats.scatter.dtype)[..., None, None]
            self.stats.scatter = self._regularised() * weight
        self.test.ask_evidence(z, responsibilities, self.stats, self.steps)
        self._follow_test()

    def _follow_test(self) -> None:
        if self.stats.structure != self.test.structure:
            self.stats, self._fitted = self.stats.per_class(), None

    def _responsibilities(self, z: Tensor) -> Tensor:
        assert self.sketch is not None
        own = self.settings
        known = own.prior_scatter > 0 or bool(self.stats.seen.sum() > 0)
        if own.responsibilities == "posterior" and known:
            return self._classes()(z).to(self.sketch.dtype).softmax(1)
        if own.responsibilities != "fused" or own.window:
            return (self.sketch / own.softness).softmax(1)
        fused, alpha = self._fuse(z, self.sketch)
        # spread 1 + alpha times as far as the sketch; before there is evidence they are the sketch
        # itself, and the same division makes for a soft start
        return (fused / (own.softness * (1 + alpha))).softmax(1)

    def _regularised(self) -> Tensor:
        """Eq. 23."""
        amount, variance = self.settings.shrinkage, self.settings.variance or None
        return shrink(self.stats.scatter, amount, variance, scale=1 / self.stats.weight)

    # --- sketch refinement by discriminant analysis ---

    def _classes(self) -> Discriminant:
        """The Gaussians of Eq. 25, fitted once per change of the statistics."""
        own, seen = self.settings, self.stats.seen  # replaced, never changed in place
        if self._fitted is None or self._fitted[0] is not seen:
            prior = self.stats.proportion.log()
            if own.class_prior == "uniform":
                prior = torch.full_like(prior, -math.log(len(self.classes)))
            rtol = None
            if own.truncate:
                rtol = own.pinv_rtol or self.model.dim * torch.finfo(torch.float32).eps
            # where it is written back it was regularised already
            cov = self.stats.covariance() if own.write_back else self._regularised()
            kind = torch.promote_types(self.text.dtype, cov.dtype)
            self._fitted = seen, Discriminant(self.stats.mean, cov.to(kind), prior, rtol=rtol)
        return self._fitted[1]

    def _fuse(self, z: Tensor, sketch: Tensor, *, remember: bool = False) -> tuple[Tensor, float]:
        """Eq. 27, and the alpha that it came down to."""
        alpha = self.settings.alpha * 0.5**self.caution
        if self.stats.seen.sum() <= 0:
            return self.fusion.base(sketch), alpha
        return self.fusion(sketch, self._classes(), z, alpha=alpha, remember=remember)

    def probabilities(self, logits: Tensor) -> Tensor:
        return self.fusion.probabilities(logits)

    def _refine(self, sketch: Tensor, answer: Tensor) -> None:
        """Eqs. 29 and 30: cross-entropy of the sketch against the fixed answer, a smoothed step."""
        sketch = self.fusion.base(sketch)
        target = answer.softmax(1)
        if self.settings.units == "spread":
            target = self.probabilities(answer).to(sketch.dtype)
        loss = -(target * sketch.log_softmax(1)).sum(1).mean()
        self.tuned.step(loss, keep=self.settings.beta)

    def summary(self) -> dict[str, Any]:
        chosen = {"structure": self.test.structure, "decided": self.structure is not None}
        guard = {**self.guard.summary(), "on": self.settings.guard}
        return {"covariance": {**chosen, **self.test.outcome}, "guard": guard}

    def merge_state(self, other: BayesTTA, share: float) -> None:
        if self.stats.structure != other.stats.structure:
            raise ValueError(
                f"one adapter chose the {self.stats.structure} covariance, the other the "
                f"{other.stats.structure} one: force the same with test='shared' or "
                "test='per-class'."
            )
        super().merge_state(other, share)
