"""Pixels on their way to the statistics of the source: moments, spectrum, and how far they go."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import bayestta as bt
from bayestta.methods.bayestta.pixels import COARSE, LEVEL, OWN, SHAPE, USUAL, Pixels
from bayestta.models._spectrum import BANDS, equalised, excess, expected_power, photographs
from bayestta.models._stream_statistics import Moments, channel_moments, restored_pixels


@pytest.fixture(scope="module")
def model():
    return bt.load_model("mini-vit")


@pytest.fixture(scope="module")
def photos(model):
    """128 photographs at the size of the tower."""
    data = bt.load_data("cifar10-blur", split="held-out")
    kept = {"batch_size": 128, "limit": 128, "domains": ["0.00"], "seed": 0}
    return next(iter(bt.stream(data, model.preprocess, **kept))).x


def looked(model, x):
    pixels = Pixels(model)
    pixels.look(x)
    return pixels


# --- mean and deviation ---


def test_restored_pixels_have_the_statistics_of_the_source():
    rng = torch.Generator().manual_seed(0)
    x = 0.2 * torch.randn(60, 3, 9, 9, generator=rng) - 1.5
    source = torch.tensor([0.1, 0.0, -0.1]), torch.tensor([1.0, 0.9, 1.1])
    moments = Moments(source[0], source[1] ** 2)
    moments.add(*channel_moments(x), 60)
    torch.testing.assert_close(restored_pixels(x, moments, source, 0.0), x)
    y = restored_pixels(x, moments, source, 0.6)
    mean, deviation = x.mean((0, 2, 3)), x.std((0, 2, 3), correction=0)
    torch.testing.assert_close(y.mean((0, 2, 3)), mean + 0.6 * (source[0] - mean))
    expected = deviation + 0.6 * (source[1] - deviation)
    torch.testing.assert_close(y.std((0, 2, 3), correction=0), expected)


def test_pixels_go_until_what_is_left_may_be_a_class_s_own(model):
    pixels, shares = Pixels(model), []
    mean, spread = pixels.source
    for step in (0.0, 0.3, 0.4, 1.0, 1.4):  # KL of a shifted mean: half of the step's square
        pixels.reset()
        pixels.moments.add(mean + step * spread, spread**2, 1000)
        shares.append(pixels.share)
        trust = pixels.moments.trust
        left = (1 - pixels.share / trust) * step
        assert left**2 / 2 == pytest.approx(min(OWN, step**2 / 2), rel=1e-3)
    assert shares[:2] == [0, 0]
    assert sorted(shares) == shares
    assert shares[2] > 0


# --- the spectrum ---


def test_a_model_brings_the_power_of_the_first_bands():
    torch.testing.assert_close(expected_power(None), photographs())
    own = expected_power((1.0, 2.0))
    assert own[:2].tolist() == [1.0, 2.0]
    torch.testing.assert_close(own[2:], photographs()[2:])
    with pytest.raises(ValueError, match="20 bands, and 18 are measured: leave out the last 2"):
        expected_power((0.0,) * (BANDS + 2))


def literal_power(image):
    """The mean power per band of an image (C,H,W), coefficient by coefficient."""
    height, width = image.shape[1:]
    found = torch.fft.fft2(image.double()) / (height * width)
    total, count = [0.0] * BANDS, [0] * BANDS
    for i in range(height):
        for j in range(width):
            along = min(i, height - i) / height, min(j, width - j) / width
            f = min(math.hypot(*along), 0.5) * math.sqrt(height * width)
            if f:
                band = min(max(round(2 * math.log2(f)), 0), BANDS - 1)
                total[band] += float(found[:, i, j].abs().square().mean())
                count[band] += 1
    return [t / n if n else None for t, n in zip(total, count, strict=True)]


@pytest.mark.parametrize("shape", [(3, 16, 16), (3, 15, 15), (1, 12, 20), (3, 9, 16)])
def test_the_excess_is_that_of_a_literal_sum_over_coefficients(shape):
    image = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    ours = excess(image[None], photographs())[0]
    for band, power in enumerate(literal_power(image)):
        expected = 0.0 if power is None else math.log(power) - float(photographs()[band])
        assert float(ours[band]) == pytest.approx(min(6.0, max(-6.0, expected)), abs=1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 16, 16), (2, 3, 9, 16), (1, 1, 15, 15)])
def test_an_equaliser_raises_the_power_of_its_bands_and_leaves_the_mean_alone(shape):
    rng = torch.Generator().manual_seed(0)
    x, raised = torch.rand(shape, generator=rng), torch.randn(BANDS, generator=rng)
    y = equalised(x, (raised / 2).exp())
    torch.testing.assert_close(equalised(x, torch.ones(BANDS)), x)
    torch.testing.assert_close(y.mean((2, 3)), x.mean((2, 3)))
    before, after = (excess(images, photographs()) for images in (x, y))
    free = (before != 0) & (before.abs() < 4)
    torch.testing.assert_close((after - before)[free], raised.expand_as(before)[free])


def test_photographs_have_the_spectrum_that_the_model_knows(model, photos):
    pixels = looked(model, photos)
    assert float(pixels.bands.mean.abs().max()) < 0.25
    assert (pixels.as_they_are, pixels.restores) == (True, "")
    assert pixels.restored(photos) is photos


def test_the_law_of_photographs_is_near_what_was_measured(model):
    """CIFAR-10 at 32 pixels strays from it in its finest band alone."""
    measured = torch.tensor(model.spectrum)
    assert float((measured - photographs()[: len(measured)])[:-1].abs().max()) < 0.4


@pytest.mark.parametrize("kind", ["blur", "noise", "flat"])
def test_blur_noise_and_flat_light_are_undone(model, photos, kind):
    rng = torch.Generator().manual_seed(1)
    if kind == "blur":
        kernel = torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([1.0, 2.0, 1.0])) / 16
        padded = functional.pad(photos, (1, 1, 1, 1), mode="reflect")
        x = functional.conv2d(padded, kernel.expand(3, 1, 3, 3), groups=3)
    elif kind == "noise":
        x = photos + 0.5 * torch.randn(photos.shape, generator=rng)
    else:
        middle = photos.mean((2, 3), keepdim=True)
        x = middle + 0.3 * (photos - middle)
    pixels = looked(model, x)
    y = pixels.restored(x)
    assert looked(model, y).bands.mean.abs().mean() < 0.5 * pixels.bands.mean.abs().mean()
    inner = (..., slice(4, -4), slice(4, -4))  # a spectrum knows no borders
    off = [float((image - photos)[inner].square().mean()) for image in (y, x)]
    assert off[0] < 0.7 * off[1]
    wanted = {"blur": "sharpens", "noise": "smooths"}
    if kind in wanted:
        assert (pixels.restores, pixels.share <= USUAL) == (wanted[kind], True)


def test_what_a_class_may_have_of_its_own_is_left_alone(model):
    pixels = Pixels(model)
    mean, spread = pixels.source
    pixels.moments.add(mean, spread**2, 10_000)
    beyond, var = torch.zeros(BANDS), torch.full((BANDS,), 1e-4)

    def raised(level, shape):
        pixels.bands.reset()
        beyond[:COARSE], beyond[COARSE:] = level, level + shape
        pixels.bands.add(beyond.clone(), var, 10_000)
        return pixels.raised / pixels.bands.trust

    high, fine = LEVEL[1] + 0.1, SHAPE[1] + 0.1
    assert not raised(0.9 * LEVEL[0], 0.9 * SHAPE[0]).any()
    torch.testing.assert_close(raised(high, 0.0), torch.full((BANDS,), -high))
    found = raised(0.0, fine)
    assert not found[:COARSE].any()
    torch.testing.assert_close(found[COARSE:], torch.full((BANDS - COARSE,), -fine))
    half = 0.5 * sum(SHAPE)  # less a standard error, 0.01 over the root of 128 images
    assert float(raised(0.0, half)[-1]) == pytest.approx(-0.5 * half, abs=0.002)
    assert not raised(0.0, -5.5).any()  # nothing there that could be raised


def test_digits_do_not_pass_for_photographs(model):
    data = bt.load_data("rmnist", split="held-out")
    digits = next(iter(bt.stream(data, model.preprocess, batch_size=128, limit=128, seed=0))).x
    pixels = looked(model, digits)
    assert (pixels.restores, pixels.share > USUAL) == ("", True)


def test_black_images_and_single_ones_are_survived(model):
    pixels = looked(model, torch.full((4, 3, 32, 32), -1.8))
    assert bool(pixels.restored(torch.rand(2, 3, 32, 32)).isfinite().all())
    pixels = looked(model, torch.rand(1, 3, 32, 32))
    assert bool(pixels.restored(torch.rand(2, 3, 32, 32)).isfinite().all())


def test_statistics_are_saved_merged_and_loosened(model, photos):
    whole = looked(model, photos[:64])
    parts = [looked(model, half) for half in (photos[:32], photos[32:64])]
    parts[0].merge(parts[1], 0.5)
    torch.testing.assert_close(parts[0].bands.mean, whole.bands.mean, rtol=0.2, atol=0.2)
    other = Pixels(model)
    other.load(whole.state())
    torch.testing.assert_close(other.raised, whole.raised)
    whole.loosen()
    assert whole.bands.n < 64 > whole.moments.n
