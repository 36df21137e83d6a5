"""The cache of image tensors: the same bits as without it, decoded once, within its size."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bayestta.data import Data, load_data, stream
from bayestta.data._tensors import TensorCache
from bayestta.data.folder import FolderDomain
from bayestta.models._preprocess import Preprocess


class Floats:
    """A transform that goes no way over bytes."""

    def __call__(self, image: Image.Image) -> Tensor:
        x = torch.from_numpy(np.asarray(image.resize((8, 8)), np.float32)).permute(2, 0, 1)
        return x.sqrt() / 7


@pytest.fixture
def photos(tmp_path: Path) -> Data:
    """Two domains of images of many sizes, one of which cannot be read."""
    rng = np.random.default_rng(0)
    for domain in ("dusk", "night"):
        for k in range(2):
            folder = tmp_path / "photos" / domain / f"class{k}"
            folder.mkdir(parents=True)
            for i in range(5):
                shape = (*rng.integers(10, 40, 2), 3)
                Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(folder / f"{i}.png")
    (tmp_path / "photos" / "dusk" / "class0" / "2.png").write_bytes(b"no image")
    return load_data("folder", root=tmp_path / "photos")


def batches(data: Data, transform: Any, cache: TensorCache | None, **options: Any) -> list[Any]:
    return list(stream(data, transform, batch_size=3, seed=1, cache=cache, **options))


def same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.x, b.x)
        assert a.x.dtype == b.x.dtype == torch.float32
        assert a.x.is_contiguous() == b.x.is_contiguous()
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.index, b.index)


@pytest.mark.parametrize("transform", [Preprocess(16), Preprocess(16, squash=True), Floats()])
@pytest.mark.parametrize("options", [{}, {"order": "given", "limit": 7}, {"rounds": 2}])
def test_photographs_are_the_same_and_decoded_once(
    photos: Data, transform: Any, options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = batches(photos, transform, None, **options)
    cache = TensorCache(tmp_path / "cache", 1, "photos")
    same(batches(photos, transform, cache, **options), expected)
    files = sorted((tmp_path / "cache").glob("*.tensors"))
    assert len(files) == 2
    opened: list[int] = []
    usual = FolderDomain.__getitem__
    monkeypatch.setattr(
        FolderDomain, "__getitem__", lambda self, i: (opened.append(i), usual(self, i))[1]
    )
    same(batches(photos, transform, cache, **options), expected)
    again = options.get("rounds", 1)
    assert len(opened) <= again * (2 * 3 + 1)  # three per domain for the key, and the broken one
    assert sorted((tmp_path / "cache").glob("*.tensors")) == files
    assert len(photos.skipped) == 1


@pytest.mark.parametrize("size", [28, 32, 64])
def test_arrays_are_the_same(size: int, tmp_path: Path) -> None:
    data, cache = load_data("rmnist"), TensorCache(tmp_path, 1, "rmnist")
    for options in ({"limit": 9}, {"limit": 9}, {"limit": 1}):
        expected = batches(data, Preprocess(size), None, **options)
        same(batches(data, Preprocess(size), cache, **options), expected)


def test_views_keep_their_plain_one(tmp_path: Path) -> None:
    data, cache = load_data("rmnist"), TensorCache(tmp_path, 1, "rmnist")
    for _ in range(2):
        options: Any = {"limit": 2, "views": 3, "domains": ["0"]}
        (kept,) = batches(data, Preprocess(32), cache, **options)
        (plain,) = batches(data, Preprocess(32), None, **options)
        assert torch.equal(kept.x[:], plain.x[:])


def test_a_changed_image_is_decoded_anew(photos: Data, tmp_path: Path) -> None:
    cache, transform = TensorCache(tmp_path / "cache", 1, "photos"), Preprocess(16)
    batches(photos, transform, cache)
    path = Path(photos["night"].path(4))
    Image.new("RGB", (20, 20), (255, 0, 0)).save(path)
    os.utime(path, (1, 1))
    same(batches(photos, transform, cache), batches(photos, transform, None))
    assert len(list((tmp_path / "cache").glob("*.tensors"))) == 3


def test_it_stays_within_its_size_and_drops_the_oldest(photos: Data, tmp_path: Path) -> None:
    folder, one = tmp_path / "cache", 10 * (3 * 16 * 16 + 4)
    cache, transform = TensorCache(folder, (2 * one + 10) / 1e9, "photos"), Preprocess(16)
    expected = batches(photos, transform, None)
    same(batches(photos, transform, cache), expected)
    (folder / "ffff.part").write_bytes(b"left by a killed process")
    first = sorted(folder.glob("*.tensors"))
    assert [path.stat().st_size for path in first] == [one, one]
    old = time.time() - 3600
    os.utime(first[0], (old, old))

    def used() -> int:
        kept = [path for path in folder.iterdir() if path.suffix != ".lock"]
        return sum(path.stat().st_size for path in kept)

    other = TensorCache(folder, (2 * one + 10) / 1e9, "the same under another name")
    same(batches(photos, transform, other), expected)  # one fits in place of the old, one does not
    assert not first[0].exists()
    assert first[1].exists()
    assert not (folder / "ffff.part").exists()
    assert used() == 2 * one
    small = TensorCache(tmp_path / "small", (one - 1) / 1e9, "photos")
    same(batches(photos, transform, small), expected)
    assert not list((tmp_path / "small").glob("*.tensors"))


def test_a_file_that_vanishes_or_is_cut_is_made_again(photos: Data, tmp_path: Path) -> None:
    cache, transform = TensorCache(tmp_path / "cache", 1, "photos"), Preprocess(16)
    expected = batches(photos, transform, cache)
    cut, gone = sorted((tmp_path / "cache").glob("*.tensors"))
    os.truncate(cut, 100)
    gone.unlink()
    same(batches(photos, transform, cache), expected)
    assert cut.stat().st_size > 100
    assert gone.exists()


@pytest.mark.parametrize("place", [0, 1000, 7_000, -1, -37])
def test_a_changed_byte_is_noticed_and_the_file_deleted(
    photos: Data, tmp_path: Path, place: int
) -> None:
    cache, transform = TensorCache(tmp_path / "cache", 1, "photos"), Preprocess(16)
    expected = batches(photos, transform, cache)
    files = sorted((tmp_path / "cache").glob("*.tensors"))
    for file in files:
        content = bytearray(file.read_bytes())
        content[place] ^= 16
        file.write_bytes(content)
    for _ in files:
        with pytest.raises(ValueError, match=r"tensors was damaged .*image \d.*run again"):
            batches(photos, transform, cache)
    same(batches(photos, transform, cache), expected)


def test_names_that_are_not_utf8_have_a_key(photos: Data, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "photos" / "dusk" / "class1")
    Image.new("RGB", (20, 20)).save(tmp_path / "x.png")
    os.replace(tmp_path / "x.png", folder + b"/caf\xe9.png")
    data = load_data("folder", root=tmp_path / "photos")
    cache, transform = TensorCache(tmp_path / "cache", 1, "photos"), Preprocess(16)
    for _ in range(2):
        found = batches(data, transform, cache, order="given")
        same(found, batches(data, transform, None, order="given"))
    assert sum(len(batch.x) for batch in found) == 20
