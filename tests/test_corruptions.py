"""The corruption stream: each change against a literal form of its definition."""

from __future__ import annotations

import colorsys
import pickle
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from bayestta.data import corruptions as c
from bayestta.data import load_data, stream
from bayestta.data.corruptions import LEVELS, corrupt
from stand_in import save_stand_in

NAMES = c.CIFAR10Corruptions.domain_names
RANDOM = {"gaussian-noise", "shot-noise", "impulse-noise", "motion-blur", "fog"}


@pytest.fixture(scope="module")
def images():
    """Smooth colours with edges, a grey image and a black one (n,32,32,3)."""
    rng = np.random.default_rng(0)
    noise = ndimage.gaussian_filter(rng.random((6, 32, 32, 3)), (0, 3, 3, 0))
    smooth = (noise - noise.min()) / np.ptp(noise)
    smooth[:, 8:20, 10:22] = rng.random((6, 1, 1, 3))
    found = (255 * smooth).astype(np.uint8)
    found[4], found[5] = 128, 0
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory, images):
    folder = tmp_path_factory.mktemp("cache")
    many = np.random.default_rng(1).integers(0, 256, (5010, 32, 32, 3), np.uint8)
    for part, x in (("train", many), ("test", images)):
        labels = np.arange(len(x)) % 10
        save_stand_in(folder / "cifar10", **{f"{part}_x": x, f"{part}_y": labels})
    return folder


def floats(images):
    return images / 255.0


def draws(n, seed=0):
    return [np.random.default_rng((seed, i)) for i in range(n)]


def test_every_domain_is_a_corruption_and_none_is_left_out():
    assert set(NAMES) == set(LEVELS) | set(c.BYTES)
    assert len(NAMES) == 12
    assert all(len(levels) == 5 for _, levels in (*LEVELS.values(), *c.BYTES.values()))


@pytest.mark.parametrize("name", NAMES)
def test_an_image_looks_the_same_in_any_batch_and_in_no_other_seed(images, name):
    together = corrupt(images, name, 3)
    assert together.shape == images.shape
    assert together.dtype == np.uint8
    alone = [corrupt(images[i : i + 1], name, 3)[0] for i in (3, 0)]
    assert np.array_equal(alone[0], together[3])
    assert np.array_equal(alone[1], together[0])
    other = corrupt(images, name, 3, seed=1)
    assert np.array_equal(other, together) != (name in RANDOM)
    if name in RANDOM:  # two images do not share their noise
        twins = np.stack([images[0], 255 - images[0]])
        changed = corrupt(twins, name, 5).astype(int)
        assert np.abs(changed[0] + changed[1] - 255).max() > 2


# Saturation falls, then rises; and a grid of 24 pixels fits 32 better than one of 27.
@pytest.mark.parametrize("name", sorted({*NAMES} - {"saturate", "pixelate"}))
def test_a_higher_severity_changes_more(images, name):
    far = [
        np.abs(corrupt(images[:4], name, s).astype(float) - images[:4]).mean() for s in range(1, 6)
    ]
    assert far == sorted(far)
    assert far[0] > 0.05
    assert far[4] > 1.3 * far[0]


def test_noise_has_the_moments_of_its_definition():
    grey = np.full((40, 32, 32, 3), 0.4)
    n = grey.size
    normal = c.gaussian_noise(grey, draws(40), 0.08) - grey
    assert abs(normal.mean()) < 4 * 0.08 / n**0.5
    assert normal.std() == pytest.approx(0.08, rel=0.01)
    shot = c.shot_noise(grey, draws(40), 50)
    assert shot.mean() == pytest.approx(0.4, rel=0.01)
    assert shot.var() == pytest.approx(0.4 / 50, rel=0.02)  # a Poisson variable's variance
    assert np.allclose(50 * shot, np.round(50 * shot))
    impulse = c.impulse_noise(grey, draws(40), 0.07)
    for value in (0.0, 1.0):
        assert (impulse == value).mean() == pytest.approx(0.035, rel=0.05)
    assert ((impulse == 0.4) | (impulse == 0) | (impulse == 1)).all()


@pytest.mark.parametrize("severity", range(1, 6))
def test_light_and_colour_are_those_of_colorsys(images, severity):
    rng = np.random.default_rng(2)
    x = rng.random((2, 6, 6, 3))
    x[0, 0, 0], x[0, 0, 1], x[0, 0, 2] = 0, 1, 0.5
    x[0, 1] = rng.integers(0, 2, (6, 3))
    (more,) = LEVELS["brightness"][1][severity - 1]
    factor, plus = LEVELS["saturate"][1][severity - 1]
    lit, coloured = np.empty_like(x), np.empty_like(x)
    for place in np.ndindex(x.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*x[place])
        lit[place] = colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))
        coloured[place] = colorsys.hsv_to_rgb(hue, min(factor * saturation + plus, 1), value)
    np.testing.assert_allclose(c.brightness(x, [], more), lit, atol=1e-12)
    np.testing.assert_allclose(c.saturate(x, [], factor, plus), coloured, atol=1e-12)


def test_contrast_keeps_the_mean_of_a_channel(images):
    x = floats(images)
    found = c.contrast(x, [], 0.3)
    for i in range(len(x)):
        for channel in range(3):
            plane = x[i, :, :, channel]
            literal = plane.mean() + 0.3 * (plane - plane.mean())
            np.testing.assert_allclose(found[i, :, :, channel], literal)


