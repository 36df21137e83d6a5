"""The drift alarm and the harm test: error rates on simulated nulls, power, and saved state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bayestta.evaluation.monitors import DriftAlarm, HarmTest, entropies
from bayestta.evaluation.result import Result
from bayestta.evaluation.steps import evaluate
from bayestta.maths import betting
from bayestta.methods import make_adapter

STREAMS = 1000


def test_capital_of_uniform_ranks_rarely_reaches_the_level():
    """Ville: over 1,000 streams of 3,000 samples, no more alarms than alpha, with room for luck."""
    rng, capital = np.random.default_rng(0), betting.start_capital(STREAMS)
    highest = np.ones(STREAMS)
    for t in range(1, 3001):
        capital = betting.bet(capital, rng.random(STREAMS), t)
        highest = np.maximum(highest, capital.sum(-1))
    for alpha in (0.01, 0.05, 0.2):
        assert (highest >= 1 / alpha).mean() <= alpha
    assert capital.sum(-1).mean() == pytest.approx(1, abs=0.35)  # a martingale, not a shrunken one


def test_bets_against_shifted_ranks_win():
    capital = betting.start_capital(STREAMS)
    rng, spoke = np.random.default_rng(1), np.full(STREAMS, np.inf)
    for t in range(1, 301):
        capital = betting.bet(capital, rng.beta(2, 1, STREAMS), t)
        spoke = np.where(np.isinf(spoke) & (capital.sum(-1) >= 100), t, spoke)
    assert np.isfinite(spoke).mean() > 0.99
    assert np.median(spoke) < 120


def test_ranks_of_exchangeable_scores_are_uniform_and_independent():
    """Also against a small reference, whose own error a fixed rank would carry along for ever."""
    rng, ranks = np.random.default_rng(2), []
    for stream in range(200):
        scores, weights, row = np.sort(rng.normal(size=10)), np.ones(11), []
        for t in range(100):
            gap = int(np.searchsorted(scores, rng.normal()))
            row.append(betting.urn_rank(weights, gap, betting.uniform(stream, t), 11.0 + t))
            weights[gap] += 1
        ranks.append(row)
    table = np.array(ranks)
    counts = np.histogram(table, bins=10, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # chi-squared, 9 degrees, 0.1 %
    # the mean over a stream varies as that of independent ranks does: 1/12 over 100
    assert table.mean(1).var() == pytest.approx(1 / 1200, rel=0.35)


@pytest.mark.parametrize("ties", [False, True])
def test_false_alarms_stay_below_alpha(ties):
    rng, alarms = np.random.default_rng(3), 0
    for stream in range(STREAMS):
        alarm = DriftAlarm(alpha=0.05, reference=20, seed=stream)
        scores = rng.integers(0, 3, 90) if ties else rng.gamma(2, size=90)
        alarms += bool(alarm.add(scores.astype(float)))
    assert alarms <= 0.05 * STREAMS


def test_a_shift_is_noticed_and_becomes_the_new_reference():
    rng = np.random.default_rng(4)
    alarm = DriftAlarm(alpha=0.01, reference=100)
    assert alarm.add(rng.normal(size=2000)) == 0
    assert alarm.add(rng.normal(2.0, size=100)) == 1
    assert 2000 < alarm.events[0]["sample"] <= 2060
    assert alarm.add(rng.normal(2.0, size=1000)) == 0
    assert alarm.add(rng.normal(size=200)) == 1
    assert alarm.alarm
    assert alarm.alarms == 2


def test_harm_test_keeps_its_level_where_answers_are_as_good_as_the_sketch():
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(STREAMS):
        test = HarmTest(alpha=0.05)
        for gain in rng.integers(-1, 2, 80).tolist():
            labels = {1: 1, -1: 0, 0: 2}
            if test.add(answer=1, sketch=0, label=labels[gain]):
                break
        alarms += test.alarm
    assert alarms <= 0.05 * STREAMS


def test_a_dozen_labels_show_gross_harm_and_agreement_says_nothing():
    rng, labels = np.random.default_rng(6), []
    for _ in range(200):
        test = HarmTest()
        while not test.alarm and test.labels < 200:
            test.add(answer=1, sketch=0, label=int(rng.random() < 0.1))
        labels.append(test.alarm_at)
    assert np.median(labels) <= 12
    test = HarmTest()
    assert not test.add(answer=3, sketch=3, label=1)
    assert (test.labels, test.value) == (0, 0.0)


@pytest.mark.parametrize("cut", [5, 60, 130])
def test_saved_monitors_go_on_bit_for_bit(cut):
    scores = np.random.default_rng(7).normal(size=200)
    whole, first, second = (DriftAlarm(reference=50) for _ in range(3))
    whole.add(scores)
    first.add(scores[:cut])
    second.load(first.state())
    second.add(scores[cut:])
    for key, value in whole.state().items():
        same = second.state()[key]
        assert torch.equal(value, same) if isinstance(value, torch.Tensor) else value == same
    harm, copy = HarmTest(), HarmTest()
    harm.add(answer=0, sketch=1, label=1)
    copy.load(harm.state())
    assert copy.value == harm.value > 0


def test_what_cannot_be_right_is_refused():
    for make in (lambda: DriftAlarm(alpha=1.5), lambda: HarmTest(alpha=0)):
        with pytest.raises(ValueError, match="above 0 and below 1"):
            make()
    with pytest.raises(ValueError, match="at least 10"):
        DriftAlarm(reference=3)
    alarm = DriftAlarm(reference=10)
    with pytest.raises(ValueError, match="NaN"):
        alarm.add([0.0, math.nan])
    assert alarm.samples == 0
    with pytest.raises(ValueError, match="capital"):
        alarm.load({**alarm.state(), "capital": torch.ones(2, dtype=torch.float64)})
    with pytest.raises(ValueError, match="reference"):
        alarm.load({**alarm.state(), "scores": torch.zeros(11, dtype=torch.float64)})
    with pytest.raises(ValueError, match="events"):
        alarm.load({**alarm.state(), "events": "none"})
    before = HarmTest().state()
    with pytest.raises(ValueError, match="labels"):
        HarmTest().load({**before, "labels": -1})


def test_merging_multiplies_evidence_of_harm_and_adds_alarms():
    one, two = HarmTest(), HarmTest()
    for test in (one, two):
        for _ in range(4):
            test.add(answer=1, sketch=0, label=0)
    assert not one.alarm
    one.merge(two, 0.5)
    assert one.alarm
    assert one.labels == 8
    drift, other = DriftAlarm(reference=10), DriftAlarm(reference=10)
    other.add([0.0] * 10 + [0.1 * i for i in range(40)])
    drift.merge(other, 0.5)
    assert drift.alarms == other.alarms > 0


def test_entropies_are_those_of_the_softmax():
    logits = torch.tensor([[0.0, 0.0], [100.0, 0.0]])
    assert entropies(logits).tolist() == pytest.approx([math.log(2), 0.0])


def test_a_result_says_what_both_monitors_saw(tiny_rn):
    """A stream of features whose zero-shot answers turn doubtful half-way."""
    from bayestta.models.features import Features

    model = Features(tiny_rn)
    adapter = make_adapter("zero-shot", model, ["cat", "dog", "horse"])
    rng, text = torch.Generator().manual_seed(0), adapter.text
    batches = []
    for i in range(20):
        y = torch.arange(32) % 3
        noise = torch.randn(32, model.dim, generator=rng) * (0.02 if i < 10 else 0.2)
        batches.append((torch.nn.functional.normalize(text[y] + noise, dim=1), y))
    result = evaluate(adapter, batches)
    assert result.drift["alarms"] >= 1
    assert 320 < result.drift["events"][0]["sample"] < 480
    assert result.drift["events"][0]["domain"] == "stream"
    assert result.harm["labels"] == 0  # zero-shot never differs from itself
    assert Result.from_json(result.to_json()).drift == result.drift
