"""WATT against a literal reading of its spec: two passes per step, snapshots, their mean."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch.nn import functional

from bayestta.methods.watt import TEMPLATES, WATT, agreement_loss
from bayestta.models._norms import norm_parameters
from fake_vlm import Fake, names, world


class Spoken(Fake):
    """Prompts hold a class number; each template turns the prototypes a little its own way."""

    def encode_text(self, prompts):
        rows = []
        for prompt in prompts:
            template, number = re.sub(r"\d+", "{}", prompt), int(re.search(r"\d+", prompt)[0])
            rng = torch.Generator().manual_seed(sum(map(ord, template)))
            turn = torch.randn(self.dim, generator=rng, dtype=self.table.dtype)
            rows.append(self.table[number] + 0.1 * turn)
        return functional.normalize(torch.stack(rows), dim=1)


def scene(kind, batch=6, batches=2):
    fake, stream = world(4, kind, batch=batch, batches=batches, scale=20.0)
    return Spoken(fake.visual, fake.table, 20.0), [x for x, _ in stream]


def literal(model, x, *, form="sequential", lr=1e-3, L=2, M=5, templates=TEMPLATES):
    K = len(model.table)
    texts = [
        model.encode_text([t.replace("{}", str(k)) for k in range(K)]) for t in templates
    ]  # each (K,D)
    tower = copy.deepcopy(model.visual)
    weights = {key: p for key, p in tower.named_parameters() if key in norm_parameters(tower)}
    for p in weights.values():
        p.requires_grad_()
    initial = {key: p.detach().clone() for key, p in weights.items()}
    optimiser = torch.optim.Adam(weights.values(), lr=lr, betas=(0.9, 0.999))
    fresh = copy.deepcopy(optimiser.state_dict())

    def put(values):
        with torch.no_grad():
            for key, p in weights.items():
                p.copy_(values[key])

    def encode():
        return functional.normalize(tower(x), dim=1)

    average = initial
    for m in range(M):
        put(average)
        snapshots = []
        for text in texts:
            if form == "parallel":
                put(average)
                if m == 0:
                    optimiser.load_state_dict(fresh)
            for _ in range(L):
                with torch.no_grad():
                    labels = (100 * encode() @ text.T).argmax(1)
                z, t = encode(), text[labels]
                G = model.scale * t @ z.T
                Q = (((z @ z.T + t @ t.T) / 2) / 0.01).softmax(1)
                loss = -(Q.T * torch.log_softmax(G.T, dim=1)).sum(1).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            snapshots.append({key: p.detach().clone() for key, p in weights.items()})
        average = {
            key: torch.stack([snapshot[key] for snapshot in snapshots]).mean(0) for key in weights
        }
    put(average)
    mean = functional.normalize(torch.stack(texts).mean(0), dim=1)
    return (model.scale * encode() @ mean.T).detach(), average


@pytest.mark.parametrize("kind", ["LayerNorm", "BatchNorm"])
@pytest.mark.parametrize("form", ["sequential", "parallel"])
def test_literal(kind, form):
    model, xs = scene(kind)
    adapter = WATT(model, names(model), ["not used {}"], form=form, rounds=3)
    for x in xs:
        adapter.reset()  # what the runner does before every batch
        expected, average = literal(model, x, form=form, M=3)
        torch.testing.assert_close(adapter.adapt(x), expected, rtol=1e-7, atol=1e-7)
        for key, value in average.items():
            torch.testing.assert_close(adapter.tuned[key].detach(), value, rtol=1e-7, atol=1e-8)


def test_defaults_are_the_official_ones():
    model, xs = scene("LayerNorm", batch=4)
    adapter = WATT(model, names(model), ["{}"])
    assert (adapter.reset_every, adapter.answer, adapter.settings.form) == (
        "batch",
        "after",
        "sequential",
    )
    assert len(adapter.templates) == 8
    expected, _ = literal(model, xs[0])
    torch.testing.assert_close(adapter.adapt(xs[0]), expected, rtol=1e-6, atol=1e-6)


def test_the_templates_of_the_data_set_by_keyword():
    model, xs = scene("LayerNorm")
    given = ["a {}.", "two {}s."]
    adapter = WATT(model, names(model), given, own_templates=False, rounds=1, steps_each=1)
    assert adapter.templates == given
    expected, _ = literal(model, xs[0], M=1, L=1, templates=given)
    torch.testing.assert_close(adapter.adapt(xs[0]), expected, rtol=1e-7, atol=1e-7)


def test_a_round_is_the_mean_of_its_templates():
    model, xs = scene("LayerNorm")
    single = []
    for template in TEMPLATES[:3]:
        alone = WATT(model, names(model), [template], own_templates=False, rounds=1)
        alone.adapt(xs[0])
        single.append(alone.tuned.snapshot())
    both = WATT(model, names(model), TEMPLATES[:3], own_templates=False, form="parallel", rounds=1)
    both.adapt(xs[0])
    for key, value in both.tuned.snapshot().items():
        torch.testing.assert_close(value, sum(s[key] for s in single) / 3)


def test_gradients_flow_through_the_targets():
    rng = torch.Generator().manual_seed(0)
    z = functional.normalize(torch.randn(5, 8, generator=rng, dtype=torch.float64), dim=1)
    text = functional.normalize(torch.randn(3, 8, generator=rng, dtype=torch.float64), dim=1)
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(agreement_loss(z, text, 20.0, 0.1), z)
    step = 1e-6
    for i, j in ((0, 0), (3, 5)):
        moved = [z.detach().clone() for _ in range(2)]
        moved[0][i, j] += step
        moved[1][i, j] -= step
        up, down = (agreement_loss(value, text, 20.0, 0.1) for value in moved)
        assert float(gradient[i, j]) == pytest.approx(float(up - down) / (2 * step), rel=1e-5)


def test_a_batch_of_one_is_zero_shot():
    model, xs = scene("LayerNorm", batch=1)
    adapter = WATT(model, names(model), ["{}"])
    before = adapter.predict(xs[0])
    torch.testing.assert_close(adapter.adapt(xs[0]), before)


def test_bad_settings():
    model, _ = scene("LayerNorm")
    with pytest.raises(ValueError, match="unknown value of form 'serial'"):
        WATT(model, names(model), ["{}"], form="serial")
    with pytest.raises(ValueError, match="rounds is 0"):
        WATT(model, names(model), ["{}"], rounds=0)
    bare = Fake(torch.nn.Linear(12, 24).double(), model.table)
    with pytest.raises(ValueError, match="no norm layers"):
        WATT(bare, names(model), ["{}"], own_templates=False)
