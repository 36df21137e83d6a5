"""Views: the same whoever makes them, and what the papers say they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from bayestta.data import load_data, stream
from bayestta.data._base import generator
from bayestta.data._views import Views, augment, make_view, random_crop
from bayestta.models._torchvision import import_torchvision
from bayestta.models.base import Preprocess
from stand_in import save_stand_in

V = 5


def smooth(seed, width=40, height=30):
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for i in range(6):
        smooth(i).save(root / f"{i}.png")
    (root / "broken.png").write_bytes(b"broken")
    return load_data("folder", root=root, classes=["cat", "dog"])


def collect(data, step=2, **options):
    """index -> the views of that image."""
    found = {}
    for batch in stream(data, Preprocess(16), views=V, seed=1, **options):
        assert isinstance(batch.x, Views)
        assert len(batch.x) == len(batch.index)
        for i in range(0, len(batch.x), step):
            found |= dict(
                zip(batch.index[i : i + step].tolist(), batch.x[i : i + step], strict=True)
            )
    return found


def test_views_depend_on_seed_domain_image_and_view_alone(data):
    first = collect(data)
    for options in ({"batch_size": 2}, {"batch_size": 5, "step": 3}, {"order": "given", "step": 1}):
        again = collect(data, **options)
        assert again.keys() == first.keys()
        assert all(torch.equal(again[i], first[i]) for i in first)
    flat = torch.stack(list(first.values())).flatten(0, 1)
    assert len(flat.flatten(1).unique(dim=0)) == len(flat)  # no two alike
    other = next(stream(data, Preprocess(16), views=V, seed=2, order="given")).x[0:1]
    assert torch.equal(other[0, 0], first[0][0])
    assert not any(torch.equal(a, b) for a, b in zip(other[0, 1:], first[0][1:], strict=True))


def test_worker_processes_make_the_same_views_and_views_outlive_them(data):
    alone = collect(data)
    batches = stream(data, Preprocess(16), views=V, seed=1, workers=2, batch_size=5)
    batch = next(batches)
    found = [batch.x[0], batch.x[1]]  # two more are under way when the stream ends
    assert len(next(batches).index) == 1
    assert next(batches, None) is None
    found += [batch.x[i] for i in range(2, 5)]
    assert len(data.skipped) == 1
    for views, i in zip(found, batch.index.tolist(), strict=True):
        assert torch.equal(views, alone[i])


def test_lazy_tensor(data):
    plain = next(stream(data, Preprocess(16), order="given"))
    x = next(stream(data, Preprocess(16), views=V, order="given")).x
    assert x.shape == (6, V, 3, 16, 16)
    assert x.ndim == 5
    assert x.dtype == torch.float32
    assert torch.equal(x.plain, plain.x)
    assert torch.equal(x[:][:, 0], plain.x)
    assert torch.equal(x[2], x[2:3][0])
    assert torch.equal(x[-1], x[5])
    assert torch.equal(torch.stack(list(x)), x[:])
    assert torch.equal(x[::2], x[:][::2])
    assert x[4:4].shape == (0, V, 3, 16, 16)
    assert x[4:99].shape == (2, V, 3, 16, 16)
    with pytest.raises(IndexError):
        x[6]


def test_arrays_keep_the_plain_path(tmp_path):
    for part, n in (("train", 5001), ("test", 20)):
        x = np.random.default_rng(n).integers(0, 256, (n, 32, 32, 3), np.uint8)
        save_stand_in(tmp_path / "cifar10", **{f"{part}_x": x, f"{part}_y": np.arange(n) % 10})
    light = load_data("cifar10-light", root=tmp_path)
    for one, many in zip(
        stream(light, Preprocess(16)), stream(light, Preprocess(16), views=3), strict=True
    ):
        assert torch.equal(one.x, many.x.plain)
        assert torch.equal(one.y, many.y)
        assert many.x[0:1].shape == (1, 3, 3, 16, 16)


def test_crop_is_of_the_original_and_agrees_with_torchvision():
    import_torchvision()
    from torchvision.transforms import InterpolationMode, functional

    image = smooth(3, 50, 37)
    for key in range(30):
        rng, ours = generator(key), random_crop(image, 24, generator(key))
        while True:  # the same draws, spelled out
            area = 50 * 37 * rng.uniform(0.08, 1)
            aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
            if w <= 50 and h <= 37:
                break
        left, top = int(rng.integers(50 - w + 1)), int(rng.integers(37 - h + 1))
        theirs = functional.resized_crop(
            image, top, left, h, w, [24, 24], InterpolationMode.BILINEAR
        )
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_crops_have_the_areas_and_aspects_of_the_paper():
    """Each pixel holds its coordinates, so that a crop shows where it came from."""
    import_torchvision()
    from torchvision.transforms import RandomResizedCrop

    y, x = np.mgrid[:200, :240].astype(np.uint8)
    image = Image.fromarray(np.stack([x, y, x], axis=2))
    areas, aspects = [], []
    for key in range(400):
        crop = np.asarray(random_crop(image, 64, generator("area", key))).astype(float)
        width, height = (np.ptp(crop[..., c]) * 64 / 63 for c in (0, 1))
        areas.append(width * height / (240 * 200))
        aspects.append(width / height)
    assert 0.07 < min(areas) < 0.12
    assert 0.85 < max(areas) < 1.01
    assert 0.72 < min(aspects) < 0.8
    assert 1.25 < max(aspects) < 1.38
    torch.manual_seed(0)
    theirs = [RandomResizedCrop.get_params(image, (0.08, 1), (3 / 4, 4 / 3)) for _ in range(2000)]
    expected = np.mean([h * w / (240 * 200) for _, _, h, w in theirs])
    assert abs(np.mean(areas) - expected) < 0.06  # of 400 and 2,000 draws: four deviations


def test_a_very_long_image_gives_its_middle():
    pixels = np.zeros((8, 800, 3), np.uint8)
    pixels[:, 395:405] = 255
    views = [np.asarray(random_crop(Image.fromarray(pixels), 8, generator(k))) for k in range(20)]
    assert any(v.mean() > 100 for v in views)
    assert all(v.shape == (8, 8, 3) for v in views)


@pytest.mark.parametrize("size", [224, 32])
def test_operations_stay_within_severity_one(size):
    """A square off the centre may move by 1/30 of the side plus a shear of 0.03, no more."""
    pixels = np.zeros((size, size, 3), np.uint8)
    a, b = size // 4, size // 2
    pixels[a:b, a:b] = 200
    centre = (a + b - 1) / 2
    moved = []
    for key in range(300):
        out = np.asarray(augment(Image.fromarray(pixels), generator(key)))
        assert out.shape == pixels.shape
        rows, columns = np.nonzero(out[..., 0] >= 100)
        moved.append(max(abs(rows.mean() - centre), abs(columns.mean() - centre)))
    assert max(moved) <= size / 30 + 0.03 * size / 2
    assert max(moved) > (6 if size == 224 else 0.9)  # translation grows with the image


def test_augmix_is_a_mixture_in_normalised_space():
    """A literal transcription that normalises every chain before mixing."""
    image, transform = smooth(7), Preprocess(20)
    mean, std = torch.tensor(transform.mean), torch.tensor(transform.std)
    shares = []
    for key in range(10):
        rng = generator("mix", key)
        view = random_crop(image, 20, rng)
        if rng.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        w, m = rng.dirichlet([1, 1, 1]), rng.beta(1, 1)
        mixed = torch.zeros(3, 20, 20)
        for i in range(3):
            chain, depth = view, rng.integers(1, 4)
            for _ in range(depth):
                chain = augment(chain, rng)
            mixed += float(w[i]) * transform(chain)
        expected = float(m) * transform(view) + float(1 - m) * mixed
        levels = torch.from_numpy(make_view(image, 20, generator("mix", key), "augmix"))
        ours = ((levels / 255 - mean) / std).permute(2, 0, 1)
        assert (ours - expected).abs().max() < 1e-5
        shares.append(m)
    assert np.ptp(shares) > 0.3


def test_crop_views_are_crops_and_mirrors_only(data):
    x = next(stream(data, Preprocess(16), views=V, order="given", augment="crop", seed=4)).x
    image, transform = data["stream"][2][0], Preprocess(16)
    for view in range(1, V):
        rng = generator(4, "stream", 2, view)
        crop = random_crop(image, 16, rng)
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop
        assert torch.allclose(x[2][view], transform(crop), atol=1e-6)


def test_a_transform_that_cannot_serve_views_is_refused(data):
    with pytest.raises(ValueError, match=r"8 views need .* no size and no mean and no std"):
        stream(data, lambda image: image, views=8)
    with pytest.raises(ValueError, match=r"cannot be sent to worker processes .*workers=0"):
        next(stream(data, lambda image: image, workers=1))
