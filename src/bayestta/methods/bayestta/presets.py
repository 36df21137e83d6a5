"""The hyper-parameters of BayesTTA, and the two published forms as differences from the default."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from bayestta.names import unknown

CHOICES: dict[str, tuple[str, ...]] = {
    "responsibilities": ("fused", "sketch", "posterior"),
    "centre": ("exact", "old", "new"),
    "class_prior": ("uniform", "counts"),
    "test": ("box", "released", "paper", "shared", "per-class"),
    "units": ("spread", "logit", "cosine"),
    "fusion": ("both", "gda"),
    "norm_rule": ("all", "released"),
}


@dataclass(frozen=True)
class Settings:
    """One setting for everything, chosen on held-out streams and frozen (see docs/method.md)."""

    # statistics
    responsibilities: str = "fused"  # what weighs a sample: sketch, last fused answer, or posterior
    softness: float = 1.0  # temperature of the responsibilities; 1: as soft as the sketch
    centre: str = "exact"  # about which mean scatter is taken (stats.py)
    prior_scatter: float = 0.0  # weight of the identity a class in the covariance
    epsilon: float = 0.0  # added to the counts that divide
    half_life: float = 300.0  # samples after which evidence counts half
    window: bool = False  # statistics of the current batch alone (ablation)
    # covariance
    test: str = "box"  # how the structure is tested; or the answer itself
    shrinkage: float = 0.2  # towards variance * I
    variance: float = 0.0  # 0: the mean variance of the covariance itself
    write_back: bool = False  # the regularised covariance replaces the statistics
    truncate: bool = False  # pseudo-inverse instead of a Cholesky factor
    pinv_rtol: float = 0.0  # its relative cut-off; 0: D * eps of float32
    # fusion
    alpha: float = 8.0  # weight of the discriminants
    units: str = "spread"  # alpha 1 weighs as much as the sketch; logit, cosine: added as they are
    doubt: float = 0.2  # share of differing answers at which they get all of alpha; 0: always
    class_prior: str = "uniform"  # in the discriminants: uniform, or class counts
    fusion: str = "both"  # gda: the discriminants alone (ablation)
    temperature: float = 1.0  # of the probabilities; 1: as sure on average as the sketch
    # refinement
    refine: bool = True  # move the norms of the image tower
    norm_rule: str = "all"  # released: no BatchNorm of a down-sampling branch
    lr: float = 3e-3  # of Adam
    beta: float = 0.99  # share of the old weights that is kept: the step is lr * (1 - beta)
    guard: bool = True  # step back when the answers collapse


PRESETS = {
    "default": Settings(),
    "released": Settings(
        responsibilities="sketch",
        softness=1.0,
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
    "paper": Settings(
        responsibilities="posterior",
        softness=1.0,
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


def settings(preset: str, **changes: Any) -> Settings:
    """A preset with changes; unknown names and values are refused with the valid ones.

    >>> settings("released", alpha=10.0).alpha
    10.0
    """
    if preset not in PRESETS:
        raise ValueError(unknown("preset", preset, PRESETS))
    valid = [field.name for field in fields(Settings)]
    for key in changes:
        if key not in valid:
            raise ValueError(unknown("hyper-parameter of bayestta", key, ["preset", *valid]))
    chosen = replace(PRESETS[preset], **changes)
    for key, allowed in CHOICES.items():
        if getattr(chosen, key) not in allowed:
            raise ValueError(unknown(f"value of {key}", str(getattr(chosen, key)), allowed))
    for key in ("softness", "temperature", "half_life"):
        if not getattr(chosen, key) > 0:
            raise ValueError(
                f"{key} is {getattr(chosen, key)}, but must be positive: give a number above 0."
            )
    for key in ("beta", "shrinkage"):
        if not 0 <= getattr(chosen, key) <= 1:
            raise ValueError(
                f"{key} is {getattr(chosen, key)}, but is a share: give a number from 0 to 1."
            )
    for key in ("lr", "alpha", "doubt", "variance", "pinv_rtol", "prior_scatter", "epsilon"):
        if not getattr(chosen, key) >= 0:
            raise ValueError(
                f"{key} is {getattr(chosen, key)}, but cannot be negative: give 0 or more."
            )
    return chosen
