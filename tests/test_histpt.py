"""HisTPT against a literal loop with lists for banks, official and ported forms."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bayestta.methods import make_adapter
from bayestta.methods.histpt import Banks
from test_prompts import literal as encode

NAMES, TEMPLATES, WORDS = ["cat", "dog", "car"], ["a {}."], "a photo of a"
PORT = {
    "order": "after",
    "long_term": "prototypes",
    "fusion": "probabilities",
    "label": "soft",
}


def batch(model, B=7):
    random = torch.Generator().manual_seed(4)
    size = model.preprocess.size
    return torch.randn(B, 2, 3, size, size, generator=random)


def entropy(logits):
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1)


class Literal:
    def __init__(self, model, *, bank, hardest, lr, port=False, raw=False, normalise=True):
        self.model, self.bank, self.hardest = model, bank, hardest
        self.port, self.raw, self.normalise = port, raw, normalise
        self.context = model.embed([WORDS])[0][0, 1:5].clone().requires_grad_()
        self.optimiser = torch.optim.AdamW([self.context], lr=lr, weight_decay=0.01)
        self.local = None

    def fill(self, E, h):
        self.local, self.entropies = [E] * self.bank, [h] * self.bank
        self.hard, self.long = [E] * self.bank, E

    def push(self, E, h):
        self.local = [E, *self.local[:-1]]
        self.entropies = [h, *self.entropies[:-1]]
        ranked = sorted(range(self.bank), key=lambda i: -self.entropies[i])[: self.hardest]
        self.hard = [sum(self.local[i] for i in ranked) / self.hardest, *self.hard[:-1]]
        if self.port:
            news = sum(self.local) / self.bank + sum(self.hard) / self.bank
        else:
            news = self.local[-1] + self.hard[-1]
        self.long = 0.99 * self.long + 0.01 * 0.5 * news

    def teach(self, z):
        outs = []
        for E in (self.long, sum(self.local) / self.bank, sum(self.hard) / self.bank):
            outs.append(
                self.model.scale * z @ (functional.normalize(E, dim=1) if self.normalise else E).T
            )
        weights = torch.stack([-entropy(s) for s in outs]).softmax(0)
        if self.port:
            return sum(w * s.softmax(0) for w, s in zip(weights, outs, strict=True))
        p = sum(w * s for w, s in zip(weights, outs, strict=True)).softmax(0)
        return functional.one_hot(p.argmax(), len(p)).float()

    def step(self, views):
        plain, augmented = self.model.encode_image(views)
        E = encode(self.model, NAMES, self.context, WORDS)
        s = self.model.scale * augmented @ E.T
        now, frozen = E.detach(), s.detach()
        h = float(-(frozen * frozen.exp()).sum() if self.raw else entropy(frozen))
        if self.local is None:
            self.fill(now, h)
        if not self.port:
            self.push(now, h)
        target = self.teach(plain)
        if self.port:
            self.push(now, h)
        self.optimiser.zero_grad()
        functional.cross_entropy(s[None], target[None]).backward()
        self.optimiser.step()
        with torch.no_grad():
            return self.model.scale * plain @ encode(self.model, NAMES, self.context, WORDS).T


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, {}),
        (PORT, {"port": True}),
        ({"entropy": "raw", "normalise": False}, {"raw": True, "normalise": False}),
    ],
)
def test_logits_equal_the_literal_method(tiny_vit, settings, plain):
    small = {"bank": 4, "hardest": 2}
    adapter = make_adapter("histpt", tiny_vit, NAMES, TEMPLATES, **small, **settings)
    slow = Literal(tiny_vit, lr=5e-3, **small, **plain)
    x = batch(tiny_vit)
    found = torch.cat([adapter.adapt(x[:3]), adapter.adapt(x[3:])])
    want = torch.stack([slow.step(views) for views in x])
    torch.testing.assert_close(found, want, atol=5e-3, rtol=0)
    (banks,) = adapter.banks
    torch.testing.assert_close(banks.local, torch.stack(slow.local), atol=1e-4, rtol=0)
    torch.testing.assert_close(banks.hard, torch.stack(slow.hard), atol=1e-4, rtol=0)
    torch.testing.assert_close(banks.long_term, slow.long, atol=1e-4, rtol=0)
    plainly = tiny_vit.logits(
        tiny_vit.encode_image(x[:, 0]), adapter.learner(adapter.tuned["context"])
    )
    torch.testing.assert_close(adapter.predict(x), plainly)
    assert (found - adapter.predict(x)).abs().max() > 1e-2


def test_banks_are_queues_and_the_global_one_follows_the_oldest():
    texts = torch.arange(1.0, 6).view(5, 1, 1)  # K = D = 1
    banks = Banks.start(texts[0], torch.tensor(0.5), 3)
    for text, h in zip(texts, (0.5, 0.1, 0.9, 0.2, 0.3), strict=True):
        banks = banks.push(text, torch.tensor(h), 1, 0.5, "oldest")
    assert banks.local.flatten().tolist() == [5, 4, 3]  # the newest first
    torch.testing.assert_close(banks.entropies, torch.tensor([0.3, 0.2, 0.9]))
    assert banks.hard.flatten().tolist() == [3, 3, 3]
    # 1 -> 1, 1, then the oldest: (1,1), (1,1), (2,3) after one more copy has left
    want = 1.0
    for local, hard in ((1, 1), (1, 1), (1, 1), (2, 1), (3, 3)):
        want = 0.5 * want + 0.5 * 0.5 * (local + hard)
    assert float(banks.long_term) == pytest.approx(want)


def test_it_says_that_it_is_derived_and_opts_out_of_merging(tiny_vit):
    make = [make_adapter("histpt", tiny_vit, NAMES, TEMPLATES) for _ in range(2)]
    assert "derived" in make[0].fidelity
    assert "derived" in type(make[0]).__doc__
    with pytest.raises(NotImplementedError, match="histpt: its banks are queues"):
        make[0].merge(make[1])
    with pytest.raises(ValueError, match="unknown value of label 'firm'"):
        make_adapter("histpt", tiny_vit, NAMES, TEMPLATES, label="firm")
