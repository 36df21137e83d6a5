"""Refinement: the step by hand, the gate, the share, and every way in which it gives way."""

from __future__ import annotations

import math

import pytest
import torch

from bayestta.methods.bayestta import weights as module
from bayestta.methods.bayestta.judged import ENOUGH, KEEP, LESS, MOVED, SUDDENLY, Judged
from bayestta.methods.bayestta.method import BayesTTA
from bayestta.methods.bayestta.outlook import BLOCK, MEMORY, SURE, Outlook
from bayestta.methods.bayestta.pace import FADE, GONE, LEAVES, PARDON, RETURNS, SLOWER, Pace
from bayestta.methods.bayestta.places import RUN
from bayestta.methods.bayestta.refinement import FULL, GROUP, MOST, Refinement
from bayestta.methods.bayestta.signature import ABRUPT, SETTLED
from bayestta.methods.bayestta.step_trial import ASKED, StepTrial
from bayestta.methods.bayestta.targets import SHARP
from bayestta.methods.bayestta.trials import Pairs
from bayestta.methods.bayestta.weights import PULL
from bayestta.models.base import place
from conftest import tiny_vlm
from fake_vlm import PIXELS, world

K = 4


def made(*, lr=1e-3, share=1.0, gate=0.0, kind="LayerNorm", count=40):
    """A refinement, the function that asks its tower, and a stream of (x, answer, sketch)."""
    model, stream = world(K, kind, batch=16, batches=count, signal=0.7, scale=10.0)
    refinement = Refinement(model, model.table, lr=lr, share=share, gate=gate)

    def encode(x, tensors):
        return model.logits(model.encode_image(x, tensors), model.table)

    def batches():
        for x, y in stream:
            sketch = encode(x, refinement.weights.tensors)
            answer = sketch + 3.0 * torch.nn.functional.one_hot(y, K)
            yield x, answer, sketch

    return refinement, encode, batches()


def learn(refinement, x, answer, sketch, trace=None, *, even=True, crowded=False):
    """Learn from images with the features that answered them."""
    z = refinement.model.encode_image(x, refinement.weights.tensors)
    return refinement.learn(x, z, answer, sketch, trace, even=even, crowded=crowded)


def step(refinement, batches):
    """A step and its trial, of images in batches of 16; what was said of it."""
    seen = [next(batches) for _ in range(3)]
    reasons = [learn(refinement, *batch) for batch in seen]
    assert reasons[:2] == ["", ""]
    assert not refinement.weights.trial.left
    return reasons[2]


def tensors(refinement):
    return refinement.weights.tuned.snapshot()


def at_start(refinement):
    start = refinement.weights.tuned.start
    return all(torch.equal(value, start[key]) for key, value in refinement.weights.tuned.items())


def rate(refinement):
    return refinement.weights.tuned.optimiser.param_groups[0]["lr"]


# --- the step ---


def test_a_step_is_adam_on_sharp_targets_and_a_little_back():
    refinement, encode, batches = made()
    seen = [next(batches), next(batches)]
    assert sum(len(x) for x, _, _ in seen) == GROUP
    own = {key: v.clone().requires_grad_() for key, v in refinement.weights.tuned.start.items()}
    doubt = sum((a.argmax(1) != s.argmax(1)).sum().item() for _, a, s in seen) / GROUP
    adam = torch.optim.Adam(own.values(), lr=1e-3 * min(MOST, (doubt / FULL) ** 2))
    loss, use = torch.zeros(()), []
    for x, answer, sketch in seen:
        target, logits = (SHARP * answer).softmax(1), encode(x, own)
        loss = loss - (target * logits.log_softmax(1)).sum() / GROUP
        use.append(sketch.softmax(1).mean(0))
        used = torch.stack(use).mean(0)  # as long as the memory is not full
        loss = loss + (logits.softmax(1) * used.log()).sum() / GROUP
    loss.backward()
    adam.step()
    first = learn(refinement, *seen[0])
    assert (first, refinement.steps, refinement.weights.gathered.count) == ("", 0, 16)
    learn(refinement, *seen[1])
    assert (refinement.steps, refinement.weights.gathered.count) == (1, 0)
    assert refinement.weights.tensors is None  # the step is on trial
    learn(refinement, *next(batches))
    assert refinement.weights.moved
    for key, value in refinement.weights.tensors.items():
        start = refinement.weights.tuned.start[key]
        expected = own[key].detach() + PULL * (start - own[key].detach())
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
        assert not value.requires_grad
    assert not any(bool(g.any()) for g in refinement.weights.gathered.total.values())


