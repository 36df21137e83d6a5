"""Grad-CAM against the same computation written out, and t-SNE fed with the features themselves."""

from __future__ import annotations

import base64
import importlib.util
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from bayestta import load_model
from bayestta.data._base import Batch
from bayestta.evaluation.result import Result
from bayestta.evaluation.steps import evaluate
from bayestta.explain.gradcam import find_layer, grad_cam, overlay
from bayestta.explain.observer import Explain, tuned_tensors
from bayestta.methods import make_adapter
from bayestta.models.embeddings import Features
from conftest import tiny_vlm
from test_transformers import write

NAMES = ["cat", "dog", "ship", "truck"]
TEMPLATES = ["a photo of a {}."]
SIZE = {"mini-rn": 64, "mini-vit": 32}


def images(n: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def stream(size: int, steps: int = 3, n: int = 12) -> list[Batch]:
    y = torch.arange(n) % len(NAMES)
    return [
        Batch(images(n, size, i) + 0.5 * y.view(-1, 1, 1, 1), y, f"d{i}", torch.arange(n))
        for i in range(steps)
    ]


def text_for(model, k: int = 5) -> torch.Tensor:
    rows = torch.randn(k, model.dim, generator=torch.Generator().manual_seed(9))
    return functional.normalize(rows, dim=1)


# --- the same written out: one image after the other, one channel after the other ---


def tail(model, x):
    """The activations that Grad-CAM reads for one image, and the rest of the tower."""
    visual = model.visual
    if hasattr(visual, "layer4"):
        h = visual.stem(x)
        for stage in (visual.layer1, visual.layer2, visual.layer3, visual.layer4):
            h = stage(h)
        return h, visual.attnpool
    h = visual._embeds(x)
    for block in visual.transformer.resblocks[:-1]:
        h = block(h)

    def rest(tokens):
        pooled, _ = visual._pool(visual.transformer.resblocks[-1](tokens))
        return pooled @ visual.proj

    return h, rest


def literal(model, image, text, k) -> np.ndarray:
    with torch.no_grad():
        activation, rest = tail(model, image[None])
    activation = activation.clone().requires_grad_()
    z = rest(activation)
    (model.scale * (z / z.norm() * text[k]).sum()).backward()
    a, g = activation.detach()[0].numpy(), activation.grad[0].numpy()
    if a.ndim == 2:  # tokens: the class token first, then the patches row by row
        side = int((len(a) - 1) ** 0.5)
        a, g = (v[1:].T.reshape(-1, side, side) for v in (a, g))
    total = np.zeros(a.shape[1:])
    for c in range(len(a)):
        weight = sum(g[c].ravel().tolist()) / g[c].size
        total += weight * a[c]
    total = np.maximum(total, 0)
    return total / total.max() if total.max() > 0 else total


def test_maps_equal_the_literal_computation(tiny) -> None:
    x, text = images(4, tiny.preprocess.size), text_for(tiny)
    classes = [3, 0, 4, 1]
    found = grad_cam(tiny, x, text, classes)
    assert found.flatten(1).amax(1).max() == 1
    for i, k in enumerate(classes):
        assert found[i].numpy() == pytest.approx(literal(tiny, x[i], text, k), abs=2e-4)
    some = grad_cam(tiny, x, text, [4, 1], pick=[2, 3])
    assert torch.allclose(some, found[2:], atol=1e-4)


def test_the_last_block_leaves_no_gradient_in_patch_tokens(tiny_vit) -> None:
    activation, _ = tail(tiny_vit, images(1, 32))
    tokens = tiny_vit.visual.transformer.resblocks[-1](activation).detach().requires_grad_()
    pooled, _ = tiny_vit.visual._pool(tokens)
    (pooled @ tiny_vit.visual.proj).sum().backward()
    assert tokens.grad[0, 0].abs().max() > 0
    assert tokens.grad[0, 1:].abs().max() == 0  # why the input of the block is read instead


def test_tuned_tensors_take_the_place_of_the_towers_own(tiny) -> None:
    x, text = images(2, tiny.preprocess.size), text_for(tiny)
    params = {
        key: value + 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
        for key, value in tiny.visual.named_parameters()
        if value.ndim == 1
    }
    other = tiny_vlm(tiny.name.removeprefix("tiny:"))
    with torch.no_grad():
        for key, value in other.visual.named_parameters():
            if key in params:
                value.copy_(params[key])
    changed = grad_cam(tiny, x, text, [0, 1], params=params)
    assert torch.allclose(changed, grad_cam(other, x, text, [0, 1]), atol=1e-5)
    assert not torch.allclose(changed, grad_cam(tiny, x, text, [0, 1]), atol=1e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "where", "grid"),
    [("mini-rn", "layer4", 2), ("mini-vit", "transformer.resblocks.5", 8)],
)
def test_layers_are_found_and_the_model_stays_as_it_was(name, where, grid, precision) -> None:
    model = load_model(name, precision=precision)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.visual.modules()]
    before = {key: value.clone() for key, value in model.visual.state_dict().items()}
    x = images(3, SIZE[name])
    assert find_layer(model, x).name == where
    maps = grad_cam(model, x, text_for(model), [0, 1, 2])
    assert maps.shape == (3, grid, grid)
    assert maps.dtype == torch.float32
    assert torch.isfinite(maps).all()
    with pytest.raises(IndexError):
        grad_cam(model, x, text_for(model), [0, 1, 99])  # an error takes its hooks along as well
    after = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.visual.modules()]
    assert after == hooks
    assert not any(p.requires_grad or p.grad is not None for p in model.visual.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.visual.state_dict().items())


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_towers_of_transformers(kind, tmp_path) -> None:
    write(kind, tmp_path)
    model = load_model(f"hf:{tmp_path}")
    x = images(2, 32)
    layer = find_layer(model, x)
    assert layer.tokens
    assert layer.module is model.visual.vision_model.encoder.layers[-1]
    maps = grad_cam(model, x, text_for(model), [0, 1], layer=layer)
    assert maps.shape == (2, 4, 4)
    assert maps.amax() == 1


