"""Refinement: the step by hand, the gate, the share, and every way in which it gives way."""

from __future__ import annotations

import math

import pytest
import torch

from bayestta.methods.bayestta import refinement as module
from bayestta.methods.bayestta.judged import ENOUGH, KEEP, Judged
from bayestta.methods.bayestta.method import BayesTTA
from bayestta.methods.bayestta.outlook import BLOCK, MEMORY, SURE, Outlook
from bayestta.methods.bayestta.pace import FADE, GONE, LEAVES, PARDON, RETURNS, SLOWER, Pace
from bayestta.methods.bayestta.places import RUN
from bayestta.methods.bayestta.refinement import FULL, GROUP, MOST, PULL, Refinement
from bayestta.methods.bayestta.targets import SHARP
from bayestta.methods.bayestta.trials import Pairs
from bayestta.models.base import place
from conftest import tiny_vlm
from fake_vlm import PIXELS, world

K = 4


def made(*, lr=1e-3, share=1.0, gate=0.0, kind="LayerNorm"):
    """A refinement, the function that asks its tower, and a stream of (x, answer, sketch)."""
    model, stream = world(K, kind, batch=16, batches=40, signal=0.7, scale=10.0)
    refinement = Refinement(model, model.table, lr=lr, share=share, gate=gate)

    def encode(x, tensors):
        return model.logits(model.encode_image(x, tensors), model.table)

    def batches():
        for x, y in stream:
            sketch = encode(x, refinement.tensors)
            answer = sketch + 3.0 * torch.nn.functional.one_hot(y, K)
            yield x, answer, sketch

    return refinement, encode, batches()


def tensors(refinement):
    return refinement.tuned.snapshot()


def at_start(refinement):
    start = refinement.tuned.start
    return all(torch.equal(value, start[key]) for key, value in refinement.tuned.items())


def rate(refinement):
    return refinement.tuned.optimiser.param_groups[0]["lr"]


# --- the step ---


def test_a_step_is_adam_on_sharp_targets_and_a_little_back():
    refinement, encode, batches = made()
    seen = [next(batches), next(batches)]
    assert sum(len(x) for x, _, _ in seen) == GROUP
    own = {key: v.clone().requires_grad_() for key, v in refinement.tuned.start.items()}
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
    first = refinement.learn(*seen[0], None, even=True)
    assert (first, refinement.steps, refinement.count) == ("", 0, 16)
    assert refinement.tensors is None
    refinement.learn(*seen[1], None, even=True)
    assert (refinement.steps, refinement.count, refinement.moved) == (1, 0, True)
    for key, value in refinement.tensors.items():
        start = refinement.tuned.start[key]
        expected = own[key].detach() + PULL * (start - own[key].detach())
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
        assert not value.requires_grad
    assert not any(bool(g.any()) for g in refinement.gradient.values())


def test_a_large_share_makes_one_step_of_all_its_images():
    refinement, encode, batches = made()
    x, answer, sketch = (
        torch.cat(part) for part in zip(*(next(batches) for _ in range(5)), strict=True)
    )
    assert len(x) == 2.5 * GROUP
    z, (some, _) = traced = refinement.features(x)
    assert len(some) == len(x)
    torch.testing.assert_close(z, refinement.model.encode_image(x))
    before = tensors(refinement)
    assert refinement.learn(x, answer, sketch, traced[1], even=True) == ""
    assert (refinement.steps, refinement.count) == (1, 0)
    last = x[some][-module.PROBE :]
    judged = [encode(last, t).softmax(1) for t in (refinement.tensors, before)]
    kept = refinement.judged.first, refinement.judged.second
    for mine, theirs in zip(kept, judged, strict=True):
        torch.testing.assert_close(mine[-module.PROBE :], theirs.float())


def test_it_learns_what_the_answers_say():
    refinement, encode, batches = made()
    seen = [next(batches) for _ in range(6)]

    def loss():
        return -sum(
            float((answer.softmax(1) * encode(x, refinement.tensors).log_softmax(1)).sum())
            for x, answer, _ in seen
        )

    before = loss()
    for batch in seen:
        assert refinement.learn(*batch, None, even=True) == ""
    assert refinement.steps == 3
    assert loss() < before


