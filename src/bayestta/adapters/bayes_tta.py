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

from bayestta import stats
from bayestta.adapter import Adapter, register
from bayestta.covariance import box_m, pca, pca_basis, shrink, soft_covariances
from bayestta.gda import Discriminant
from bayestta.guard import Guard
from bayestta.model import VLM
from bayestta.norms import norm_parameters
from bayestta.presets import Settings, settings
from bayestta.stats import GaussianStats
from bayestta.tuned import Tuned

COMPONENTS = 10  # principal components of the homogeneity test
SAMPLES_A_DIMENSION = 10  # that every class must have before it gets a covariance of its own
TEST_EVERY = 8  # steps between tests that could change nothing yet and are for the record
PROBE = 16  # one image in sixteen also goes through the pristine tower, for the guard
STEADY = 32  # samples over which spreads are smoothed: matters for small batches only
EVENTS = 20  # returns of the guard that are told in detail, the latest
UNTESTED: dict[str, Any] = {  # what a result says of a test that was not carried out
    "statistic": None,
    "critical": None,
    "df1": None,
    "df2": None,
    "usable": False,
    "rejects": False,
}


def _too_few(z: Tensor) -> str:
    return f"{z.shape[0]} images of {z.shape[1]} features have no {COMPONENTS} principal components"


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
        forced = self.set.test if self.set.test in stats.STRUCTURES else None
        self.structure: str | None = forced  # None until the test has spoken
        why = "the structure was forced" if forced else "nothing was seen yet"
        self.outcome: dict[str, Any] = {"test": self.set.test, **UNTESTED, "reason": why}
        self.stats = self._statistics(forced or "shared")
        self._fitted: Discriminant | None = None  # the classes, factored; None after a change
        self.basis: Tensor | None = None  # (D,d) principal components of the first batch
        self.probe: GaussianStats | None = None  # the classes in them, for the default's test
        self.gauge = self.text.new_zeros(3).double()
        self.sharpness = 1.0  # spread of the answer over that of the sketch
        self.watch = Guard(len(self.names))
        self.events: list[dict[str, Any]] = []
        self.good = self.trial = self._core()  # the state to return to, and the next such

    def _statistics(self, structure: str) -> GaussianStats:
        return GaussianStats(  # Eq. 17: means start at the text prototypes, worth one sample
            self.text,
            structure=structure,
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
        features, self.sketch = z.detach(), sketch.detach()
        self._choose_structure(features)
        self._estimate(features)
        answer, _ = self._fuse(features, self.sketch, remember=True)
        self.record = {"structure": self.structure or "shared", **self.outcome}
        if self.set.guard and (safe := self._guarded(x, answer)) is not None:
            return safe
        if self.set.refine:
            self._refine(sketch, answer)
        return answer

    def _predict(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x, self.tuned)
        return self._fuse(z, self.model.logits(z, self.text))[0]

    # --- covariance homogeneity test ---

    def _choose_structure(self, z: Tensor) -> None:
        """The published forms: once, on the first batch."""
        if self.structure is not None or self.set.test == "box":
            return
        self.structure = "shared"
        if min(z.shape) < COMPONENTS:
            self.outcome["reason"] = _too_few(z)
            return
        assert self.sketch is not None
        ridge = 1e-6 if self.set.test == "released" else 0.0
        classes = soft_covariances(pca(z, COMPONENTS), self.sketch.softmax(1), ridge)
        outcome = box_m(*classes, form=self.set.test)
        self.outcome |= outcome.record()
        if outcome.rejects:
            self.structure = "per-class"
            self.stats = self._statistics("per-class")

    def _test_evidence(self) -> None:
        """Box's test on all that was seen, acted on once each class can carry its own matrix."""
        if self.probe is None:
            return
        K, D = self.stats.mean.shape
        enough = float(self.stats.seen.min()) >= SAMPLES_A_DIMENSION * D
        self.outcome["waits"] = not enough
        if not enough and self.steps % TEST_EVERY:
            return
        count = self.probe.count
        unbiased = self.probe.scatter / (count - 1).clamp_min(1e-9)[:, None, None]
        outcome = box_m(count, unbiased, form="box")
        self.outcome |= outcome.record()
        need = K * D * D * self.text.dtype.itemsize
        if not (outcome.usable and enough):
            return
        self.structure = "shared"
        if outcome.rejects and need > stats.BUDGET_BYTES:
            self.outcome["reason"] = f"a covariance a class would take {need:,} bytes"
        elif outcome.rejects:  # no jump: each class starts from the shared covariance
            self.structure = "per-class"
            shared, self.stats = self.stats, self._statistics("per-class")
            self.stats.seen, self.stats.mean = shared.seen, shared.mean
            weight = self.stats.weight.to(self.stats.wide)
            self.stats.scatter = weight[:, None, None] * shared.covariance().to(self.stats.wide)

    # --- debiased temporal distribution estimation ---

    def _estimate(self, z: Tensor) -> None:
        responsibilities = self._responsibilities(z)  # Eq. 18
        self._fitted = None
        if self.set.window:
            self.stats = self._statistics(self.stats.structure)
        if self.set.half_life < math.inf:
            self.stats.forget(0.5 ** (len(z) / self.set.half_life))
        self.stats.update(z, responsibilities)  # Eqs. 19 to 22
        if self.set.write_back:  # the arrow of Eq. 23
            weight = self.stats.weight.to(self.stats.scatter.dtype)[..., None, None]
            self.stats.scatter = self._regularised() * weight
        if self.set.test == "box" and self.structure is None:
            self._probe(z, responsibilities)
            self._test_evidence()

    def _responsibilities(self, z: Tensor) -> Tensor:
        assert self.sketch is not None
        known = self.set.prior_scatter > 0 or bool(self.stats.seen.sum() > 0)
        if self.set.responsibilities == "posterior" and known:
            return self._classes()(z).to(z.dtype).softmax(1)
        if self.set.responsibilities != "fused" or self.set.window:
            return (self.sketch / self.set.softness).softmax(1)
        fused, alpha = self._fuse(z, self.sketch)
        # spread 1 + alpha times as far as the sketch; before there is evidence they are the sketch
        # itself, and the same division makes for a soft start
        return (fused / (self.set.softness * (1 + alpha))).softmax(1)

    def _probe(self, z: Tensor, responsibilities: Tensor) -> None:
        if self.basis is None:
            if min(z.shape) < COMPONENTS:
                self.outcome["reason"] = _too_few(z)
                return
            self.basis = pca_basis(z, COMPONENTS)
        if self.probe is None:
            self.probe = self._empty_probe()
        self.probe.update(z.double() @ self.basis, responsibilities)

    def _empty_probe(self) -> GaussianStats:
        start = self.text.new_zeros(len(self.names), COMPONENTS)
        return GaussianStats(start, structure="per-class", prior_count=0.0, wide=torch.float64)

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
        """Eq. 27: the sketch plus alpha times the discriminants, in `units`; and that alpha."""
        base, alpha = self._base(sketch), self.set.alpha * 0.5**self.returns
        if self.stats.seen.sum() <= 0:
            return base, alpha
        unit = 1.0
        if self.set.units == "spread":
            score = self._classes().contrast(z).to(z.dtype)
            gauge = self._gauge(sketch, score)
            unit = float(gauge[0] / gauge[1].clamp_min(1e-12))
            # where both say the same, the sketch is in its element
            if self.set.doubt and self.set.fusion == "both":
                alpha *= min(1.0, float(gauge[2]) / self.set.doubt)
            if remember:
                self.gauge = gauge
        else:
            score = self._classes()(z).to(z.dtype)
        score = alpha * unit * score
        fused = score if self.set.fusion == "gda" else base + score
        if remember:
            share = len(z) / (len(z) + STEADY) if self.steps else 1.0
            ratio = float(fused.std(1).mean() / sketch.std(1).mean().clamp_min(1e-12))
            self.sharpness += share * (ratio - self.sharpness)
        return fused, alpha

    def _base(self, sketch: Tensor) -> Tensor:
        """The sketch in the units that the discriminants are added to."""
        if self.set.units == "cosine":
            return (sketch - self.model.bias) / self.model.scale
        return sketch

    def _gauge(self, sketch: Tensor, score: Tensor) -> Tensor:
        """Spread over the classes of sketch and discriminants, and how often their answers differ.

        Running values, of which a large batch makes up most: one image alone says little.
        """
        differ = (sketch.argmax(1) != score.argmax(1)).double().mean()
        now = torch.stack([sketch.std(1).mean().double(), score.std(1).mean().double(), differ])
        share = len(sketch) / (len(sketch) + STEADY) if self.gauge[0] > 0 else 1.0
        return torch.lerp(self.gauge, now, share)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Softmax, with answers as sharp on average as the sketch at `temperature` 1."""
        sharpness = max(self.sharpness, 1e-12)  # 0 where all discriminants are the same
        return (logits.float() / (self.set.temperature * sharpness)).softmax(1)

    def _refine(self, sketch: Tensor, answer: Tensor) -> None:
        """Eqs. 29 and 30: cross-entropy of the sketch against the fixed answer, a smoothed step."""
        sketch = self._base(sketch)
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
            self.record["structure"] = self.structure or "shared"
            with torch.no_grad():
                z = self.model.encode_image(x, self.tuned)
                self.sketch = self.model.logits(z, self.text)
                return self._fuse(z, self.sketch)[0]
        if signs["proven"]:
            self.good, self.trial = self.trial, self._core()
            self.watch.age = 0.0
        return None

    def summary(self) -> dict[str, Any]:
        chosen = {"structure": self.structure or "shared", "decided": self.structure is not None}
        guard = {"on": self.set.guard, "returns": self.returns, "events": self.events}
        return {"covariance": {**chosen, **self.outcome}, "guard": guard}

    # --- state ---

    def _core(self) -> dict[str, Tensor]:
        """What the guard restores."""
        state = self.tuned.state_dict("tuned/")
        state |= {f"stats/{key}": value for key, value in self.stats.state_dict().items()}
        state["gauge"] = self.gauge.clone()
        state["sharpness"] = torch.tensor(self.sharpness, dtype=torch.float64)
        known = [None, *stats.STRUCTURES]
        state["structure"] = torch.tensor(known.index(self.structure))
        return state

    def _load_core(self, state: Mapping[str, Tensor]) -> None:
        self.structure = [None, *stats.STRUCTURES][int(state["structure"])]
        self.stats = self._statistics(self.structure or "shared")
        self.stats.load_state_dict(_part(state, "stats/"))
        self._fitted = None
        self.tuned.load_state_dict(state, "tuned/")
        self.gauge, self.sharpness = state["gauge"].clone(), float(state["sharpness"])

    def state_dict(self) -> dict[str, Tensor]:
        state = {**super().state_dict(), **self._core()}
        parts = {"watch": self.watch.state_dict(), "good": self.good, "trial": self.trial}
        for part, values in parts.items():
            state |= {f"{part}/{key}": value.clone() for key, value in values.items()}
        said = {"returns": self.returns, "events": self.events, "outcome": self.outcome}
        letters = bytearray(json.dumps(said).encode())
        state["said"] = torch.frombuffer(letters, dtype=torch.uint8).clone()
        if self.basis is not None and self.probe is not None:
            state["basis"] = self.basis.clone()
            state |= {f"probe/{key}": value for key, value in self.probe.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        said = json.loads(bytes(state["said"].tolist()).decode())
        self.returns, self.events, self.outcome = said["returns"], said["events"], said["outcome"]
        self._load_core(state)
        self.watch.load_state_dict(_part(state, "watch/"))
        self.good, self.trial = _part(state, "good/"), _part(state, "trial/")
        self.basis, self.probe = None, None
        if "basis" in state:
            self.basis = state["basis"].clone()
            self.probe = self._empty_probe()
            self.probe.load_state_dict(_part(state, "probe/"))

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
        self.gauge = torch.lerp(self.gauge, other.gauge, share)
        self.sharpness += share * (other.sharpness - self.sharpness)
        self.good = self.trial = self._core()
