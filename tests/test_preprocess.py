"""Preprocessing against open_clip's own transform and against Pillow."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from PIL import Image

from bayestta.models import _preprocess as preprocess
from bayestta.models._preprocess import CLIP_STD, Preprocess
from bayestta.models._torchvision import import_torchvision

import_torchvision()

LEVEL = 1 / 255 / min(CLIP_STD)  # one grey level in the units of the result


def noise(rng, *shape):
    return rng.integers(0, 256, (*shape, 3), dtype=np.uint8)


@pytest.mark.parametrize("mode", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_equals_open_clips_own_transform(mode, interpolation):
    from open_clip import image_transform

    rng = np.random.default_rng(1)
    options = {"resize_mode": mode, "interpolation": interpolation}
    theirs = image_transform(48, is_train=False, **options)
    ours = Preprocess(48, squash=mode == "squash", interpolation=interpolation)
    for _ in range(20):
        height, width = rng.integers(20, 140, 2)
        image = Image.fromarray(noise(rng, height, width))
        torch.testing.assert_close(ours(image), theirs(image), atol=1e-6, rtol=0)
        grey = image.convert("L")
        torch.testing.assert_close(ours(grey), theirs(grey), atol=1e-6, rtol=0)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (28, 28), (48, 40), (30, 100), (150, 90)])
@pytest.mark.parametrize("size", [32, 64, 224])
def test_a_batch_stays_within_two_grey_levels_of_pillow(size, height, width, interpolation):
    pixels = noise(np.random.default_rng(2), 6, height, width)  # noise is the worst case
    transform = Preprocess(size, interpolation=interpolation)
    single = torch.stack([transform(Image.fromarray(one)) for one in pixels])
    bytes_ = torch.from_numpy(pixels)
    assert (transform.batch(bytes_) - single).abs().max() <= 2 * LEVEL + 1e-5
    assert (transform.batch(bytes_) - single).abs().mean() < 0.1 * LEVEL
    other_devices = transform.batch(bytes_.float())
    assert (other_devices - single).abs().max() <= 2 * LEVEL + 1e-5


def test_a_batch_of_the_right_size_is_only_normalised():
    pixels = torch.from_numpy(noise(np.random.default_rng(3), 4, 32, 32))
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    x = Preprocess(32, tuple(mean.tolist()), tuple(std.tolist())).batch(pixels)
    torch.testing.assert_close(x, ((pixels / 255 - mean) / std).permute(0, 3, 1, 2))
    assert x.is_contiguous()


@pytest.mark.parametrize(("width", "height"), [(20, 190), (171, 19), (1201, 130)])
def test_a_long_image_is_cropped_before_it_is_resized(monkeypatch, width, height):
    image = Image.fromarray(noise(np.random.default_rng(4), height, width))
    transform = Preprocess(56)
    cropped = transform(image)
    monkeypatch.setattr(preprocess, "EXTREME", 10**9)
    assert (cropped - transform(image)).abs().max() <= LEVEL + 1e-5


def test_a_line_of_ten_thousand_pixels_takes_no_time():
    line = Image.new("RGB", (10_000, 1), (10, 200, 30))
    began = time.perf_counter()
    x = Preprocess(224)(line)  # resized whole it would have 500 million pixels
    assert time.perf_counter() - began < 1
    assert x.shape == (3, 224, 224)
    assert torch.equal(x, Preprocess(224)(Image.new("RGB", (9, 9), (10, 200, 30))))
    assert torch.equal(Preprocess(224).batch(torch.from_numpy(np.array(line))[None])[0], x)


def test_deep_and_transparent_images_are_read_right():
    deep = Image.fromarray(np.full((8, 8), 257 * 100, np.uint16))
    plain = Preprocess(8, (0.0,) * 3, (1.0,) * 3)
    torch.testing.assert_close(plain(deep), torch.full((3, 8, 8), 100 / 255))
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    torch.testing.assert_close(plain(clear), torch.ones(3, 8, 8))


def test_an_unknown_interpolation_names_the_valid_ones():
    with pytest.raises(ValueError, match="'cubic': did you mean 'bicubic'"):
        Preprocess(8, interpolation="cubic")