def test_the_drift_is_what_steps_did_to_the_features_and_ends_with_them(monkeypatch):
    monkeypatch.setattr(module, "PROBE", 1000)  # all images of a step are in the probe
    refinement, _, batches = made()
    total = torch.zeros_like(refinement.drift)
    for _ in range(3):
        seen = [next(batches), next(batches)]
        x, before = torch.cat([batch[0] for batch in seen]), tensors(refinement)
        for batch in seen:
            refinement.learn(*batch, None, even=True)
        moved = refinement.model.encode_image(x, refinement.tensors)
        total += (moved - refinement.model.encode_image(x, before)).mean(0)
    assert total.norm() > 0
    torch.testing.assert_close(refinement.drift, total, rtol=1e-4, atol=1e-6)
    refinement.leave()
    assert not refinement.drift.any()


def test_statistics_see_features_without_the_drift():
    model, stream = world(K, "LayerNorm", batch=16, batches=12, signal=0.7, scale=10.0)
    adapter = BayesTTA(model, [str(k) for k in range(K)], ["{}"], gate=0.0, doubt=0.0)
    for x, _ in stream[:-1]:
        adapter.adapt(x)
    x, drift = stream[-1][0], torch.ones_like(adapter.refinement.drift)
    before, seen = adapter.predict(x), []
    adapter.refinement.drift = drift
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
        assert refinement.learn(x, 2 * sketch, sketch, None, even=True) == ""
    assert (refinement.passed, refinement.steps, refinement.outlook.doubt) == (0, 0, 0)
    assert refinement.tensors is None


def test_nothing_is_learnt_from_a_stream_that_is_not_even():
    refinement, _, batches = made()
    for batch in batches:
        refinement.learn(*batch, None, even=False)
    assert (refinement.passed, refinement.steps) == (0, 0)
    assert refinement.outlook.doubt > 0  # but it is watched


def test_doubt_is_a_running_mean():
    refinement, _, batches = made(gate=1.0)
    differ = []
    for step in range(6):
        x, answer, sketch = next(batches)
        refinement.learn(x, answer, sketch, None, even=True)
        differ.append(float((answer.argmax(1) != sketch.argmax(1)).double().mean()))
        assert refinement.outlook.doubt == pytest.approx(sum(differ) / (step + 1), abs=1e-6)


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
def test_the_share_of_images_holds_for_any_batch(size, share):
    refinement, _, batches = made(share=share, lr=0.0)
    passes, n = 0, 0

    def counting(x, tensors):
        nonlocal passes
        passes += len(x) if tensors is refinement.tuned and torch.is_grad_enabled() else 0
        return plain(x, tensors)

    plain, refinement.model.encode_image = refinement.model.encode_image, counting
    for _ in range(5):
        x, answer, sketch = next(batches)
        for part in zip(x.split(size), answer.split(size), sketch.split(size), strict=True):
            refinement.learn(*part, None, even=True)
            n += len(part[0])
    assert refinement.passed == passes
    assert share * n - RUN <= passes <= share * n + RUN


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
            refinement.count += len(got)
            if refinement.count >= GROUP:
                assert refinement.count == GROUP
                refinement.count = 0
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
        features = plain.model.encode_image(x, plain.tensors)
        own, trace = traced.features(x)
        torch.testing.assert_close(own, features, rtol=1e-9, atol=1e-12)
        assert not own.requires_grad
        sketch = plain.model.logits(features, plain.text)
        answer = sketch + 3.0 * torch.nn.functional.one_hot(y, K)
        plain.learn(x, answer, sketch, None, even=True)
        traced.learn(x, answer, sketch, trace, even=True)
    assert (plain.steps, plain.passed) == (traced.steps, traced.passed)
    assert plain.passed > 0
    for key, value in plain.tuned.items():
        torch.testing.assert_close(traced.tuned[key], value, rtol=1e-6, atol=1e-9)


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
        refinement.learn(*next(batches), None, even=True)
    assert refinement.moved
    x, answer, sketch = next(batches)
    reasons = [refinement.learn(x, answer, 0.1 * sketch, None, even=True) for _ in range(2)]
    assert "the confidence of the sketch has jumped" in reasons
    assert (refinement.pace.returns, refinement.pace.moves) == (0, 0)
    assert at_start(refinement)


