"""CoTTA against three real networks in training mode, and what it promises."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from bayestta.methods import make_adapter
from bayestta.methods._augment import augment

NAMES, TEMPLATES = ["cat", "dog", "car"], ["a photo of a {}."]


def batches(model, n=3, B=4):
    random = torch.Generator().manual_seed(1)
    return [
        torch.randn(B, 3, model.preprocess.size, model.preprocess.size, generator=random)
        for _ in range(n)
    ]


class Literal:
    """The spec, word by word: student, teacher and anchor are modules, batch norms train."""

    def __init__(self, model, text, *, adam, symmetric, threshold, augmentations, m, p, lr):
        self.model, self.text = model, text
        self.adam, self.symmetric, self.threshold = adam, symmetric, threshold
        self.augmentations, self.m, self.p = augmentations, m, p
        self.student, self.teacher, self.anchor = (
            copy.deepcopy(model.visual).train() for _ in range(3)
        )
        self.trained = {
            f"{name}.{key}" if name else key: value
            for name, module in self.student.named_modules()
            for key, value in module.named_parameters(recurse=False)
            if key in ("weight", "bias")
        }
        self.source = {key: value.detach().clone() for key, value in self.trained.items()}
        tensors = [value.requires_grad_() for value in self.trained.values()]
        if adam:
            self.optimiser = torch.optim.Adam(tensors, lr=lr, betas=(0.9, 0.999))
        else:
            self.optimiser = torch.optim.SGD(tensors, lr=lr, momentum=0.9, nesterov=True)
        self.generator = torch.Generator().manual_seed(0)

    def logits(self, network, x):
        return self.model.scale * functional.normalize(network(x), dim=1) @ self.text.T

    def step(self, x):
        s = self.logits(self.student, x)
        with torch.no_grad():
            conf = self.logits(self.anchor, x).softmax(1).max(1).values.mean()
            if conf < self.threshold:
                t = torch.zeros_like(s)
                for _ in range(self.augmentations):
                    t += self.logits(self.teacher, augment(self.model, x, self.generator))
                t /= self.augmentations
            else:
                t = self.logits(self.teacher, x)
        loss = functional.cross_entropy(s, t.softmax(1))
        if self.symmetric:
            reverse = -(s.softmax(1) * functional.log_softmax(t, 1)).sum(1).mean()
            loss = 0.5 * loss + 0.5 * reverse
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
            for slow, fast in pairs:
                slow.copy_(self.m * slow + (1 - self.m) * fast)
            for key, value in self.trained.items():
                mask = (torch.rand(value.shape, generator=self.generator) < self.p).float()
                value.copy_(self.source[key] * mask + value * (1 - mask))
        return t


@pytest.mark.parametrize(
    ("settings", "literal"),
    [
        ({}, {"adam": False, "symmetric": True, "lr": 0.01, "p": 0.001, "threshold": 0.1}),
        (
            {
                "optimiser": "adam",
                "loss": "cross-entropy",
                "lr": 1e-3,
                "restore": 0.01,
                "threshold": 1.1,
                "augmentations": 2,
                "teacher_momentum": 0.5,
            },
            {
                "adam": True,
                "symmetric": False,
                "lr": 1e-3,
                "p": 0.01,
                "threshold": 1.1,
                "augmentations": 2,
                "m": 0.5,
            },
        ),
    ],
)
def test_logits_equal_the_literal_method(tiny, settings, literal):
    adapter = make_adapter("cotta", tiny, NAMES, TEMPLATES, **settings)
    slow = Literal(tiny, adapter.text, **{"augmentations": 32, "m": 0.999, **literal})
    first = None
    for x in batches(tiny):
        foreseen = adapter.predict(x)
        found, want = adapter.adapt(x), slow.step(x)
        assert torch.equal(foreseen, found)  # the answer precedes the update
        torch.testing.assert_close(found, want, atol=2e-3, rtol=0)
        first = found if first is None else first
    for key, value in adapter.teacher.items():
        want = slow.teacher.get_parameter(key)
        torch.testing.assert_close(value, want, atol=2e-4, rtol=0)
    assert (adapter.predict(batches(tiny)[0]) - first).abs().max() > 1e-4  # it did learn


def test_only_weights_and_biases_by_their_own_name(tiny_vit):
    adapter = make_adapter("cotta", tiny_vit, NAMES, TEMPLATES)
    names = set(adapter.student)
    left = {key for key, _ in tiny_vit.visual.named_parameters()} - names
    assert {key.rpartition(".")[2] for key in names} == {"weight", "bias"}
    assert {key.rpartition(".")[2] for key in left} == {
        "class_embedding",
        "positional_embedding",
        "proj",
        "in_proj_weight",
        "in_proj_bias",
    }


def test_the_share_that_is_restored(tiny_vit):
    """Every weight moves by about lr with Adam, so that those that did not were restored."""
    adapter = make_adapter(
        "cotta", tiny_vit, NAMES, TEMPLATES, optimiser="adam", lr=1e-2, restore=0.2
    )
    adapter.adapt(batches(tiny_vit)[0])
    back = [value == adapter.student.start[key] for key, value in adapter.student.items()]
    share = sum(int(b.sum()) for b in back) / sum(b.numel() for b in back)
    assert abs(share - 0.2) < 0.01
    moved = [value != adapter.student.start[key] for key, value in adapter.teacher.items()]
    assert sum(int(m.sum()) for m in moved) > 0.9 * sum(m.numel() for m in moved)

    whole = make_adapter("cotta", tiny_vit, NAMES, TEMPLATES, restore=1.0)
    whole.adapt(batches(tiny_vit)[0])
    assert all(torch.equal(v, whole.student.start[k]) for k, v in whole.student.items())


def test_augmented_answers_differ_by_compatibility_and_repeat(tiny_vit):
    x = batches(tiny_vit)[0]
    answers = []
    for compat in (False, True):
        adapter = make_adapter(
            "cotta",
            tiny_vit,
            NAMES,
            TEMPLATES,
            threshold=1.1,
            augmentations=2,
            compat_unnormalised=compat,
        )
        answers.append(adapter.predict(x))
        assert torch.equal(adapter.predict(x), answers[-1])
    assert not torch.allclose(*answers, atol=1e-3)


def test_merge_averages_by_samples(tiny_vit):
    x = batches(tiny_vit)
    one, two = (make_adapter("cotta", tiny_vit, NAMES, TEMPLATES, restore=0.0) for _ in range(2))
    one.adapt(x[0])
    one.adapt(x[1])
    two.adapt(x[2])
    key = "ln_pre.weight"
    want = [
        2 / 3 * a[key] + 1 / 3 * b[key]
        for a, b in ((one.student, two.student), (one.teacher, two.teacher))
    ]
    one.merge(two)
    torch.testing.assert_close(one.student[key], want[0])
    torch.testing.assert_close(one.teacher[key], want[1])


@pytest.mark.parametrize(("key", "value"), [("loss", "mse"), ("optimiser", "lion")])
def test_unknown_choices_are_refused(tiny_vit, key, value):
    with pytest.raises(ValueError, match=f"unknown value of {key} '{value}'"):
        make_adapter("cotta", tiny_vit, NAMES, TEMPLATES, **{key: value})