# --- watching a run ---


def run(method: str, model, size: int, *, steps=(0, -1), images=2, **settings):
    adapter = make_adapter(method, model, NAMES, TEMPLATES, seed=1, **settings)
    watch = Explain(adapter, steps=steps, images=images)
    batches = stream(size)
    result = evaluate(adapter, watch.watch(batches), progress=watch.see)
    return adapter, watch, batches, result


def test_features_are_those_of_the_model_and_of_the_tuned_tensors(tiny) -> None:
    size = tiny.preprocess.size
    _, watch, batches, result = run("tent-continual", tiny, size, steps=(1, -1), norms="source")
    watch.pictures()
    again = make_adapter("tent-continual", tiny, NAMES, TEMPLATES, seed=1, norms="source")
    hits = 0
    for i, batch in enumerate(batches):
        hits += int((again.adapt(batch.x).argmax(1) == batch.y).sum())
        if i == 0:
            continue
        seen = watch.seen[i - 1]
        assert (seen.step, seen.domain, seen.y.tolist()) == (i, f"d{i}", batch.y.tolist())
        with torch.no_grad():
            assert torch.equal(seen.before, tiny.encode_image(batch.x))
            assert torch.equal(seen.after, tiny.encode_image(batch.x, again.tuned))
        assert not torch.equal(seen.before, seen.after)
    assert result.accuracy == pytest.approx(100 * hits / result.n)  # nobody was disturbed


@pytest.mark.parametrize(
    ("method", "settings"),
    [("tent-continual", {}), ("rotta", {"every": 8}), ("cotta", {"threshold": 0.0})],
)
def test_features_after_adaptation_are_those_that_answer(tiny_rn, method, settings) -> None:
    adapter, watch, batches, _ = run(method, tiny_rn, 64, images=0, steps=(-1,), **settings)
    watch.pictures()
    answer = tiny_rn.logits(watch.seen[0].after, adapter.text)
    assert torch.allclose(answer, adapter.predict(batches[-1].x), atol=1e-3)
    assert tuned_tensors(adapter).keys() <= tiny_rn.visual.state_dict().keys()


def test_a_method_that_tunes_nothing_says_so(tiny_vit) -> None:
    _, watch, _, _ = run("tda", tiny_vit, 32)
    made = watch.pictures()
    assert [one["after"] for one in made["tsne"]] == [None, None]
    assert "tda leaves the image tower as it is" in made["notes"][0]