def test_a_large_share_makes_one_step_of_all_its_images():
    refinement, _, batches = made()
    x, answer, sketch = (
        torch.cat(part) for part in zip(*(next(batches) for _ in range(5)), strict=True)
    )
    assert len(x) == 2.5 * GROUP
    z, (some, _) = traced = refinement.features(x)
    assert len(some) == len(x)
    torch.testing.assert_close(z, refinement.model.encode_image(x))
    assert refinement.learn(x, z, answer, sketch, traced[1], even=True) == ""
    assert (refinement.steps, refinement.weights.gathered.count) == (1, 0)


# --- a step is on trial ---


@pytest.mark.parametrize("size", [1, 4, 16])
def test_a_step_answers_once_enough_images_were_asked(size):
    """And what they are asked does not depend on the batches that they come in."""
    refinement, encode, batches = made()
    for _ in range(2):
        learn(refinement, *next(batches))
    weights, images = refinement.weights, next(batches)
    new, before = dict(weights.trial.tensors), tensors(refinement)
    for part in zip(*(tensor.split(size) for tensor in images), strict=True):
        if not weights.trial.left:
            break
        assert weights.tensors is None
        assert refinement.room(128) == weights.trial.left
        learn(refinement, *part)
    assert weights.moved
    for key, value in weights.tensors.items():
        torch.testing.assert_close(value, new[key])
    asked = images[0][:ASKED]
    mine, source = (encode(asked, t).softmax(1).float() for t in (new, before))
    torch.testing.assert_close(weights.judged.first, mine)
    torch.testing.assert_close(weights.judged.second, source)
    z = [refinement.model.encode_image(asked, t) for t in (new, before)]
    torch.testing.assert_close(weights.drift, (z[0] - z[1]).mean(0), rtol=1e-4, atol=1e-6)


def test_the_leap_of_a_step_is_a_mean_over_the_images_asked():
    draw = torch.Generator().manual_seed(0)
    new, old, source = (torch.randn(ASKED, K, generator=draw).softmax(1) for _ in range(3))
    shift = torch.randn(ASKED, 5, generator=draw)
    trial = StepTrial({"w": torch.zeros(2)}, torch.zeros(K, 5))
    trial.begin({"w": torch.ones(2)})
    for part in zip(*(tensor.split(4) for tensor in (shift, new, old, source)), strict=True):
        trial.add(*part)
    assert trial.left == 0
    assert trial.leap == pytest.approx(float((new - old).abs().sum(1).mean() / 2))
    torch.testing.assert_close(trial.shift, shift.mean(0))
    assert torch.equal(trial.answers.first, new)
    assert torch.equal(trial.answers.second, source)


def test_nothing_is_learnt_while_a_step_is_on_trial_and_leaving_ends_it():
    refinement, _, batches = made()
    for _ in range(2):
        learn(refinement, *next(batches))
    passed = refinement.passed
    x, answer, sketch = next(batches)
    learn(refinement, x[:2], answer[:2], sketch[:2])
    assert (refinement.passed, refinement.weights.trial.left) == (passed, ASKED - 2)
    refinement.weights.leave()
    assert refinement.weights.trial.left == 0
    assert not refinement.weights.moved
    assert refinement.weights.pace.moves == 0  # no weights were left
    assert at_start(refinement)


def test_it_learns_what_the_answers_say():
    refinement, encode, batches = made()
    seen = [next(batches) for _ in range(9)]

    def loss():
        return -sum(
            float((answer.softmax(1) * encode(x, refinement.weights.tensors).log_softmax(1)).sum())
            for x, answer, _ in seen
        )

    before = loss()
    for batch in seen:
        assert learn(refinement, *batch) == ""
    assert refinement.steps == 3
    assert loss() < before


