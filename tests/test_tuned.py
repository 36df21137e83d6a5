"""The tuned tensors: steps, restarts, state and merging, against torch's optimisers by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from bayestta.methods._tuned import Tuned

OPTIMISERS = {
    "Adam": partial(torch.optim.Adam, lr=0.1),
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
}


def make(kind="Adam"):
    start = {"norm.weight": torch.tensor([1.0, 2.0]), "norm.bias": torch.tensor([0.5])}
    return Tuned(start, OPTIMISERS[kind])


def loss(tensors, target=3.0):
    return sum((value - target).pow(4).sum() for value in tensors.values())


def same(a, b):
    a, b = a.state(), b.state()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("keep", [0.0, 0.75])
def test_a_step_is_the_optimisers_smoothed_towards_what_was(kind, keep):
    tuned = make(kind)
    free = {key: value.clone().requires_grad_() for key, value in tuned.start.items()}
    optimiser = OPTIMISERS[kind](list(free.values()))
    for _ in range(4):
        tuned.step(loss(tuned), keep=keep)
        old = {key: value.detach().clone() for key, value in free.items()}
        optimiser.zero_grad()
        loss(free).backward()
        optimiser.step()
        with torch.no_grad():
            for key, value in free.items():
                value.copy_(keep * old[key] + (1 - keep) * value)
    for key, value in free.items():
        torch.testing.assert_close(tuned[key], value)
        assert tuned[key].grad is None


def test_smoothed_adam_is_adam_at_a_smaller_rate():
    """Of a smoothed step only lr * (1 - keep) remains, as the released code's average shows."""
    smoothed = Tuned(make().start, partial(torch.optim.Adam, lr=0.1))
    smaller = Tuned(make().start, partial(torch.optim.Adam, lr=0.1 * 0.25))
    for _ in range(5):
        smoothed.step(loss(smoothed), keep=0.75)
        smaller.step(loss(smaller))
    for key in smoothed:
        torch.testing.assert_close(smoothed[key], smaller[key])


def test_a_tensor_out_of_the_graph_stays_where_it_is():
    tuned = make()
    tuned.step(tuned["norm.weight"].sum())
    assert torch.equal(tuned["norm.bias"], tuned.start["norm.bias"])
    assert not torch.equal(tuned["norm.weight"], tuned.start["norm.weight"])


def test_it_is_a_mapping_of_leaves_apart_from_what_it_was_given():
    given = {"w": torch.zeros(2)}
    tuned = Tuned(given, OPTIMISERS["SGD"])
    assert list(tuned) == ["w"]
    assert len(tuned) == 1
    assert tuned["w"].requires_grad
    assert tuned["w"].is_leaf
    tuned.step(tuned["w"].sum())
    assert torch.equal(given["w"], torch.zeros(2))
    assert not Tuned({}, OPTIMISERS["Adam"])  # a method that tunes nothing has one too


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_a_restart_is_a_fresh_start(kind):
    tuned = make(kind)
    tuned.step(loss(tuned))
    tuned.reset()
    assert same(tuned, make(kind))
    fresh = make(kind)
    for each in (tuned, fresh):
        each.step(loss(each))
    assert same(tuned, fresh)


def test_the_optimiser_alone_can_start_again():
    tuned = make()
    tuned.step(loss(tuned))
    moved = tuned.snapshot()
    tuned.reset(optimiser_only=True)
    assert all(torch.equal(tuned[key], moved[key]) for key in tuned)
    assert not any("@" in key for key in tuned.state())


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_state_goes_on_as_if_never_stopped(kind):
    tuned, other = make(kind), make(kind)
    for _ in range(3):
        tuned.step(loss(tuned), keep=0.5)
    state = tuned.state()
    other.step(loss(other, 9.0))  # what is there gives way
    other.load(state)
    for each in (tuned, other):
        each.step(loss(each), keep=0.5)
    assert same(tuned, other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"norm.bias": None}, "1 entries are missing or unknown beside 2 tuned tensors: norm.bias"),
        ({"other.weight": torch.ones(2)}, "unknown beside 2 tuned tensors: other.weight"),
        ({"norm.bias": torch.ones(2)}, r"norm.bias has shape \(2,\) instead of \(1,\)"),
        ({"norm.bias@exp_avg": None}, "missing or unknown .*: norm.bias@exp_avg"),
        ({"norm.bias@nonsense": torch.ones(1)}, "missing or unknown .*: norm.bias@nonsense"),
        ({"norm.bias@exp_avg_sq": -torch.ones(1)}, "exp_avg_sq ranges from -1.0"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, said):
    tuned = make()
    tuned.step(loss(tuned))
    before = tuned.state()
    state = {key: value for key, value in {**before, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=said):
        tuned.load(state)
    assert all(torch.equal(value, before[key]) for key, value in tuned.state().items())


def test_a_state_is_a_copy():
    tuned = make()
    tuned.step(loss(tuned))
    state, snapshot = tuned.state(), tuned.snapshot()
    kept = {key: value.clone() for key, value in state.items()}
    other = make()
    other.load(state)
    for each in (tuned, other):
        each.step(loss(each))
    assert all(torch.equal(kept[key], state[key]) for key in kept)
    assert all(torch.equal(kept[key], snapshot[key]) for key in snapshot)


def test_merging_averages_by_samples():
    a, b = make(), make()
    a.step(loss(a))
    for _ in range(3):
        b.step(loss(b, -5.0))
    mine, theirs = a.state(), b.state()
    a.merge(b, 30 / 40)
    for key, value in a.state().items():
        if key.endswith("@step"):
            assert value == 3
        else:
            torch.testing.assert_close(value, 0.25 * mine[key] + 0.75 * theirs[key])
    assert all(torch.equal(b.state()[key], value) for key, value in theirs.items())


def test_merging_with_an_untouched_copy():
    a, empty = make(), make()
    a.step(loss(a))
    before = a.state()
    a.merge(make(), 0.0)
    assert all(torch.equal(a.state()[key], value) for key, value in before.items())
    empty.merge(a, 1.0)
    for key, value in empty.state().items():
        torch.testing.assert_close(value, before[key])
    for each in (a, empty):
        each.step(loss(each))
    for key in a:
        torch.testing.assert_close(a[key], empty[key])
