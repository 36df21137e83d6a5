"""ADAPT against a literal reading of its spec, with a pseudo-inverse after every stored sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from test_sequential import build, run, vectors
from test_tda import nats, softmax


def literal(samples, W, *, gain, L=16, alpha=0.9, scale=60.0, prob=False, fresh=False):
    """Answers, banks, means, precisions, and which samples were stored: one row per sample."""
    K, D = W.shape
    bank, mu = {k: [] for k in range(K)}, W.copy()
    answers, means, Lambdas, accepted = [], [], [], []
    Lambda, s = None, None
    for views in samples:
        views = np.atleast_2d(views)
        l, p = gain * views @ W.T, softmax(gain * views @ W.T)  # noqa: E741
        if len(views) > 1:
            best = np.argsort(nats(p))[: int(0.1 * len(views))]
            views, l, p = views[best], l[best], p[best]  # noqa: E741
        z, l, p = views.mean(0), l.mean(0), p.mean(0)  # noqa: E741
        H, c = nats(p), int(l.argmax())
        entry, stored = (z, p, H), True
        if len(bank[c]) < L:
            bank[c].append(entry)
        elif max(e[2] for e in bank[c]) > H:
            worst = int(np.argmax([e[2] for e in bank[c]]))
            bank[c][worst] = entry
        else:
            stored = False
        entries = [(k, e) for k in range(K) for e in bank[k]]
        n = len(entries)
        if stored:
            top = sum(e[1][c] * e[0] for e in bank[c]) + p[c] * z
            m = top / (sum(e[1][c] for e in bank[c]) + p[c])
            mu[c] = alpha * m + (1 - alpha) * W[c]
            S = np.eye(D)
            if n > 1:
                S = np.cov(np.array([e[0] - mu[k] for k, e in entries]).T)
            Lambda = D * np.linalg.pinv((n - 1) * S + np.trace(S) * np.eye(D))
        if stored or fresh:
            s = np.array([z @ e[0] for _, e in entries])
        C = np.array([[e[1][k] if k == j else 0.0 for j in range(K)] for k, e in entries])
        w = np.array([Lambda @ m for m in mu])
        b = np.array([-np.log(K) - 0.5 * m @ Lambda @ m for m in mu])
        g = w @ z + b - (w @ z + b).max()
        a = g - np.log(np.exp(g).sum()) + scale / (2 * n) * s @ C
        a -= a.max()
        answers.append(np.log(p) + a / scale if prob else l * np.exp(a / scale))
        means.append(mu.copy())
        Lambdas.append(Lambda.copy())
        accepted.append(stored)
    return np.array(answers), bank, means, Lambdas, accepted


CASES = [{}, {"form": "prob"}, {"fresh_similarity": True}, {"alpha": 0.5, "scale": 20.0}]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_literal(settings):
    model, x = vectors(K=4, D=6, n=30, noise=1.0, seed=2)
    x = x[model.logits(x, model.table).argmax(1) != 3]  # a class that is never seen
    names = {"form": "prob", "fresh_similarity": "fresh"}
    options = {names.get(k, k): v == "prob" if k == "form" else v for k, v in settings.items()}
    W = model.table.numpy()
    expected, bank, means, Lambdas, accepted = literal(
        x.numpy(), W, gain=model.scale, L=2, **options
    )
    adapter = build("adapt-gaussian", model, shots=2, **settings)
    for i, row in enumerate(x):
        found = adapter.adapt(row[None])[0]
        np.testing.assert_allclose(found.numpy(), expected[i], rtol=1e-8)
        np.testing.assert_allclose(adapter.mean.numpy(), means[i], rtol=1e-10)
        weights = adapter._weights(int(adapter.bank.filled.sum())).numpy()
        np.testing.assert_allclose(weights, Lambdas[i] @ means[i].T, rtol=1e-8)
    assert not all(accepted)
    assert sum(accepted) > 6  # there were replacements
    np.testing.assert_allclose(Lambdas[0], np.eye(6))
    np.testing.assert_array_equal(means[-1][3], W[3])
    for k, entries in bank.items():
        entries.sort(key=lambda e: e[2])
        np.testing.assert_allclose(adapter.bank.entropy[k], [e[2] for e in entries])
        own = adapter.bank["weight"][k, : len(entries), 0].numpy()
        np.testing.assert_allclose(own, [e[1][k] for e in entries])


@pytest.mark.parametrize("D", [12, 64])  # fewer features than entries, and more
@pytest.mark.parametrize("views", [1, 30])
def test_views_and_both_ways_to_solve(views, D):
    model, x = vectors(D=D, views=views, n=40, scale=10.0 if views == 1 else 4.0)
    flat = x.reshape(40, views, -1).squeeze(1).numpy()
    expected, *_ = literal(flat, model.table.numpy(), gain=model.scale)
    adapter = build("adapt-gaussian", model, views=views)
    np.testing.assert_allclose(run(adapter, x, 16).numpy(), expected, rtol=1e-8, atol=1e-12)


def test_float32_is_within_one_in_ten_thousand():
    model, x = vectors(K=10, D=96, n=120, scale=100.0, noise=0.7)
    expected, *_ = literal(x.numpy(), model.table.numpy(), gain=model.scale)
    model.table = model.table.float()
    found = run(build("adapt-gaussian", model), x.float(), 60).double().numpy()
    size = np.abs(expected).max(1, keepdims=True)
    assert (np.abs(found - expected) / size).max() < 1e-4


def test_a_sample_that_is_not_stored_is_compared_with_the_last_one_that_was():
    model, x = vectors(n=12)
    stale, fresh = (build("adapt-gaussian", model, fresh_similarity=f) for f in (False, True))
    assert torch.equal(run(stale, x[:10], 10), run(fresh, x[:10], 10))  # all are stored
    assert torch.equal(stale.last, x[9])
    assert not torch.allclose(stale.predict(x[10:]), fresh.predict(x[10:]), rtol=1e-4)


def test_before_anything_is_stored_it_is_zero_shot():
    model, x = vectors(n=4)
    logits = model.logits(x, model.table)
    torch.testing.assert_close(build("adapt-gaussian", model).predict(x), logits)
    prob = build("adapt-gaussian", model, form="prob").predict(x)
    torch.testing.assert_close(prob, logits.log_softmax(1))


def test_merged_banks_have_the_means_of_their_entries():
    model, x = vectors(n=60)
    one, two, both = (build("adapt-gaussian", model, shots=4) for _ in range(3))
    run(one, x[:30], 30)
    run(two, x[30:], 30)
    run(both, x, 30)
    before = one.predict(x)
    one.merge(two)
    assert one.bank.entropy == both.bank.entropy
    own = one.bank["weight"]
    mean = 0.9 * (own * one.bank["feature"]).sum(1) / own.sum(1) + 0.1 * model.table
    moved = [k for k in range(5) if not torch.equal(one.mean[k], both.mean[k])]
    torch.testing.assert_close(one.mean[moved], mean[moved])
    assert not torch.equal(one.predict(x), before)  # the old factor is not used again
