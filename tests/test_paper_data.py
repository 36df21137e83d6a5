"""Yearbook, from small files in the formats in which it is published; fMoW is in test_fmow.py."""

from __future__ import annotations

import pickle
import types

import numpy as np
import pytest
import torch
from PIL import Image

from bayestta.data import load_data, stream, yearbook
from bayestta.data._base import check_split
from bayestta.models.base import Preprocess

YEARS = range(1930, 2014)
N = 3  # images per year


def portraits(year):
    """(N,32,32) grey levels and labels that the year decides; a test can make them again."""
    rng = np.random.default_rng(year)
    return rng.integers(0, 256, (N, 32, 32), np.uint8), rng.permutation([0, 1, 1])


def wildtime(make, years, key, modes=(0, 1, 2)):
    """{year: {mode: {key, labels}}}: nine tenths, the rest, everything."""
    found = {}
    for year in years:
        x, y = make(year)
        parts = (slice(0, 2), slice(2, None), slice(None))
        found[year] = {m: {key: x[p], "labels": y[p]} for m, p in zip(modes, parts, strict=True)}
    return found


def floats(year):
    """As Wild-Time's own preprocessing stores them: RGB, float64, 0..1."""
    x, y = portraits(year)
    return np.repeat(x[..., None], 3, axis=3) / 255.0, y


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value))


def save_folders(base, inside, names=("0", "1")):
    for year in YEARS:
        x, y = portraits(year)
        for i in range(N):
            folder = base / str(year) / inside / names[y[i]]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[i]).save(folder / f"{i}.png")


def save_hdf5(path, shape=(32, 32, 1)):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for year in YEARS:
            x, y = portraits(year)
            for part, rows in (("train", slice(0, 2)), ("test", slice(2, None))):
                group = file.create_group(f"{year}/{part}")
                group["images"] = x[rows].reshape(-1, *shape)
                group["labels"] = y[rows].astype("u1")


