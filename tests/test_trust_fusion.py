"""Trust, fusion, lean and temperature: literal loops, any split into batches, the target met."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from bayestta.maths.calibration import MEMORY, RANGE, Temperature
from bayestta.methods.bayestta.fusion import (
    ENOUGH,
    FORETOLD,
    LEAN,
    MENDED,
    MIXED,
    NAMED,
    OTHERS,
    SMOOTH,
    STEADY,
    STEEP,
    SURE,
    SURER,
    WINDOW,
    Fusion,
)
from bayestta.methods.bayestta.trust import EVEN, RECENT, Trust


def logits(n, K=5, *, seed=0, size=2.0):
    rng = torch.Generator().manual_seed(seed)
    return size * torch.randn(n, K, generator=rng, dtype=torch.float64)


def fusion(alpha=8.0, doubt=0.3):
    return Fusion(alpha, doubt, like=torch.zeros(5, 2))


# --- trust ---


def test_trust_is_the_evenness_of_the_sketch():
    trust, used = Trust(torch.zeros(5, 2)), [0.0] * 5
    for seed, n in enumerate((7, 30, 4)):
        p = logits(n, seed=seed, size=0.8).softmax(1)
        trust.update(p, keep=0.9)
        used = [0.9 * u + sum(float(row[k]) for row in p) for k, u in enumerate(used)]
    total = sum(used)
    classes = math.exp(-sum(u / total * math.log(u / total) for u in used))
    value = (classes / 5 - EVEN[0]) / (EVEN[1] - EVEN[0])
    assert trust.value == pytest.approx(min(max(value, 0.0), 1.0))


def test_trust_is_nothing_before_the_stream_and_under_skew():
    trust = Trust(torch.zeros(5, 2))
    assert trust.value == 0
    trust.update(functional.one_hot(torch.zeros(50, dtype=torch.long), 5).double(), 1.0)
    assert trust.value == 0
    for _ in range(20):
        trust.update(functional.one_hot(torch.arange(50) % 5, 5).double(), 0.5)
    assert trust.value > 0.99


@pytest.mark.parametrize("size", [1, 8])
def test_trust_of_small_batches_is_that_of_large_ones(size):
    p, keep = logits(64, size=0.5).softmax(1), 0.5 ** (1 / 150)
    whole, parts = Trust(torch.zeros(5, 2)), Trust(torch.zeros(5, 2))
    whole.update(p, keep**64)
    for part in p.split(size):
        parts.update(part, keep ** len(part))
    # each image is as old as its batch at least: at most one large batch of forgetting apart
    assert bool((parts.used <= whole.used).all())
    assert bool((parts.used >= keep**64 * whole.used).all())
    assert parts.value == pytest.approx(whole.value, abs=0.05)


def test_trust_adds_up():
    one, two, both = (Trust(torch.zeros(5, 2)) for _ in range(3))
    a, b = logits(9).softmax(1), logits(4, seed=1).softmax(1)
    one.update(a, 1.0)
    two.update(b, 1.0)
    both.update(torch.cat([a, b]), 1.0)
    one.merge(two, 0.3)
    torch.testing.assert_close(one.used, both.used)
    two.load(one.state())
    assert two.value == one.value
    with pytest.raises(ValueError, match="used ranges from -1"):
        two.load({"used": -torch.ones(5, dtype=torch.float64)})


def test_what_was_named_of_late_is_counted_and_judged():
    trust, named = Trust(torch.zeros(5, 2)), [0.0] * 5
    assert trust.mixed > 1  # nothing named yet
    for seed, n in enumerate((7, 30, 4)):
        answer = logits(n, seed=seed)
        trust.name(answer)
        named = [0.5 ** (n / RECENT) * c for c in named]
        for row in answer:
            named[int(row.argmax())] += 1
    assert trust.named.tolist() == pytest.approx(named)
    assert trust.mixed == pytest.approx((1 - max(named) / sum(named)) / 0.8)


@pytest.mark.parametrize(
    ("most", "teaches", "crowded"), [(40, True, False), (48, False, False), (60, False, True)]
)
def test_one_class_that_is_named_often_teaches_nothing(most, teaches, crowded):
    trust = Trust(torch.zeros(5, 2))
    trust.update(torch.full((50, 5), 0.2), 1.0)
    assert trust.value == 1
    others = (100 - most) // 4
    y = torch.arange(5).repeat_interleave(torch.tensor([100 - 4 * others, *[others] * 4]))
    trust.name(functional.one_hot(y, 5).double())
    assert (trust.teaches, trust.crowded) == (teaches, crowded)
    trust.update(functional.one_hot(torch.zeros(500, dtype=torch.long), 5).double(), 0.0)
    assert not trust.teaches  # over the memory of the statistics


# --- fusion ---


def test_the_gauge_counts_what_it_says():
    made, expected = fusion(), [0.0] * 5
    for seed, n in enumerate((12, 1, 5)):
        sketch, score = logits(n, seed=seed), 30 * logits(n, seed=seed + 10)
        made.remember(sketch, score)
        old = 0.5 ** (n / STEADY)
        expected = [old * value for value in expected]
        for s, g in zip(sketch, score, strict=True):
            row = [1.0, float(s.std()), float(g.std()), float(s.argmax() != g.argmax())]
            row.append(float(s.softmax(0).max()))
            expected = [e + r for e, r in zip(expected, row, strict=True)]
    assert made.gauge.tolist() == pytest.approx(expected)


def test_discriminants_come_in_units_of_the_sketch():
    made, sketch, score = fusion(), logits(40), 700 * logits(40, seed=1)
    assert not made.ready
    made.remember(sketch, score)
    assert made.ready
    assert float(made.scaled(score).std(1).mean()) == pytest.approx(float(sketch.std(1).mean()))
    twice = fusion()
    twice.remember(sketch, 2 * score)
    torch.testing.assert_close(twice.scaled(2 * score), made.scaled(score))
    answer = made(sketch + 17, score, 3.0)  # a constant says nothing
    centred = sketch - sketch.mean(1, keepdim=True)
    torch.testing.assert_close(answer, (centred + 3 * made.scaled(score)) / 4)
    torch.testing.assert_close(made(sketch, score, 0.0), centred)


def test_the_weight_grows_with_evidence_and_with_doubt():
    made = fusion()
    sketch = logits(100)
    other = sketch.clone()
    other[:6] = -other[:6]  # 6 differing answers
    made.remember(sketch, other)
    differ = float((sketch.argmax(1) != other.argmax(1)).double().mean())
    assert differ == pytest.approx(0.06)
    for each in (0.0, 5.0, 15.0, 1e9):
        count = torch.full((5,), each, dtype=torch.float64)
        grown = 8 * each / (each + ENOUGH)
        for trust in (0.0, 0.4, 1.0):
            part = trust * min(1, 3 * differ / 0.3) + (1 - trust) * min(1, differ / 0.3)
            assert made.weight(count, trust) == pytest.approx(grown * part)
        assert fusion(doubt=0.0).weight(count, 0.0) == pytest.approx(grown)
    assert fusion().weight(torch.full((5,), 100.0), 1.0) == 0  # nothing compared yet


def test_the_weight_falls_where_one_class_has_most_of_the_evidence():
    free = fusion(doubt=0.0)
    count = torch.tensor([96.0, 1.0, 1.0, 1.0, 1.0])
    full = 8 * 20 / (20 + ENOUGH)
    assert free.weight(count, 0.0) == pytest.approx(full * (0.05 / MIXED) ** STEEP)
    assert free.weight(torch.tensor([26.0, 24.0, 20.0, 16.0, 14.0]), 0.0) == pytest.approx(full)
    few = torch.tensor([50.0, 50.0, 0.0, 0.0, 0.0])
    assert free.weight(few, 0.0) == pytest.approx(full * (0.625 / MIXED) ** STEEP)


def choices(*counts, sure=6.0):
    """Logits that give class k counts[k] images each."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return sure * functional.one_hot(y, len(counts)).double()