def test_the_drift_is_what_steps_did_to_the_features_and_ends_with_them():
    refinement, _, batches = made()
    encode, weights = refinement.model.encode_image, refinement.weights
    total = torch.zeros_like(weights.drift)
    for _ in range(3):
        for _ in range(2):
            learn(refinement, *next(batches))
        before, (x, answer, sketch) = tensors(refinement), next(batches)
        learn(refinement, x, answer, sketch)
        total += (encode(x[:ASKED], weights.tensors) - encode(x[:ASKED], before)).mean(0)
    assert total.norm() > 0
    torch.testing.assert_close(weights.drift, total, rtol=1e-4, atol=1e-6)
    weights.leave()
    assert not weights.drift.any()


def test_statistics_see_features_without_the_drift():
    model, stream = world(K, "LayerNorm", batch=16, batches=12, signal=0.7, scale=10.0)
    adapter = BayesTTA(model, [str(k) for k in range(K)], ["{}"], gate=0.0, doubt=0.0)
    for x, _ in stream[:-1]:
        adapter.adapt(x)
    x, drift = stream[-1][0], torch.ones_like(adapter.weights.drift)
    before, seen = adapter.predict(x), []
    adapter.weights.drift = drift
    monkeyed = adapter._answer
    adapter._answer = lambda z, sketch: (seen.append(z), monkeyed(z, sketch))[1]
    assert not torch.equal(adapter.predict(x), before)
    torch.testing.assert_close(seen[0], adapter.encode(x).double() - drift)


def test_evenness_that_tuning_adds_is_that_of_the_images_both_answered():
    judged, rng = Judged(K), torch.Generator().manual_seed(0)
    mine, theirs = (torch.randn(ENOUGH, K, generator=rng).softmax(1) for _ in range(2))
    judged.add(mine[:-1], theirs[:-1])
    assert judged.evener == 0  # too few
    judged.add(mine[-1:], theirs[-1:])
    gains = [float(torch.special.entr(p.mean(0)).sum()) for p in (mine, theirs)]
    assert judged.evener == pytest.approx(max(0.0, gains[0] - gains[1]), abs=1e-6)


# --- the gate and the share ---


def test_nothing_is_learnt_where_answer_and_sketch_agree():
    refinement, _, batches = made(gate=0.04)
    for x, _, sketch in batches:
        assert learn(refinement, x, 2 * sketch, sketch) == ""
    assert (refinement.passed, refinement.steps, refinement.outlook.doubt) == (0, 0, 0)
    assert refinement.weights.tensors is None


def test_nothing_is_learnt_from_a_stream_that_is_not_even():
    refinement, _, batches = made()
    for batch in batches:
        learn(refinement, *batch, None, even=False)
    assert (refinement.passed, refinement.steps) == (0, 0)
    assert refinement.outlook.doubt > 0  # but it is watched


def test_doubt_is_a_running_mean():
    refinement, _, batches = made(gate=1.0)
    differ = []
    for step in range(6):
        x, answer, sketch = next(batches)
        learn(refinement, x, answer, sketch)
        differ.append(float((answer.argmax(1) != sketch.argmax(1)).double().mean()))
        assert refinement.outlook.doubt == pytest.approx(sum(differ) / (step + 1), abs=1e-6)


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
def test_the_share_of_images_holds_for_any_batch(size, share):
    refinement, _, batches = made(share=share, lr=0.0)
    passes, missed, n = 0, 0, 0

    def counting(x, tensors):
        nonlocal passes
        passes += len(x) if tensors is refinement.weights.tuned and torch.is_grad_enabled() else 0
        return plain(x, tensors)

    plain, refinement.model.encode_image = refinement.model.encode_image, counting
    for _ in range(5):
        x, answer, sketch = next(batches)
        for part in zip(x.split(size), answer.split(size), sketch.split(size), strict=True):
            if refinement.weights.trial.left:  # which comes between the runs of the default share
                missed += int(refinement.places.chosen(len(part[0])).sum())
            learn(refinement, *part)
            n += len(part[0])
    assert refinement.passed == passes
    assert share * n - RUN <= passes + missed <= share * n + RUN
    assert share == 1 or missed == 0


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
def test_the_same_images_get_a_gradient_in_batches_of_any_size(share):
    """And in full batches weights move behind the same images, where `room` ends a step."""
    stream = torch.arange(600.0)

    def taken(size):
        refinement, chosen, moved = made(share=share, lr=0.0)[0], [], []
        rest, x = list(stream.split(size)), stream[:0]
        while rest or len(x):
            x = x if len(x) else rest.pop(0)
            part, x = x.tensor_split([refinement.room(128)])
            got = part[refinement.places.chosen(len(part))]
            chosen += got.tolist()
            refinement.places.seen += len(part)
            refinement.weights.gathered.count += len(got)
            if refinement.weights.gathered.count >= GROUP:
                assert refinement.weights.gathered.count == GROUP
                refinement.weights.gathered.count = 0
                moved.append(refinement.places.seen)
        return chosen, moved

    first = taken(1)
    assert abs(len(first[0]) - share * len(stream)) <= RUN
    assert all(taken(size) == first for size in (8, 32, 100, 128, 600))