LAYOUTS = {
    "pickle": lambda root: save(root / "yearbook.pkl", wildtime(floats, YEARS, "images")),
    "pickle in its folder": lambda root: save(
        root / "yearbook" / "yearbook.pkl", wildtime(portraits, YEARS, "images")
    ),
    "hdf5": lambda root: save_hdf5(root / "yearbook.hdf5"),
    "hdf5 without channels": lambda root: save_hdf5(root / "yearbook.h5", (32, 32)),
    "as released": lambda root: save_folders(root / "yearbook" / "yearbook-split", "2"),
    "years": lambda root: save_folders(root / "yearbook", ""),
    "letters": lambda root: save_folders(root / "yearbook", "", ("M", "F")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_yearbook_in_every_layout(tmp_path, layout):
    LAYOUTS[layout](tmp_path)
    data = load_data("yearbook", root=tmp_path)
    assert data.domains == [str(year) for year in YEARS]
    assert data.classes == ["male student", "female student"]
    assert data.templates == ["a photo of the {}."]
    assert data.split == "all"
    for year in (1930, 1975, 2013):
        x, y = portraits(year)
        expected = {(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
        domain = data[str(year)]
        pairs = [domain[i] for i in range(len(domain))]
        assert {(np.asarray(i)[..., 0].tobytes(), label) for i, label in pairs} == expected
        assert all(image.mode == "RGB" and image.size == (32, 32) for image, _ in pairs)
        assert domain.labels(range(N)).tolist() == [label for _, label in pairs]
    assert all(part.found for part in type(data).check(tmp_path))


def test_yearbook_streams_in_order_and_through_a_pickle(tmp_path):
    LAYOUTS["pickle"](tmp_path)
    data = pickle.loads(pickle.dumps(load_data("yearbook", root=tmp_path)))
    batches = list(stream(data, Preprocess(16), batch_size=2, seed=1))
    assert [b.domain for b in batches] == [str(y) for y in YEARS for _ in range(2)]
    assert sum(len(b.y) for b in batches) == N * len(YEARS)
    x, y = portraits(1930)
    index = torch.cat([b.index for b in batches[:2]])
    assert torch.cat([b.y for b in batches[:2]]).tolist() == y[index].tolist()
    images = [Image.fromarray(x[i]).convert("RGB") for i in index.tolist()]
    expected = torch.stack([Preprocess(16)(image) for image in images])
    torch.testing.assert_close(torch.cat([b.x for b in batches[:2]]), expected, atol=0.03, rtol=0)


def test_yearbook_has_wildtimes_splits(tmp_path):
    for layout in ("pickle", "hdf5"):
        root = tmp_path / layout
        root.mkdir()
        LAYOUTS[layout](root)
        for split, n in (("train", 2), ("test", 1), ("all", 3)):
            data = load_data("yearbook", root=root, split=split)
            assert [len(data[d]) for d in data.domains] == [n] * 84
            assert (data.split, data.contains) == (split, {f"yearbook/{split}"})
            trained = types.SimpleNamespace(name="m", trained_on=frozenset({f"yearbook/{split}"}))
            with pytest.raises(ValueError, match="was trained on"):
                check_split(trained, data)
    LAYOUTS["years"](tmp_path)
    with pytest.raises(ValueError, match=r"needs .*yearbook/1930/1, which is not there"):
        load_data("yearbook", root=tmp_path, split="test")
    with pytest.raises(ValueError, match="split of yearbook 'tets': did you mean 'test'"):
        load_data("yearbook", root=tmp_path, split="tets")
    with pytest.raises(ValueError, match="domain of yearbook '1929'"):
        load_data("yearbook", root=tmp_path)["1929"]


def test_hdf5_without_h5py_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "yearbook.hdf5").write_bytes(b"")
    monkeypatch.setattr(yearbook, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'bayestta\[hdf5\]'"):
        load_data("yearbook", root=tmp_path)
    assert not all(part.found for part in yearbook.Yearbook.check(tmp_path))


def without(year, part):
    found = wildtime(portraits, YEARS, "images")
    del (found if part is None else found[year][part[0]])[year if part is None else part[1]]
    return found


def bad_labels(change):
    found = wildtime(portraits, YEARS, "images")
    found[1999][2]["labels"] = change(found[1999][2]["labels"])
    return found


def flat(year):
    x, y = portraits(year)
    return x.reshape(N, -1), y


WRONG = {
    "year": (lambda: without(1999, None), r"no images and labels of 1999 in split 2 \(all\)"),
    "key": (lambda: without(1999, (2, "images")), "no images and labels of 1999"),
    "lists": (lambda: bad_labels(lambda y: "no array"), "no images and labels of 1999"),
    "short": (lambda: bad_labels(lambda y: y[:1]), "3 images and 1 labels of 1999"),
    "third": (lambda: bad_labels(lambda y: y + 1), "labels 1 to 2 in 1999, .* 2 classes"),
    "list": (lambda: [1, 2], "no images and labels of 1930"),
    "shape": (lambda: wildtime(flat, YEARS, "images"), r"images of shape \(3, 1024\) in 1930"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_pickle_of_something_else(tmp_path, case):
    make, reason = WRONG[case]
    save(tmp_path / "yearbook.pkl", make())
    with pytest.raises(ValueError, match=rf"yearbook\.pkl has {reason}.*: get the file again"):
        load_data("yearbook", root=tmp_path)


def test_wrong_year_folders(tmp_path):
    with pytest.raises(ValueError, match=r"needs .*/yearbook\.pkl, which .*data check yearbook"):
        load_data("yearbook", root=tmp_path)
    LAYOUTS["years"](tmp_path)
    (tmp_path / "yearbook" / "1950").rename(tmp_path / "1950")
    with pytest.raises(ValueError, match=r"needs .*/yearbook/1950, which is not there"):
        load_data("yearbook", root=tmp_path)
    (tmp_path / "yearbook" / "1950" / "girls").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"1950/girls is not the folder of a class: name"):
        load_data("yearbook", root=tmp_path)
    (part,) = yearbook.Yearbook.check(tmp_path)
    assert not part.found
    assert part.path == str(tmp_path / "yearbook" / "1950")
    assert part.note.startswith("1 of 84 years lack")