def test_tsne_is_fed_with_the_features(tiny_rn, monkeypatch) -> None:
    import sklearn.manifold

    fed: list[np.ndarray] = []

    class Recorder(sklearn.manifold.TSNE):
        def fit_transform(self, X, y=None):
            fed.append(X.copy())
            return super().fit_transform(X, y)

    monkeypatch.setattr(sklearn.manifold, "TSNE", Recorder)
    adapter, watch, batches, _ = run(
        "tent-continual", tiny_rn, 64, images=0, steps=(-1,), norms="source"
    )
    made = watch.pictures()["tsne"]
    with torch.no_grad():
        direct = (
            tiny_rn.encode_image(batches[-1].x),
            tiny_rn.encode_image(batches[-1].x, adapter.tuned),
        )
    assert [z.shape for z in fed] == [(12, 128), (12, 128)]
    for given, z in zip(fed, direct, strict=True):
        assert np.array_equal(given, z.numpy())
    assert made[0]["labels"] == batches[-1].y.tolist()
    for key in ("before", "after"):
        plane = np.array(made[0][key])
        assert plane.shape == (12, 2)
        assert (plane.min(), plane.max()) == (0, 1)


def test_pictures_are_small_and_survive_a_file(tiny_vit, tmp_path) -> None:
    _, watch, batches, result = run("bayestta", tiny_vit, 32, images=[3, 0, 99])
    result.pictures = watch.pictures()
    result.save(tmp_path / "r.json")
    back = Result.load(tmp_path / "r.json").pictures
    assert json.dumps(back) == json.dumps(result.pictures)
    assert [(cam["step"], cam["image"]) for cam in back["cam"]] == [(0, 3), (0, 0), (2, 3), (2, 0)]
    first = back["cam"][0]
    assert (first["truth"], first["domain"]) == (NAMES[3], "d0")
    for one in (first, first["zero_shot"], first["adapted"]):
        data = base64.b64decode(one["png"], validate=True)
        assert len(data) < 15_000
        assert Image.open(io.BytesIO(data)).size == (112, 112)
    with torch.no_grad():
        z = tiny_vit.encode_image(batches[0].x)
        text = make_adapter("zero-shot", tiny_vit, NAMES, TEMPLATES).text
    assert first["zero_shot"]["answer"] == NAMES[int(tiny_vit.logits(z, text)[3].argmax())]


def test_images_that_the_method_judges_otherwise_come_first(tiny_vit) -> None:
    watch = Explain(make_adapter("zero-shot", tiny_vit, NAMES, TEMPLATES), images=3)
    assert watch._pick([0, 1, 2, 3, 0], [0, 1, 0, 3, 1]) == [2, 4, 0]


def test_cached_features_have_no_maps(tiny_vit) -> None:
    adapter = make_adapter("zero-shot", Features(tiny_vit), NAMES, TEMPLATES)
    watch = Explain(adapter)
    z, y = torch.randn(12, 128), torch.arange(12) % 4
    evaluate(adapter, watch.watch([Batch(z, y, "d", torch.arange(12))]), progress=watch.see)
    made = watch.pictures()
    assert made["cam"] == []
    assert len(made["tsne"]) == 1


def test_overlay_is_red_at_the_top_and_leaves_the_rest_visible() -> None:
    grey = torch.full((3, 8, 8), 0.5)
    shown = overlay(grey, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    red, green, blue = shown[:, 0, 0]
    assert red > 0.6 > green
    assert red > blue
    assert shown[2, 7, 7] > shown[0, 7, 7]
    assert shown[:, 7, 7].min() > 0.3


def test_mistakes_are_told(tiny_vit, monkeypatch) -> None:
    adapter = make_adapter("zero-shot", tiny_vit, NAMES, TEMPLATES)
    with pytest.raises(ValueError, match="step -2"):
        Explain(adapter, steps=[0, -2])
    with pytest.raises(ValueError, match="no step was seen"):
        Explain(adapter).pictures()
    _, watch, _, _ = run("zero-shot", tiny_vit, 32, steps=(0, 7), images=0)
    assert "step 7 was not reached: the stream had 3 steps" in watch.pictures()["notes"]
    tower = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 128))
    tiny = Features(tiny_vit)
    tiny.visual = tower
    with pytest.raises(ValueError, match="nothing for Grad-CAM to read"):
        find_layer(tiny, torch.zeros(1, 3, 4, 4))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"bayestta\[report\]"):
        Explain(adapter)
