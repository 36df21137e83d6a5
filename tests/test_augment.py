"""The strong augmentation: on pixels, of one draw a batch, from the generator handed in."""

from __future__ import annotations

import pytest
import torch

from bayestta.methods import _augment as module
from bayestta.methods._augment import augment, distort


def pixels(seed=0, size=16):
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(3, 3, 4, 4, generator=random)
    return torch.nn.functional.interpolate(coarse, size, mode="bilinear")


def normalised(model, x):
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (model.mean, model.std))
    return (x - mean) / std, mean, std


def test_random_numbers_come_from_the_generator_alone():
    x, shared = pixels(), torch.get_rng_state()
    kept = x.clone()
    one, two = (distort(x, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, distort(x, torch.Generator().manual_seed(4)))
    assert torch.equal(torch.get_rng_state(), shared)
    assert torch.equal(x, kept)


def test_one_draw_for_the_whole_batch():
    x = pixels()[:1].repeat(3, 1, 1, 1)
    y = distort(x, torch.Generator().manual_seed(1))
    assert (y - y[:1]).abs().max() < 0.06  # noise of 0.005 is all that differs
    assert (y - x).abs().max() > 0.06


@pytest.mark.parametrize("seed", range(5))
def test_a_neutral_draw_gives_the_image_back(seed, monkeypatch):
    """Middle values: no colour change, angle, shift or scale; sigma 0.25 blurs nothing; no flip."""
    x = pixels(seed)
    monkeypatch.setattr(module.torch, "rand", lambda *_, **__: torch.tensor(0.5))
    y = distort(x, torch.Generator().manual_seed(seed))
    assert (y - x).abs().max() < 0.03
    assert 0.002 < (y - x).std() < 0.008


def test_extremes_of_geometry(monkeypatch):
    x = torch.zeros(1, 3, 32, 32)
    x[..., 15:17, 15:17] = 1
    monkeypatch.setattr(module.torch, "rand", lambda *_, **__: torch.tensor(0.999))
    y = distort(x, torch.Generator().manual_seed(0))[0].mean(0)
    mass = torch.where(y > 0.05, y, 0.0)  # without the noise
    mass = mass / mass.sum()
    rows, columns = (mass.sum(1) @ torch.arange(32.0)), (mass.sum(0) @ torch.arange(32.0))
    assert abs(float(rows) - 19.5) < 1  # down by 64 / 16 pixels
    assert abs(float(columns) - 19.5) < 1
    assert y.max() < 1.01


def test_normalised_images_go_back_to_pixels_and_return(tiny_vit):
    x = pixels(size=32)
    given, mean, std = normalised(tiny_vit, x)
    found = augment(tiny_vit, given, torch.Generator().manual_seed(2))
    want = distort(x, torch.Generator().manual_seed(2))
    torch.testing.assert_close(found * std + mean, want, atol=1e-4, rtol=0)


def test_the_compatible_form_clips_normalised_values(tiny_vit):
    given, _, _ = normalised(tiny_vit, pixels(size=32))
    random = torch.Generator().manual_seed(2)
    found = augment(tiny_vit, given, random, compat_unnormalised=True)
    assert torch.equal(found, distort(given, torch.Generator().manual_seed(2)))
    assert found.min() >= 0
    assert found.max() <= 1