@pytest.mark.parametrize(("size", "share"), [(16, 1.0), (48, 0.75), (16, 0.25)])
def test_a_forward_that_leaves_a_trace_gives_the_gradient_of_a_second_one(size, share):
    plain, traced = made(share=share)[0], made(share=share)[0]
    draw = torch.Generator().manual_seed(3)
    for _ in range(6):
        x = torch.randn(size, PIXELS, generator=draw, dtype=torch.float64)
        y = torch.randint(K, (size,), generator=draw)
        features = plain.model.encode_image(x, plain.weights.tensors)
        own, trace = traced.features(x)
        torch.testing.assert_close(own, features, rtol=1e-9, atol=1e-12)
        assert not own.requires_grad
        sketch = plain.model.logits(features, plain.text)
        answer = sketch + 3.0 * torch.nn.functional.one_hot(y, K)
        learn(plain, x, answer, sketch)
        learn(traced, x, answer, sketch, trace)
    assert (plain.steps, plain.passed) == (traced.steps, traced.passed)
    assert plain.passed > 0
    for key, value in plain.weights.tuned.items():
        torch.testing.assert_close(traced.weights.tuned[key], value, rtol=1e-6, atol=1e-9)


def test_no_trace_is_left_where_no_gradient_is_due():
    refinement = made(gate=0.5)[0]
    x = torch.zeros(16, PIXELS, dtype=torch.float64)
    assert refinement.features(x)[1] is None  # the gate is shut
    assert refinement.room(128) == 128  # a step may be of any size
    refinement = made(share=0.25)[0]
    assert refinement.features(x)[1] is None  # the next images to get a gradient come later
    refinement.places.seen = 24
    assert refinement.features(x)[1][0].tolist() == list(range(RUN))


# --- a stream that is suddenly another one ---


def confidences(mean, n, seed=0):
    """Logits (n,2) whose confidence varies about a mean."""
    noise = 0.05 * torch.randn(n, generator=torch.Generator().manual_seed(seed)).double()
    p = (mean + noise).clamp(0.51, 0.999)
    return torch.stack([p.log(), (1 - p).log()], 1)


@pytest.mark.parametrize("size", [1, 8, 64])
def test_a_jump_of_the_confidence_is_seen_at_once_and_a_drift_is_none(size):
    outlook = Outlook(0.0, 2, torch.device("cpu"))
    slowly = torch.cat([confidences(0.7 + 0.005 * i, 128, seed=i) for i in range(8)])
    assert not any(outlook.update(part, part) for part in slowly.split(size))
    jump = confidences(0.6, 128, seed=9).split(size)
    seen = next(i for i, part in enumerate(jump) if outlook.update(part, part))
    assert (seen + 1) * size <= max(size, 2 * BLOCK)
    assert float(outlook.before[1] / outlook.before[0]) < 0.8  # what was before is forgotten
    assert float(outlook.before[0]) <= MEMORY + size


