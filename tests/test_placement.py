"""State lives where the model does: shown with `meta` tensors, as no other device is at hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bayestta.checks import Case, tiny_model
from bayestta.methods import methods
from test_contract import SMALL

# Numbers that the host reads at every step stay on it: the device would have to be waited for.
HOST = (
    *("random/generator", "@step"),  # torch keeps these on the CPU itself
    *("/entropies", "/counts", "guard/sums", "temperature/sums"),
    *("looks/recent", "looks/anchor", "looks/last", "answers/rows", "answers/tried"),
    *("judged/first", "judged/second", "trial/answers/first", "trial/answers/second"),
    *("memory/label", "memory/uncertainty", "memory/born"),
)
PROMPTS = {"adaprompt", "coop", "dynaprompt", "histpt", "tpt"}  # which read the values of tokens
METHODS = [name for name in methods() if name not in PROMPTS]
TOWERS = ("BatchNorm", "LayerNorm")


def devices(state: dict[str, Any]) -> dict[str, str]:
    return {
        key: value.device.type
        for key, value in state.items()
        if isinstance(value, Tensor) and not key.endswith(HOST)
    }


def on_meta(method: str, tower: str):
    model = tiny_model(tower)
    for module in model.towers():
        module.to("meta")
    return Case(methods()[method], tower, SMALL.get(method, {})).make(model=model)


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("method", METHODS)
def test_state_is_declared_there(method, tower):
    adapter = on_meta(method, tower)
    assert adapter.text.device.type == "meta"
    found = devices(adapter.state())
    assert set(found.values()) <= {"meta"}, found
    adapter.reset()
    assert devices(adapter.state()) == found


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_state_is_loaded_there(method, tower):
    case = Case(methods()[method], tower, SMALL.get(method, {}))
    first, second = case.make(), on_meta(method, tower)
    case.adapt(first, [list(range(12)), [3, 4, 5]])  # enough images for BayesTTA's test
    state = first.state()
    assert set(devices(state).values()) <= {"cpu"}
    second.load_state(state)
    found = devices(second.state())
    assert set(found.values()) <= {"meta"}, found
    assert second.state().keys() == state.keys()


@pytest.mark.parametrize("method", sorted(PROMPTS))
def test_prompts_cannot_be_placed_without_values(method):
    """The list above is no longer than it has to be."""
    with pytest.raises(NotImplementedError):
        on_meta(method, "LayerNorm")


def test_the_evidence_of_the_test_must_fit():
    """BayesTTA's test of homogeneity collects evidence from batches of ten images on."""
    case = Case(methods()["bayestta"])
    adapter = case.make()
    case.adapt(adapter, [list(range(12))])
    state = adapter.state()
    for key, wrong in (
        ("test/basis", state["test/basis"][:-1]),
        ("test/basis", state["test/basis"].float()),
        ("test/probe/count", state["test/probe/count"][:-1]),
        ("test/probe/mean", torch.full_like(state["test/probe/mean"], torch.nan)),
    ):
        with pytest.raises(ValueError, match=r"basis|count|mean"):
            adapter.load_state({**state, key: wrong})
    with pytest.raises(ValueError, match="probe"):
        adapter.load_state({k: v for k, v in state.items() if k != "test/basis"})
