"""DOTA against a literal reading of its spec, with an inverse after every sample."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from bayestta.maths import stats
from test_sequential import build, run, vectors
from test_tda import nats, softmax


def literal(samples, W, scale, eps=1e-4, eta=0.3, rho=0.02, sigma=0.002, text_mean=False):
    K, D = W.shape
    mu = W.copy() if text_mean else np.full((K, D), 0.001)
    c, Sigma = np.ones(K), np.stack([sigma * np.eye(D)] * K)
    Lambda, answers, weights = np.linalg.inv(sigma * np.eye(D)), [], []
    for views in samples:
        views = np.atleast_2d(views)
        logits = scale * views @ W.T
        p = softmax(logits)
        if len(views) > 1:
            best = np.argsort(nats(p))[: int(0.1 * len(views))]
            views, logits, p = views[best], logits[best], p[best]
        z = views.mean(0)
        score = np.array([z @ (Lambda @ m) - 0.5 * m @ Lambda @ m for m in mu])
        weights.append(min(rho * c.mean() / len(views), eta))
        answers.append(logits.mean(0) + weights[-1] * score)
        for k in range(K):
            off, w = views - mu[k], p[:, k]
            Sigma[k] = (c[k] * Sigma[k] + (w[:, None] * off).T @ off) / (c[k] + w.sum())
            mu[k] = (c[k] * mu[k] + w @ views) / (c[k] + w.sum())
            c[k] += w.sum()
        Lambda = np.linalg.inv((1 - eps) * Sigma.mean(0) + eps * np.eye(D))
    return np.array(answers), np.array(weights), c


@pytest.mark.parametrize("init_mean", ["constant", "text"])
@pytest.mark.parametrize("views", [1, 30])
def test_literal(views, init_mean):
    model, x = vectors(views=views, n=40)
    adapter = build("dota", model, views=views, init_mean=init_mean)
    flat = x.reshape(40, views, -1).squeeze(1).numpy()
    text = init_mean == "text"
    expected, _, count = literal(flat, model.table.numpy(), model.scale, text_mean=text)
    np.testing.assert_allclose(run(adapter, x, 16).numpy(), expected, rtol=1e-8)
    np.testing.assert_allclose(adapter.count.numpy(), count)
    zero_shot = model.logits(torch.from_numpy(flat.reshape(40, views, -1)[:, 0]), adapter.text)
    assert np.abs(expected - zero_shot.numpy()).max() > 1  # the discriminant has a say


def test_float32_is_within_one_in_ten_thousand():
    model, x = vectors(K=10, D=96, n=120, scale=100.0, noise=0.7)
    expected, _, _ = literal(x.numpy(), model.table.numpy(), model.scale)
    model.table = model.table.float()
    found = run(build("dota", model), x.float(), 60).double().numpy()
    size = np.abs(expected).max(1, keepdims=True)
    assert (np.abs(found - expected) / size).max() < 1e-4


def test_the_weight_grows_with_the_counts_up_to_its_cap():
    model, x = vectors(n=150)
    adapter = build("dota", model, rho=0.02, eta=0.1)
    _, weights, _ = literal(x.numpy(), model.table.numpy(), model.scale, eta=0.1)
    assert weights[0] == pytest.approx(0.02)
    assert weights[-1] == 0.1
    for i, weight in enumerate(weights):
        before = adapter._score(x[i])
        answer = adapter.adapt(x[i : i + 1])[0]  # by the statistics before the sample
        torch.testing.assert_close(answer, adapter.sketch[0] + weight * before)


def test_refresh_every_reuses_the_factor():
    model, x = vectors(n=12)
    eager, lazy = build("dota", model), build("dota", model, refresh_every=4)
    first, second = run(eager, x, 12), run(lazy, x, 12)
    torch.testing.assert_close(first[0], second[0])
    assert not torch.allclose(first[2], second[2])
    torch.testing.assert_close(lazy.covariance, eager.covariance)  # both after sample 12
    with pytest.raises(ValueError, match="refresh_every is 0"):
        build("dota", model, refresh_every=0)


def test_merge_adds_statistics():
    model, x = vectors(n=60)
    one, two, both = (build("dota", model) for _ in range(3))
    run(one, x[:30], 30)
    run(two, x[30:], 30)
    run(both, x, 30)
    one.merge(two)
    torch.testing.assert_close(one.count, both.count)  # soft labels do not depend on the state
    torch.testing.assert_close(one.mean, both.mean)
    assert one.seen == both.seen


def test_memory_beyond_the_budget_is_refused(monkeypatch):
    monkeypatch.setattr(stats, "BUDGET_BYTES", 1000)
    model, _ = vectors()
    with pytest.raises(ValueError, match=r"5 covariances of 24 x 24, 23,040 bytes.*1,000"):
        build("dota", model)


def test_faster_than_an_inverse_a_sample():
    model, x = vectors(K=10, D=512, n=8, dtype=torch.float32)
    adapter = build("dota", model)
    adapter.adapt(x[:2])

    def seconds(work):
        found = []
        for _ in range(3):
            began = time.process_time()
            work()
            found.append(time.process_time() - began)
        return min(found)

    matrix = adapter.covariance
    ours = seconds(lambda: adapter.adapt(x[2:6]))
    assert 2 * ours < seconds(lambda: [torch.linalg.inv(matrix) for _ in range(4)])
