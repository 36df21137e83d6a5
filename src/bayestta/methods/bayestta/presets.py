"""The settings of BayesTTA: those of our form, and the two published forms as instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayestta.names import unknown
from bayestta.settings import Settings, setting

FORMS = ("default", "released", "paper")
PRESET = "Which form: ours (default), the authors' code (released) or their equations (paper)."


@dataclass(frozen=True)
class AnyForm(Settings):
    """What all forms share; `preset` says which settings there are besides."""

    preset: str = setting("default", PRESET, choices=FORMS)

    @classmethod
    def default(cls, changes: Mapping[str, Any]) -> Any:
        preset = changes.get("preset", "default")
        if preset not in PRESETS:
            raise ValueError(unknown("preset", str(preset), PRESETS))
        return PRESETS[preset]

    def changes(self) -> dict[str, Any]:
        named = {} if self.preset == "default" else {"preset": self.preset}
        return {**named, **super().changes()}


@dataclass(frozen=True)
class BayesTTASettings(AnyForm):
    """One setting for everything, chosen on held-out streams and frozen (see docs/method.md)."""

    # statistics
    half_life: float = setting(30.0, "Samples per class after which evidence counts half.", above=0)
    window: bool = setting(False, "Statistics of the current batch alone (ablation).")
    test: str = setting(
        "box",
        "How the structure of the covariance is tested, or the answer itself.",
        choices=("box", "shared", "per-class"),
    )
    # fusion
    alpha: float = setting(
        8.0, "Largest weight of the discriminants, in units of the sketch.", least=0
    )
    doubt: float = setting(
        0.3, "Share of differing answers at which alpha counts in full; 0: always.", least=0
    )
    fusion: str = setting(
        "both", "The sketch and the discriminants, or these alone.", choices=("both", "gda")
    )
    # the tower
    statistics: bool = setting(
        True, "Let the stream choose the statistics of pixels and BatchNorms."
    )
    refine: bool = setting(True, "Move the norms of the image tower where answers differ.")
    lr: float = setting(2e-3, "Learning rate of Adam.", least=0)
    share: float = setting(0.25, "Share of the images that get a gradient.", above=0, most=1)
    gate: float = setting(
        0.02,
        "Share of images on which answer and sketch differ, below which the tower is left alone.",
        least=0,
        most=1,
    )
    guard: bool = setting(True, "Answer from the sketch, and step back, when answers collapse.")


@dataclass(frozen=True)
class PublishedSettings(AnyForm):
    """The switches between the authors' code and their equations."""

    preset: str = setting("released", PRESET, choices=FORMS)
    responsibilities: str = setting(
        "sketch",
        "What weighs a sample in each class: the sketch or the posterior.",
        choices=("sketch", "posterior"),
    )
    centre: str = setting(
        "old",
        "Mean about which scatter is taken; see GaussianStats.",
        choices=("exact", "old", "new"),
    )
    prior_scatter: float = setting(
        0.0, "Weight of the identity per class in the covariance.", least=0
    )
    epsilon: float = setting(1e-8, "Added to the counts that divide.", least=0)
    window: bool = setting(False, "Statistics of the current batch alone (ablation).")
    test: str = setting(
        "released",
        "How the structure of the covariance is tested, or the answer itself.",
        choices=("released", "paper", "shared", "per-class"),
    )
    shrinkage: float = setting(1e-4, "Shrinkage towards variance * I.", least=0, most=1)
    variance: float = setting(0.1**2, "Variance of that target.", least=0)
    write_back: bool = setting(False, "The regularised covariance replaces the statistics.")
    pinv_rtol: float = setting(
        0.0, "Relative cut-off of the pseudo-inverse; 0 is D * eps of float32.", least=0
    )
    alpha: float = setting(1.0, "Weight of the discriminants.", least=0)
    units: str = setting(
        "logit", "What they are added to: logits or cosines.", choices=("logit", "cosine")
    )
    class_prior: str = setting(
        "uniform", "Class prior in the discriminants.", choices=("uniform", "counts")
    )
    fusion: str = setting(
        "both", "The sketch and the discriminants, or these alone.", choices=("both", "gda")
    )
    refine: bool = setting(True, "Move the norms of the image tower.")
    norm_rule: str = setting(
        "released",
        "Which norms: all, or none in a down-sampling branch (released).",
        choices=("all", "released"),
    )
    lr: float = setting(1e-3, "Learning rate of Adam.", least=0)
    beta: float = setting(
        0.99, "Share of the old weights that a step keeps: it is lr * (1 - beta).", least=0, most=1
    )


PRESETS: dict[str, AnyForm] = {
    "default": BayesTTASettings(),
    "released": PublishedSettings(),
    # The paper leaves open its ridge, sigma^2, alpha, rate, decay and first class counts: these
    # are chosen by us, within what it says.
    "paper": PublishedSettings(
        preset="paper",
        responsibilities="posterior",
        centre="new",
        prior_scatter=1.0,
        epsilon=0.0,
        test="paper",
        variance=0.1,
        write_back=True,
        units="cosine",
        class_prior="counts",
        norm_rule="all",
        lr=5e-3,
    ),
}