def heard(sketch, score, told):
    made = fusion()
    made.remember(sketch, score)
    return made.worth(told)


def test_gaussians_are_heard_where_the_text_tells_little():
    biased, even = choices(60, 10, 10, 10, 10), choices(20, 20, 20, 20, 20)
    for sketch, score in ((biased, even), (even, even), (even, biased)):
        assert heard(sketch, score, FORETOLD[0]) == 1
        assert heard(sketch, score, sum(FORETOLD) / 2) >= 0.5
    assert fusion().worth(1.0) == 1  # nothing compared yet


def test_where_the_text_tells_all_gaussians_are_heard_if_they_mend_the_use_of_classes():
    biased, even = choices(60, 10, 10, 10, 10), choices(20, 20, 20, 20, 20)
    assert heard(biased, even, 1.0) == 1
    assert heard(even, even, 1.0) == 0
    assert heard(even, biased, 1.0) == 0
    tuned = fusion()
    tuned.remember(even, even)
    assert tuned.worth(1.0, evener=MENDED) == 1  # the sketch owes its evenness to them
    # more even than the sketch, and still of few classes: labels are skewed
    assert heard(choices(96, 1, 1, 1, 1), choices(80, 5, 5, 5, 5), 1.0) == 0


def test_where_answers_crowd_into_one_class_gaussians_that_mend_are_not_heard():
    made = fusion()
    made.remember(choices(60, 10, 10, 10, 10), choices(20, 20, 20, 20, 20))
    middle = sum(OTHERS) / 2
    worths = [made.worth(1.0, others) for others in (1.0, OTHERS[1], middle, OTHERS[0], 0.0)]
    assert worths == pytest.approx([1, 1, 0.5, 0, 0])
    assert made.worth(FORETOLD[0], 0.0) == 1  # the text tells little: they are all there is
    settled = [made.worth(1.0, settled=part) for part in (0.0, 0.5, 1.0)]  # since the last move
    assert settled == pytest.approx([0, 0.5, 1])
    assert made.worth(FORETOLD[0], settled=0.0) == 1


