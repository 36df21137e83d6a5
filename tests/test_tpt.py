"""TPT against a literal loop over images and sentences."""

from __future__ import annotations

import pytest
import torch

from bayestta.methods import make_adapter
from test_prompts import literal as encode

NAMES, TEMPLATES = ["cat", "red_car", "dog"], ["an {}"]


def batch(model, B=3, V=12):
    random = torch.Generator().manual_seed(2)
    size = model.preprocess.size
    return torch.randn(B, V, 3, size, size, generator=random)


def entropy(p):
    return -(p * p.log()).sum(-1)


def literal(model, views, *, keep, lr, decay=0.01, steps=1):
    """One image: (V,C,H,W) -> (K,)."""
    start = model.embed(["a photo of a"])[0][0, 1:5]
    context = start.clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=lr, weight_decay=decay)
    z = torch.cat([model.encode_image(view[None]) for view in views])
    chosen = None
    for _ in range(steps):
        p = (model.scale * z @ encode(model, NAMES, context, "a photo of a").T).softmax(1)
        if chosen is None:
            chosen = sorted(range(len(views)), key=lambda v: float(entropy(p[v].detach())))[:keep]
        loss = entropy(sum(p[v] for v in chosen) / keep)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return model.scale * z[0] @ encode(model, NAMES, context, "a photo of a").T


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, {"keep": 1, "lr": 5e-3}),
        ({"selection": 0.3, "lr": 2e-2, "updates": 2}, {"keep": 3, "lr": 2e-2, "steps": 2}),
    ],
)
def test_logits_equal_the_literal_method(tiny_vit, settings, plain):
    adapter, x = make_adapter("tpt", tiny_vit, NAMES, TEMPLATES, **settings), batch(tiny_vit)
    found = adapter.adapt(x)
    want = torch.stack([literal(tiny_vit, views, **plain) for views in x])
    torch.testing.assert_close(found, want, atol=1e-3, rtol=0)
    sentences = [f"a photo of a {name}." for name in ("cat", "red car", "dog")]
    sketch = tiny_vit.logits(tiny_vit.encode_image(x[:, 0]), tiny_vit.encode_text(sentences))
    torch.testing.assert_close(adapter.sketch, sketch, atol=1e-4, rtol=0)
    assert (found - sketch).abs().max() > 1e-2
    assert adapter.templates == ["a photo of a {}."]


def test_nothing_is_carried_from_image_to_image(tiny_vit):
    adapter, x = make_adapter("tpt", tiny_vit, NAMES, TEMPLATES), batch(tiny_vit)
    first = adapter.adapt(x)
    assert torch.equal(adapter.adapt(x.flip(0)).flip(0), first)
    assert torch.equal(adapter.predict(x), first)


def test_a_batch_without_views_is_refused(tiny_vit):
    adapter, x = make_adapter("tpt", tiny_vit, NAMES, TEMPLATES), batch(tiny_vit)
    for wrong in (x[:, 0], x[:, :1]):
        with pytest.raises(ValueError, match=r"tpt works on views.*make the stream with views=64"):
            adapter.adapt(wrong)


def test_a_model_without_a_gradient_to_its_text_is_refused(tiny_vit, monkeypatch):
    from bayestta.models.base import VLM

    monkeypatch.setattr(tiny_vit, "embed", lambda prompts: VLM.embed(tiny_vit, prompts))
    for method in ("tpt", "dynaprompt", "histpt", "adaprompt", "coop"):
        with pytest.raises(ValueError, match="for prompt tuning use mini-rn"):
            make_adapter(method, tiny_vit, NAMES, TEMPLATES)
