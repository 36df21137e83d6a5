"""RoTTA against real modules with a literal robust norm, and the quota of its memory."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from bayestta.methods import make_adapter
from bayestta.methods._augment import augment
from bayestta.methods.rotta import Item, Memory
from bayestta.models._norms import RobustStatistics, batch_statistics, running_statistics

NAMES, TEMPLATES = ["cat", "dog", "car"], ["a photo of a {}."]


class RobustNorm(nn.Module):
    """The spec's robust BatchNorm, as a module of its own."""

    def __init__(self, norm, alpha):
        super().__init__()
        self.weight, self.bias, self.eps, self.alpha = norm.weight, norm.bias, norm.eps, alpha
        self.register_buffer("mu", norm.running_mean.clone())
        self.register_buffer("var", norm.running_var.clone())

    def forward(self, x):
        mu, var = self.mu, self.var
        if self.training:
            batch_mu = x.mean((0, 2, 3))
            batch_var = ((x - batch_mu[:, None, None]) ** 2).mean((0, 2, 3))
            mu = (1 - self.alpha) * mu + self.alpha * batch_mu
            var = (1 - self.alpha) * var + self.alpha * batch_var
            self.mu, self.var = mu.detach(), var.detach()
        x = (x - mu[:, None, None]) / torch.sqrt(var[:, None, None] + self.eps)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def robust_copy(visual, alpha):
    tower = copy.deepcopy(visual)
    for name, module in list(tower.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            tower.set_submodule(name, RobustNorm(module, alpha))
    return tower.eval().requires_grad_(False)


def norm_weights(tower):
    kinds = (RobustNorm, nn.LayerNorm)
    return [p for m in tower.modules() if isinstance(m, kinds) for p in m.parameters()]


def images(model, n, seed=1):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, model.preprocess.size, model.preprocess.size, generator=random)


class Literal:
    """The spec, word by word."""

    def __init__(self, model, text, *, N, every, lr, nu, alpha):
        self.model, self.text, self.N, self.every, self.nu = model, text, N, every, nu
        self.student, self.teacher = (robust_copy(model.visual, alpha) for _ in range(2))
        self.tensors = [p.requires_grad_() for p in norm_weights(self.student)]
        self.optimiser = torch.optim.Adam(self.tensors, lr=lr, betas=(0.9, 0.999))
        self.memory = {k: [] for k in range(len(text))}  # of [image, uncertainty, age]
        self.counter, self.generator = 0, torch.Generator().manual_seed(0)

    def logits(self, network, x):
        return self.model.scale * functional.normalize(network(x), dim=1) @ self.text.T

    def score(self, u, age):
        return 1 / (1 + math.exp(-age / self.N)) + u / math.log(len(self.text))

    def insert(self, image, label, u):
        def replace_worst(classes):
            worst = None
            for k in classes:
                for i, (_, old_u, age) in enumerate(self.memory[k]):
                    score = self.score(old_u, age)
                    if worst is None or score >= worst[0]:
                        worst = (score, k, i)
            if worst[0] > self.score(u, 0):
                del self.memory[worst[1]][worst[2]]
                self.memory[label].append([image, u, 0])

        sizes = {k: len(items) for k, items in self.memory.items()}
        if sizes[label] < self.N / len(self.text):
            if sum(sizes.values()) < self.N:
                self.memory[label].append([image, u, 0])
            else:
                replace_worst([k for k in sizes if sizes[k] == max(sizes.values())])
        else:
            replace_worst([label])
        for items in self.memory.values():
            for item in items:
                item[2] += 1

    def step(self, x):
        with torch.no_grad():
            answer = self.logits(self.teacher, x)
        p = answer.softmax(1)
        for image, row in zip(x, p, strict=True):
            self.insert(image, int(row.argmax()), float(-(row * torch.log(row + 1e-6)).sum()))
            self.counter += 1
            if self.counter % self.every == 0:
                self.update()
        return answer

    def update(self):
        items = [item for k in self.memory for item in self.memory[k]]
        x = torch.stack([item[0] for item in items])
        a = torch.tensor([item[2] / self.N for item in items])
        self.student.train()
        self.teacher.train()
        with torch.no_grad():
            target = self.logits(self.teacher, x).softmax(1)
        s = self.logits(self.student, augment(self.model, x, self.generator))
        w = torch.exp(-a) / (1 + torch.exp(-a))
        loss = (w * functional.cross_entropy(s, target, reduction="none")).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            pairs = zip(norm_weights(self.teacher), norm_weights(self.student), strict=True)
            for slow, fast in pairs:
                slow.copy_((1 - self.nu) * slow + self.nu * fast)
        self.student.eval()
        self.teacher.eval()


def test_logits_equal_the_literal_method(tiny):
    settings = {"capacity": 7, "every": 4, "lr": 1e-2, "teacher_rate": 0.3, "momentum": 0.2}
    adapter = make_adapter("rotta", tiny, NAMES, TEMPLATES, **settings)
    slow = Literal(tiny, adapter.text, N=7, every=4, lr=1e-2, nu=0.3, alpha=0.2)
    answers = []
    for x in images(tiny, 15).split(5):
        foreseen = adapter.predict(x)
        found, want = adapter.adapt(x), slow.step(x)
        assert torch.equal(foreseen, found)
        torch.testing.assert_close(found, want, atol=2e-3, rtol=0)
        answers.append(found)
    memory = adapter.memory
    held = [[(memory.age(item), item.label) for item in items] for items in memory.classes]
    assert held == [[(age, k) for _, _, age in slow.memory[k]] for k in slow.memory]
    assert (adapter.predict(images(tiny, 15)[:5]) - answers[0]).abs().max() > 1e-2