def test_what_gaussians_are_worth_equals_a_loop():
    made, use, n = fusion(), [[0.0] * 5, [0.0] * 5], 0.0
    for seed, size in enumerate((40, 3, 25)):
        sketch = logits(size, seed=seed) + torch.tensor([0.5, 0, 0, 0, 0])
        made.remember(sketch, 30 * logits(size, seed=seed + 10))
        old = 0.5 ** (size / max(WINDOW[0], 5 * WINDOW[1]))
        sides = sketch.softmax(1), made.scaled(30 * logits(size, seed=seed + 10)).softmax(1)
        for side, p in enumerate(sides):
            use[side] = [old * u + float(p[:, k].sum()) for k, u in enumerate(use[side])]
        n = old * n + size
    entropy = [-sum(u / sum(row) * math.log(u / sum(row)) for u in row) for row in use]
    mends = min(1, max(0, (entropy[1] - entropy[0]) / MENDED))
    named = math.exp(entropy[1]) / (5 * (1 - math.exp(-n / 5)))
    expected = mends * min(1, max(0, (named - NAMED[0]) / (NAMED[1] - NAMED[0])))
    assert made.worth(1.0) == pytest.approx(expected)


def test_answers_are_as_sure_as_the_sides_that_give_them():
    made, sketch, score = fusion(), logits(30), 9 * logits(30, seed=1)
    made.remember(sketch, score)
    alone = Fusion(8.0, 0.3, like=torch.zeros(5, 2), alone=True)
    alone.load(made.state())
    torch.testing.assert_close(alone(sketch, score, 0.5), made.scaled(score))
    cases = ((0.0, 1.0, 0.9), (0.3, 0.0, 0.9), (2.0, 0.6, 0.9), (2.0, 0.6, 0.63), (2.0, 1.0, 0.2))
    for alpha, trust, told in cases:
        answer = made(sketch, score, alpha)
        sure = made.confidence(answer, sketch, score, alpha, trust, told)
        only = alone.confidence(answer, sketch, score, alpha, trust, told)
        weight = {0.9: SURER[1], 0.63: 0.7 * SURER[0] + 0.3 * SURER[1], 0.2: SURER[0]}[told]
        rows = zip(answer, sketch, made.scaled(score), sure, only, strict=True)
        for a, s, d, goal, without in rows:
            best = int(a.argmax())
            mine, theirs = float(s.softmax(0)[best]), float(d.softmax(0)[best])
            low, high = sorted((mine, theirs))
            both = min(1.0, low + weight * trust * (high - low))
            assert float(goal) == pytest.approx(mine + min(1, alpha) * (both - mine))
            assert float(without) == pytest.approx(both)


@pytest.mark.parametrize("size", [1, 8])
def test_fusion_of_small_batches_is_that_of_large_ones(size):
    sketch, score = logits(600), 9 * logits(600, seed=3)
    whole, parts = fusion(), fusion()
    for one, two in zip(sketch.split(24), score.split(24), strict=True):
        whole.remember(one, two)
    for one, two in zip(sketch.split(size), score.split(size), strict=True):
        parts.remember(one, two)
    scale = [float(f.gauge[1] / f.gauge[2]) for f in (whole, parts)]
    assert scale[1] == pytest.approx(scale[0], rel=0.05)
    differ = [float(f.gauge[3] / f.gauge[0]) for f in (whole, parts)]
    assert differ[1] == pytest.approx(differ[0], abs=0.05)


def test_fusion_adds_up_and_goes_on():
    one, two, sketch, score = fusion(), fusion(), logits(16), logits(16, seed=1)
    one.remember(sketch, score)
    two.remember(2 * sketch, score)
    total, use = one.gauge + two.gauge, one.use + two.use
    one.merge(two, 0.5)
    assert torch.equal(one.gauge, total)
    assert torch.equal(one.use, use)
    two.load(one.state())
    assert torch.equal(two.gauge, one.gauge)
    assert two.worth(1.0) == one.worth(1.0)
    with pytest.raises(ValueError, match="gauge has shape"):
        two.load({**one.state(), "gauge": torch.zeros(3, dtype=torch.float64)})