def test_weights_are_left_at_a_jump_and_the_rate_stays():
    refinement, _, batches = made()
    for _ in range(4):
        learn(refinement, *next(batches))
    assert refinement.weights.moved
    x, answer, sketch = next(batches)
    reasons = [learn(refinement, x, answer, 0.1 * sketch) for _ in range(2)]
    assert "the confidence of the sketch has jumped" in reasons
    assert (refinement.weights.pace.returns, refinement.weights.pace.moves) == (0, 0)
    assert at_start(refinement)


def test_weights_fade_where_answers_crowd_into_one_class_and_stay_where_the_crowd_passes():
    refinement, _, batches = made()
    reasons = [learn(refinement, *next(batches), None, even=False, crowded=True)]
    for _ in range(4):
        reasons.append(learn(refinement, *next(batches)))
    assert refinement.weights.moved
    assert not any(reasons)  # nothing to leave before

    def crowd():
        x = next(batches)  # 16 images
        reason = learn(refinement, *x, None, even=False, crowded=True)
        assert reason == "answers name one class too often for labels that are even"

    start, before, drift = (
        refinement.weights.tuned.start,
        tensors(refinement),
        refinement.weights.drift,
    )
    keep = 0.5 ** (16 / FADE)
    crowd()
    for key, value in refinement.weights.tensors.items():
        torch.testing.assert_close(value, start[key] + keep * (before[key] - start[key]))
    torch.testing.assert_close(refinement.weights.drift, keep * drift)
    learn(refinement, *next(batches), None, even=False)  # the crowd has passed
    assert refinement.weights.pace.kept == 1
    batches_to_go = math.ceil(math.log(GONE) / math.log(keep))
    for _ in range(batches_to_go - 1):
        crowd()
    assert refinement.weights.moved
    crowd()
    assert not refinement.weights.moved
    assert at_start(refinement)
    assert (refinement.weights.pace.returns, refinement.weights.pace.moves) == (0, 0)


def test_what_the_tensors_add_to_the_confidence():
    judged = Judged(2)
    sure, unsure = (torch.tensor([[p, 1 - p]]).repeat(ENOUGH, 1) for p in (0.9, 0.6))
    judged.add(sure[:-1], unsure[:-1])
    assert judged.surer == 0.0  # too few
    judged.add(sure[:1], unsure[:1])
    assert judged.surer == pytest.approx(0.3, abs=1e-6)
    judged.reset()
    judged.add(unsure, sure)
    assert judged.surer == 0.0


# --- giving way ---


def test_a_far_leap_is_undone_and_the_rate_falls(monkeypatch):
    monkeypatch.setattr(module, "FAR", module.LEAP)  # answers of four classes do not go further
    refinement, _, batches = made(lr=50.0)
    next_reason = ""
    while not next_reason:
        next_reason = learn(refinement, *next(batches))
    assert next_reason.startswith("one step moved the answers by")
    assert at_start(refinement)
    assert refinement.weights.tensors is None
    assert (refinement.weights.pace.returns, refinement.weights.gathered.count) == (1, 0)
    assert rate(refinement) == pytest.approx(50.0 * SLOWER)
    assert not refinement.weights.tuned.optimiser.state


def test_a_leap_that_is_not_far_costs_a_part_of_a_return(monkeypatch):
    monkeypatch.setattr(module, "LEAP", 1e-9)
    refinement, _, batches = made()
    assert step(refinement, batches).startswith("one step moved the answers by")
    assert at_start(refinement)
    assert (
        refinement.weights.pace.returns,
        refinement.weights.pace.moves,
        refinement.weights.gathered.count,
    ) == (0, 1, 0)
    assert rate(refinement) == pytest.approx(1e-3 * SLOWER**0.25)


def test_answers_that_are_no_numbers_are_a_leap():
    refinement, _, batches = made()
    nothing = torch.full((ASKED, K), torch.nan)
    refinement.weights._asked = lambda x, tensors: (refinement.model.encode_image(x), nothing)
    assert step(refinement, batches) == "one step moved the answers by nan"
    assert at_start(refinement)
    assert refinement.weights.pace.returns == 1


