"""The settings of BayesTTA, and the two published forms as differences from the default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bayestta.names import unknown
from bayestta.settings import Settings, setting

FORMS = ("default", "released", "paper")


@dataclass(frozen=True)
class BayesTTASettings(Settings):
    """One setting for everything, chosen on held-out streams and frozen (see docs/method.md)."""

    preset: str = setting(
        "default",
        "Which form the others start from: ours, the authors' code (released) or their equations "
        "(paper).",
        choices=FORMS,
    )
    # statistics
    responsibilities: str = setting(
        "fused",
        "What weighs a sample in each class: the sketch, the fused answer or the posterior.",
        choices=("fused", "sketch", "posterior"),
    )
    softness: float = setting(
        1.0, "Temperature of the responsibilities; 1 is as soft as the sketch.", above=0
    )
    centre: str = setting(
        "exact",
        "Mean about which scatter is taken; see GaussianStats.",
        choices=("exact", "old", "new"),
    )
    prior_scatter: float = setting(
        0.0, "Weight of the identity per class in the covariance.", least=0
    )
    epsilon: float = setting(0.0, "Added to the counts that divide.", least=0)
    half_life: float = setting(300.0, "Samples after which evidence counts half.", above=0)
    window: bool = setting(False, "Statistics of the current batch alone (ablation).")
    # covariance
    test: str = setting(
        "box",
        "How the structure of the covariance is tested, or the answer itself.",
        choices=("box", "released", "paper", "shared", "per-class"),
    )
    shrinkage: float = setting(0.2, "Shrinkage towards variance * I.", least=0, most=1)
    variance: float = setting(
        0.0, "Variance of that target; 0 is the mean variance of the covariance.", least=0
    )
    write_back: bool = setting(False, "The regularised covariance replaces the statistics.")
    truncate: bool = setting(False, "A pseudo-inverse instead of a Cholesky factor.")
    pinv_rtol: float = setting(0.0, "Its relative cut-off; 0 is D * eps of float32.", least=0)
    # fusion
    alpha: float = setting(8.0, "Weight of the discriminants.", least=0)
    units: str = setting(
        "spread",
        "Units of alpha: spread (1 weighs as much as the sketch), logit or cosine (as they are).",
        choices=("spread", "logit", "cosine"),
    )
    doubt: float = setting(
        0.2, "Share of differing answers at which alpha counts in full; 0: always.", least=0
    )
    class_prior: str = setting(
        "uniform", "Class prior in the discriminants.", choices=("uniform", "counts")
    )
    fusion: str = setting(
        "both", "The sketch and the discriminants, or these alone.", choices=("both", "gda")
    )
    temperature: float = setting(
        1.0, "Temperature of the probabilities; 1 is as sure on average as the sketch.", above=0
    )
    # refinement
    refine: bool = setting(True, "Move the norms of the image tower.")
    norm_rule: str = setting(
        "all",
        "Which norms: all, or none in a down-sampling branch (released).",
        choices=("all", "released"),
    )
    lr: float = setting(3e-3, "Learning rate of Adam.", least=0)
    beta: float = setting(
        0.99, "Share of the old weights that a step keeps: it is lr * (1 - beta).", least=0, most=1
    )
    guard: bool = setting(True, "Step back when the answers collapse.")

    @classmethod
    def default(cls, changes: Mapping[str, Any]) -> BayesTTASettings:
        preset = changes.get("preset", "default")
        if preset not in PRESETS:
            raise ValueError(unknown("preset", str(preset), PRESETS))
        return PRESETS[preset]

    def changes(self) -> dict[str, Any]:
        named = {} if self.preset == "default" else {"preset": self.preset}
        return {**named, **super().changes()}


PRESETS = {
    "default": BayesTTASettings(),
    "released": BayesTTASettings(
        preset="released",
        responsibilities="sketch",
        half_life=math.inf,
        centre="old",
        epsilon=1e-8,
        test="released",
        shrinkage=1e-4,
        variance=0.1**2,
        truncate=True,
        alpha=1.0,
        units="logit",
        doubt=0.0,
        norm_rule="released",
        lr=1e-3,
        beta=0.99,
        guard=False,
    ),
    # The paper leaves open its ridge, sigma^2, alpha, rate, decay and first class counts: these
    # are chosen by us, within what it says.
    "paper": BayesTTASettings(
        preset="paper",
        responsibilities="posterior",
        half_life=math.inf,
        centre="new",
        prior_scatter=1.0,
        test="paper",
        shrinkage=1e-4,
        variance=0.1,
        write_back=True,
        truncate=True,
        alpha=1.0,
        units="cosine",
        doubt=0.0,
        class_prior="counts",
        lr=5e-3,
        beta=0.99,
        guard=False,
    ),
}


def settings(preset: str, **changes: Any) -> BayesTTASettings:
    """A preset with changes.

    >>> settings("released", alpha=10.0).alpha
    10.0
    """
    return replace(BayesTTASettings.default({"preset": preset}), **changes)