def test_weights_fade_where_answers_crowd_into_one_class_and_stay_where_the_crowd_passes():
    refinement, _, batches = made()
    reasons = [refinement.learn(*next(batches), None, even=False, crowded=True)]
    for _ in range(4):
        reasons.append(refinement.learn(*next(batches), None, even=True))
    assert refinement.moved
    assert not any(reasons)  # nothing to leave before

    def crowd():
        x = next(batches)  # 16 images
        reason = refinement.learn(*x, None, even=False, crowded=True)
        assert reason == "answers name one class too often for labels that are even"

    start, before, drift = refinement.tuned.start, tensors(refinement), refinement.drift
    keep = 0.5 ** (16 / FADE)
    crowd()
    for key, value in refinement.tensors.items():
        torch.testing.assert_close(value, start[key] + keep * (before[key] - start[key]))
    torch.testing.assert_close(refinement.drift, keep * drift)
    refinement.learn(*next(batches), None, even=False)  # the crowd has passed
    assert refinement.pace.kept == 1
    batches_to_go = math.ceil(math.log(GONE) / math.log(keep))
    for _ in range(batches_to_go - 1):
        crowd()
    assert refinement.moved
    crowd()
    assert not refinement.moved
    assert at_start(refinement)
    assert (refinement.pace.returns, refinement.pace.moves) == (0, 0)


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
        next_reason = refinement.learn(*next(batches), None, even=True)
    assert next_reason.startswith("one step moved the answers by")
    assert at_start(refinement)
    assert refinement.tensors is None
    assert (refinement.pace.returns, refinement.count) == (1, 0)
    assert rate(refinement) == pytest.approx(50.0 * SLOWER)
    assert not refinement.tuned.optimiser.state


def test_a_leap_that_is_not_far_costs_a_part_of_a_return(monkeypatch):
    monkeypatch.setattr(module, "LEAP", 1e-9)
    refinement, _, batches = made()
    reasons = [refinement.learn(*next(batches), None, even=True) for _ in range(2)]
    assert reasons[-1].startswith("one step moved the answers by")
    assert at_start(refinement)
    assert (refinement.pace.returns, refinement.pace.moves, refinement.count) == (0, 1, 0)
    assert rate(refinement) == pytest.approx(1e-3 * SLOWER**0.25)


def test_answers_that_are_no_numbers_are_a_leap():
    refinement, _, batches = made()

    refinement._answers = lambda features: torch.full((len(features), K), torch.nan)
    reasons = [refinement.learn(*next(batches), None, even=True) for _ in range(2)]
    assert reasons[-1] == "one step moved the answers by nan"
    assert at_start(refinement)
    assert refinement.pace.returns == 1


@pytest.mark.parametrize("word", ["sure", "even"])
def test_the_witnesses_call_all_of_it_back(word, monkeypatch):
    monkeypatch.setattr(module, "LEAP", 2.0)  # as if training had led there little by little
    refinement, encode, batches = made()
    tilt = torch.tensor([30.0, 0, 0, 0]).double()

    def worse(x, tensors):
        logits = encode(x, tensors)
        if tensors is not None:
            logits = 0.05 * logits if word == "sure" else logits + tilt
        return refinement.model.encode_image(x, tensors), logits.softmax(1)

    refinement._asked = worse
    reasons = [refinement.learn(*batch, None, even=True) for batch in batches]
    first = next(reason for reason in reasons if reason)
    assert first == f"answers became less {word} than the source's"
    assert at_start(refinement)
    assert not refinement.moved
    assert refinement.pace.returns == RETURNS  # it never got better
    assert rate(refinement) == pytest.approx(1e-3 * SLOWER**RETURNS)


def test_tensors_that_rest_are_judged_too():
    """A tower that broke may close the gate itself: no further step would ever judge it."""
    refinement, encode, batches = made()
    for _ in range(2):
        refinement.learn(*next(batches), None, even=True)
    assert refinement.moved
    tilt = torch.tensor([30.0, 0, 0, 0]).double()

    def worse(x, tensors):
        answers = (encode(x, tensors) + (0 if tensors is None else tilt)).softmax(1)
        return refinement.model.encode_image(x, tensors), answers

    refinement._asked = worse
    reasons = [refinement.learn(*batch, None, even=False) for batch in batches]
    assert refinement.steps == 1
    assert [reason for reason in reasons if reason] == [
        "answers became less even than the source's"
    ]
    assert at_start(refinement)
    assert not refinement.moved


