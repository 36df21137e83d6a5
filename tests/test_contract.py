"""What every method promises: `bayestta.checks` over the registry, on both towers."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from bayestta.checks import CHECKS, Case, run_check
from bayestta.methods import make_adapter, methods
from bayestta.methods.guarded import Guarded
from bayestta.methods.tent import Tent

SMALL: dict[str, dict[str, Any]] = {  # what keeps the suite fast, and memories full
    "adaprompt": {"capacity": 5},
    "cotta": {"augmentations": 2},
    "dynaprompt": {"prompts": 3},
    "histpt": {"bank": 3, "hardest": 2},
    "rotta": {"capacity": 5, "every": 4},
    "watt": {"rounds": 1, "steps_each": 1, "own_templates": False},
}
ONE_TOWER = {  # what does not depend on it
    *("describes_itself", "settings_documented", "settings_checked", "settings_round_trip"),
    *("bounded_memory", "bad_images", "cached_features"),
}


@cache
def case(method: str, tower: str) -> Case:
    return Case(methods()[method], tower, SMALL.get(method, {}))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("method", methods())
def test_layer_norm(method: str, check: str) -> None:
    run_check(check, case(method, "LayerNorm"))


@pytest.mark.parametrize("check", [name for name in CHECKS if name not in ONE_TOWER])
@pytest.mark.parametrize("method", methods())
def test_batch_norm(method: str, check: str) -> None:
    run_check(check, case(method, "BatchNorm"))


def guarded(*args: Any, **keywords: Any) -> Guarded:
    return Guarded(Tent(*args, **keywords))


@cache
def guarded_case() -> Case:
    return Case(guarded, "BatchNorm")


@pytest.mark.parametrize("check", CHECKS)
def test_a_guarded_method(check: str) -> None:
    run_check(check, guarded_case())


def test_methods_that_tune_by_default_say_how_not_to() -> None:
    """BayesTTA refuses cached features with its defaults, and takes them as it says."""
    told = Case(methods()["bayestta"], settings={"refine": False})
    run_check("cached_features", told)
    assert not make_adapter("bayestta", told.model, ["a", "b"], refine=False).moves_tower
