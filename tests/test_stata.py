"""StatA against a literal reading of its spec: loops over images, classes and dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from bayestta.methods.stata import neighbour_graph, start_variance
from fake_vlm import Fake
from test_sequential import build
from test_tda import softmax


def unit(v):
    return v / np.linalg.norm(v)


def literal(x, T, scale, *, logdet=True, soft=False, neighbours=3, temperature=50.0):
    """The answers, v0, W, and (z, beta, mu, v) after each outer step."""
    N, D, K = len(x), x.shape[1], len(T)
    yhat = softmax(scale * x @ T.T)
    z, mu, trace = yhat.copy(), T.copy(), []
    v0 = np.zeros(D)
    for i in range(N):
        for k in range(K):
            for d in range(D):
                v0[d] += z[i, k] * (x[i, d] - T[k, d]) ** 2 / N
    v, W = np.stack([v0] * K), np.zeros((N, N))
    for i in range(N):
        cosines = x @ x[i]
        for j in np.argsort(-cosines)[1 : neighbours + 1]:
            W[i, j] = cosines[j]
    for it in range(11):
        ll = np.zeros((N, K))
        for i in range(N):
            for k in range(K):
                for d in range(D):
                    ll[i, k] -= 0.5 * (x[i, d] - mu[k, d]) ** 2 / v[k, d]
        for _ in range(5):
            a = ll + temperature / (2 * neighbours) * (W @ z + W.T @ z)
            if logdet:
                a = a - 0.5 * np.log(v).sum(1)
            a -= a.max(1, keepdims=True)
            z = yhat * np.exp(a / temperature)
            z /= z.sum(1, keepdims=True)
        if it == 10:
            return np.log(z), v0, W, trace
        n = z.sum(0) if soft else np.array([(z.argmax(1) == k).sum() for k in range(K)])
        beta = n / (1 + n + 1e-12)
        for k in range(K):
            m = unit(sum(z[i, k] * x[i] for i in range(N)) / z[:, k].sum())
            mu[k] = unit(beta[k] * m + (1 - beta[k]) * T[k])
            S = sum(z[i, k] * (x[i] - mu[k]) ** 2 for i in range(N)) / z[:, k].sum()
            v[k] = beta[k] * S + (1 - beta[k]) * (v0 + (T[k] - mu[k]) ** 2)
        trace.append((z.copy(), beta, mu.copy(), v.copy()))
    return None


def world(N=12, K=5, D=8, *, scale=10.0, noise=1.0, seed=0, classes=None):
    rng = torch.Generator().manual_seed(seed)
    text = torch.randn(K, D, generator=rng, dtype=torch.float64)
    model = Fake(nn.Flatten(), text, scale)
    y = torch.randint(K if classes is None else classes, (N,), generator=rng)
    off = torch.randn(N, D, generator=rng, dtype=torch.float64)
    return model, functional.normalize(model.table[y] + noise / D**0.5 * off, dim=1)


@pytest.mark.parametrize(
    "settings",
    [{}, {"logdet": False}, {"soft_beta": True}, {"neighbours": 2, "temperature": 20.0}],
    ids=str,
)
@pytest.mark.parametrize("classes", [5, 1])
def test_literal(settings, classes):
    model, x = world(classes=classes, noise=0.5 if classes == 1 else 1.0)
    options = {"soft" if key == "soft_beta" else key: v for key, v in settings.items()}
    expected, v0, W, trace = literal(x.numpy(), model.table.numpy(), model.scale, **options)
    adapter = build("stata", model, **settings)
    prior = model.logits(x, adapter.text).softmax(1)
    np.testing.assert_allclose(start_variance(x, prior, adapter.text), v0)
    n = settings.get("neighbours", 3)
    np.testing.assert_allclose(neighbour_graph(x, n).numpy(), (W + W.T) / (2 * n))
    steps, anchored = [], adapter._anchored

    def watch(x, z, first):
        found = anchored(x, z, first)
        steps.append((z.numpy(), found.mean.numpy(), found.variance.numpy()))
        return found

    adapter._anchored = watch
    np.testing.assert_allclose(adapter.adapt(x).numpy(), expected, rtol=1e-7, atol=1e-9)
    assert len(steps) == len(trace) == 10
    for (z, mean, variance), (z_, _, mu, v) in zip(steps, trace, strict=True):
        np.testing.assert_allclose(z, z_, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(mean, mu, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(variance, v, rtol=1e-7)
    if classes == 1 and not settings:  # absent classes stay at the text
        absent = trace[-1][1] == 0
        assert absent.any()
        np.testing.assert_allclose(mean[absent], model.table.numpy()[absent])
        np.testing.assert_allclose(variance[absent], np.stack([v0] * absent.sum()))


def test_float32_is_near_the_loop():
    model, x = world(N=40, K=6, D=48, scale=100.0)
    expected = literal(x.numpy(), model.table.numpy(), model.scale)[0]
    model.table = model.table.float()
    found = build("stata", model).adapt(x.float()).double().numpy()
    np.testing.assert_allclose(np.exp(found), np.exp(expected), atol=1e-4)


def test_batches_are_strangers():
    model, x = world(N=24)
    one, two = build("stata", model), build("stata", model)
    a, b = one.adapt(x[:12]), one.adapt(x[12:])
    assert torch.equal(two.adapt(x[12:]), b)
    assert torch.equal(two.adapt(x[:12]), a)
    assert torch.equal(two.predict(x[:12]), a)
    assert not torch.allclose(two.adapt(x)[:12], a)


def test_one_image_is_zero_shot_and_few_have_fewer_neighbours():
    model, x = world()
    adapter = build("stata", model)
    torch.testing.assert_close(adapter.adapt(x[:1]), adapter.sketch.log_softmax(1))
    for N in (2, 3):
        expected = literal(x[:N].numpy(), model.table.numpy(), model.scale, neighbours=N - 1)[0]
        np.testing.assert_allclose(adapter.adapt(x[:N]).numpy(), expected, rtol=1e-7)


def test_far_classes_do_not_turn_into_nan():
    model, x = world(N=30, D=64, scale=1000.0, noise=0.1, classes=2)
    assert torch.isfinite(build("stata", model, temperature=1.0).adapt(x)).all()
