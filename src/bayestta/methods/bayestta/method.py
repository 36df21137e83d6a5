"""BayesTTA in the order of the paper: sketch, test, statistics, discriminants, refinement.

What sets the default, the released code and the paper's equations apart are settings (presets.py),
not branches: the steps below read them one by one.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayestta.adapter import Adapter, register
from bayestta.maths.covariance import shrink
from bayestta.maths.discriminant import Discriminant
from bayestta.maths.stats import STRUCTURES, GaussianStats
from bayestta.methods._tuned import Tuned
from bayestta.methods.bayestta.fusion import Fusion
from bayestta.methods.bayestta.homogeneity import Homogeneity
from bayestta.methods.bayestta.presets import Settings, settings
from bayestta.methods.guard import Guard
from bayestta.models._norms import norm_parameters
from bayestta.models.base import VLM

PROBE = 16  # one image in sixteen also goes through the pristine tower, for the guard
EVENTS = 20  # returns of the guard that are told in detail, the latest


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    found = {key: value for key, value in state.items() if key.startswith(prefix)}
    return {key.removeprefix(prefix): value.clone() for key, value in found.items()}


@register
class BayesTTA(Adapter):
    """Adapt by Gaussian discriminant analysis of the features and small updates of the norms.

    Parameters
    ----------
    preset
        `default`, `released` (the authors' code) or `paper` (its equations).
    changes
        Any field of `presets.Settings`, over the preset.

    >>> from bayestta import load_model
    >>> adapter = BayesTTA(load_model("mini-rn"), ["cat", "dog"], ["a photo of a {}."], alpha=1.0)
    >>> adapter.adapt(torch.zeros(4, 3, 64, 64)).shape
    torch.Size([4, 2])
    """

    name = "bayestta"
    title = "BayesTTA"
    citation = (
        "Cui et al., BayesTTA: Continual-Temporal Test-Time Adaptation for Vision-Language Models "
        "via Gaussian Discriminant Analysis, arXiv 2507.08607, 2025"
    )
    tunes = "norms of the image tower; Gaussian statistics of the features"
    cost = "1 forward + 1 backward to the norms an image (+ 1/16 forward for the guard)"
    fidelity = (
        "preset=released follows the authors' code, preset=paper the equations; the default is our "
        "best form"
    )
    growing: ClassVar[tuple[str, ...]] = ("@", "good/", "trial/", "probe/", "basis")

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        preset: str = "default",
        **changes: Any,
    ) -> None:
        self.preset, self.set = preset, settings(preset, **changes)
        start = norm_parameters(model.visual, self.set.norm_rule) if self.set.refine else {}
        if self.set.refine and not start:
            raise ValueError(
                f"model {model.name!r} has 0 norm layers to refine, as cached features have no "
                "tower: use refine=False."
            )
        self.tuned = Tuned(start, self._optimiser)
        super().__init__(model, names, templates, seed=seed)

    returns = 0  # how often the guard stepped back

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(tensors, lr=self.set.lr * 0.1**self.returns)

    @classmethod
    def schema(cls) -> dict[str, inspect.Parameter]:
        kind = inspect.Parameter.KEYWORD_ONLY
        known: list[tuple[str, Any, Any]] = [("preset", "default", "str")]
        known += [(field.name, field.default, field.type) for field in fields(Settings)]
        return {
            name: inspect.Parameter(name, kind, default=default, annotation=annotation)
            for name, default, annotation in known
        }

    def hyper(self) -> dict[str, Any]:
        found = {"preset": self.preset, **asdict(self.set)}
        return {key: None if value == math.inf else value for key, value in found.items()}

    def restart(self) -> None:
        super().restart()
        self.returns = 0
        self.tuned.restart()
        self.test = Homogeneity(self.set.test)
        self.stats = self._statistics()
        self._fitted: Discriminant | None = None  # the classes, factored; None after a change
        self.fusion = Fusion(self.model, self.set)
        self.watch = Guard(len(self.names))
        self.events: list[dict[str, Any]] = []
        self.good = self.trial = self._core()  # the state to return to, and the next such

    @property
    def structure(self) -> str | None:
        """Of the covariance; None until the test has spoken."""
        return self.test.chosen

    def _statistics(self) -> GaussianStats:
        return GaussianStats(  # Eq. 17: means start at the text prototypes, worth one sample
            self.text,
            structure=self.test.structure,
            centre=self.set.centre,
            prior_scatter=self.set.prior_scatter,
            epsilon=self.set.epsilon,
            wide=self.text.dtype,
        )

    # --- one step ---

    def _adapt(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.set.refine):
            z = self.model.encode_image(x, self.tuned)
            sketch = self.model.logits(z, self.text)  # Eq. 6
        features, self.sketch = z.detach().double(), sketch.detach()  # all statistics are float64
        self.test.ask_batch(features, self.sketch)
        self._estimate(features)
        answer, _ = self._fuse(features, self.sketch, remember=True)
        self.record = {"structure": self.test.structure, **self.test.outcome}
        if self.set.guard and (safe := self._guarded(x, answer)) is not None:
            return safe
        if self.set.refine:
            self._refine(sketch, answer)
        return answer

    def _predict(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x, self.tuned)
        return self._fuse(z, self.model.logits(z, self.text))[0]

    # --- debiased temporal distribution estimation ---

    def _estimate(self, z: Tensor) -> None:
        self._follow_test()
        responsibilities = self._responsibilities(z)  # Eq. 18
        self._fitted = None
        if self.set.window:
            self.stats = self._statistics()
        if self.set.half_life < math.inf:
            self.stats.forget(0.5 ** (len(z) / self.set.half_life))
        self.stats.update(z, responsibilities)  # Eqs. 19 to 22
        if self.set.write_back:  # the arrow of Eq. 23
            weight = self.stats.weight.to(self.stats.scatter.dtype)[..., None, None]
            self.stats.scatter = self._regularised() * weight
        self.test.ask_evidence(z, responsibilities, self.stats, self.steps)
        self._follow_test()

    def _follow_test(self) -> None:
        if self.stats.structure != self.test.structure:
            self.stats, self._fitted = self.stats.per_class(), None

    def _responsibilities(self, z: Tensor) -> Tensor:
        assert self.sketch is not None
        known = self.set.prior_scatter > 0 or bool(self.stats.seen.sum() > 0)
        if self.set.responsibilities == "posterior" and known:
            return self._classes()(z).to(self.sketch.dtype).softmax(1)
        if self.set.responsibilities != "fused" or self.set.window:
            return (self.sketch / self.set.softness).softmax(1)
        fused, alpha = self._fuse(z, self.sketch)
        # spread 1 + alpha times as far as the sketch; before there is evidence they are the sketch
        # itself, and the same division makes for a soft start
        return (fused / (self.set.softness * (1 + alpha))).softmax(1)

    def _regularised(self) -> Tensor:
        """Eq. 23."""
        amount, variance = self.set.shrinkage, self.set.variance or None
        return shrink(self.stats.scatter, amount, variance, scale=1 / self.stats.weight)

    # --- sketch refinement by discriminant analysis ---

    def _classes(self) -> Discriminant:
        """The Gaussians of Eq. 25, fitted once a change of the statistics."""
        if self._fitted is None:
            prior = self.stats.proportion.log()
            if self.set.class_prior == "uniform":
                prior = torch.full_like(prior, -math.log(len(self.names)))
            rtol = None
            if self.set.truncate:
                rtol = self.set.pinv_rtol or self.model.dim * torch.finfo(torch.float32).eps
            written = self.set.write_back  # then it was regularised already
            cov = self.stats.covariance() if written else self._regularised()
            kind = torch.promote_types(self.text.dtype, cov.dtype)
            self._fitted = Discriminant(self.stats.mean, cov.to(kind), prior, rtol=rtol)
        return self._fitted

    def _fuse(self, z: Tensor, sketch: Tensor, *, remember: bool = False) -> tuple[Tensor, float]:
        """Eq. 27, and the alpha that it came down to."""
        alpha = self.set.alpha * 0.5**self.returns
        if self.stats.seen.sum() <= 0:
            return self.fusion.base(sketch), alpha
        return self.fusion(sketch, self._classes(), z, alpha=alpha, remember=remember)

    def probabilities(self, logits: Tensor) -> Tensor:
        return self.fusion.probabilities(logits)

    def _refine(self, sketch: Tensor, answer: Tensor) -> None:
        """Eqs. 29 and 30: cross-entropy of the sketch against the fixed answer, a smoothed step."""
        sketch = self.fusion.base(sketch)
        target = answer.softmax(1)
        if self.set.units == "spread":
            target = self.probabilities(answer).to(sketch.dtype)
        loss = -(target * sketch.log_softmax(1)).sum(1).mean()
        self.tuned.step(loss, keep=self.set.beta)

    # --- guard ---

    def _guarded(self, x: Tensor, answer: Tensor) -> Tensor | None:
        """Compare with the pristine model; on collapse answer from the last good state."""
        chosen = slice(None)
        if self.set.refine:
            chosen = slice(self.steps % min(PROBE, len(x)), None, PROBE)
            with torch.no_grad():
                plain = self.model.logits(self.model.encode_image(x[chosen]), self.text)
        else:
            assert self.sketch is not None
            plain = self.sketch
        signs = self.watch.step(self.probabilities(answer[chosen]), plain.softmax(1))
        self.record["guard"] = signs
        if signs["collapse"]:
            event = {"step": self.steps, "reason": signs["collapse"]}
            self.events = [*self.events, event][-EVENTS:]
            returns = self.returns + 1
            self._load_core(self.good)
            self.returns = returns  # slower and less trusting from here on
            self.tuned.restart(optimiser_only=True)
            self.watch.restart()
            self.trial = self.good
            self.record["structure"] = self.test.structure
            with torch.no_grad():
                z = self.model.encode_image(x, self.tuned)
                self.sketch = self.model.logits(z, self.text)
                return self._fuse(z, self.sketch)[0]
        if signs["proven"]:
            self.good, self.trial = self.trial, self._core()
            self.watch.age = 0.0
        return None

    def summary(self) -> dict[str, Any]:
        chosen = {"structure": self.test.structure, "decided": self.structure is not None}
        guard = {"on": self.set.guard, "returns": self.returns, "events": self.events}
        return {"covariance": {**chosen, **self.test.outcome}, "guard": guard}

    # --- state ---

    def _core(self) -> dict[str, Tensor]:
        """What the guard restores."""
        state = self.tuned.state_dict("tuned/")
        state |= {f"stats/{key}": value for key, value in self.stats.state_dict().items()}
        state |= self.fusion.state_dict()
        known = [None, *STRUCTURES]
        state["structure"] = torch.tensor(known.index(self.structure))
        return state

    def _load_core(self, state: Mapping[str, Tensor]) -> None:
        self.test.chosen = [None, *STRUCTURES][int(state["structure"])]
        self.stats = self._statistics()
        self.stats.load_state_dict(_part(state, "stats/"))
        self._fitted = None
        self.tuned.load_state_dict(state, "tuned/")
        self.fusion.load_state_dict(state)

    def state_dict(self) -> dict[str, Tensor]:
        state = {**super().state_dict(), **self._core()}
        parts = {"watch": self.watch.state_dict(), "good": self.good, "trial": self.trial}
        for part, values in parts.items():
            state |= {f"{part}/{key}": value.clone() for key, value in values.items()}
        said = {"returns": self.returns, "events": self.events, "outcome": self.test.outcome}
        letters = bytearray(json.dumps(said).encode())
        state["said"] = torch.frombuffer(letters, dtype=torch.uint8).clone()
        return state | self.test.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        said = json.loads(bytes(state["said"].tolist()).decode())
        self.returns, self.events = said["returns"], said["events"]
        self.test.outcome = said["outcome"]
        self.test.load_state_dict(state)
        self._load_core(state)
        self.watch.load_state_dict(_part(state, "watch/"))
        self.good, self.trial = _part(state, "good/"), _part(state, "trial/")

    def _merge(self, other: BayesTTA) -> None:
        if other.samples == 0:
            return
        if self.samples == 0:  # nothing of one's own yet
            self.load_state_dict(other.state_dict())
            self.samples, self.steps = 0, 0
            return
        if self.stats.structure != other.stats.structure:
            raise ValueError(
                f"one adapter chose the {self.stats.structure} covariance, the other the "
                f"{other.stats.structure} one: force the same with test='shared' or "
                "test='per-class'."
            )
        share = other.samples / (self.samples + other.samples)
        self.stats.merge(other.stats)
        self._fitted = None
        self.tuned.merge(other.tuned, self.samples, other.samples)
        self.fusion.merge(other.fusion, share)
        self.good = self.trial = self._core()
