"""AdaPrompt against a literal loop, and its buffer."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bayestta.methods import make_adapter
from bayestta.methods.adaprompt import CONTEXTS, Item, insert
from test_prompts import literal as encode

NAMES, TEMPLATES = ["cat", "dog", "car"], ["a {}."]


def images(model, n, seed=1):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, model.preprocess.size, model.preprocess.size, generator=random)


class Literal:
    """The spec, word by word: images in the buffer, three logits averaged."""

    def __init__(self, model, *, Q, confidence, double):
        self.model, self.Q, self.confidence, self.double = model, Q, confidence, double
        self.start = [model.embed([words])[0][0, 1 : 1 + len(words.split())] for words in CONTEXTS]
        self.contexts = [start.clone().requires_grad_() for start in self.start]
        self.optimiser = torch.optim.AdamW(self.contexts, lr=5e-3)
        self.buffer = []
        self.generator = torch.Generator().manual_seed(0)

    def logits(self, contexts, x):
        z = self.model.encode_image(x)
        texts = [encode(self.model, NAMES, c, w) for c, w in zip(contexts, CONTEXTS, strict=True)]
        return torch.stack([self.model.scale * z @ text.T for text in texts]).mean(0)

    def insert(self, image, label, conf):
        if len(self.buffer) < self.Q:
            self.buffer.append((image, label, conf))
            return
        sizes = {k: sum(item[1] == k for item in self.buffer) for k in range(len(NAMES))}
        largest = [k for k in sizes if sizes[k] == max(sizes.values())]
        if label in largest:
            target = label
        else:
            target = largest[int(torch.randint(len(largest), (), generator=self.generator))]
        inside = [i for i, item in enumerate(self.buffer) if item[1] == target]
        lowest = min(inside, key=lambda i: self.buffer[i][2])
        if label in largest and conf < self.buffer[lowest][2]:
            return
        del self.buffer[lowest]
        self.buffer.append((image, label, conf))

    def step(self, x):
        with torch.no_grad():
            p = self.logits(self.start, x).softmax(1)
        for image, row in zip(x, p, strict=True):
            if row.max() > self.confidence:
                self.insert(image, int(row.argmax()), float(row.max()))
        if len(self.buffer) >= self.Q:
            s = self.logits(self.contexts, torch.stack([item[0] for item in self.buffer]))
            s = s.softmax(1) if self.double else s
            loss = functional.cross_entropy(s, torch.tensor([item[1] for item in self.buffer]))
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        with torch.no_grad():
            return self.logits(self.contexts, x)


@pytest.mark.parametrize("loss", ["double_softmax", "cross_entropy"])
def test_logits_equal_the_literal_method(tiny_vit, loss):
    settings = {"capacity": 5, "confidence": 0.4, "loss": loss}
    adapter = make_adapter("adaprompt", tiny_vit, NAMES, TEMPLATES, **settings)
    slow = Literal(tiny_vit, Q=5, confidence=0.4, double=loss == "double_softmax")
    for x in images(tiny_vit, 16).split(4):
        before = adapter.predict(x)
        found, want = adapter.adapt(x), slow.step(x)
        torch.testing.assert_close(found, want, atol=5e-3, rtol=0)
    assert [item.label for item in adapter.buffer] == [item[1] for item in slow.buffer]
    assert len(slow.buffer) == 5
    assert (found - before).abs().max() > 1e-3  # the answer follows the update
    assert torch.equal(adapter.predict(x), found)


def test_no_update_before_the_buffer_is_full(tiny_vit):
    adapter = make_adapter("adaprompt", tiny_vit, NAMES, TEMPLATES, confidence=0.0)
    x = images(tiny_vit, 63)
    found = adapter.adapt(x)
    assert len(adapter.buffer) == 63
    want = (
        sum(
            tiny_vit.logits(
                tiny_vit.encode_image(x),
                tiny_vit.encode_text([f"{words} {name}." for name in NAMES]),
            )
            for words in CONTEXTS
        )
        / 3
    )
    torch.testing.assert_close(found, want, atol=1e-4, rtol=0)
    assert not torch.equal(adapter.adapt(x[:1]), found[:1])
    assert len(adapter.buffer) == 64


def made(*pairs):
    return [Item(torch.tensor([float(i)]), label, c) for i, (label, c) in enumerate(pairs)]


def held(items):
    return [(item.label, item.confidence) for item in items]


def test_the_buffer_balances_classes_by_confidence():
    new = torch.tensor([9.0])
    full = made((0, 0.9), (0, 0.8), (0, 0.95), (1, 0.71))
    random = torch.Generator()
    rare = insert(full, Item(new, 1, 0.75), 4, random)
    assert held(rare) == [(0, 0.9), (0, 0.95), (1, 0.71), (1, 0.75)]
    assert held(insert(full, Item(new, 0, 0.79), 4, random)) == held(full)
    better = insert(full, Item(new, 0, 0.8), 4, random)  # as confident as the lowest: replaces it
    assert held(better) == [(0, 0.9), (0, 0.95), (1, 0.71), (0, 0.8)]
    assert float(better[-1].feature) == 9
    two = made((0, 0.9), (0, 0.8), (1, 0.9), (1, 0.8))
    hit = {held(insert(two, Item(new, 2, 0.75), 4, random)).count((0, 0.8)) for _ in range(30)}
    assert hit == {0, 1}  # either of the two largest classes may lose one


def test_carry_keeps_the_prompts_over_a_restart(tiny_vit):
    x = images(tiny_vit, 6)
    for carry in (False, True):
        adapter = make_adapter(
            "adaprompt", tiny_vit, NAMES, TEMPLATES, capacity=4, confidence=0.0, carry=carry
        )
        first = adapter.predict(x)
        learnt = adapter.adapt(x)
        adapter.reset()
        assert not adapter.buffer
        assert torch.equal(adapter.predict(x), learnt if carry else first)
        origin = tiny_vit.logits(tiny_vit.encode_image(x), adapter.origin)
        torch.testing.assert_close(origin, learnt if carry else first)


def test_merge_reinserts_the_other_buffer(tiny_vit):
    settings = {"capacity": 4, "confidence": 0.0}
    one, two = (make_adapter("adaprompt", tiny_vit, NAMES, TEMPLATES, **settings) for _ in range(2))
    one.adapt(images(tiny_vit, 2))
    two.adapt(images(tiny_vit, 2, seed=2))
    one.merge(two)
    assert len(one.buffer) == 4
    assert torch.equal(one.buffer[-1].feature, two.buffer[-1].feature)
