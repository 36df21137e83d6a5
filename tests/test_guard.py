"""The guard: its signs against plain counting, and an adapter driven into collapse."""

from __future__ import annotations

import math

import pytest
import torch

from bayestta.methods.bayestta.method import BayesTTA
from bayestta.methods.guard import Guard, effective_classes
from fake_vlm import names, world

SUITABLE = 0.1  # rate of Adam at which the tower of fake_vlm gains (few norms: far above a CLIP's)


def make(model, **settings):
    return BayesTTA(model, names(model), ["{}"], **settings)


def one_hot(labels, K=4):
    return torch.nn.functional.one_hot(torch.as_tensor(labels), K).double()


# --- the signs ---


def test_effective_classes_counts_what_is_used():
    assert effective_classes(torch.full((7,), 1 / 7)) == pytest.approx(7)
    assert effective_classes(torch.tensor([0.0, 1.0, 0.0])) == 1
    p = [0.5, 0.25, 0.25]
    assert effective_classes(torch.tensor(p)) == pytest.approx(2**1.5)


def test_the_signs_are_means_that_forget():
    rng = torch.Generator().manual_seed(0)
    guard, batches = Guard(5, memory=40.0), []
    for n in (30, 7, 20):
        logits = torch.randn(2, n, 5, generator=rng, dtype=torch.float64)
        batches.append(logits.softmax(2))
        signs = guard.step(*batches[-1])
    weight, agree, entropy, sums = 0.0, 0.0, [0.0, 0.0], [torch.zeros(5), torch.zeros(5)]
    later = [27, 20, 0]  # samples after each batch
    for after, pair in zip(later, batches, strict=True):
        w = math.exp(-after / 40.0)
        for answer, sketch in zip(*pair, strict=True):
            weight += w
            agree += w * (int(answer.argmax()) == int(sketch.argmax()))
            for side, p in enumerate((answer, sketch)):
                entropy[side] -= w * sum(float(v) * math.log(v) for v in p)
                sums[side] = sums[side] + w * p
    assert signs["agreement"] == pytest.approx(agree / weight)
    assert signs["entropy"] == pytest.approx(entropy[0] / weight)
    assert signs["sketch_entropy"] == pytest.approx(entropy[1] / weight)
    for key, total in zip(("classes", "sketch_classes"), sums, strict=True):
        p = total / weight
        assert signs[key] == pytest.approx(math.exp(-float((p * p.log()).sum())))


def test_one_class_for_all_is_a_collapse_once_there_is_evidence():
    guard, said = Guard(4, least=50.0), []
    for _ in range(4):
        even = torch.arange(20) % 4
        said.append(guard.step(one_hot([1] * 20), one_hot(even))["collapse"])
    assert said[:2] == ["", ""]
    assert said[-1] == "answers use 1.0 classes, the zero-shot sketch 4.0"


def test_less_agreement_than_chance_is_a_collapse():
    guard, labels = Guard(4), torch.arange(120) % 4
    signs = guard.step(one_hot((labels + 1) % 4), one_hot(labels))
    assert signs["collapse"] == "answers agree with the zero-shot sketch on 0 % of images"
    assert not signs["healthy"]


def test_answers_that_are_no_numbers_are_a_collapse():
    labels = torch.arange(120) % 4
    signs = Guard(4).step(torch.full((120, 4), torch.nan), one_hot(labels))
    assert signs["collapse"]
    assert not signs["healthy"]


@pytest.mark.parametrize("K", [2, 3, 10])
def test_good_answers_are_healthy_whatever_the_number_of_classes(K):
    labels = torch.arange(200) % K
    better = labels.clone()
    better[:20] = (better[:20] + 1) % K  # where adaptation mended the sketch
    signs = Guard(K).step(one_hot(better, K), one_hot(labels, K))
    assert signs["healthy"]
    assert not signs["collapse"]


def test_a_sketch_of_one_class_asks_no_more_of_the_answer():
    signs = Guard(4).step(one_hot([2] * 120), one_hot([2] * 120))
    assert signs["healthy"]
    assert not signs["collapse"]


def test_a_state_is_proven_by_what_follows():
    guard, labels = Guard(4, memory=100.0), torch.arange(50) % 4
    first = guard.step(one_hot(labels), one_hot(labels))
    second = guard.step(one_hot(labels), one_hot(labels))
    assert first["healthy"]
    assert not first["proven"]
    assert second["proven"]
    # collapsed just now: the means still look healthy, but a memory later they do not
    guard.age = 0.0
    late = [guard.step(one_hot([0] * 25), one_hot(labels[:25])) for _ in range(8)]
    assert late[0]["healthy"]
    assert not any(signs["proven"] for signs in late)


def test_its_state_goes_on():
    guard, other, labels = Guard(4), Guard(4), torch.arange(50) % 4
    guard.step(one_hot(labels), one_hot(labels))
    other.load_state_dict(guard.state_dict())
    noise = torch.rand(50, 4)
    assert guard.step(noise, one_hot(labels)) == other.step(noise, one_hot(labels))
    guard.reset()
    assert guard.step(noise, noise) == Guard(4).step(noise, noise)


