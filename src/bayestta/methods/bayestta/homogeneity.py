"""The choice between one covariance for all classes and one per class, by a test of homogeneity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.maths import stats
from bayestta.maths.box_m import box_m
from bayestta.maths.covariance import pca, pca_basis, soft_covariances
from bayestta.maths.stats import GaussianStats
from bayestta.state import matching, taken

COMPONENTS = 10  # principal components that are tested
SAMPLES_PER_DIMENSION = 10  # that every class must have before it gets a covariance of its own
TEST_EVERY = 8  # steps between tests that could change nothing yet and are for the record
UNTESTED: dict[str, Any] = {  # what a result says of a test that was not carried out
    "statistic": None,
    "critical": None,
    "df1": None,
    "df2": None,
    "usable": False,
    "rejects": False,
}


class Homogeneity:
    """Chooses the structure of the covariance, once.

    Parameters
    ----------
    form
        `released` and `paper` ask the first batch, as published. `box` asks all that was seen, and
        is heeded once every class could carry a matrix of its own. `shared` and `per-class` are the
        answer.
    text
        The prototypes (K,D), which tell the sizes and the device of the evidence.
    """

    def __init__(self, form: str, text: Tensor) -> None:
        self.form, self.text = form, text
        self.reset()

    def reset(self) -> None:
        form = self.form
        self.chosen = form if form in stats.STRUCTURES else None  # None until the test has spoken
        why = "the structure was forced" if self.chosen else "nothing was seen yet"
        self.outcome: dict[str, Any] = {"test": form, **UNTESTED, "reason": why}
        self.basis: Tensor | None = None  # (D,d) principal components of the first batch
        self.probe: GaussianStats | None = None  # the classes in them

    def _empty(self) -> GaussianStats:
        start = self.text.new_zeros(len(self.text), COMPONENTS)
        return GaussianStats(start, structure="per-class", prior_count=0.0, wide=torch.float64)

    @property
    def structure(self) -> str:
        return self.chosen or "shared"

    def ask_batch(self, z: Tensor, sketch: Tensor) -> None:
        """The published forms: the first batch, features (B,D) with their sketch (B,K)."""
        if self.chosen or self.form == "box":
            return
        self.chosen = "shared"
        if self._too_few(z):
            return
        ridge = 1e-6 if self.form == "released" else 0.0
        classes = soft_covariances(pca(z, COMPONENTS), sketch.softmax(1), ridge)
        outcome = box_m(*classes, form=self.form)
        self.outcome |= outcome.record()
        if outcome.rejects:
            self.chosen = "per-class"

    def ask_evidence(self, z: Tensor, weight: Tensor, known: GaussianStats, step: int) -> None:
        """Our form: every batch so far, with the weight (B,K) of each sample in each class.

        `known` are the statistics that would get a scatter per class, or have it by force: then
        what the classes lack for it is noticed.
        """
        forced = self.form == "per-class"
        if not forced and (self.form != "box" or self.chosen):
            return
        K, D = known.mean.shape
        rarest, wanted = float(known.seen.min()), SAMPLES_PER_DIMENSION * D
        enough = rarest >= wanted
        if forced:
            lacks = f", but the rarest class has {rarest:,.0f} of {wanted:,} samples"
            self.outcome["waits"] = not enough
            self.outcome["reason"] = f"the structure was forced{'' if enough else lacks}"
            return
        probe = self._collect(z, weight)
        if probe is None:
            return
        self.outcome["waits"] = not enough
        if not enough and step % TEST_EVERY:
            return
        count = probe.count
        unbiased = probe.scatter / (count - 1).clamp_min(1e-9)[:, None, None]
        outcome = box_m(count, unbiased, form="box")
        self.outcome |= outcome.record()
        if not (outcome.usable and enough):
            return
        self.chosen = "shared"
        need = K * D * D * known.wide.itemsize
        if outcome.rejects and need > stats.BUDGET_BYTES:
            self.outcome["reason"] = f"a covariance per class would take {need:,} bytes"
        elif outcome.rejects:
            self.chosen = "per-class"

    def _collect(self, z: Tensor, weight: Tensor) -> GaussianStats | None:
        """The classes so far in the principal components, this batch among them."""
        if self.basis is None or self.probe is None:
            if self._too_few(z):
                return None
            self.basis, self.probe = pca_basis(z, COMPONENTS), self._empty()
        self.probe.update(z.double() @ self.basis, weight)
        return self.probe

    def _too_few(self, z: Tensor) -> bool:
        B, D = z.shape
        if min(B, D) >= COMPONENTS:
            return False
        why = f"{B} images of {D} features have no {COMPONENTS} principal components"
        self.outcome["reason"] = why
        return True

    def state(self) -> dict[str, Any]:
        """The choice, what was said of it, and the evidence."""
        said = {"chosen": self.chosen or "", "outcome": dict(self.outcome)}
        if self.basis is None or self.probe is None:
            return said
        probe = {f"probe/{key}": value for key, value in self.probe.state().items()}
        return {**said, "basis": self.basis.clone(), **probe}

    def load(self, state: Mapping[str, Any]) -> None:
        rest, (chosen, outcome) = dict(state), (state.get("chosen"), state.get("outcome"))
        if chosen not in ("", *stats.STRUCTURES) or not isinstance(outcome, dict):
            raise ValueError(f"chosen is {chosen!r} instead of one of {stats.STRUCTURES}.")
        sums, basis, probe = taken(rest, "probe/"), rest.get("basis"), None
        if basis is not None:
            like = self.text.new_zeros(self.text.shape[1], COMPONENTS, dtype=torch.float64)
            basis, probe = matching("basis", basis, like), self._empty()
            probe.load(sums)
        self.chosen, self.outcome = chosen or None, dict(outcome)
        self.basis, self.probe = basis, probe

    def merge(self, other: Homogeneity, share: float) -> None:
        """Each worker tests what it saw; the principal components of two differ."""
        if self.structure != other.structure:
            raise ValueError(
                f"one adapter chose the {self.structure} covariance, the other the "
                f"{other.structure} one: force the same with test='shared' or test='per-class'."
            )