def impulse(size=33):
    x = np.zeros((1, size, size, 3))
    x[0, size // 2, size // 2] = 1
    return x


@pytest.mark.parametrize("radius", [0.75, 1.0, 2.0, 3.5])
def test_defocus_spreads_a_point_over_a_disk(radius):
    found = c.defocus_blur(impulse(), [], radius)[0, :, :, 0]
    assert found.sum() == pytest.approx(1)
    assert np.allclose(found, found.T)
    assert np.allclose(found, found[::-1])
    y, x = np.mgrid[-16:17, -16:17]
    assert found[np.hypot(x, y) > radius + 0.71].max() == 0  # outside by more than half a diagonal
    inside = found[np.hypot(x, y) < radius - 0.71]
    if inside.size:
        np.testing.assert_allclose(inside, 1 / (np.pi * radius**2), rtol=0.02)


def test_motion_spreads_a_point_along_its_line():
    y, x = np.mgrid[-16:17, -16:17]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        angle = np.deg2rad(np.random.default_rng(seed).uniform(-45, 45))
        found = c.motion_blur(impulse(), [rng], 7)[0, :, :, 0]
        assert found.sum() == pytest.approx(1)
        np.testing.assert_allclose(found, found[::-1, ::-1], atol=1e-12)
        across = x * np.sin(angle) - y * np.cos(angle)
        along = x * np.cos(angle) + y * np.sin(angle)
        assert np.abs(across[found > 0]).max() < 1.42
        spread = (found * along**2).sum()
        assert spread == pytest.approx(7**2 / 12, rel=0.25)  # of a uniform variable on the line
        assert (found * across**2).sum() < 0.4


def test_zoom_is_the_mean_of_interpolated_zooms(images):
    x, farthest = floats(images[:1]), 1.11
    factors = np.arange(1, farthest - 1e-9, 0.01)
    assert len(factors) == 11
    middle, total = 15.5, x[0].copy()
    y, z = np.mgrid[:32, :32]
    for factor in factors:
        where = [middle + (y - middle) / factor, middle + (z - middle) / factor]
        for channel in range(3):
            total[:, :, channel] += ndimage.map_coordinates(x[0, :, :, channel], where, order=1)
    np.testing.assert_allclose(c.zoom_blur(x, [], farthest)[0], total / 12, atol=1e-9)


def test_fog_brightens_in_clouds_and_stays_in_range(images):
    x = floats(images[:4])
    found = c.fog(x, draws(4), 1.0)
    assert found.min() >= 0
    assert (found.max(axis=(1, 2, 3)) <= x.max(axis=(1, 2, 3)) + 1e-12).all()
    light = x.max(axis=(1, 2, 3), keepdims=True)
    clouds = found * (light + 1.0) / light - x  # solved for what was added
    assert np.ptp(clouds, axis=3).max() < 1e-9  # grey
    assert clouds.min() == pytest.approx(0, abs=1e-9)
    assert clouds.max() == pytest.approx(1)
    white = np.random.default_rng(0).random((32, 32))
    steps = [np.abs(np.diff(f)).mean() / f.std() for f in (clouds[0, :, :, 0], white)]
    assert steps[0] < 0.5 * steps[1]  # neighbours are alike
    black = c.fog(floats(images[5:6]), draws(1), 1.0)
    assert np.isfinite(black).all()


def test_pixelate_and_jpeg_are_those_of_pillow(images):
    small = Image.fromarray(images[0]).resize((20, 20), Image.Resampling.BOX)
    large = np.asarray(small.resize((32, 32), Image.Resampling.BOX))
    assert np.array_equal(corrupt(images, "pixelate", 5)[0], large)  # 65 % of 32
    written = BytesIO()
    Image.fromarray(images[1]).save(written, "JPEG", quality=40)
    assert np.array_equal(corrupt(images, "jpeg", 5)[1], np.asarray(Image.open(written)))


def test_as_a_data_set(root, images):
    data = load_data("cifar10-corruptions", root=root, severity=2, seed=3)
    assert data.domains == list(NAMES)
    assert data.split == "test"
    assert data.contains == {"cifar10/test"}
    fog = data["fog"]
    assert np.array_equal(fog.pixels([2, 0]).numpy(), corrupt(images[[2, 0]], "fog", 2, 3))
    assert np.array_equal(np.asarray(fog[4][0]), corrupt(images[4:5], "fog", 2, 3)[0])
    assert fog.labels([0, 5]).tolist() == [0, 5]
    again = pickle.loads(pickle.dumps(data))  # what a worker process gets
    assert np.array_equal(again["fog"].pixels([1]).numpy(), fog.pixels([1]).numpy())
    visited = stream(data, lambda image: fog.pixels([0]), batch_size=6)
    assert [batch.domain for batch in visited] == list(NAMES)
    default = load_data("cifar10-corruptions", root=root)
    assert np.array_equal(default["jpeg"].pixels([0]).numpy(), corrupt(images[:1], "jpeg", 5))
    for severity in (0, 6, 2.5, "3"):
        with pytest.raises(ValueError, match=f"severity is {severity}: .*from 1 to 5"):
            load_data("cifar10-corruptions", root=root, severity=severity)
