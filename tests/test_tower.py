"""The tower under statistics of the stream: moments, blends, pixels, trials and their account."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from bayestta.methods.bayestta import signature as signature_module
from bayestta.methods.bayestta.signature import ABRUPT, FIRM, SETTLED, Looks, signature
from bayestta.methods.bayestta.stream_norms import EARLY, HALF, NONE, StreamNorms
from bayestta.methods.bayestta.tower import AGAIN, RATE, SAVINGS, TRIAL, WIDE, StreamTower
from bayestta.methods.bayestta.trials import (
    AGAINST,
    EVEN,
    LEAST,
    LOSS,
    MARGIN,
    PRICE,
    STAKE,
    STAY,
    SURE,
    Answers,
    Verdict,
    judge,
    witnesses,
)
from bayestta.models._stream_statistics import (
    EPS,
    MEMORY,
    PRIOR,
    Blended,
    Moments,
    batch_norm_moments,
    channel_moments,
)
from fake_vlm import PIXELS, Fake, tower

K, SIDE = 5, 8


# --- moments ---


@pytest.mark.parametrize("sizes", [(40,), (1,) * 12, (3, 30, 7)])
def test_moments_are_exact_for_any_split(sizes):
    rng = torch.Generator().manual_seed(0)
    batches = [3 + torch.randn(n, 2, 5, 5, generator=rng) for n in sizes]
    moments = Moments(torch.zeros(2), torch.ones(2))
    for x in batches:
        moments.add(*channel_moments(x), len(x))
    whole = torch.cat(batches)
    torch.testing.assert_close(moments.mean, whole.mean((0, 2, 3)))
    torch.testing.assert_close(moments.var, whole.var((0, 2, 3), correction=0))
    n = sum(sizes)
    assert moments.trust == pytest.approx(n / (n + PRIOR))


def test_moments_merge_forget_and_go_on():
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(20, 2, 4, 4, generator=rng), 2 + torch.randn(30, 2, 4, 4, generator=rng)
    one, two, both = (Moments(torch.zeros(2), torch.ones(2)) for _ in range(3))
    one.add(*channel_moments(a), 20)
    two.add(*channel_moments(b), 30)
    both.add(*channel_moments(torch.cat([a, b])), 50)
    one.merge(two, 0.6)
    torch.testing.assert_close(one.mean, both.mean)
    torch.testing.assert_close(one.var, both.var)
    before = one.mean.clone()
    one.merge(Moments(torch.zeros(2), torch.ones(2)), 0.0)
    assert torch.equal(one.mean, before)
    two.load(one.state())
    assert torch.equal(two.mean, one.mean)
    for _ in range(10):
        one.add(*channel_moments(a), 20)
    assert one.n == MEMORY
    one.loosen()
    one.add(*channel_moments(a), 20)
    assert (one.mean - a.mean((0, 2, 3))).abs().max() < 0.2
    one.reset()
    assert (one.n, one.trust) == (0, 0)
    with pytest.raises(ValueError, match="var ranges from -1"):
        one.load({"mean": torch.zeros(2), "var": -torch.ones(2), "n": 1.0})


def test_the_shift_is_the_divergence_of_gaussians_as_far_as_it_is_trusted():
    mean, var = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0])
    moments = Moments(mean, var)
    assert moments.shift == 0  # nothing was seen
    moments.add(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 2.0]), 24)
    seen, source = (
        [torch.distributions.Normal(m, (v + EPS) ** 0.5) for m, v in zip(*pair, strict=True)]
        for pair in ((moments.mean, moments.var), (mean, var))
    )
    both = zip(seen, source, strict=True)
    nats = [float(torch.distributions.kl_divergence(p, q)) for p, q in both]
    assert moments.shift == pytest.approx(24 / (24 + PRIOR) * sum(nats) / 2, rel=1e-4)
    moments.add(torch.tensor([1e6, 1e6]), torch.tensor([1.0, 1.0]), 1000)
    assert moments.shift == pytest.approx(moments.trust)  # a channel counts one at most
    assert moments.fresh().shift == 0


# --- blended BatchNorms ---


def test_the_stream_s_share_follows_the_shift_of_the_early_layers():
    visual = tower("BatchNorm", 24, 0)
    norms = StreamNorms(visual)
    every = list(batch_norm_moments(visual))
    early = every[: round(EARLY * len(every))]
    assert list(norms.layers) == list(norms.plain) == early != every
    rng = torch.Generator().manual_seed(1)
    x = 1 + torch.randn(40, PIXELS, generator=rng, dtype=torch.float64)
    plain = visual(x)
    with norms.blended(True):
        assert torch.equal(visual(x), plain)  # nothing measured, nothing taken
    assert (norms.rho, norms.plain[early[0]].n, norms.layers[early[0]].n) == (0, 0, 40)
    with norms.measured():
        assert torch.equal(visual(x), plain)
    assert (norms.plain[early[0]].n, norms.layers[early[0]].n) == (40, 40)
    norms.choose()
    shift = sum(norms.plain[name].shift for name in early) / len(early)
    assert norms.rho == pytest.approx((shift - NONE) / (shift - NONE + HALF))
    assert norms.rho > 0.1
    with norms.blended(False):
        assert (visual(x) - plain).abs().max() > 0.01
    before = norms.rho
    norms.measure_anew()
    assert (norms.plain[early[0]].n, norms.rho) == (0, before)
    norms.choose()
    assert norms.rho == 0
    assert not StreamNorms(tower("LayerNorm", 24, 0))


def test_blended_equals_a_forward_by_hand_and_leaves_the_model_alone():
    visual = tower("BatchNorm", 24, 0)
    frozen = {key: value.clone() for key, value in visual.state_dict().items()}
    moments = batch_norm_moments(visual)
    assert set(moments) == {"bn1", "bn2", "downsample.1"}
    rng = torch.Generator().manual_seed(1)
    x = 1 + torch.randn(40, PIXELS, generator=rng, dtype=torch.float64)
    plain = visual(x)
    with Blended(visual, moments, 0.3, learn=True):
        ours = visual(x)
    share = 0.3 * 40 / (40 + PRIOR)

    def normalised(name, inner):
        bn = visual.get_submodule(name)
        mean = (1 - share) * bn.running_mean + share * inner.mean(0)
        var = (1 - share) * bn.running_var + share * inner.var(0, correction=0)
        return (inner - mean) / (var + bn.eps).sqrt() * bn.weight + bn.bias

    inner = functional.silu(normalised("bn1", visual.fc1(x)))
    theirs = normalised("bn2", visual.fc2(inner)) + normalised(
        "downsample.1", visual.downsample[0](x)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert (ours - plain).abs().max() > 0.01
    torch.testing.assert_close(
        moments["bn1"].mean.double(), visual.fc1(x).mean(0), rtol=1e-4, atol=1e-5
    )
    before = moments["bn1"].mean.clone()
    with Blended(visual, moments, 0.3, learn=False):
        again = visual(x)
    torch.testing.assert_close(again, ours)
    assert torch.equal(moments["bn1"].mean, before)
    assert torch.equal(visual(x), plain)
    assert all(torch.equal(value, frozen[key]) for key, value in visual.state_dict().items())


# --- pixels ---


def whitened(model):
    """The model, of images that are white noise: neither smooth nor sharp by its own measure."""
    units = torch.tensor(model.std).pow(-2).mean().log()
    model.spectrum = (-math.log(SIDE * SIDE) - float(units),) * 18
    return model


def test_a_tower_without_batch_norms_is_not_tried_on_images_like_the_source_s():
    model = whitened(Fake(tower("LayerNorm", 4, seed=0), torch.eye(K, 4)))
    made = StreamTower(model, model.table)
    rng = torch.Generator().manual_seed(0)
    mean, spread = (value.view(1, -1, 1, 1) for value in made.pixels.source)
    like = mean + spread * torch.randn(64, 3, SIDE, SIDE, generator=rng)
    for _ in range(8):
        assert not made.look(like)
        assert (made.active, made.left) == (0, 0)
    assert (made.trials, made.tokens) == (0, SAVINGS)
    assert made.look(0.1 * like)
    assert (made.trials, made.left) == (1, TRIAL)


def test_the_signature_sees_brightness_contrast_sharpness_and_grain():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, 16, 16, generator=rng)
    plain = signature(x)
    brighter, flatter = signature(x + 2), signature(0.5 * x)
    torch.testing.assert_close(brighter[:, 0], plain[:, 0] + 2)
    torch.testing.assert_close(brighter[:, 1:], plain[:, 1:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(flatter[:, 1], plain[:, 1] + math.log(0.5))
    torch.testing.assert_close(flatter[:, 2], plain[:, 2])
    blurred = functional.avg_pool2d(x, 3, 1, 1)
    assert bool((signature(blurred)[:, 2] < plain[:, 2]).all())
    torch.testing.assert_close(flatter[:, 3], plain[:, 3])
    sparse = torch.where(torch.rand(6, 1, 16, 16, generator=rng) < 0.1, x, torch.zeros(()))
    assert bool((signature(sparse)[:, 3] < plain[:, 3] - 0.2).all())  # some edges, much larger ones


def test_a_turned_image_looks_as_sharp_as_an_upright_one():
    rng = torch.Generator().manual_seed(0)
    x = functional.avg_pool2d(torch.randn(6, 3, 16, 18, generator=rng), (1, 3))  # blurred sideways
    torch.testing.assert_close(signature(x.rot90(1, (2, 3))), signature(x))


def test_an_anchor_of_few_images_becomes_firm_before_chance_moves_it(monkeypatch):
    rng = torch.Generator().manual_seed(0)

    def moves(looks, count, bright=0.0):
        """Whether the stream is said to have moved within so many batches of 8."""
        level = 0.3 * torch.randn(count, 8, 1, 1, 1, generator=rng) + bright
        batches = level + torch.randn(count, 8, 3, 8, 8, generator=rng)
        return any(looks.moved(x, closely=True) for x in batches)

    def settled():
        looks = Looks()
        moves(looks, 2)
        looks.settle()
        return looks

    assert sum(moves(settled(), 60) for _ in range(20)) <= 1
    looks = settled()
    assert not moves(looks, 40)
    assert FIRM <= looks.anchored < FIRM + 8
    anchor = looks.anchor
    assert moves(looks, 40, bright=0.4)
    assert looks.anchor is anchor  # it does not follow a stream that drifts away
    monkeypatch.setattr(signature_module, "FIRM", 0.0)
    monkeypatch.setattr(signature_module, "CHANCE", 0.0)
    assert sum(moves(settled(), 60) for _ in range(20)) >= 8  # a still stream, by chance


def test_few_images_must_differ_by_more_than_chance(monkeypatch):
    def fooled():
        """How many of 200 streams that moved are said to have moved again, though they rest."""
        said = 0
        for seed in range(200):
            rng, looks, moves = torch.Generator().manual_seed(seed), Looks(), []
            for n, bright in ((128, 0.0), *[(8, 5.0)] * 5):
                x = bright + torch.randn(n, 1, 1, 1, generator=rng) + NOISE[:n]
                if looks.moved(x, closely=False) or n > 8:
                    looks.settle()
                    moves.append(n)
            said += len(moves) > 2
        return said

    assert fooled() <= 2
    monkeypatch.setattr(signature_module, "CHANCE", 0.0)
    assert fooled() >= 12


def looked(*levels, size=8, seed=0):
    """Looks that settled on 128 images of no brightness, and how far each later batch moved."""
    rng = torch.Generator().manual_seed(seed)

    def images(n, bright):
        return bright + 0.3 * torch.randn(n, 1, 1, 1, generator=rng) + NOISE[:n]

    looks = Looks()
    looks.moved(images(128, 0.0), closely=True)
    looks.settle()
    return looks, [looks.moved(images(size, bright), closely=True) for bright in levels]


NOISE = torch.randn(128, 3, 8, 8, generator=torch.Generator().manual_seed(9))


def test_a_jump_is_seen_in_the_last_few_images_and_a_drift_is_none():
    looks, far = looked(0.0, 0.0, 2.0)
    assert far[:2] == [0, 0]
    assert far[2] >= ABRUPT[1]  # eight images tell it, where the running mean would need more
    assert float(looks.recent[0, 0]) == pytest.approx(2.0, abs=0.5)  # at once where the stream is
    assert looks.since == 8
    _, far = looked(*[0.02 * i for i in range(30)])
    moves = [step for step in far if step]
    assert moves
    assert moves[0] < ABRUPT[1]


def test_a_jump_is_none_where_the_source_is_in_use():
    """Its own statistics cannot be wrong at once, and a trial more costs forwards."""
    looks, _ = looked(0.0)
    bright = 0.9 + NOISE[:8]
    assert not looks.moved(bright, closely=False)


def test_a_stream_has_settled_a_while_after_an_abrupt_move():
    looks, _ = looked(*[0.0] * 4)
    assert looks.still == 160
    assert looks.settled == (160 - SETTLED[0]) / (SETTLED[1] - SETTLED[0])
    looks.still = 1000.0
    assert looks.settled == 1
    rng = torch.Generator().manual_seed(1)
    far = looks.moved(3 + 0.3 * torch.randn(8, 1, 1, 1, generator=rng) + NOISE[:8], closely=True)
    assert far >= ABRUPT[1]
    assert looks.still == 0
    assert looks.settled == 0


def test_grain_counts_while_other_statistics_are_in_use(small):
    model, draw = small
    for active in (0, 2):
        chosen = StreamTower(model, model.table)
        for _ in range(4):
            seen(chosen, draw(32)[0])
        chosen.active, chosen.left = active, 0
        chosen.looks.anchor[0, 3] += 0.3  # as if the noise had been another one
        assert bool(chosen.look(draw(32)[0])) == bool(active)


# --- trials ---


def answers(n, sure, seed=0, only=None):
    """Probabilities whose best class has `sure`; all of one class if `only`."""
    y = torch.arange(n) % K if only is None else torch.full((n,), only)
    rng = torch.Generator().manual_seed(seed)
    top = (sure + 0.02 * torch.randn(n, generator=rng)).clamp(0.25, 0.999)
    p = ((1 - top) / (K - 1))[:, None].repeat(1, K)
    p[torch.arange(n), y] = top
    return p


def test_the_mean_of_the_second_witness_is_the_difference_of_entropies():
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(50, K, generator=rng).softmax(1) for _ in range(2))
    sure, even = witnesses(a, b)
    entropy = [float(torch.special.entr(p.mean(0)).sum()) for p in (a, b)]
    assert float(even.mean()) == pytest.approx(entropy[0] - entropy[1], abs=1e-6)
    assert float(sure.mean()) == pytest.approx(float(a.amax(1).mean() - b.amax(1).mean()), abs=1e-6)


def test_the_rules_of_acceptance():
    good = {"score": 0.1, "score_error": 0.01, "confidence": 0.1, "confidence_error": 0.01}
    good |= {"evenness": 0.0, "evenness_error": 0.01, "n": LEAST}

    def accepted(in_use=False, moved=False, **changes):
        return Verdict(**{**good, **changes}).accepted(in_use=in_use, moved=moved)

    assert accepted()
    assert accepted(in_use=True, mixes=True)
    for in_use in (False, True):
        assert not accepted(in_use=in_use, n=LEAST - 1)
        assert not accepted(in_use=in_use, evenness=-AGAINST * 0.01 - 1e-6)
        assert accepted(in_use=in_use, evenness=-AGAINST * 0.01 + 1e-6)
    noise = (0.1 - MARGIN) / SURE
    assert accepted(score_error=noise - 1e-6)
    assert not accepted(score_error=noise + 1e-6)
    assert accepted(in_use=True, score_error=1.0)  # in use, noise is no reason to go
    assert not accepted(in_use=True, score=-0.001)
    assert not accepted(confidence=-0.001)
    assert accepted(confidence=0.005)
    assert not accepted(confidence=0.005, mixes=True)
    assert accepted(in_use=True, confidence=-0.005)
    assert not accepted(in_use=True, moved=True, confidence=-0.005)  # chosen for what is no more
    assert accepted(in_use=True, moved=True, confidence=0.005, mixes=True)
    assert not accepted(in_use=True, score=STAY - 1e-6)  # it must be worth something
    assert accepted(in_use=True, score=STAY - 1e-6, mixes=True)  # whose price is paid
    assert not accepted(in_use=True, score=STAY - PRICE - 1e-6, mixes=True)
    assert not accepted(in_use=True, confidence=-0.02)
    assert accepted(few=True)
    assert not accepted(few=True, score=STAKE - 1e-6)  # it must promise more
    assert accepted(few=True, score=STAKE - 1e-6, mixes=True)
    assert accepted(score=STAKE - 1e-6)
    assert accepted(in_use=True, confidence=-0.005, few=True)
    assert not accepted(in_use=True, confidence=-0.005, few=True, mixes=True)
    for in_use in (False, True):
        assert not accepted(in_use=in_use, robs=True)
        assert accepted(in_use=in_use, confidence=-LOSS - 0.009, mends=True)
        assert not accepted(in_use=in_use, confidence=-LOSS - 0.011, mends=True)  # beyond an error
    assert not Verdict().accepted(in_use=False)
    assert not accepted(score=-0.001, mends=True)  # the score holds the confidence too


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("restores", ["sharpens", "smooths"])
def test_what_restores_photographs_is_trusted_unless_answers_speak_against_it(restores, in_use):
    noisy = {"score": 0.001, "score_error": 0.1, "confidence": -0.01, "confidence_error": 0.01}
    noisy |= {"evenness": -1.0, "evenness_error": 0.01, "n": LEAST, "restores": restores}

    def accepted(**changes):
        return Verdict(**{**noisy, **changes}).accepted(in_use=in_use)

    assert accepted()
    assert not accepted(restores="")
    assert not accepted(score=-0.001)
    assert not accepted(n=LEAST - 1)
    assert not accepted(robs=True)
    assert not accepted(confidence=-LOSS - 0.011)
    assert accepted(few=True) == (restores == "smooths")  # evenness is no merit of few classes
    assert accepted(few=True, score=-0.001, confidence=0.001) == (restores == "sharpens")


@pytest.mark.parametrize("active", [0, 1, 2])
def test_a_move_without_means_for_a_trial_leaves_pixels_that_follow_by_themselves(small, active):
    model, draw = small
    made = StreamTower(model, model.table)
    for _ in range(4):
        seen(made, draw(64)[0])
    made.active, made.left, made.tokens = active, 0, -1000.0
    assert made.look(dark(draw(64))[0])
    assert (made.active, made.left) == (min(active, 1), 0)


def test_a_move_without_means_is_one_move_and_tried_once_there_are_means(small):
    model, draw = small
    made = StreamTower(model, model.table)
    for _ in range(4):
        seen(made, draw(32)[0])
    made.active, made.left, made.tokens = 0, 0, made._price - 40 * RATE
    trials = made.trials
    far = [made.look(dark(draw(8))[0]) for _ in range(4)]
    assert far[0] > ABRUPT[1]
    assert not any(far[1:])
    assert made.lost
    assert made.trials == trials
    made.look(dark(draw(8))[0])
    assert (made.lost, made.trials, made.left) == (False, trials + 1, TRIAL)


def test_a_still_stream_is_asked_again_if_that_leaves_enough_for_a_move(small):
    model, draw = small
    made = StreamTower(model, model.table)
    for _ in range(4):
        seen(made, draw(32)[0])
    made.left, made.quiet, made.tokens = 0, made.patience, 2 * made._price - 12 * RATE
    trials = made.trials
    made.look(draw(8)[0])
    assert (made.trials, made.left) == (trials, 0)
    made.look(draw(8)[0])
    assert (made.trials, made.left) == (trials + 1, TRIAL)


def test_a_source_that_names_one_class_is_mended_though_it_is_as_sure():
    noise, mended = answers(64, 0.8, only=2), answers(64, 0.7)
    verdict = judge(mended, noise)
    assert verdict.confidence < 0 < verdict.score
    assert verdict.mends
    assert verdict.accepted(in_use=False)
    mixed = judge(mended, noise, mixes=True)  # or the statistics of one class spread its answers
    assert mixed.score > 0
    assert not mixed.mends
    assert not mixed.accepted(in_use=False)
    assert judge(answers(64, 0.9), noise, mixes=True).accepted(in_use=False)  # it is surer
    assert not judge(mended, answers(64, 0.8)).mends  # its source had named all
    half = mended.clone()
    half[::5] = answers(64, 0.7, only=2)[::5]  # still much of what the source names: labels may be
    assert not judge(half, noise).mends
    assert not judge(answers(64, 0.6, only=1), noise).mends  # it names one class itself


def test_surer_and_as_even_wins_but_surer_and_less_even_does_not():
    source = answers(32, 0.5)
    better = judge(answers(32, 0.7), source, mixes=True)
    collapsed = judge(answers(32, 0.95, only=2), source)
    assert better.accepted(in_use=False)
    assert collapsed.confidence > better.confidence
    assert not collapsed.accepted(in_use=False)
    assert not collapsed.accepted(in_use=True)
    assert not judge(source, source).accepted(in_use=False)
    assert judge(source[:3], source[:3]).n == 3


def test_spreading_what_both_name_most_is_no_merit():
    mostly, wrong = answers(64, 0.8, only=2), answers(64, 0.8, only=3)
    spread = mostly.clone()
    spread[::4] = answers(16, 0.97)  # surer, more even, and still mostly of class 2
    verdict = judge(spread, mostly, mixes=True)
    assert verdict.few
    assert verdict.robs
    assert verdict.score == pytest.approx(verdict.confidence - PRICE)  # evenness counts for nothing
    assert verdict.evenness > 0 < verdict.confidence
    assert not verdict.accepted(in_use=False)
    assert not judge(spread, mostly).accepted(in_use=False)
    elsewhere = judge(spread, wrong)  # the source names another class most: it may be mistaken
    assert elsewhere.few
    assert not elsewhere.robs
    even = judge(answers(64, 0.9), mostly)
    assert not even.few
    assert even.accepted(in_use=False)
    assert even.score == pytest.approx(even.confidence + EVEN * even.evenness)
    half = mostly.clone()
    half[torch.arange(64) % 3 > 0] = answers(42, 0.8)  # many classes, and one far beyond its share
    assert not judge(half, mostly, mixes=True).few
    assert judge(half, mostly, mixes=True).robs
    assert not judge(half, mostly).robs  # pixels mix no images
    half[torch.arange(64) % 3 > 0] = answers(42, 0.97)  # clearly surer: it mends
    assert not judge(half, mostly, mixes=True).robs


def named(y, sure):
    """Probabilities that give the classes y (n,) so much."""
    p = ((1 - torch.as_tensor(sure)) / (K - 1)).expand(len(y))[:, None].repeat(1, K)
    p[torch.arange(len(y)), y] = torch.as_tensor(sure).expand(len(y))
    return p


@pytest.mark.parametrize("moved", [False, True])
def test_what_was_chosen_before_a_move_has_to_be_surer_again(small, moved):
    model, _ = small
    chosen = StreamTower(model, model.table)
    chosen.active, chosen.patience = 1, AGAIN[0] if moved else AGAIN[1]
    favourite = torch.tensor([16, 4, 4, 4, 4])  # images per class that the source names
    source = named(torch.arange(K).repeat_interleave(favourite), 0.85)
    candidate = named(torch.arange(32) % K, 0.84 + 0.1 * (-1.0) ** torch.arange(32))
    chosen.answers.add({0: source, 1: candidate, 2: source})
    verdict = chosen._verdict(1, 32)
    assert -verdict.confidence_error < verdict.confidence < 0
    assert not verdict.mends
    assert chosen._decide()[0] == (0 if moved else 1)


def test_what_the_last_answers_refuse_is_not_saved_by_earlier_ones(small):
    model, _ = small
    chosen = StreamTower(model, model.table)
    chosen.active = 2
    chosen.answers.add({0: answers(64, 0.8, only=2), 2: answers(64, 0.9)})  # rightly, as it was
    assert chosen._decide()[0] == 2
    now = answers(32, 0.97)
    now[::2] = answers(16, 0.9, only=2)
    chosen.answers.add({0: answers(32, 0.9, only=2), 2: now})  # what is shown is class 2
    assert chosen._verdicts()[2].accepted(in_use=True)
    assert chosen._verdict(2, 32).robs
    assert chosen._decide()[0] == 0


def test_scenes_of_one_class_each_are_not_taken_for_an_even_stream(small):
    model, _ = small
    chosen = StreamTower(model, model.table)
    source = torch.cat([answers(32, 0.8, only=2) for _ in range(3)])
    scenes = torch.cat([answers(32, 0.7, only=k) for k in (0, 1, 3)])
    scenes[::6] = answers(16, 0.7, only=4)
    chosen.answers.add({0: source, 1: scenes})
    assert chosen._verdict(1, 96).mends
    assert not chosen._verdicts()[1].mends  # the last scene by itself names few classes
    chosen.answers.add({0: answers(32, 0.8, only=2), 1: answers(32, 0.7)})
    assert chosen._verdicts()[1].mends


def test_answers_remember_who_was_asked():
    kept = Answers(3, K)
    kept.add({0: answers(6, 0.5), 1: answers(6, 0.6), 2: answers(6, 0.7)})
    kept.add({0: answers(4, 0.5), 2: answers(4, 0.8)})
    assert [len(kept.pair(c)[0]) for c in (1, 2)] == [6, 10]
    other = Answers(3, K)
    other.load(kept.state())
    assert torch.equal(other.pair(2)[0], kept.pair(2)[0])
    kept.keep(4)
    assert [len(kept.pair(c)[0]) for c in (1, 2)] == [0, 4]
    kept.keep(0)
    assert len(kept.rows) == 0
    other.load(kept.state())
    with pytest.raises(ValueError, match="2 answers do not match 1"):
        other.load({"rows": torch.zeros(2, 3, K), "tried": torch.zeros(1, 3, dtype=torch.bool)})


# --- the tower ---


class Small(nn.Sequential):
    """Convolutions that know their images at one brightness and contrast only."""

    def __init__(self) -> None:
        conv, norm = nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12)
        super().__init__(conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(12 * (SIDE - 2) ** 2, 16))


class Counting(Fake):
    images = 0

    def encode_image(self, x, params=None, norms="source"):
        self.images += len(x)
        return super().encode_image(x, params, norms)


@pytest.fixture(scope="module")
def small():
    """A model, its text and a function that draws images of it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        visual, patterns = Small(), torch.randn(K, 3, SIDE, SIDE)
        rng = torch.Generator().manual_seed(1)

        def draw(n):
            y = torch.randint(K, (n,), generator=rng)
            noise = torch.randn(n, 3, SIDE, SIDE, generator=rng)
            return 0.8 * patterns[y] + 0.6 * noise, y

        visual.train()(draw(512)[0])
        for _ in range(40):
            visual(draw(128)[0])
        visual.eval()
        with torch.no_grad():
            x, y = draw(2000)
            features = functional.normalize(visual(x), dim=1)
            text = torch.stack([features[y == k].mean(0) for k in range(K)])
    return whitened(Counting(visual, text - text.mean(0), scale=12.0)), draw