def leaning(count, sure=1.0):
    """The lean of a fusion that has seen the sketch to be so sure on average."""
    made = Fusion(8.0, 0.3, like=torch.zeros(len(count), 2))
    made.gauge = torch.tensor([10.0, 1.0, 1.0, 1.0, 10 * sure], dtype=torch.float64)
    return made.lean(count)


def test_the_lean_is_small_even_on_average_and_for_streams_of_one_class():
    count = torch.tensor([0.0, 10.0, 90.0], dtype=torch.float64)
    single = 1 - (0.1 / (2 / 3) / MIXED) ** (2 * STEEP)  # of 100 samples ten are of other classes
    logs = [LEAN * single * math.log(float(n) + SMOOTH) for n in count]
    expected = [value - sum(logs) / 3 for value in logs]
    assert leaning(count).tolist() == pytest.approx(expected)
    assert float(leaning(count).sum()) == pytest.approx(0, abs=1e-12)
    assert float(leaning(torch.full((4,), 9.0)).abs().max()) == pytest.approx(0, abs=1e-7)
    biased = torch.tensor([30.0, 25.0, 20.0, 15.0, 10.0] * 4)  # no class has most
    assert not leaning(biased).any()


def test_the_lean_follows_a_sketch_that_is_sure():
    count = torch.tensor([0.0, 10.0, 90.0], dtype=torch.float64)
    whole = leaning(count)
    assert not leaning(count, sure=SURE[0]).any()
    torch.testing.assert_close(leaning(count, sure=sum(SURE) / 2), whole / 2)
    torch.testing.assert_close(leaning(count, sure=SURE[1]), whole)


# --- temperature ---


@pytest.mark.parametrize("goal", [0.4, 0.6, 0.9])
@pytest.mark.parametrize("size", [1, 8, 64])
def test_confidence_reaches_its_target(goal, size):
    stream, temperature = logits(1200, size=3.0), Temperature()
    for part in stream.split(size):
        temperature.update(part, torch.full((len(part),), goal, dtype=torch.float64))
    assert temperature.target == pytest.approx(goal)
    assert float(temperature(stream[-600:]).amax(1).mean()) == pytest.approx(goal, abs=0.03)
    assert torch.equal(temperature(stream).argmax(1), stream.argmax(1))


def test_the_slope_is_the_derivative_of_confidence():
    x, temperature = logits(30), Temperature()
    temperature.update(x, x.softmax(1).amax(1))  # on target: nothing moves
    assert temperature.log_t == pytest.approx(0, abs=1e-9)

    def confidence(log_t):
        return float((x / math.exp(log_t)).softmax(1).amax(1).sum())

    numeric = (confidence(1e-5) - confidence(-1e-5)) / 2e-5
    assert float(temperature.sums[2]) == pytest.approx(numeric, rel=1e-6)


def test_temperature_stays_within_bounds_and_forgets():
    temperature = Temperature()
    flat = torch.zeros(50, 5, dtype=torch.float64)
    for _ in range(40):  # a target that no temperature reaches
        temperature.update(flat, torch.ones(50, dtype=torch.float64))
    assert abs(temperature.log_t) <= RANGE
    x = logits(int(MEMORY) * 8, size=3.0)
    temperature.reset()
    for part in x.split(32):
        temperature.update(part, torch.full((32,), 0.9, dtype=torch.float64))
    for part in x.split(32):
        temperature.update(part, torch.full((32,), 0.5, dtype=torch.float64))
    assert float(temperature(x).amax(1).mean()) == pytest.approx(0.5, abs=0.03)


def test_temperature_adds_up_and_goes_on():
    one, two = Temperature(), Temperature()
    assert one.target is None
    one.update(logits(20), torch.full((20,), 0.9, dtype=torch.float64))
    two.update(logits(60, seed=1), torch.full((60,), 0.5, dtype=torch.float64))
    log_t = 0.25 * one.log_t + 0.75 * two.log_t
    one.merge(two, 0.75)
    assert one.log_t == pytest.approx(log_t)
    assert one.target == pytest.approx(0.6, abs=0.01)
    two.load(one.state())
    x = logits(5)
    assert torch.equal(one(x), two(x))
    with pytest.raises(ValueError, match="log_t ranges"):
        two.load({"sums": torch.zeros(4, dtype=torch.float64), "log_t": 9.0})