def test_three_returns_end_it(monkeypatch):
    monkeypatch.setattr(module, "FAR", module.LEAP)
    refinement, _, batches = made(lr=1e6)
    reasons = [refinement.learn(*batch, None, even=True) for batch in batches]
    assert sum(bool(reason) for reason in reasons) == refinement.pace.returns == RETURNS
    assert at_start(refinement)
    passed = refinement.passed
    assert passed < 40 * 16
    refinement.reset()
    assert (refinement.pace.returns, rate(refinement)) == (0, pytest.approx(1e6))


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
        refinement.learn(*batch, None, even=True)
    assert len(refinement.judged.second) <= KEEP


# --- in the adapter ---


def test_a_model_in_bfloat16_is_never_written_to():
    model = tiny_vlm("mini-vit")
    place(model, torch.device("cpu"), torch.bfloat16)
    adapter = BayesTTA(model, ["cat", "dog", "car"], refine=True, gate=0.0, share=1.0, guard=False)
    adapter.trust.update = lambda sketch, keep: None
    adapter.trust.used = torch.ones(3, dtype=torch.float64)  # as if the stream were even
    adapter.trust.name = lambda answer: None
    before = model.fingerprint
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        adapter.adapt(torch.randn(16, 3, 32, 32, generator=rng))
    assert adapter.refinement.steps == 1
    assert adapter.refinement.moved
    assert not at_start(adapter.refinement)
    assert {v.dtype for v in adapter.refinement.tuned.values()} == {torch.float32}
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
        refinement.learn(x, answer, 0.01 * sketch, None, even=True)
    assert refinement.outlook.sure < SURE
    assert (refinement.steps, refinement.passed) == (0, 0)


def test_a_stream_that_moves_sends_the_tower_back_to_the_source():
    model = tiny_vlm("mini-rn")
    adapter = BayesTTA(model, ["a", "b", "c"])  # so unsure that the gate stays shut
    dark = torch.randn(64, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        adapter.adapt(dark)  # the trial of the start ends
    adapter.adapt(dark)
    adapter.refinement.moved, adapter.tower.left, adapter.tower.tokens = True, 0, 128.0
    trials = adapter.tower.trials
    adapter.adapt(0.05 * dark + 2.0)
    assert adapter.tower.trials == trials + 1
    assert (adapter.refinement.pace.returns, adapter.refinement.pace.moves) == (0, 1)
    assert not adapter.refinement.moved
    assert at_start(adapter.refinement)


@pytest.mark.parametrize(("left", "tokens", "trials"), [(16, 128.0, 1), (0, 0.0, 0), (16, 0.0, 0)])
def test_a_move_counts_in_the_midst_of_a_trial_and_without_means_for_one(left, tokens, trials):
    adapter = BayesTTA(tiny_vlm("mini-rn"), ["a", "b", "c"])
    dark = torch.randn(64, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        adapter.adapt(dark)
    before = adapter.tower.trials
    adapter.refinement.moved, adapter.tower.left, adapter.tower.tokens = True, left, tokens
    adapter.adapt(0.05 * dark + 2.0)
    assert adapter.tower.trials == before + trials
    assert not adapter.refinement.moved
    if not trials:
        assert (adapter.tower.active, adapter.tower.left) == (0, 0)


def test_a_move_is_forgotten_after_a_while():
    refinement, _, batches = made()
    refinement.pace.moves = 2
    x, answer, sketch = next(iter(batches))
    for left in (2, 1, 0, 0):
        refinement.pace.stayed = PARDON - len(x) - 1
        refinement.learn(x, answer, sketch, None, even=False)
        assert (refinement.pace.moves, refinement.pace.stayed) == (left, PARDON - 1)
        refinement.learn(x, answer, sketch, None, even=False)
        assert (refinement.pace.moves, refinement.pace.stayed) == (max(0, left - 1), 0)


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

    refinement._asked = jumps
    while len(refinement.judged.second) < 2 * ENOUGH:
        assert refinement.learn(*next(batches), None, even=True) == ""
    turned, reason = True, ""
    while not reason:
        reason = refinement.learn(*next(batches), None, even=True)
    assert reason == "answers are suddenly less sure than the source's"
    assert (refinement.pace.returns, refinement.pace.moves) == (0, 1)
    assert at_start(refinement)
    assert not refinement.moved