def seen(tower, x):
    """Features of the next batch of a stream."""
    tower.look(x)
    return tower.features(x, None)


def run(model, stream):
    chosen, hits = StreamTower(model, model.table), []
    for x, y in stream:
        with torch.no_grad():
            z = seen(chosen, x)
        hits.append((model.logits(z, model.table).argmax(1) == y).float())
    return chosen, torch.cat(hits)


def dark(batch):
    x, y = batch
    return 0.25 * x - 1.5, y


def test_the_source_stays_where_nothing_is_to_be_gained(small):
    model, draw = small
    chosen, hits = run(model, [draw(64) for _ in range(12)])
    assert chosen.active == 0
    assert chosen.in_use == {"pixels": 0.0, "batch_norms": 0.0, "spectrum": 0.0}
    assert hits.mean() > 0.9


@pytest.mark.parametrize("size", [1, 8, 64])
def test_a_dark_stream_gets_its_own_pixel_statistics(small, size):
    model, draw = small
    stream = [dark(draw(size)) for _ in range(320 // size)]
    chosen, hits = run(model, stream)
    with torch.no_grad():
        plain = [model.logits(model.encode_image(x), model.table).argmax(1) == y for x, y in stream]
    assert chosen.active != 0
    assert 0.6 < chosen.in_use["pixels"] < 0.9  # what is left may be what one class has of its own
    assert hits[160:].mean() > torch.cat(plain).float().mean() + 0.1


def test_a_change_of_light_is_noticed_and_left_again(small):
    model, draw = small
    chosen, active = StreamTower(model, model.table), []
    stages = ([draw(32) for _ in range(10)], [dark(draw(32)) for _ in range(20)])
    for stream in (*stages, [draw(32) for _ in range(30)]):
        for x, _ in stream:
            seen(chosen, x)
        active.append(chosen.active)
    assert active[0] == 0
    assert active[1] != 0
    assert chosen.trials >= 2


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_merged_towers_go_by_what_the_one_with_more_samples_chose(small, share):
    model, _ = small
    mine, theirs = (StreamTower(model, model.table) for _ in range(2))
    theirs.active, theirs.norms.rho = 2, 0.5
    mine.merge(theirs, share)
    assert (mine.active, mine.norms.rho) == ((2, 0.5) if share > 0.5 else (0, 0.0))


@pytest.mark.parametrize("size", [1, 16, 64])
def test_trials_stay_within_their_account(small, size):
    model, draw = small
    chosen, n, model.images = StreamTower(model, model.table), 0, 0
    for step in range(1200 // size):
        batch = draw(size)
        x, _ = dark(batch) if (step * size // 100) % 2 else batch  # never at rest
        seen(chosen, x)
        n += size
    once = 16 * (len(chosen.candidates) - 1) + 3 * 32
    assert model.images >= n
    assert model.images - n <= SAVINGS + RATE * n + once


def test_a_trial_that_switches_encodes_no_image_twice_by_the_same_statistics(small):
    """All answer 16 images, the source and the leader the rest, which another may have to win."""
    model, draw = small
    chosen, x, model.images = StreamTower(model, model.table), dark(draw(128))[0], 0
    with torch.no_grad():
        seen(chosen, x)
    assert chosen.active > 0
    spent = model.images - len(x)
    assert spent in (chosen._price, chosen._price + TRIAL - WIDE)
    assert chosen.tokens == SAVINGS - spent


@pytest.mark.parametrize(("size", "batches"), [(128, 1), (40, 2), (16, 4)])
def test_a_trial_that_is_not_decided_goes_on_with_the_next_images(
    small, monkeypatch, size, batches
):
    """Of the same batch, if there are any; up to twice its length."""
    model, draw = small
    ahead = Verdict(2 * MARGIN, 1.0, 0.1, 1.0, 0.0, 1.0, n=LEAST)
    chosen = StreamTower(model, model.table)

    def not_decided(self):
        return 0, [Verdict(0.0), *[replace(ahead, n=len(self.answers.rows))] * 2]

    monkeypatch.setattr(StreamTower, "_decide", not_decided)
    for i in range(batches):
        assert bool(chosen.left)
        x = draw(size)[0]
        with torch.no_grad():
            torch.testing.assert_close(seen(chosen, x), model.encode_image(x))
        assert len(chosen.answers.rows) == min(64, (i + 1) * size)
    assert not chosen.left


def test_a_surer_but_less_even_candidate_is_refused(small, monkeypatch):
    model, draw = small
    chosen = StreamTower(model, model.table)

    def encode(x, which, params, *, learn=False):
        z = model.encode_image(x)
        return z if which == 0 else functional.normalize(0.1 * z + model.table[1], dim=1)

    monkeypatch.setattr(chosen, "encode", encode)
    for _ in range(6):
        seen(chosen, draw(32)[0])
    verdicts = chosen._verdicts()
    assert chosen.active == 0
    assert all(v.confidence > 0 > v.evenness for v in verdicts[1:])


def test_the_tower_goes_on_and_merges(small):
    model, draw = small
    first, second, third = (StreamTower(model, model.table) for _ in range(3))
    for _ in range(3):
        seen(first, dark(draw(8))[0])
    assert 0 < first.left < 32
    second.load(first.state())
    x = [dark(draw(8))[0] for _ in range(12)]
    for one in x:
        assert torch.equal(seen(first, one), seen(second, one))
    assert first.active == second.active != 0
    seen(third, draw(8)[0])
    n = first.pixels.moments.n + third.pixels.moments.n
    third.merge(first, 0.9)
    assert third.active == first.active
    assert third.pixels.moments.n == min(n, MEMORY)
    first.reset()
    fresh = StreamTower(model, model.table)
    assert first.active == 0
    y = draw(8)[0]
    assert torch.equal(seen(first, y), seen(fresh, y))
