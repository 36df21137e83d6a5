"""Shared by all tests: no network, and two tiny random CLIPs of open_clip's own kind."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client

import pytest
import torch

from bayestta.models import mini
from bayestta.models._torchvision import import_torchvision
from bayestta.models.open_clip import OpenCLIP

import_torchvision()


def tiny_clip(name: str, seed: int = 0):
    """The architecture of a mini model with random weights, and a gradient in every norm."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        clip = mini.build(name)
    wake(clip.visual)
    return clip


def wake(visual: torch.nn.Module) -> None:
    """open_clip starts the last norm of a residual block at zero, which stops all gradients."""
    with torch.no_grad():
        for key, value in visual.named_parameters():
            if key.endswith("bn3.weight"):
                value.fill_(1.0)


def tiny_vlm(name: str, seed: int = 0) -> OpenCLIP:
    """A model of one's own, to be changed at will; the fixtures below are shared."""
    from open_clip import SimpleTokenizer

    return OpenCLIP(f"tiny:{name}", tiny_clip(name, seed), SimpleTokenizer(context_length=32))


@pytest.fixture(scope="session")
def tiny_rn() -> OpenCLIP:
    """A tiny CLIP with BatchNorms: 64 pixels, 128 features."""
    return tiny_vlm("mini-rn")


@pytest.fixture(scope="session")
def tiny_vit() -> OpenCLIP:
    """A tiny CLIP with LayerNorms: 32 pixels, 128 features."""
    return tiny_vlm("mini-vit")


@pytest.fixture(scope="session", params=["mini-rn", "mini-vit"])
def tiny(request: pytest.FixtureRequest) -> OpenCLIP:
    """Either of the two, one after the other."""
    return request.getfixturevalue({"mini-rn": "tiny_rn", "mini-vit": "tiny_vit"}[request.param])
