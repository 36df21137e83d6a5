"""Splits of Hugging Face `datasets` as streams, made here with the package itself."""

from __future__ import annotations

import io
import os
import pickle
import re
from datetime import datetime, timedelta
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client

import datasets
import pytest
import torch
from PIL import Image

from bayestta.data import load_data, stream

START = datetime(2023, 12, 30)
ORDER = [5, 2, 8, 0, 3, 9, 6, 1, 4, 7]  # rows are not in order of time


def png(i):
    written = io.BytesIO()
    Image.new("RGB", (8, 8), (i, 255 - i, 7)).save(written, "PNG")
    return written.getvalue()


def plain(image):
    """A transform: the colour of the first pixel, which says which image it is."""
    return torch.tensor(image.getpixel((0, 0)), dtype=torch.float32)[:, None, None]


def order_seen(data):
    seen = {}
    for batch in stream(data, plain, order="given"):
        seen.setdefault(batch.domain, []).extend(batch.x[:, 0, 0, 0].int().tolist())
    return seen


def make(labels="names", times="timestamp", **changed):
    """Ten images, one every 12 hours."""
    columns = {"image": [{"bytes": png(i), "path": None} for i in ORDER]}
    features = {"image": datasets.Image()}
    if labels == "names":
        columns["label"] = [i % 2 for i in ORDER]
        features["label"] = datasets.ClassLabel(names=["cat", "dog"])
    elif labels is not None:
        columns["label"] = [labels(i) for i in ORDER]
        features["label"] = datasets.Value("string" if isinstance(labels(0), str) else "int64")
    moments = [START + timedelta(hours=12 * i) for i in ORDER]
    if times == "timestamp":
        columns["when"], features["when"] = moments, datasets.Value("timestamp[us]")
    elif times == "text":
        columns["when"] = [moment.isoformat() for moment in moments]
        features["when"] = datasets.Value("string")
    elif times == "seconds":
        columns["when"] = [1703894400 + 43200 * i for i in ORDER]
        features["when"] = datasets.Value("int64")
    columns.update(changed)
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.fixture
def saved(tmp_path):
    def save(table, name="saved"):
        table.save_to_disk(str(tmp_path / name))
        return tmp_path / name

    return save


@pytest.mark.parametrize("times", ["timestamp", "text", "seconds"])
def test_a_saved_split_is_sorted_by_time_and_cut(saved, times):
    data = load_data("hf-datasets", root=saved(make(times=times)), time="when", cut="year")
    assert data.classes == ["cat", "dog"]
    assert order_seen(data) == {"2023": [0, 1, 2, 3], "2024": [4, 5, 6, 7, 8, 9]}
    assert data.spans["2023"] == ("2023-12-30T00:00:00Z", "2023-12-31T12:00:00Z")
    for batch in stream(data, plain, seed=1):
        assert batch.y.tolist() == [i % 2 for i in batch.x[:, 0, 0, 0].int().tolist()]
    again = pickle.loads(pickle.dumps(data))  # what a worker process gets
    assert order_seen(again) == order_seen(data)


def test_worker_processes_read_it_too(saved):
    data = load_data("hf-datasets", root=saved(make()), time="when", cut=2)
    here = [batch.x for batch in stream(data, plain, seed=1, batch_size=4)]
    there = [batch.x for batch in stream(data, plain, seed=1, batch_size=4, workers=1)]
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_without_times_rows_keep_their_order(saved):
    root = saved(make())
    data = load_data("hf-datasets", root=root, cut=2)
    assert order_seen(data) == {"1": ORDER[:5], "2": ORDER[5:]}
    with pytest.raises(ValueError, match=r"cut is 'day' and .*saved has no times"):
        load_data("hf-datasets", root=root, cut="day")


def test_classes(saved):
    root = saved(make())
    data = load_data("hf-datasets", root=root, classes=["a cat", "a dog"], cut=1)
    assert data.classes == ["a cat", "a dog"]  # other words for the same numbers
    assert data["1"].labels(range(10)).tolist() == [i % 2 for i in ORDER]
    root = saved(make(labels=lambda i: ["dog", "cat"][i % 2]), "texts")
    data = load_data("hf-datasets", root=root, cut=1)
    assert data.classes == ["cat", "dog"]
    assert data["1"].labels(range(10)).tolist() == [1 - i % 2 for i in ORDER]
    root = saved(make(labels=lambda i: i % 3), "numbers")
    with pytest.raises(ValueError, match=r"numbers without names \(0, 1, 2\)"):
        load_data("hf-datasets", root=root, cut=1)
    with pytest.raises(
        ValueError, match=r"3 of 10 labels are no class, the first one '2' \(row 0 "
    ):
        load_data("hf-datasets", root=root, classes=["a", "b"], cut=1)
    root = saved(make(labels=None), "none")
    data = load_data("hf-datasets", root=root, classes=["a", "b"], cut=1)
    assert not data.labelled
    assert next(stream(data, plain)).y is None
    with pytest.raises(ValueError, match="has no labels"):
        load_data("hf-datasets", root=root, cut=1)