# --- in the adapter ---


def hits(answer, y):
    return float((answer.argmax(1) == y).double().mean())


@pytest.fixture(scope="module")
def driven():
    """One stream at a suitable rate, and at a hundred times that without and with the guard."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model, stream = world(10, "BatchNorm", batch=64, batches=60, seed=2, signal=0.7, drift=0.02)
    adapters = {
        "suitable": make(model, lr=SUITABLE),
        "bare": make(model, lr=100 * SUITABLE, guard=False),
        "guarded": make(model, lr=100 * SUITABLE),
    }
    answers = {key: [] for key in adapters}
    for x, _ in stream:
        for key, adapter in adapters.items():
            answers[key].append(adapter.adapt(x))
    sketch = [model.logits(model.encode_image(x), adapter.text) for x, _ in stream]
    torch.set_num_threads(before)
    return adapters, {**answers, "sketch": sketch}, torch.cat([y for _, y in stream[-10:]])


def last(answers):
    return torch.cat(answers[-10:])


def used(logits):
    share = torch.bincount(logits.argmax(1), minlength=10) / len(logits)
    return effective_classes(share)


def test_at_a_suitable_rate_the_guard_keeps_silent(driven):
    adapters, answers, y = driven
    assert adapters["suitable"].events == []
    assert adapters["suitable"].summary()["guard"] == {"on": True, "returns": 0, "events": []}
    assert hits(last(answers["suitable"]), y) > hits(last(answers["sketch"]), y)


def test_a_rate_a_hundred_times_too_large_collapses_without_the_guard(driven):
    _, answers, y = driven
    assert used(last(answers["bare"])) < 0.5 * used(last(answers["sketch"]))
    assert hits(last(answers["bare"]), y) < hits(last(answers["sketch"]), y) - 0.1


def test_the_guard_returns_to_the_last_good_state_and_says_so(driven):
    adapters, answers, y = driven
    told = adapters["guarded"].summary()["guard"]
    assert told["returns"] == len(told["events"]) == adapters["guarded"].returns >= 1
    for event in told["events"]:
        assert "zero-shot sketch" in event["reason"]
        assert 0 < event["step"] < 60
    assert used(last(answers["guarded"])) > 0.7 * used(last(answers["sketch"]))
    assert hits(last(answers["guarded"]), y) > hits(last(answers["sketch"]), y) - 0.05
    assert not adapters["guarded"].record["guard"]["collapse"]


def test_after_a_return_the_steps_are_smaller(driven):
    guarded = driven[0]["guarded"]
    rate = guarded.tuned.optimiser.param_groups[0]["lr"]
    assert rate == pytest.approx(100 * SUITABLE * 0.1**guarded.returns)


@pytest.mark.parametrize("preset", ["released", "paper"])
def test_the_published_forms_have_no_guard(preset):
    model, stream = world(3, batch=16, batches=2)
    adapter = make(model, preset=preset)
    adapter.adapt(stream[0][0])
    assert "guard" not in adapter.record
    assert adapter.summary()["guard"] == {"on": False, "returns": 0, "events": []}


def test_poisoned_statistics_are_left_behind_without_refinement_too():
    model, stream = world(5, batch=64, batches=16, signal=1.0)
    adapter = make(model, refine=False)
    for x, _ in stream[:8]:
        adapter.adapt(x)
    assert float(adapter.good["stats/count"].sum()) > 0  # proven by now
    good = {key: value.clone() for key, value in adapter.good.items()}
    state = adapter.state_dict()
    state["stats/mean"][1:] += 10  # every answer is now the first class
    adapter.load_state_dict(state)
    x, _ = stream[8]
    assert (adapter.predict(x).argmax(1) == 0).all()
    returned = None
    for x, _ in stream[8:]:
        answer = adapter.adapt(x)
        if adapter.events and returned is None:
            returned = answer
            for key, value in adapter._core().items():
                assert torch.equal(value, good[key]), key
            torch.testing.assert_close(answer, adapter.predict(x))
            assert adapter.record["guard"]["collapse"] == adapter.events[0]["reason"]
            assert "classes, the zero-shot sketch" in adapter.events[0]["reason"]
    assert returned is not None
    assert len(answer.argmax(1).unique()) == 5
    x, y = stream[-1]
    sketch = model.logits(model.encode_image(x), adapter.text)
    assert hits(answer, y) > hits(sketch, y) - 0.05
    assert adapter.returns == len(adapter.events)


def test_returns_survive_a_file(tmp_path):
    model, stream = world(5, batch=64, batches=14, signal=1.0)
    adapter, other = make(model, refine=False), make(model, refine=False)
    for x, _ in stream[:6]:
        adapter.adapt(x)
    adapter.stats.mean[1:] += 10
    while not adapter.events:
        adapter.adapt(stream[7][0])
    adapter.save(tmp_path / "state")
    other.load(tmp_path / "state")
    assert other.summary() == adapter.summary()
    for x, _ in stream[8:]:
        assert torch.equal(other.adapt(x), adapter.adapt(x))
    adapter.reset()
    assert (adapter.returns, adapter.events) == (0, [])
