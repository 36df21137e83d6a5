"""Grad-CAM of the architectures of the paper, with random weights, and of `lit`."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bayestta import load_model
from bayestta.explain.gradcam import find_layer, grad_cam
from bayestta.models._norms import norm_parameters
from bayestta.models._torchvision import import_torchvision
from bayestta.models.open_clip import OpenCLIP, build


def open_clip_model(name: str) -> OpenCLIP:
    import_torchvision()
    import open_clip

    with torch.random.fork_rng():
        torch.manual_seed(0)
        clip = build(open_clip.get_model_config(name))
    with torch.no_grad():
        for key, value in clip.visual.named_parameters():
            if key.endswith("bn3.weight"):
                value.fill_(1.0)  # open_clip starts them at zero, which stops all gradients
    return OpenCLIP(name, clip, open_clip.get_tokenizer(name))


@pytest.mark.parametrize(
    ("name", "where", "grid"),
    [
        ("RN50", "layer4", 7),
        ("ViT-B-16", "transformer.resblocks.11", 14),
        ("lit", "backbone.bn2", 4),
    ],
)
def test_layers_and_maps(name: str, where: str, grid: int) -> None:
    model = load_model(name) if name == "lit" else open_clip_model(name)
    generator = torch.Generator().manual_seed(1)
    size = model.preprocess.size
    x = torch.randn(2, 3, size, size, generator=generator)
    text = functional.normalize(torch.randn(3, model.dim, generator=generator), dim=1)
    layer = find_layer(model, x)
    assert layer.name == where
    maps = grad_cam(model, x, text, [0, 2], layer=layer)
    assert maps.shape == (2, grid, grid)
    assert maps.amax() == 1  # of random weights one map may well be empty
    tuned = {key: 1.1 * value for key, value in norm_parameters(model.visual).items()}
    moved = grad_cam(model, x, text, [0, 2], params=tuned, layer=layer)
    assert not torch.allclose(maps, moved, atol=1e-3)
    for i, k in enumerate([0, 2]):
        alone = grad_cam(model, x[i : i + 1], text, [k], layer=layer)
        assert torch.allclose(alone[0], maps[i], atol=1e-3)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.visual.modules())
