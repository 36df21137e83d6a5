"""ROID against a literal reading of its spec: a copy of the tower, with SGD."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from bayestta.methods import make_adapter, roid
from bayestta.methods._augment import distort
from bayestta.models._norms import NORMS, batch_statistics
from fake_vlm import Fake, names, world
from test_tent import NAMES, TEMPLATES, batches, close


class ByBatch(Fake):
    """A fake whose BatchNorms can go by the batch."""

    def encode_image(self, x, params=None, norms="source"):
        swap = {**(batch_statistics(self.visual) if norms == "batch" else {}), **(params or {})}
        return functional.normalize(functional_call(self.visual, swap, (x,)), dim=1)


def literal(model, text, xs, *, prior="logit", norms="batch", divisor=None, lr=2.5e-4):
    """Answers, and per batch the weights of images, q, and the norms after the step."""
    tower = copy.deepcopy(model.visual)
    parameters = {}
    for name, module in tower.named_modules():
        if isinstance(module, NORMS):
            for key, value in module.named_parameters(recurse=False):
                parameters[f"{name}.{key}"] = value.requires_grad_()
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and norms == "batch":
            module.running_mean = module.running_var = None
    source = {key: value.detach().clone() for key, value in parameters.items()}
    optimiser = torch.optim.SGD(parameters.values(), lr=lr, momentum=0.9, nesterov=True)
    K = len(text)
    q = torch.full((K,), 1 / K, dtype=torch.float64)
    answers, trace = [], []

    def f(x):
        return model.scale * functional.normalize(tower(x), dim=1) @ text.T

    for x in xs:
        B, l = len(x), f(x)  # noqa: E741
        P = l.softmax(1)
        with torch.no_grad():
            Q = P.double()
            d = torch.stack([1 - (q @ Q[i]) / (q.norm() * Q[i].norm()) for i in range(B)])
            d = (d - d.min()) / (d.max() - d.min())
            masked = d < d.mean()
            e = torch.stack([(Q[i] * Q[i].log()).sum() for i in range(B)])
            e = (e - e.min()) / (e.max() - e.min())
            w = torch.exp(d * e / (1 / 3))
            w[masked] = 0
            q = 0.9 * q + 0.1 * Q.mean(0)
        kept = [i for i in range(B) if not masked[i]]
        seen = f(x[kept]).softmax(1)
        loss = torch.zeros((), dtype=l.dtype)
        for place, i in enumerate(kept):
            r = torch.minimum(P[i], torch.tensor(0.99, dtype=l.dtype))
            s = -(r * torch.log(r / (1 - r) + 1e-5)).sum()
            c = -0.5 * (P[i] * seen[place].log()).sum() - 0.5 * (seen[place] * P[i].log()).sum()
            loss = loss + w[i].to(l.dtype) * (s + c) / (divisor or B)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for key, value in parameters.items():
                value.copy_(0.99 * value + 0.01 * source[key])
            pi = P.mean(0)
            g = max(1 / B, 1 / K) / pi.max()
            pi = (pi + g) / (1 + g * K)
            kinds = {"logit": l * pi, "prob": (P * pi / (P * pi).sum(1, keepdim=True)).log()}
            answers.append(kinds.get(prior, l).detach())
        norms_now = {key: value.detach().clone() for key, value in parameters.items()}
        trace.append((w, q, norms_now))
    return answers, trace


@pytest.fixture
def plain(monkeypatch):
    """A step without augmentation."""
    monkeypatch.setattr(roid, "augment", lambda model, x, generator, *, clean: x)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("kind", ["LayerNorm", "BatchNorm"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"prior": "prob"}, {"prior": "off", "norms": "source"}, {"divisor": 64}],
    ids=str,
)
def test_literal(kind, settings):
    fake, stream = world(5, kind, batch=16, batches=3, scale=20.0, signal=1.0)
    model = ByBatch(fake.visual, fake.table, fake.scale)
    xs = [x for x, _ in stream]
    xs[1] = xs[1][:7]  # a short batch
    adapter = make_adapter("roid", model, names(model), ["{}"], lr=0.01, **settings)
    expected, trace = literal(model, adapter.text, xs, lr=0.01, **settings)
    for x, answer, (w, q, norms) in zip(xs, expected, trace, strict=True):
        with torch.no_grad():
            p = adapter._logits(x).softmax(1)
        found = roid.image_weights(p, adapter.mean_probability, 1 / 3)
        torch.testing.assert_close(found, w)
        assert 0 < int((w == 0).sum()) < len(x)
        logits = adapter.adapt(x)
        if settings.get("prior") == "prob":
            logits = logits.log_softmax(1)
        torch.testing.assert_close(logits, answer, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(adapter.mean_probability, q)
        for key, value in norms.items():
            torch.testing.assert_close(adapter.tuned[key].detach(), value, rtol=1e-8, atol=1e-10)
    assert max((trace[-1][2][k] - v).abs().max() for k, v in adapter.tuned.start.items()) > 1e-3


@pytest.mark.usefixtures("plain")
def test_towers(tiny):
    adapter = make_adapter("roid", tiny, NAMES, TEMPLATES)
    xs = batches(tiny)
    expected, _ = literal(tiny, adapter.text, xs)
    close([adapter.adapt(x) for x in xs], expected)


def test_losses():
    rng = torch.Generator().manual_seed(0)
    one, two = (2 * torch.randn(6, 4, generator=rng, dtype=torch.float64) for _ in range(2))
    sure = torch.tensor([[9.0, 0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = roid.likelihood_ratio(sure, 0.99)
    top = 0.99 * math.log(0.99 / 0.01 + 1e-5)
    p = sure.detach().softmax(1)[0, 1:]
    assert loss.item() == pytest.approx(-top - float((p * (p / (1 - p) + 1e-5).log()).sum()))
    (clipped,) = torch.autograd.grad(loss, sure)
    (whole,) = torch.autograd.grad(roid.likelihood_ratio(sure, 0.9999), sure)
    assert clipped.abs().max() < 0.2 * whole.abs().max()  # the likely class has no gradient
    one.requires_grad_()
    two.requires_grad_()
    both = torch.autograd.grad(roid.consistency(one, two).sum(), [one, two])
    assert all(gradient.abs().max() > 0 for gradient in both)
    torch.testing.assert_close(roid.consistency(one, two), roid.consistency(two, one))


def test_the_prior_is_the_spec_s_example():
    p = torch.tensor([0.15, 0.05, *[0.1] * 8], dtype=torch.float64).repeat(64, 1)
    prior = roid.smoothed_prior(p)
    assert float(prior.sum()) == pytest.approx(1)
    assert float(prior[0] / prior[1]) == pytest.approx(1.14, abs=0.005)


def test_answers_are_shrunk_and_probabilities_are_not(tiny_vit):
    adapter = make_adapter("roid", tiny_vit, NAMES, TEMPLATES)
    x = batches(tiny_vit, 1)[0]
    plain = make_adapter("roid", tiny_vit, NAMES, TEMPLATES, prior="off").predict(x)
    logits = adapter.predict(x)
    assert logits.abs().max() < plain.abs().max()
    sure = adapter.probabilities(logits).amax(1)
    torch.testing.assert_close(sure, plain.softmax(1).amax(1), rtol=0.2, atol=0.1)


@pytest.mark.parametrize("rows", [[0], [1, 1, 1]])
def test_no_step_where_weights_are_not_defined(tiny_vit, rows):
    adapter = make_adapter("roid", tiny_vit, NAMES, TEMPLATES)
    x = batches(tiny_vit, 1)[0]
    adapter.adapt(x[rows])
    if len(rows) == 1:
        for key, value in adapter.tuned.items():
            assert torch.equal(value, adapter.tuned.start[key])
    assert not torch.equal(
        adapter.mean_probability, torch.full_like(adapter.mean_probability, 1 / 3)
    )
    assert adapter.unsound() is None


def test_clean_distortion_reflects_and_adds_no_noise():
    flat = torch.full((2, 3, 16, 16), 0.5)
    clean = distort(flat, torch.Generator().manual_seed(0), clean=True)
    assert (clean - clean[:, :, :1, :1]).abs().max() < 1e-5  # colour only: one value per channel
    noisy = distort(flat, torch.Generator().manual_seed(0))
    assert (noisy - noisy[:, :, :1, :1]).abs().max() > 1e-3
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    one, two = (distort(x[i:], torch.Generator().manual_seed(3), clean=True) for i in (0, 1))
    torch.testing.assert_close(one[1:], two)  # one draw for the whole batch
