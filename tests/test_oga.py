"""OGA against a literal reading of its spec, with a pseudo-inverse after every batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fake_vlm import Fake
from test_sequential import build, run, vectors
from test_tda import softmax


class Literal:
    """Slots, means and precision as the spec has them; float64."""

    def __init__(self, W, scale, M=8, tau=0.05, count=False):
        self.W, self.scale, self.M, self.tau, self.count = W, scale, M, tau, count
        K, D = W.shape
        self.feature = np.zeros((K, M, D))
        self.entropy = np.full((K, M), np.log(K))
        self.filled = np.zeros((K, M), bool)
        self.mu, self.Lambda = W.copy(), D * np.eye(D)
        self.changes = 0

    def batch(self, z):
        p = softmax(self.scale * z @ self.W.T)
        changed = False
        for i in range(len(z)):
            H = -sum(q * np.log(q + 1e-9) for q in p[i])
            c = int(p[i].argmax())
            if any(stored > H for stored in self.entropy[c]):
                slot = int(self.entropy[c].argmax())
                self.feature[c, slot], self.entropy[c, slot] = z[i], H
                self.filled[c, slot] = changed = True
        if changed:
            self.changes += 1
            self.recompute()
        answers = []
        for i in range(len(z)):
            g = np.array([-0.5 * (z[i] - m) @ self.Lambda @ (z[i] - m) for m in self.mu])
            answer = p[i] * softmax(self.tau * g)
            answers.append(answer / answer.sum())
        return np.array(answers)

    def recompute(self):
        K, D = self.W.shape
        n = self.filled.sum(1)
        self.mu = self.W.copy()
        for k in range(K):
            if n[k] >= 2:
                total = sum(self.feature[k, j] for j in range(self.M) if self.filled[k, j])
                self.mu[k] = total / (n[k] if self.count else self.M)
        if n.max() >= 3:
            r = [
                self.feature[k, j] - self.mu[k] for k, j in zip(*self.filled.nonzero(), strict=True)
            ]
            r, N = np.array(r), n.sum()
            S = (r - r.mean(0)).T @ (r - r.mean(0)) / (N - 1)
            if N <= 4 * D:
                self.Lambda = D * np.linalg.pinv((N - 1) * S + np.trace(S) * np.eye(D))
            else:
                self.Lambda = np.linalg.pinv(S)


def follow(adapter, literal, x, batch):
    """Compare answers and memory after every batch."""
    counts = []
    for part in x.split(batch):
        expected = literal.batch(part.double().numpy())
        found = adapter.adapt(part).softmax(1)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-9)
        mean, weight = adapter._gaussians()
        np.testing.assert_allclose(mean.numpy(), literal.mu, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(weight.numpy(), literal.Lambda @ literal.mu.T, rtol=1e-4)
        for k, stored in enumerate(adapter.cache.entropy):
            mine, slots = np.array(stored) - np.log1p(1e-9), literal.filled[k]
            np.testing.assert_allclose(mine, sorted(literal.entropy[k][slots]), 1e-5, 1e-12)
            order = literal.entropy[k][slots].argsort()
            rows = adapter.cache["feature"][k, : len(mine)]
            np.testing.assert_allclose(rows.numpy(), literal.feature[k][slots][order], rtol=1e-6)
        counts.append(literal.filled.sum(1))
    return np.array(counts)


@pytest.mark.parametrize("divisor", ["capacity", "count"])
def test_literal_on_both_sides_of_the_ridge(divisor):
    model, x = vectors(K=3, D=4, n=200, noise=1.0)
    adapter = build("oga", model, mean_divisor=divisor)
    literal = Literal(model.table.numpy(), model.scale, count=divisor == "count")
    counts = follow(adapter, literal, x, 2)
    assert {1, 2, 3, 7, 8} <= set(counts.flatten().tolist())
    assert counts[0].max() <= 2  # the precision was still D * I
    assert counts.sum(1).min() <= 16 < counts.sum(1).max()
    assert literal.changes < len(counts)  # some batches changed nothing


def test_float32_in_many_dimensions():
    model, x = vectors(K=5, D=96, n=120, scale=50.0, dtype=torch.float32)
    adapter = build("oga", model)
    follow(adapter, Literal(model.table.double().numpy(), model.scale), x, 24)


def test_start_is_the_text_with_precision_d():
    model, x = vectors(n=6)
    adapter = build("oga", model, tau=0.5)
    logits = model.logits(x, adapter.text)
    g = -0.5 * x.shape[1] * torch.cdist(x, adapter.text).square()
    expected = (logits + 0.5 * g).log_softmax(1)
    torch.testing.assert_close(adapter.predict(x).log_softmax(1), expected)


def test_equal_entropies_keep_the_old_entry_and_uniform_answers_do_not_enter():
    text = torch.eye(2, 3, dtype=torch.float64)
    adapter = build("oga", Fake(nn.Flatten(), text, 10.0), shots=1)
    one, two = (torch.tensor([[0.8, 0.0, s * 0.6]], dtype=torch.float64) for s in (1, -1))
    adapter.adapt(one)
    adapter.adapt(two)
    assert torch.equal(adapter.cache["feature"][0, 0], one[0])
    fresh = build("oga", Fake(nn.Flatten(), text, 0.0))
    fresh.adapt(one)
    assert fresh.cache.filled.sum() == (1 if -np.log(0.5 + 1e-9) < np.log(2) else 0)


def test_the_whole_batch_is_stored_before_it_is_answered():
    model, x = vectors(n=40)
    adapter, later = build("oga", model), build("oga", model)
    answers = adapter.adapt(x)
    assert torch.equal(adapter.predict(x), answers)
    assert not torch.allclose(run(later, x, 8)[:8], answers[:8])


def test_a_loaded_or_merged_memory_is_fitted_again():
    model, x = vectors(n=60)
    one, two, both = (build("oga", model) for _ in range(3))
    run(one, x[:30], 30)
    run(two, x[30:], 30)
    run(both, x, 30)
    one.merge(two)
    assert one.cache.entropy == both.cache.entropy
    assert torch.equal(one.predict(x), both.predict(x))
    two.load_state(both.state())
    assert torch.equal(two.predict(x), both.predict(x))
    two.reset()
    assert torch.equal(two.predict(x), build("oga", model).predict(x))


def test_copies_of_one_image_have_no_spread():
    text = functional.normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)))
    adapter = build("oga", Fake(nn.Flatten(), text, 100.0), mean_divisor="count")
    logits = adapter.adapt(text[:1].repeat(5, 1))
    torch.testing.assert_close(logits, adapter.sketch)  # the pseudo-inverse of zero is zero