@pytest.mark.parametrize("word", ["sure", "even"])
def test_the_witnesses_call_all_of_it_back(word, monkeypatch):
    monkeypatch.setattr(module, "LEAP", 2.0)  # as if training had led there little by little
    refinement, encode, batches = made(count=60)
    tilt = torch.tensor([30.0, 0, 0, 0]).double()

    def worse(x, tensors):
        logits = encode(x, tensors)
        if tensors is not None:
            logits = 0.05 * logits if word == "sure" else logits + tilt
        return refinement.model.encode_image(x, tensors), logits.softmax(1)

    refinement.weights._asked = worse
    reasons = [learn(refinement, *batch) for batch in batches]
    assert set(reasons) == {"", f"answers became less {word} than the source's"}
    assert at_start(refinement)
    assert not refinement.weights.moved
    assert refinement.weights.pace.returns == RETURNS  # it never got better
    assert rate(refinement) == pytest.approx(1e-3 * SLOWER**RETURNS)


def test_tensors_that_rest_are_judged_too():
    """A tower that broke may close the gate itself: no further step would ever judge it."""
    refinement, encode, batches = made()
    assert step(refinement, batches) == ""
    assert refinement.weights.moved
    tilt = torch.tensor([30.0, 0, 0, 0]).double()

    def worse(x, tensors):
        answers = (encode(x, tensors) + (0 if tensors is None else tilt)).softmax(1)
        return refinement.model.encode_image(x, tensors), answers

    refinement.weights._asked = worse
    reasons = [learn(refinement, *batch, None, even=False) for batch in batches]
    assert refinement.steps == 1
    assert [reason for reason in reasons if reason] == [
        "answers became less even than the source's"
    ]
    assert at_start(refinement)
    assert not refinement.weights.moved


def test_three_returns_end_it(monkeypatch):
    monkeypatch.setattr(module, "FAR", module.LEAP)
    refinement, _, batches = made(lr=1e6)
    reasons = [learn(refinement, *batch) for batch in batches]
    assert sum(bool(reason) for reason in reasons) == refinement.weights.pace.returns == RETURNS
    assert at_start(refinement)
    passed = refinement.passed
    assert passed < 40 * 16
    refinement.reset()
    assert (refinement.weights.pace.returns, rate(refinement)) == (0, pytest.approx(1e6))


def test_what_judges_is_bounded_and_checked():
    pairs, other = (Pairs(5, torch.zeros(2), K) for _ in range(2))
    for n in (3, 4, 1):
        pairs.add(torch.full((n, 2), float(n)), torch.full((n, K), 0.25))
    assert pairs.first[:, 0].tolist() == [4, 4, 4, 4, 1]
    other.load(pairs.state())
    assert torch.equal(other.first, pairs.first)
    with pytest.raises(ValueError, match="6 and 6 entries are not at most 5 pairs"):
        other.load({"first": torch.zeros(6, 2), "second": torch.zeros(6, K)})
    refinement, _, batches = made(lr=1e-4)
    for batch in batches:
        learn(refinement, *batch)
    assert len(refinement.weights.judged.second) <= KEEP


# --- a sign is a suspicion, and fresh images decide ---


def sure_of(confidence, n, seed=0):
    """Probabilities (n,K) whose best classes are used evenly, with about this confidence."""
    rng = torch.Generator().manual_seed(seed)
    top = (confidence + 0.01 * torch.randn(n, generator=rng)).clamp(0.3, 0.99)
    p = ((1 - top) / (K - 1))[:, None].repeat(1, K)
    p[torch.arange(n), torch.arange(n) % K] = top
    return p


@pytest.mark.parametrize("fresh", [0.4, 0.8])
@pytest.mark.parametrize("sign", [MOVED, SUDDENLY, LESS])
def test_a_sign_is_believed_if_fresh_images_confirm_it(sign, fresh):
    judged = Judged(K)
    judged.add(sure_of(0.4, ENOUGH), sure_of(0.6, ENOUGH, 1))
    judged.suspect(sign)
    for n in (ENOUGH - 1, 1):
        assert judged.wanted == (ENOUGH if n > 1 else 1)
        assert judged.decide(again=False) == (0, "")
        judged.add(sure_of(fresh, n, 2), sure_of(0.6, n, 3))
    assert judged.decide(again=False) == ((sign, "sure") if fresh < 0.6 else (0, ""))
    assert (judged.sign, len(judged.second)) == (0, ENOUGH)  # what came before is forgotten


