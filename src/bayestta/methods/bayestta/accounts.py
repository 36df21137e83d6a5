"""What BayesTTA says of a step, and of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayestta.methods.bayestta.method import BayesTTA


def step_account(method: BayesTTA) -> dict[str, Any]:
    """The record of a step: structure, weights, and the statistics that the tower goes by."""
    record = {"structure": method.test.structure, **method.test.outcome}
    record |= {"alpha": method.alpha, "trust": method.trust.value}
    record |= {name: getattr(method._fit()[1], name) for name in ("slope", "kappa", "foretold")}
    if method.tower is not None:
        record |= method.tower.in_use
    return record


def covariance_account(method: BayesTTA) -> dict[str, Any]:
    """The structure of the covariance, and what the test said of it."""
    chosen = {"structure": method.test.structure, "decided": method.structure is not None}
    return {**chosen, **method.test.outcome}


def stream_account(method: BayesTTA) -> dict[str, Any]:
    """What results keep: covariance, guard, tower and refinement."""
    guard = {**method.guard.summary(), "on": method.settings.guard}
    account: dict[str, Any] = {"covariance": covariance_account(method), "guard": guard}
    if method.tower is not None:
        account["tower"] = {**method.tower.in_use, "trials": method.tower.trials}
    if method.refinement is not None:
        passed = method.refinement.passed / max(1, method.samples) / method.settings.share
        returns = method.refinement.weights.pace.returns
        account["refinement"] = {"passed": passed, "returns": returns}
    return account