def test_splits(saved):
    both = datasets.DatasetDict({"train": make(), "test": make().select(range(3))})
    root = saved(both)
    assert len(load_data("hf-datasets", root=root, split="test", cut=1)["1"]) == 3
    with pytest.raises(ValueError, match="has the splits train, test: pass split=NAME"):
        load_data("hf-datasets", root=root)
    with pytest.raises(ValueError, match=r"unknown split of .* 'tets': did you mean 'test'"):
        load_data("hf-datasets", root=root, split="tets")
    with pytest.raises(ValueError, match="is one split, without a name: leave out split='test'"):
        load_data("hf-datasets", root=saved(make(), "one"), split="test")


def test_rows_that_cannot_be_read_are_named(saved):
    images = [{"bytes": png(i), "path": None} for i in ORDER]
    images[0] = {"bytes": b"broken", "path": None}
    images[1] = None
    labels = [-1 if i == 9 else i % 2 for i in ORDER]
    when = [START + timedelta(hours=12 * i) for i in ORDER]
    when[9] = None
    data = load_data(
        "hf-datasets", root=saved(make(image=images, label=labels, when=when)), time="when", cut=1
    )
    assert [
        re.search(r"^row (\d+) of split 'own' of .*: (.+)", s).groups() for s in data.skipped
    ] == [
        ("5", "has no label"),
        ("9", "has no time"),
    ]
    assert order_seen(data) == {"1": [0, 1, 3, 4, 6, 8]}
    assert "row 0 of split 'own'" in data.skipped[3]
    assert data.skipped[3].endswith("not an image (6 bytes)")
    assert re.search(r"^row 1 of .*: has no image$", data.skipped[2])


def test_images_that_lie_beside_the_table(monkeypatch, tmp_path):
    """As the hub's folders of images have them; save_to_disk would take them in."""
    (tmp_path / "8.png").write_bytes(png(8))
    images = [{"bytes": None, "path": str(tmp_path / f"{i}.png")} for i in ORDER]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: make(image=images))
    data = load_data("hf-datasets", root="me/mine", split="train", cut=1)
    assert order_seen(data) == {"1": [8]}
    assert len(data.skipped) == 9
    assert re.search(r"^row 0 of split 'train' of me/mine: .*5.png: .*No such", data.skipped[0])


def test_what_does_not_fit(saved, tmp_path):
    root = saved(make())
    (tmp_path / "empty").mkdir()
    for where, options, message in [
        (None, {}, "pass root=DIR or root=owner/name"),
        (root, {"time": "wen"}, "unknown column of .* 'wen': did you mean 'when'"),
        (root, {"image": "label"}, "column 'label' of .* holds ClassLabel and no images"),
        (root, {"label": "image"}, "a label is .*holds names or whole numbers"),
        (root, {"cut": 11}, "cut is 11 and there are 10 images"),
        (tmp_path / "empty", {}, "empty cannot be read as a data set .*save_to_disk"),
        (tmp_path / "gone", {}, "gone is neither a folder nor an id like owner/name"),
        ("json", {}, "json is neither a folder nor an id"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_data("hf-datasets", root=where, **options)


def test_the_hub(saved, monkeypatch):
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return make() if options["split"] else datasets.DatasetDict({"train": make()})

    with pytest.raises(ValueError, match="nobody/nothing cannot be loaded from the hub"):
        load_data("hf-datasets", root="nobody/nothing")  # there is no network here
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_data("hf-datasets", root="me/mine", split="train", config="small", cut=1)
    assert (data.split, data.origin) == ("train", "me/mine")
    assert load_data("hf-datasets", root=Path("me/mine"), cut=1).split == "train"
    assert [args for args, _ in asked] == [("me/mine", "small"), ("me/mine", None)]
    assert all(set(options) == {"split"} for _, options in asked)  # no trust_remote_code
    monkeypatch.setattr(datasets, "__version__", "3.6.0")
    with pytest.raises(ImportError, match=r"3.6.0 may run code of the hub: install 4.0 or later"):
        load_data("hf-datasets", root="me/mine")


def test_the_page_runs(saved, tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.+?)^```", page, re.M | re.S)
    saved(make().rename_column("when", "taken"))
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in (blocks[0], *(b for b in blocks if "hf-" in b)):
        exec(block, names)
    assert order_seen(names["data"]) == {"2023": [0, 1, 2, 3], "2024": [4, 5, 6, 7, 8, 9]}
