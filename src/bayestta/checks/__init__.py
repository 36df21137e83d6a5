"""What every method promises, as checks that anybody can run on a method of their own.

>>> from bayestta import checks
>>> from bayestta.methods.zero_shot import ZeroShot
>>> checks.check_adapter(ZeroShot, skip={"threads": "as an example"})

Each check is a function with its promise in the docstring; `CHECKS` has them by name, the most
basic first. They run on tiny random models that are built here, with the core dependencies only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bayestta.adapter import Adapter
from bayestta.checks._answer_checks import (
    cached_features,
    finite_answers,
    half_precision,
    independent,
    input_untouched,
    label_skew,
    model_untouched,
    pure_predict,
    seeded,
)
from bayestta.checks._case import Case, CheckFailed
from bayestta.checks._safety_checks import bad_images, failed_step, grad_mode, threads
from bayestta.checks._settings_checks import (
    describes_itself,
    settings_checked,
    settings_documented,
    settings_round_trip,
)
from bayestta.checks._state_checks import bounded_memory, loading, merge, reset, save_and_load
from bayestta.checks._tiny_model import TOWERS, tiny_model
from bayestta.names import unknown

CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        describes_itself,
        settings_documented,
        settings_checked,
        settings_round_trip,
        finite_answers,
        model_untouched,
        input_untouched,
        seeded,
        pure_predict,
        reset,
        save_and_load,
        loading,
        bounded_memory,
        merge,
        independent,
        bad_images,
        failed_step,
        grad_mode,
        threads,
        label_skew,
        half_precision,
        cached_features,
    )
}
__all__ = ["CHECKS", "Case", "CheckFailed", "check_adapter", "run_check", "tiny_model", *CHECKS]


def check_adapter(
    method: Callable[..., Adapter],
    *,
    settings: Mapping[str, Any] | None = None,
    skip: Mapping[str, str] | None = None,
    towers: Iterable[str] = tuple(TOWERS),
) -> None:
    """Run all checks; `CheckFailed` names the first promise that is not kept.

    Parameters
    ----------
    method
        A subclass of `Adapter`, or a function that takes the same arguments and makes an adapter.
    settings
        Settings that make the method small and fast, such as the size of a memory.
    skip
        Names of checks that do not apply, each with the reason.
    towers
        `BatchNorm` and `LayerNorm`, or one of them.
    """
    reasons = {} if skip is None else dict(skip)
    for name, reason in reasons.items():
        if name not in CHECKS:
            raise ValueError(unknown("check", name, CHECKS))
        if not reason:
            raise ValueError(f"check {name!r} is skipped without a reason: say why in a sentence.")
    for tower in towers:
        case = Case(method, tower, {} if settings is None else dict(settings))
        for name in CHECKS:
            if name not in reasons:
                run_check(name, case)


def run_check(name: str, case: Case) -> None:
    """Run one check on a fresh model; whatever goes wrong becomes a `CheckFailed`."""
    check = CHECKS.get(name)
    if check is None:
        raise ValueError(unknown("check", name, CHECKS))
    case.renew()
    try:
        check(case)
    except Exception as error:
        fact = str(error) if isinstance(error, CheckFailed) else f"{type(error).__name__}: {error}"
        method = getattr(case.method, "name", "") or getattr(case.method, "__name__", "the method")
        raise CheckFailed(
            f"{method} fails the check {name!r} on the {case.tower} tower: {fact.rstrip('.')}. "
            f"The promise: {str(check.__doc__).strip()}"
        ) from error
