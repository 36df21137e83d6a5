"""fMoW, from small files as Wild-Time and the released code keep them."""

from __future__ import annotations

import sys
import types
from enum import Enum

import numpy as np
import pytest
from PIL import Image

from bayestta.data import load_data, stream
from bayestta.models.base import Preprocess
from test_paper_data import N, save, wildtime


def satellites(year):
    """Numbers of images, and labels, as int64 arrays."""
    rng = np.random.default_rng(year)
    return 10 * year + rng.permutation(N), rng.integers(0, 62, N)


def save_fmow(root, inside, modes=(0, 1, 2)):
    folder = root / "fmow_v1.1" if inside else root
    save(folder / "fmow.pkl", wildtime(satellites, range(16), "image_idxs", modes))
    images = root / "fmow_v1.1" / "images"
    images.mkdir(parents=True)
    for year in range(16):
        for number in satellites(year)[0]:
            Image.new("RGB", (8, 8), (int(number), 0, 0)).save(images / f"rgb_img_{number}.png")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("old", [True, False])
def test_fmow_in_both_places_with_old_and_new_keys(tmp_path, monkeypatch, inside, old):
    modes = (0, 1, 2)
    if old:  # as Wild-Time wrote them, with an enum of a module that the reader does not have
        modes = Enum("Mode", {"TRAIN": 0, "TEST_ID": 1, "TEST_OOD": 2}, module="data.utils")
        for name in ("data", "data.utils"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules["data.utils"].Mode = modes
    save_fmow(tmp_path, inside, modes)
    monkeypatch.delitem(sys.modules, "data.utils", raising=False)
    data = load_data("fmow", root=tmp_path)
    assert data.domains == [str(year) for year in range(2002, 2018)]
    assert len(data.classes) == len(set(data.classes)) == 62
    assert data.classes[0] == "aerial view of an airport"
    assert data.classes[13] == "aerial view of debris or rubble"
    assert data.classes[61] == "aerial view of a zoo"
    assert data.templates == ["a centered satellite photo of {}."]
    for year in (0, 15):
        numbers, labels = satellites(year)
        domain = data[str(2002 + year)]
        assert [domain[i][0].getpixel((0, 0))[0] for i in range(N)] == numbers.tolist()
        assert domain.labels(range(N)).tolist() == labels.tolist()
    assert sum(len(b.x) for b in stream(data, Preprocess(8), batch_size=64)) == 16 * N
    assert [len(load_data("fmow", root=tmp_path, split=s)["2002"]) for s in ("train", "test")] == [
        2,
        1,
    ]
    parts = type(data).check(tmp_path)
    assert all(part.found for part in parts)
    assert parts[1].note == "48 images"


def test_fmow_that_is_not_whole(tmp_path):
    with pytest.raises(ValueError, match=r"'fmow' needs .*/fmow\.pkl, which is not there"):
        load_data("fmow", root=tmp_path)
    save_fmow(tmp_path, inside=True)
    images = tmp_path / "fmow_v1.1" / "images"
    data = load_data("fmow", root=tmp_path)
    lost = f"rgb_img_{satellites(3)[0][1]}.png"
    (images / lost).unlink()
    part = type(data).check(tmp_path)[1]
    assert (part.path, part.found) == (str(images / lost), False)
    assert part.note.startswith("1 of 48 images")
    list(stream(data, Preprocess(8), batch_size=64))
    assert [lost in note for note in data.skipped] == [True]
    images.rename(tmp_path / "images")
    with pytest.raises(ValueError, match=r"needs .*fmow_v1\.1/images, which is not there"):
        load_data("fmow", root=tmp_path)
    assert [part.found for part in type(data).check(tmp_path)] == [True, False]
    images.mkdir()
    (tmp_path / "fmow_v1.1" / "fmow.pkl").write_bytes(b"cos\nsystem\n(Vtrue\ntR.")
    assert "asks for 'os.system'" in type(data).check(tmp_path)[0].note
