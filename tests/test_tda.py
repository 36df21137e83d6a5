"""TDA against a literal reading of its spec."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from test_sequential import build, run, vectors


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def nats(p):
    return -(p * np.log(p)).sum(-1)


def keep(entries, entry, shots):
    """Append where there is room, else replace the worst where this one is better; sort."""
    if len(entries) < shots:
        entries.append(entry)
    elif entry[1] < entries[-1][1]:
        entries[-1] = entry
    entries.sort(key=lambda e: e[1])


def literal(samples, W, scale, alpha=2.0, beta=5.0, unit=math.log2):
    """One sample, (D,) or (V,D), after the other; float64."""
    K = len(W)
    pos, neg = {k: [] for k in range(K)}, {k: [] for k in range(K)}
    answers = []
    for views in samples:
        views = np.atleast_2d(views)
        logits = scale * views @ W.T
        p = softmax(logits)
        if len(views) > 1:
            best = np.argsort(nats(p))[: int(0.1 * len(views))]
            views, logits, p = views[best], logits[best], p[best]
        z, logits, p = views.mean(0), logits.mean(0), p.mean(0)
        H, pred = nats(p), int(logits.argmax())
        keep(pos[pred], (z, H), 3)
        if 0.2 < H / unit(K) < 0.5:
            keep(neg[pred], (z, H, p), 2)
        out = logits.copy()
        for k in range(K):
            for other, _ in pos[k]:
                out[k] += alpha * np.exp(-beta * (1 - z @ other))
            for other, _, q in neg[k]:
                out -= 0.117 * np.exp(-1.0 * (1 - z @ other)) * ((q > 0.03) & (q < 1.0))
        answers.append(out)
    return np.array(answers), pos, neg


@pytest.mark.parametrize("views", [1, 30])
def test_literal(views):
    model, x = vectors(views=views, n=60, scale=10.0 if views == 1 else 4.0)
    adapter = build("tda", model, views=views)
    flat = x.reshape(60, views, -1).squeeze(1).numpy()
    expected, pos, neg = literal(flat, model.table.numpy(), model.scale)
    np.testing.assert_allclose(run(adapter, x, 16).numpy(), expected, rtol=1e-10)
    for cache, lists in ((adapter.positive, pos), (adapter.negative, neg)):
        for k, entries in lists.items():
            np.testing.assert_allclose(cache.entropy[k], [e[1] for e in entries])
    assert sum(map(len, neg.values())) > 3  # both caches were at work
    assert any(len(entries) == 3 for entries in pos.values())


def test_hyperparameters():
    model, x = vectors(n=40)
    adapter = build("tda", model, alpha=0.7, beta=3.0, unit="log")
    expected, _, _ = literal(x.numpy(), model.table.numpy(), model.scale, 0.7, 3.0, math.log)
    np.testing.assert_allclose(run(adapter, x, 40).numpy(), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="unknown value of unit 'log10': did you mean 'log'"):
        build("tda", model, unit="log10")


def test_thresholds_and_order_of_the_caches():
    model, x = vectors(n=80)
    adapter = build("tda", model)
    run(adapter, x, 80)
    for cache, shots in ((adapter.positive, 3), (adapter.negative, 2)):
        for stored in cache.entropy:
            assert stored == sorted(stored)
            assert len(stored) <= shots
    gates = [entropy / math.log2(5) for stored in adapter.negative.entropy for entropy in stored]
    assert gates
    assert all(0.2 < gate < 0.5 for gate in gates)


def test_a_sample_votes_for_itself_only_when_it_learns():
    model, x = vectors(n=1)
    adapter = build("tda", model, negative_alpha=0.0)
    zero_shot = model.logits(x, adapter.text)
    assert torch.equal(adapter.predict(x), zero_shot)
    votes = (adapter.adapt(x) - zero_shot)[0]
    assert votes[zero_shot.argmax()] == pytest.approx(2.0)  # alpha * exp(0)
    assert votes.count_nonzero() == 1


def test_merged_workers_keep_the_best_of_both():
    model, x = vectors(n=60)
    one, two, both = (build("tda", model) for _ in range(3))
    run(one, x[:30], 30)
    run(two, x[30:], 30)
    run(both, x, 30)
    one.merge(two)
    assert one.positive.entropy == both.positive.entropy
    torch.testing.assert_close(one.predict(x), both.predict(x))
