"""BayesTTA, our form, in the order of the paper; the published forms are in published.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.maths.calibration import Temperature
from bayestta.maths.discriminant import Discriminant
from bayestta.maths.stats import GaussianStats
from bayestta.methods import register
from bayestta.methods.bayestta.accounts import step_account, stream_account
from bayestta.methods.bayestta.fusion import FORETOLD, Fusion, ramp
from bayestta.methods.bayestta.homogeneity import Homogeneity
from bayestta.methods.bayestta.judged import Judged
from bayestta.methods.bayestta.presets import BayesTTASettings
from bayestta.methods.bayestta.prior import Expected, fit
from bayestta.methods.bayestta.refinement import Refinement, Trace
from bayestta.methods.bayestta.signature import ABRUPT
from bayestta.methods.bayestta.tower import StreamTower
from bayestta.methods.bayestta.trust import Trust, responsibilities
from bayestta.methods.guard import Guard
from bayestta.models._norms import norm_layers

LARGEST = 128  # images of a step
FORGOTTEN = 0.7  # of the statistics when features come to lie elsewhere, where text tells enough
PARTS = ("test", "stats", "trust", "fusion", "temperature", "tower", "refinement", "guard")


@register
class BayesTTA(Adapter):
    """Adapt by Gaussian discriminant analysis of the features, and a tower that follows the stream.

    >>> from bayestta import load_model
    >>> adapter = BayesTTA(load_model("mini-rn"), ["cat", "dog"], alpha=1.0)
    >>> adapter.adapt(torch.zeros(4, 3, 64, 64)).shape
    torch.Size([4, 2])
    """

    Settings = BayesTTASettings
    settings: BayesTTASettings
    name = "bayestta"
    title = "BayesTTA"
    citation = (
        "Cui et al., BayesTTA: Continual-Temporal Test-Time Adaptation for Vision-Language Models "
        "via Gaussian Discriminant Analysis, arXiv 2507.08607, 2025"
    )
    tunes = "Gaussian statistics of the features; statistics and norms of the image tower"
    cost = "1 forward per image; while the stream moves up to 1/5 more, where answers differ 0.6"
    fidelity = "preset=released follows the authors' code, paper the equations; the default is ours"

    def __new__(cls, *args: Any, **keywords: Any) -> BayesTTA:
        """The class of the form that `preset` or `settings` ask for."""
        preset = keywords.get("preset", getattr(keywords.get("settings"), "preset", "default"))
        if cls is BayesTTA and preset in ("released", "paper"):
            from bayestta.methods.bayestta.published import Published

            cls = Published
        return super().__new__(cls)

    def declare(self) -> None:
        own, model, text = self.settings, self.model, self.text
        norms = bool(norm_layers(model.visual))
        self.test = Homogeneity(own.test, text)
        self.stats = GaussianStats(
            text, structure=self.test.structure, prior_count=0.0, wide=text.dtype
        )
        self.trust = Trust(text)
        self.fusion = Fusion(own.alpha, own.doubt, like=text, alone=own.fusion == "gda")
        self.temperature = Temperature()
        self.tower = StreamTower(model, text) if own.statistics and norms else None
        rates = {"lr": own.lr, "share": own.share, "gate": own.gate}
        self.refinement = Refinement(model, text, **rates) if own.refine and norms else None
        self.weights = self.refinement.weights if self.refinement else None
        self.judged = self.weights.judged if self.weights else Judged(len(self.classes))
        self.guard = Guard(self)
        for name in PARTS:
            if (part := getattr(self, name)) is not None:
                self.add_state(name, part)
        self._fitted: tuple[Tensor, Discriminant | None, Expected] | None = None  # factored

    def _adapt(self, x: Tensor) -> Tensor:
        """A large batch is a few small ones: what comes first teaches what comes after."""
        parts, record, moves, rest = [], dict[str, Any](), False, x
        while len(rest):
            tuned = self.refinement if self._even else None
            some, rest = rest.tensor_split([tuned.room(LARGEST) if tuned else LARGEST])
            answer, sketch = self._step(some)
            parts.append((answer / self.temperature.value, sketch))
            record, moves = record | self.record, moves or self.moves_tower
        calibrated, self.sketch = map(torch.cat, zip(*parts, strict=True))
        self.record, self.moves_tower = record, moves
        return calibrated * self.temperature.value

    def _step(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The answer to images and their sketch, both (B,K)."""
        with torch.no_grad():
            z, trace = self._features(x)
            sketch = self.model.logits(z, self.text)  # Eq. 6
            features = self._without_drift(z)
            self._estimate(features, sketch)
            answer = self._answer(features, sketch, remember=True)
        self.record = step_account(self)
        if self.settings.guard:
            weights = self.weights
            returns = weights.pace.returns + weights.moved if weights else 0
            self.record["guard"], bad = self.guard.review(self.probabilities(answer), sketch)
            if bad:
                if weights:  # or the same steps would lead to the same end
                    weights.slow_down(returns)
                return sketch * self.temperature.value, sketch
        if self.refinement is not None:
            taught = x.to(self.model.device), z, answer, sketch, trace
            even, crowded = self._even, self.trust.crowded
            if reason := self.refinement.learn(*taught, even=even, crowded=crowded):
                self.record["refinement"] = reason
        return answer, sketch

    @property
    def settled(self) -> float:
        """How far the stream has settled, see `Looks`; that is unknown of features alone."""
        return self.tower.looks.settled if self.tower and self.tower.looks.weight else 1.0

    @property
    def _even(self) -> bool:
        """Whether refinement may learn: an even and settled stream, by the source's statistics."""
        return self.settled == 1 and self.trust.teaches and not (self.tower and self.tower.active)

    def _predict(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        return self._answer(self._without_drift(z), self.model.logits(z, self.text))

    def _tensors(self) -> Mapping[str, Tensor] | None:
        return self.weights.tensors if self.weights else None

    def _features(self, x: Tensor) -> tuple[Tensor, Trace | None]:
        """Features of a batch, by statistics that the stream chooses, and what refinement needs."""
        weights, tower = self.weights, self.tower if x.ndim == 4 else None  # pixels, not features
        before, far = (0, 0.0) if tower is None else (tower.active, tower.look(x))
        if weights:
            weights.follow(far)
        x, tensors, trace = x.to(self.model.device), self._tensors(), None
        if tower is not None and (tower.left or tower.active):
            z = tower.features(x, tensors)
            if tower.active and weights:  # which are not for these statistics
                weights.leave()
        elif self.refinement is not None and self._even:
            z, trace = self.refinement.features(x)
        else:
            z = self.model.encode_image(x, tensors)
        switched = tower is not None and tower.active != before
        if change := FORGOTTEN * (1.0 if switched else ramp(far, *ABRUPT)):
            self.stats.forget(1 - change * ramp(self._fit()[1].foretold, *FORETOLD))
        self.moves_tower = tensors is not None or bool(tower and tower.active)
        return z, trace

    def _without_drift(self, z: Tensor) -> Tensor:
        """Features (B,D) where those of the source are, or tuning would leave statistics behind."""
        return z.double() - (self.weights.drift if self.weights else 0.0)

    def encode(self, x: Tensor) -> Tensor:
        """Features (B,D) of a batch as the current state sees them; nothing changes."""
        if self.tower is None or x.ndim != 4:
            return self.model.encode_image(x, self._tensors())
        return self.tower.encode(x.to(self.model.device), self.tower.active, self._tensors())

    # --- debiased temporal distribution estimation ---

    def _estimate(self, z: Tensor, sketch: Tensor) -> None:
        keep = 0.5 ** (len(z) / (self.settings.half_life * len(self.classes)))
        self._follow_test()
        self.trust.update(sketch.softmax(1), keep)
        weight = self._responsibilities(z, sketch)  # Eq. 18
        if self.settings.window:
            self.stats.reset()
            self._follow_test()
        self.stats.forget(keep)
        self.stats.update(z, weight)  # Eqs. 19 to 22
        self.test.ask_evidence(z, weight, self.stats, self.steps)
        self._follow_test()

    def _follow_test(self) -> None:
        if self.stats.structure != self.test.structure:
            self.stats, self._fitted = self.stats.per_class(), None

    def _responsibilities(self, z: Tensor, sketch: Tensor) -> Tensor:
        """What weighs a sample in each class, by the last statistics."""
        score = self._score(z)
        if score is None or not self.fusion.ready:
            return responsibilities(sketch, sketch, 0.0)
        fused = self.fusion(sketch, score, self._label_alpha)
        return responsibilities(sketch, fused, self.trust.value)

    # --- sketch refinement by discriminant analysis ---

    def _fit(self) -> tuple[Discriminant | None, Expected]:
        """The Gaussians of Eq. 25 and their means, fitted once per change of the statistics."""
        seen = self.stats.seen  # replaced, never changed in place
        if self._fitted is None or self._fitted[0] is not seen:
            self._fitted = seen, *fit(self.stats, self.text)
        return self._fitted[1:]

    def _score(self, z: Tensor) -> Tensor | None:
        classes = self._fit()[0]
        return None if classes is None else classes.contrast(z)

    @property
    def alpha(self) -> float:
        """The weight of the discriminants in an answer at this moment."""
        sees = self._fit()[1].foretold, self.trust.mixed, self.judged.evener, self.settled
        return self._label_alpha * self.fusion.worth(*sees)

    @property
    def _label_alpha(self) -> float:
        """Their weight where they label the samples of their own statistics."""
        return self.fusion.weight(self.stats.seen, self.trust.value)

    def _answer(self, z: Tensor, sketch: Tensor, *, remember: bool = False) -> Tensor:
        """Eqs. 27 and 28; a state that has seen nothing answers by the sketch."""
        score = self._score(z)
        if score is not None and remember:
            self.fusion.remember(sketch, score)
        if score is None or not self.fusion.ready:
            return sketch * self.temperature.value  # its own `probabilities`
        trust = self.trust.value
        leaning = (1 - trust) * self.fusion.lean(self.stats.seen)
        if remember:  # what this batch names weighs in the alpha of its own answer
            self.trust.name(self.fusion(sketch, score, self.alpha) + leaning)
        alpha, foretold = self.alpha, self._fit()[1].foretold
        answer = self.fusion(sketch, score, alpha) + leaning
        if remember:
            sure = self.fusion.confidence(answer, sketch, score, alpha, trust, foretold)
            goal = (sure - self.judged.surer).clamp_min(1 / len(self.classes))
            self.temperature.update(answer, goal)
        return answer.to(sketch.dtype)

    def probabilities(self, logits: Tensor) -> Tensor:
        return self.temperature(logits).to(logits.dtype)

    @property
    def structure(self) -> str | None:
        """Of the covariance; None until the test has spoken."""
        return self.test.chosen

    def summary(self) -> dict[str, Any]:
        return stream_account(self)