def test_a_suspicion_is_not_put_off_by_another_one():
    judged = Judged(K)
    judged.suspect(MOVED)
    judged.add(sure_of(0.6, 5), sure_of(0.6, 5))
    judged.suspect(LESS)
    assert (judged.sign, judged.wanted) == (MOVED, ENOUGH - 5)
    judged.suspect(0)
    assert judged.sign == MOVED


def test_less_even_answers_speak_against_weights_and_for_no_move():
    one_class = torch.eye(K)[torch.zeros(ENOUGH, dtype=torch.long)]
    even = torch.eye(K)[torch.arange(ENOUGH) % K]
    for sign, expected in ((LESS, (LESS, "even")), (MOVED, (0, "")), (SUDDENLY, (0, ""))):
        judged = Judged(K)
        judged.suspect(sign)
        judged.add(0.9 * one_class + 0.1 / K, 0.9 * even + 0.1 / K)
        assert judged.decide(again=False) == expected


def test_a_small_move_is_a_suspicion_and_an_abrupt_one_none():
    refinement, _, batches = made()
    refinement.weights.follow(ABRUPT[0] + 0.1)
    assert refinement.weights.judged.sign == 0  # there are no weights to suspect
    step(refinement, batches)
    refinement.weights.follow(0.0)
    assert refinement.weights.judged.sign == 0
    refinement.weights.follow(ABRUPT[0] + 0.1)
    assert refinement.weights.judged.sign == MOVED
    steps = refinement.steps
    for _ in range(-(-ENOUGH // 16)):  # weights rest, and every image is asked
        assert refinement.weights.moved
        assert refinement.rests
        learn(refinement, *next(batches))
    assert (refinement.steps, refinement.weights.judged.sign) == (steps, 0)
    assert refinement.weights.moved  # they serve
    refinement.weights.follow(ABRUPT[1])
    assert not refinement.weights.moved
    assert refinement.weights.pace.moves == 1


def test_a_large_batch_is_looked_at_in_blocks():
    """Or a jump in the midst of it would be lost in its mean."""
    calm, other = torch.full((BLOCK, K), 1 / K), sure_of(0.9, BLOCK)
    logits = torch.cat([calm, calm, other, calm]).log() + 0.01 * torch.randn(4 * BLOCK, K)
    outlook = Outlook(0.0, K, torch.device("cpu"))
    assert outlook.update(logits, logits)
    assert not Outlook(0.0, K, torch.device("cpu")).update(logits[: 2 * BLOCK], logits[: 2 * BLOCK])


# --- in the adapter ---


def test_a_model_in_bfloat16_is_never_written_to():
    model = tiny_vlm("mini-vit")
    place(model, torch.device("cpu"), torch.bfloat16)
    adapter = BayesTTA(model, ["cat", "dog", "car"], refine=True, gate=0.0, share=1.0, guard=False)
    adapter.trust.update = lambda sketch, keep: None
    adapter.trust.used = torch.ones(3, dtype=torch.float64)  # as if the stream were even
    adapter.trust.name = lambda answer: None
    adapter.tower.looks.still = float(SETTLED[1])
    before = model.fingerprint
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        adapter.adapt(torch.randn(16, 3, 32, 32, generator=rng))
    assert adapter.refinement.steps == 1
    assert adapter.weights.moved
    assert not at_start(adapter)
    assert {v.dtype for v in adapter.weights.tuned.values()} == {torch.float32}
    assert model.fingerprint == before
    assert not any(p.requires_grad or p.grad is not None for p in model.visual.parameters())
    assert not model.visual.training


def test_it_works_inside_no_grad():
    model, stream = world(K, batch=32, batches=3, signal=0.7, scale=10.0)
    names = [str(k) for k in range(K)]
    one, two = (BayesTTA(model, names, ["{}"], refine=True, gate=0.0, share=1.0) for _ in range(2))
    for x, _ in stream:
        with torch.no_grad():
            a = one.adapt(x)
        assert torch.equal(a, two.adapt(x))
    assert one.refinement.steps == two.refinement.steps


def test_an_unsure_sketch_is_not_taught_to_be_sure():
    refinement, _, batches = made(gate=0.01)
    for x, answer, sketch in batches:
        learn(refinement, x, answer, 0.01 * sketch)
    assert refinement.outlook.sure < SURE
    assert (refinement.steps, refinement.passed) == (0, 0)


def test_a_stream_that_moves_sends_the_tower_back_to_the_source():
    model = tiny_vlm("mini-rn")
    adapter = BayesTTA(model, ["a", "b", "c"])  # so unsure that the gate stays shut
    dark = torch.randn(64, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        adapter.adapt(dark)  # the trial of the start ends
    adapter.adapt(dark)
    adapter.weights.moved, adapter.tower.left, adapter.tower.tokens = True, 0, 128.0
    trials = adapter.tower.trials
    adapter.adapt(0.05 * dark + 2.0)
    assert adapter.tower.trials == trials + 1
    assert (adapter.weights.pace.returns, adapter.weights.pace.moves) == (
        0,
        1,
    )
    assert not adapter.weights.moved
    assert at_start(adapter)


@pytest.mark.parametrize(("left", "tokens", "trials"), [(16, 128.0, 1), (0, 0.0, 0), (16, 0.0, 0)])
def test_a_move_counts_in_the_midst_of_a_trial_and_without_means_for_one(left, tokens, trials):
    adapter = BayesTTA(tiny_vlm("mini-rn"), ["a", "b", "c"])
    dark = torch.randn(64, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        adapter.adapt(dark)
    before = adapter.tower.trials
    adapter.weights.moved, adapter.tower.left, adapter.tower.tokens = True, left, tokens
    adapter.adapt(0.05 * dark + 2.0)
    assert adapter.tower.trials == before + trials
    assert not adapter.weights.moved
    if not trials:
        assert (adapter.tower.active, adapter.tower.left) == (0, 0)


def test_a_move_is_forgotten_after_a_while():
    refinement, _, batches = made()
    pace = refinement.weights.pace
    pace.moves = 2
    x, answer, sketch = next(iter(batches))
    for left in (2, 1, 0, 0):
        pace.stayed = PARDON - len(x) - 1
        learn(refinement, x, answer, sketch, even=False)
        assert (pace.moves, pace.stayed) == (left, PARDON - 1)
        learn(refinement, x, answer, sketch, even=False)
        assert (pace.moves, pace.stayed) == (
            max(0, left - 1),
            0,
        )


def test_a_return_is_forgotten_bit_by_bit_and_three_of_them_are_not_for_good():
    pace = Pace()
    pace.returns = RETURNS
    assert pace.over
    rates = []
    for _ in range(RETURNS * LEAVES):
        pace.go_on(PARDON)
        rates.append(pace.factor)
        assert not pace.over
    steps = [SLOWER ** (left / LEAVES) for left in reversed(range(RETURNS * LEAVES))]
    assert rates == pytest.approx(steps)
    assert (pace.returns, pace.moves) == (0, 0)


def test_answers_that_are_suddenly_less_sure_are_a_move_of_the_stream(monkeypatch):
    monkeypatch.setattr(module, "LEAP", 2.0)
    refinement, encode, batches = made()
    turned = False

    def jumps(x, tensors):
        logits = encode(x, tensors) * (0.05 if turned and tensors is not None else 1.0)
        return refinement.model.encode_image(x, tensors), logits.softmax(1)

    refinement.weights._asked = jumps
    while len(refinement.weights.judged.second) < 2 * ENOUGH:
        assert learn(refinement, *next(batches)) == ""
    turned, reason = True, ""
    while not reason:
        reason = learn(refinement, *next(batches))
    assert reason == "answers are suddenly less sure than the source's"
    assert (refinement.weights.pace.returns, refinement.weights.pace.moves) == (0, 1)
    assert at_start(refinement)
    assert not refinement.weights.moved
