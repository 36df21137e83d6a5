"""BCA against a literal reading of its spec."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from test_sequential import build, run, vectors
from test_tda import nats, softmax

FAST = {"count_likelihood": 5.0, "tau_likelihood": 0.3}  # so that the embeddings move


def literal(samples, W, scale, tau1=0.05, c1=20000.0, tau2=0.65, c2=1.0, by_embedding=False):
    K = len(W)
    mu, R = W.copy(), np.eye(K)
    c1, c2 = np.full(K, c1), np.full(K, c2)
    answers = []
    for views in samples:
        views = np.atleast_2d(views)
        logits = scale * views @ mu.T
        if len(views) > 1:
            best = np.argsort(nats(softmax(logits)))[: int(0.1 * len(views))]
            views, logits = views[best], logits[best]
        z, q = views.mean(0), softmax(logits.mean(0))
        P = sum(q[m] * R[m] for m in range(K))
        answers.append(np.log(P))
        s = int(q.argmax() if by_embedding else P.argmax())
        if P.max() > tau1:
            mu[s] = (c1[s] * mu[s] + z) / (c1[s] + 1)
            mu[s] /= np.linalg.norm(mu[s])
            c1[s] += 1
        if P.max() > tau2:
            R[s] = (c2[s] * R[s] + P) / (c2[s] + 1)
            c2[s] += 1
    return np.array(answers), mu, R


@pytest.mark.parametrize("settings", [{}, FAST, {**FAST, "follows": "embedding"}])
@pytest.mark.parametrize("views", [1, 30])
def test_literal(views, settings):
    model, x = vectors(views=views, n=50, scale=10.0 if views == 1 else 5.0)
    adapter = build("bca", model, views=views, **settings)
    flat = x.reshape(50, views, -1).squeeze(1).numpy()
    tau1, c1 = settings.get("tau_likelihood", 0.05), settings.get("count_likelihood", 20000.0)
    expected, mu, R = literal(
        flat, model.table.numpy(), model.scale, tau1, c1, by_embedding="follows" in settings
    )
    np.testing.assert_allclose(run(adapter, x, 16).numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(adapter.mean.numpy(), mu, rtol=1e-9)
    np.testing.assert_allclose(adapter.prior.numpy(), R, rtol=1e-9, atol=1e-15)
    assert not np.allclose(R, np.eye(5), atol=0.01)


def test_rows_stay_probabilities_and_embeddings_unit():
    model, x = vectors(n=120, dtype=torch.float32)
    adapter = build("bca", model, **FAST)
    answer = run(adapter, x, 40)
    ones = torch.ones(5, dtype=torch.float64)
    torch.testing.assert_close(adapter.prior.sum(1), ones, rtol=0, atol=1e-12)
    torch.testing.assert_close(adapter.mean.norm(dim=1), ones, rtol=0, atol=1e-12)
    assert torch.allclose(answer.exp().sum(1), torch.ones(120), atol=1e-5)
    assert torch.equal(adapter.probabilities(answer).argmax(1), answer.argmax(1))


def test_unsure_samples_change_nothing():
    model, x = vectors(n=20, scale=0.1)  # nearly even posteriors
    adapter = build("bca", model, tau_likelihood=0.5)
    run(adapter, x, 20)
    assert torch.equal(adapter.mean, adapter.text)
    assert torch.equal(adapter.prior, torch.eye(5).double())


def test_impossible_classes_have_finite_logarithms():
    model, x = vectors(n=20, scale=5000.0, dtype=torch.float32)
    assert torch.isfinite(run(build("bca", model), x, 20)).all()


def test_merge_adds_counts_and_sums():
    # No sample is near another class, and the second half lies aside: who misses it is far off.
    model, x = vectors(n=60, noise=0.5, scale=30.0)
    aside = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(1)).to(x)
    x[30:] = functional.normalize(x[30:] + 0.7 * functional.normalize(aside, dim=0), dim=1)
    one, two, both = (build("bca", model, count_likelihood=5.0) for _ in range(3))
    run(one, x[:30], 30)
    run(two, x[30:], 30)
    run(both, x, 30)
    alone, weights = one.mean, [adapter.counts[1, :, None] for adapter in (one, two)]
    sums = weights[0] * one.prior + weights[1] * two.prior - torch.eye(5)
    one.merge(two)
    torch.testing.assert_close(one.prior, sums / (weights[0] + weights[1] - 1))
    torch.testing.assert_close(one.prior.sum(1), torch.ones(5).double())
    assert torch.equal(one.counts[0], both.counts[0])  # all 60 pass the low threshold
    assert (one.mean * both.mean).sum(1).min() > 0.98 > (alone * both.mean).sum(1).min()