def test_robust_norms_equal_the_module_in_values_gradients_and_statistics(tiny_rn):
    x, before = images(tiny_rn, 3), copy.deepcopy(tiny_rn.visual.state_dict())
    stored = running_statistics(tiny_rn.visual)
    weight = tiny_rn.visual.bn1.weight.detach().clone().requires_grad_()
    with RobustStatistics(stored, 0.3) as robust:
        z = tiny_rn.encode_image(x, {"bn1.weight": weight, **stored})
    literal = robust_copy(tiny_rn.visual, 0.3).train()
    literal.bn1.weight.requires_grad_()
    want = functional.normalize(literal(x), dim=1)
    torch.testing.assert_close(z, want, atol=1e-5, rtol=0)
    (a,) = torch.autograd.grad(z[:, 0].sum(), weight)
    (b,) = torch.autograd.grad(want[:, 0].sum(), literal.bn1.weight)
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-3)
    assert set(robust.updated) == set(stored) == set(batch_statistics(tiny_rn.visual))
    for name, module in literal.named_modules():
        if isinstance(module, RobustNorm):
            mean, var = (robust.updated[f"{name}.running_{key}"] for key in ("mean", "var"))
            torch.testing.assert_close(mean, module.mu, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(var, module.var, atol=1e-5, rtol=1e-4)
            assert not mean.requires_grad
    after = tiny_rn.visual.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(tiny_rn.encode_image(x), tiny_rn.encode_image(x, stored))  # outside: as ever


def fill(memory, labels, uncertainty=0.5):
    for label in labels:
        memory.add(torch.zeros(1), label, uncertainty)
        memory.clock += 1


def test_the_quota_is_a_real_number():
    memory = Memory(10, 64)
    fill(memory, [k for k in range(9) for _ in range(20)])
    assert [len(items) for items in memory.classes] == [7] * 9 + [0]  # as 6 < 6.4
    fill(memory, [9] * 20)
    assert len(memory.items) == 64
    assert len(memory.classes[9]) == 7
    assert max(len(items) for items in memory.classes) == 7


def test_many_classes_hold_one_image_each():
    memory = Memory(397, 64)
    fill(memory, list(range(397)) + list(range(397)))
    assert len(memory.items) == 64
    assert max(len(items) for items in memory.classes) == 1


def test_the_last_of_the_worst_goes_and_only_for_a_better_one():
    def made(*uncertainty):
        memory = Memory(2, 4)
        memory.classes[0] = [
            Item(torch.tensor(float(i)), 0, u, 0) for i, u in enumerate(uncertainty)
        ]
        return memory

    memory = made(0.6, 0.2, 0.6, 0.1)
    memory.add(torch.tensor(9.0), 1, 0.3)
    assert [float(item.image) for item in memory.items] == [0, 1, 3, 9]
    memory = made(0.6, 0.2, 0.6, 0.1)
    memory.add(torch.tensor(9.0), 1, 0.6)  # not better: the same
    assert [float(item.image) for item in memory.items] == [0, 1, 2, 3]
    memory = made(0.6, 0.2)
    memory.add(torch.tensor(9.0), 0, 0.3)  # its class is full, though the memory is not
    assert [float(item.image) for item in memory.items] == [1, 9]


def test_what_is_trained(tiny_rn, tiny_vit):
    rn, vit = (make_adapter("rotta", model, NAMES, TEMPLATES) for model in (tiny_rn, tiny_vit))
    assert len(rn.student) == 2 * len(rn.statistics) / 2 == len(rn.teacher_statistics)
    assert not vit.statistics
    assert {key.rpartition(".")[2] for key in vit.student} == {"weight", "bias"}
    assert "ln_post.weight" in vit.student
    assert "rotta_ln" in vit.fidelity


def test_merge_takes_the_other_memory_in(tiny_vit):
    one, two = (make_adapter("rotta", tiny_vit, NAMES, TEMPLATES, capacity=6) for _ in range(2))
    one.adapt(images(tiny_vit, 3, seed=1))
    two.adapt(images(tiny_vit, 3, seed=2))
    labels = sorted(i.label for a in (one, two) for i in a.memory.items)
    one.merge(two)
    held = sorted(i.label for i in one.memory.items)
    assert one.samples == 6
    assert len(held) == sum(min(2, labels.count(k)) for k in range(3))


@pytest.mark.parametrize("value", [True, False])
def test_the_compatible_augmentation_is_passed_on(tiny_vit, monkeypatch, value):
    from bayestta.methods import rotta

    seen = []

    def watch(model, x, generator, *, compat_unnormalised):
        seen.append(compat_unnormalised)
        return x

    monkeypatch.setattr(rotta, "augment", watch)
    adapter = make_adapter("rotta", tiny_vit, NAMES, TEMPLATES, every=2, compat_unnormalised=value)
    adapter.adapt(images(tiny_vit, 4))
    assert seen == [value, value]
