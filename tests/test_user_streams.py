"""Streams of a person's own: a CSV, shards of WebDataset, and the cutting by time."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import sys
import tarfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bayestta.data import load_data, stream
from bayestta.data._time_cuts import check_cut, cut_by_time, read_times

DOCS = Path(__file__).parents[1] / "docs" / "data.md"
START = datetime(2023, 12, 30, tzinfo=timezone.utc)


def plain(image):
    """A transform: the colour of the first pixel, which says which image it is."""
    return torch.tensor(image.getpixel((0, 0)), dtype=torch.float32)[:, None, None]


def colour(i):
    return (i, 255 - i, 7)


def png(i):
    written = io.BytesIO()
    Image.new("RGB", (8, 8), colour(i)).save(written, "PNG")
    return written.getvalue()


def order_seen(data, **options):
    """Which images a stream visits, by their colour, and in which domain."""
    seen = {}
    for batch in stream(data, plain, order="given", **options):
        seen.setdefault(batch.domain, []).extend(batch.x[:, 0, 0, 0].int().tolist())
    return seen


# --- times ---


def test_times_are_those_of_datetime():
    rng = np.random.default_rng(0)
    zone = timezone(timedelta(hours=-3, minutes=-30))
    for seconds in rng.uniform(-6e9, 6e9, 200).round(3):
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=float(seconds))
        naive = moment.replace(tzinfo=None)
        forms = [moment.isoformat(), moment.astimezone(zone).isoformat(), naive.isoformat()]
        forms += [naive.isoformat(" ") + "Z", naive.isoformat().replace(".", ","), str(seconds)]
        forms += [moment, naive, float(seconds), np.datetime64(naive)]
        found, wrong = read_times(forms)
        assert not wrong
        np.testing.assert_allclose(found, seconds, atol=2e-6)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("2024-05", datetime(2024, 5, 1)),
        ("2024-05-01T10", datetime(2024, 5, 1, 10)),
        ("20240501T1030Z", datetime(2024, 5, 1, 10, 30)),
        ("2024-05-01T10:30:00+0530", datetime(2024, 5, 1, 5)),
        ("2024-05-01 10:30:15.5 UTC", datetime(2024, 5, 1, 10, 30, 15, 500000)),
    ],
)
def test_shorter_forms(text, means):
    found, wrong = read_times([text])
    assert not wrong
    assert found[0] == means.replace(tzinfo=timezone.utc).timestamp()


def test_whole_numbers_are_read_one_way_in_all_rows():
    def years(values):
        return [datetime.fromtimestamp(s, timezone.utc).year for s in read_times(values)[0]]

    assert years(["2013", "1999", 2001, "1999.0"]) == [2013, 1999, 2001, 1999]
    assert years(["20240501", "20231231"]) == [2024, 2023]
    assert years(["20240501", "20231331"]) == [1970, 1970]  # no month 13: seconds
    assert read_times([0, 999, 1000, 2024])[0].tolist() == [0, 999, 1000, 2024]


def test_what_is_no_time_says_why():
    values = [
        "2024-13-01",
        "2024-00-01",
        "yesterday",
        "",
        None,
        "1700000000000",
        "nan",
        "2024-05-01",
    ]
    found, wrong = read_times(values)
    assert np.isnan(found).tolist() == [True] * 7 + [False]
    assert sorted(wrong) == list(range(7))
    for i, reason in [
        (0, "time '2024-13-01' is no time .*month"),
        (1, "is no time"),
        (2, "time 'yesterday' is neither ISO 8601 nor seconds since 1970"),
        (3, "^has no time$"),
        (5, "divide milliseconds by 1000"),
    ]:
        assert re.search(reason, wrong[i]), wrong[i]
    assert wrong[3] == wrong[4]


# --- cuts ---


@pytest.mark.parametrize("span", ["year", "month", "week", "day", "hour"])
def test_calendar_cuts_agree_with_datetime(span):
    seconds = np.random.default_rng(1).uniform(-1e8, 2e9, 300)
    names = {
        "year": lambda t: f"{t.year}",
        "month": lambda t: f"{t.year}-{t.month:02}",
        "week": lambda t: f"{t.isocalendar()[0]}-W{t.isocalendar()[1]:02}",
        "day": lambda t: t.date().isoformat(),
        "hour": lambda t: t.isoformat()[:13],
    }
    found = cut_by_time(seconds, span)
    assert list(found) == sorted(found)
    assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(300))
    for name, rows in found.items():
        assert (np.diff(seconds[rows]) >= 0).all()
        moments = [datetime.fromtimestamp(s, timezone.utc) for s in seconds[rows]]
        assert {names[span](moment) for moment in moments} == {name}


@pytest.mark.parametrize(("n", "count"), [(10, 3), (7, 7), (5, 1), (100, 9)])
def test_equal_counts(n, count):
    seconds = np.random.default_rng(2).integers(0, 20, n).astype(float)  # with ties
    found = cut_by_time(seconds, count)
    assert list(found) == [str(k) for k in range(1, count + 1)]
    sizes = [len(rows) for rows in found.values()]
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    joined = np.concatenate(list(found.values()))
    assert joined.tolist() == sorted(range(n), key=lambda i: (seconds[i], i))


def test_cuts_that_cannot_be():
    assert check_cut("12") == 12
    assert check_cut(4) == 4
    for cut, message in [
        ("mont", "unknown cut 'mont': did you mean 'month'.* number of domains"),
        (0, "cut is 0: .*at least 1"),
        (2.5, "cut is 2.5"),
        (True, "cut is True"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_cut(cut)
    with pytest.raises(ValueError, match="cut is 5 and there are 3 images: ask for 3"):
        cut_by_time(np.arange(3.0), 5)


# --- csv ---


def table(folder, rows, header="path,label,timestamp", name="table.csv", **options):
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8", **options)
    return folder / name


@pytest.fixture
def photos(tmp_path):
    """Sixteen images, one every 12 hours over the turn of a year, listed in another order."""
    (tmp_path / "photos").mkdir()
    for i in range(16):
        (tmp_path / "photos" / f"{i}.png").write_bytes(png(i))
    shuffled = [5, 2, 11, 8, 14, 0, 3, 9, 6, 12, 1, 15, 4, 10, 7, 13]
    moments = {i: START + timedelta(hours=12 * i) for i in range(16)}
    rows = [
        f"photos/{i}.png,{'dog' if i % 3 else 'cat'},{moments[i].isoformat()}" for i in shuffled
    ]
    return tmp_path, rows


def test_a_table_is_sorted_by_time_and_cut(photos):
    folder, rows = photos
    data = load_data("csv", root=table(folder, rows), cut=3)
    assert data.classes == ["cat", "dog"]
    assert data.labelled
    assert data.skipped == []
    assert order_seen(data, batch_size=4) == {
        "1": [0, 1, 2, 3, 4, 5],
        "2": [6, 7, 8, 9, 10],
        "3": [11, 12, 13, 14, 15],
    }
    assert data.spans["1"] == ("2023-12-30T00:00:00Z", "2024-01-01T12:00:00Z")
    assert order_seen(load_data("csv", root=str(table(folder, rows)), cut="year")) == {
        "2023": [0, 1, 2, 3],
        "2024": list(range(4, 16)),
    }
    for batch in stream(data, plain, seed=1):  # labels follow their images in any order
        assert batch.y.tolist() == [int(i % 3 > 0) for i in batch.x[:, 0, 0, 0].int().tolist()]
    assert data["2"].path(1) == str(folder / "photos" / "7.png")
    assert data["2"][1][1] == 1
    again = pickle.loads(pickle.dumps(data))  # what a worker process gets
    assert order_seen(again) == order_seen(data)
    with pytest.raises(ValueError, match=r"domain of .*table.csv '4'.*Valid: 1, 2, 3"):
        data["4"]


def test_other_columns_separators_and_class_orders(photos):
    folder, rows = photos
    odd = [row.replace(",", ";") + ";x" for row in rows]
    path = table(folder, odd, "\ufefffile; kind;when;note")
    options = {"path": "file", "label": "kind", "time": "when", "delimiter": ";", "cut": 2}
    data = load_data("csv", root=path, classes=["dog", "fox", "cat"], **options)
    assert data.classes == ["dog", "fox", "cat"]
    assert data["1"].labels([0, 1]).tolist() == [2, 0]
    numbered = [row.replace("dog", "1").replace("cat", "0") for row in rows]
    data = load_data("csv", root=table(folder, numbered), classes=["cat", "dog"], cut=1)
    assert data["1"].labels(range(4)).tolist() == [0, 1, 1, 0]
    data = load_data("csv", root=table(folder, numbered), classes=["1", "0"], cut=1)
    assert data["1"].labels(range(4)).tolist() == [1, 0, 0, 1]  # names come first
    (folder / "names.txt").write_text("dog\ncat\n")
    data = load_data("csv", root=table(folder, rows), classes=folder / "names.txt")
    assert data["1"].labels([0]).tolist() == [1]
    assert len(data.domains) == 10


def test_a_table_without_labels(photos):
    folder, rows = photos
    bare = [re.sub(",(cat|dog),", ",", row) for row in rows]
    path = table(folder, bare, "path,timestamp")
    data = load_data("csv", root=path, classes=["cat", "dog"], cut="day")
    assert not data.labelled
    assert next(stream(data, plain)).y is None
    assert data["2023-12-30"][0][1] is None
    assert len(data.domains) == 8
    with pytest.raises(ValueError, match="has no labels to take class names from: pass classes"):
        load_data("csv", root=path)


def test_rows_that_cannot_be_read_are_named(photos):
    folder, rows = photos
    rows[1] = "photos/2.png,dog,2023-12-40"
    rows[2] = "photos/11.png,dog"
    rows[3] = ",dog,2024-01-01"
    rows[4] = "photos/14.png,,2024-01-06"
    rows[5] = "photos/gone.png,cat,2023-12-30"
    rows.insert(6, "")
    path = table(folder, rows)
    data = load_data("csv", root=path, cut=2)
    reasons = [(3, "time '2023-12-40' is no time"), (4, "has 2 cells where the header has 3")]
    reasons += [(5, "has no path"), (6, "has no label")]
    assert len(data.skipped) == len(reasons)
    for said, (row, reason) in zip(data.skipped, reasons, strict=True):
        assert said.startswith(f"row {row} of {path}: {reason}")
        assert "\n" not in said
    assert sum(map(len, order_seen(data).values())) == 11
    assert len(data.skipped) == 5
    assert re.search(r"row 7 of .*gone.png: .*No such file", data.skipped[4])
    with pytest.raises(ValueError, match=r"row 7 of .*without strict"):
        list(stream(data, plain, strict=True))


def test_tables_that_do_not_fit(photos):
    folder, rows = photos
    good = table(folder, rows)
    unreadable = folder / "latin.csv"
    unreadable.write_bytes("path,label,timestamp\na.png,caf\xe9,2024\n".encode("latin-1"))
    huge = folder / "huge.csv"
    huge.write_text("path,label,timestamp\n" + "x" * 200_000 + ",cat,2024\n")
    strange = table(folder, [*rows, "photos/1.png,cow,2024-01-01"], name="strange.csv")
    never = table(folder, ["a.png,cat,never", "b.png,dog,never"], name="never.csv")
    for root, options, message in [
        (None, {}, "pass root=FILE.csv"),
        (folder, {}, "is not a file"),
        (
            good,
            {"label": "kind"},
            "unknown column of .*table.csv 'kind'.*Valid: label, path, times",
        ),
        (good, {"time": "timestmp"}, "did you mean 'timestamp'"),
        (good, {"delimiter": ";;"}, "give one character"),
        (good, {"delimiter": ";"}, "unknown column"),
        (good, {"cut": "decade"}, "unknown cut 'decade'"),
        (good, {"cut": 17}, "cut is 17 and there are 16 images"),
        (good, {"classes": ["cat", "cow"]}, r"10 of 16 labels are no class, the first one 'dog' "),
        (
            strange,
            {"classes": ["cat", "dog"]},
            r"1 of 17 .* 'cow' \(row 18 of .*2 classes \(cat, dog",
        ),
        (never, {}, r"none of the 2 rows of .*\(row 2 of .*'never' is neither.*correct them"),
        (table(folder, [], name="empty.csv"), {}, "none of the 0 rows"),
        (unreadable, {}, r"row 2 of .*latin.csv has the label 'caf.udce9', which is not UTF-8"),
        (huge, {}, r"huge.csv cannot be read after row 2 .*field larger"),
        (good, {"delimiter": "\n"}, "delimiter is '.n', which ends cells and rows"),
        (good, {"templates": ["a photo"]}, "lack the place"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_data("csv", root=root, **options)


def test_names_that_are_not_utf8_pass_through_a_table(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.png"
    with open(path, "wb") as file:
        file.write(png(5))
    (tmp_path / "t.csv").write_bytes(
        b"path,label,timestamp\ncaf\xe9.png,cat,2024\n\xff.png,dog,2025\n"
    )
    data = load_data("csv", root=tmp_path / "t.csv", cut=1)
    assert os.fsencode(data["1"].path(0)) == path
    assert order_seen(data) == {"1": [5]}
    assert re.search(r"row 3 of .*No such file", data.skipped[0])


def test_labels_and_times_of_many_digits(tmp_path):
    rows = [f"{i}.png,{'9' * 5000}{i},{'9' * 5000}" for i in range(2)] + ["3.png,1,2024"]
    data = load_data("csv", root=table(tmp_path, rows), classes=["0", "1"], cut=1)
    assert len(data["1"]) == 1
    assert all(len(said) < 300 for said in data.skipped)
    rows = [f"{i}.png,{'9' * 5000}{i},2024" for i in range(2)]
    assert len(load_data("csv", root=table(tmp_path, rows), cut=1).classes) == 2
    with pytest.raises(ValueError, match="2 of 2 labels are no class") as caught:
        load_data("csv", root=table(tmp_path, rows), classes=["0", "1"], cut=1)
    assert len(str(caught.value)) < 500


# --- webdataset ---


def shard(path, members):
    """A tar file of (name, bytes)."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return path


def sample(i, *, cls=True, hours=12, suffix="png"):
    """Image i with its class and time, as members."""
    moment = (START + timedelta(hours=hours * i)).isoformat()
    members = [(f"img/{i:04}.{suffix}", png(i))]
    if cls:
        members.append((f"img/{i:04}.cls", str(i % 2).encode()))
    return [*members, (f"img/{i:04}.json", json.dumps({"timestamp": moment, "id": i}).encode())]


@pytest.fixture
def tars(tmp_path):
    """Twelve samples, dealt over three shards against the order of time."""
    for part in range(3):
        members = [m for i in range(11 - part, -1, -3) for m in sample(i)]
        shard(tmp_path / f"part-{part:03}.tar", [("README.txt", b"about"), *members])
    return tmp_path


def test_shards_become_one_stream_in_time(tars):
    data = load_data("webdataset", root=tars / "part-{000..002}.tar", classes=["cat", "dog"], cut=2)
    assert order_seen(data, batch_size=5) == {"1": list(range(6)), "2": list(range(6, 12))}
    assert data["1"].labels(range(6)).tolist() == [0, 1, 0, 1, 0, 1]
    assert data["1"].path(0) == str(tars / "part-002.tar" / "img" / "0000")
    assert data.skipped == []
    for root, shards in [
        (tars, None),
        (str(tars / "*.tar"), None),
        (tars, "part-00{0,1,2}.tar"),
        (None, [str(tars / f"part-00{k}.tar") for k in (2, 0, 1)]),
        (tars, ["part-{000..001}.tar", "part-00[2-9].tar"]),
    ]:
        other = load_data("webdataset", root=root, shards=shards, classes=["cat", "dog"], cut=2)
        assert order_seen(other) == order_seen(data)
    again = pickle.loads(pickle.dumps(data))
    assert order_seen(again) == order_seen(data)
    assert list(order_seen(load_data("webdataset", root=tars, classes=["a", "b"], cut="year"))) == [
        "2023",
        "2024",
    ]


def test_offsets_are_those_of_tarfile(tars):
    data = load_data("webdataset", root=tars, classes=["cat", "dog"], cut=1)
    for number, key, offset, size in data._samples:
        path = data._shards[number]
        with tarfile.open(path) as tar:
            content = tar.extractfile(f"{key}.png").read()
        assert path.read_bytes()[offset : offset + size] == content


def test_names_as_labels_no_times_and_no_labels(tmp_path):
    members = [(f"{i}.JPG", png(i)) for i in range(4)]
    path = shard(tmp_path / "bare.tar", members)
    data = load_data("webdataset", root=path, classes=["cat", "dog"], cut=2)
    assert not data.labelled
    assert data.spans == {}
    assert order_seen(data) == {"1": [0, 1], "2": [2, 3]}
    with pytest.raises(ValueError, match=r"cut is 'day' and .*bare.tar has no times"):
        load_data("webdataset", root=path, classes=["cat", "dog"], cut="day")
    with pytest.raises(ValueError, match=r"bare.tar has no labels to take class names from"):
        load_data("webdataset", root=path, cut=2)
    named = [
        member
        for i in range(4)
        for member in [
            (f"{i}.left.png", png(i)),
            (f"{i}.right.png", png(100 + i)),
            (f"{i}.json", json.dumps({"kind": ["dog", "cat"][i % 2], "t": 9 - i}).encode()),
        ]
    ]
    path = shard(tmp_path / "named.tar", named)
    options = {"image": "right.png", "label": "kind", "time": "t", "cut": 1}
    data = load_data("webdataset", root=path, **options)
    assert data.classes == ["cat", "dog"]
    assert order_seen(data) == {"1": [103, 102, 101, 100]}
    assert data["1"].labels(range(4)).tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="has 2 images: say which with image=EXTENSION"):
        load_data("webdataset", root=path, label="kind", time="t", cut=1)


def test_samples_that_cannot_be_read_are_named(tmp_path):
    members = [m for i in range(6) for m in sample(i)]
    bad = {
        "img/0001.json": b"{",
        "img/0002.json": b"[1]",
        "img/0003.cls": b"\xff\xfe",
        "img/0004.json": b'{"timestamp": "soon"}',
        "img/0005.png": b"broken",
    }
    members = [(name, bad.get(name, content)) for name, content in members]
    members += [("img/0006.png", png(6)), ("img/0007.png", png(7)), ("img/0007.png", png(7))]
    data = load_data(
        "webdataset", root=shard(tmp_path / "a.tar", members), classes=["a", "b"], cut=1
    )
    reasons = ["0001: its .json is not JSON", "0002: its .json is a list", "0003: its .cls is not"]
    reasons += [
        "0004: time 'soon' is neither",
        "0006: has no (label|time)",
        "0007: has two members",
    ]
    assert len(data.skipped) == len(reasons)
    for n, (said, reason) in enumerate(zip(data.skipped, reasons, strict=True)):
        assert re.search(f"^sample {int(reason[:4]) + 1}, .*a.tar/img/{reason}", said), (n, said)
    assert order_seen(data) == {"1": [0]}
    assert re.search(r"a.tar/img/0005: not an image \(6 bytes\)", data.skipped[-1])


def test_a_tar_file_that_was_cut_anywhere_is_no_shorter_set(tmp_path):
    whole = shard(tmp_path / "a.tar", [m for i in range(3) for m in sample(i)]).read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for length in (*range(512, end + 1, 512), 700, end - 300, end + 100):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut.tar cannot be read .*get it again"):
            load_data("webdataset", root=tmp_path / "cut.tar", classes=["a", "b"], cut=1)
    (tmp_path / "cut.tar").write_bytes(whole[: end + 512])  # half an end mark, all samples
    data = load_data("webdataset", root=tmp_path / "cut.tar", classes=["a", "b"], cut=1)
    assert len(data["1"]) == 3


def test_joined_tar_files_are_not_read_half(tmp_path):
    one = shard(tmp_path / "a.tar", sample(0)).read_bytes()
    two = shard(tmp_path / "b.tar", sample(1)).read_bytes()
    (tmp_path / "both.tar").write_bytes(one + two)
    with pytest.raises(ValueError, match="goes on after its end mark"):
        load_data("webdataset", root=tmp_path / "both.tar", classes=["a", "b"], cut=1)


def test_names_that_are_not_utf8_pass_through_shards(tmp_path):
    name = os.fsdecode(b"d\xe9part/caf\xe9")
    path = shard(tmp_path / "a.tar", [(f"{name}.png", png(5)), (f"{name}.cls", b"1")])
    data = load_data("webdataset", root=path, classes=["a", "b"], cut=1)
    assert os.fsencode(data["1"].path(0)) == os.fsencode(path) + b"/d\xe9part/caf\xe9"
    assert order_seen(data) == {"1": [5]}


def test_a_shard_that_vanishes_is_a_skipped_image(tmp_path):
    shard(tmp_path / "a.tar", [m for i in range(2) for m in sample(i)])
    gone = shard(tmp_path / "b.tar", sample(3))
    data = load_data("webdataset", root=tmp_path, classes=["a", "b"], cut=1)
    gone.unlink()
    assert order_seen(data) == {"1": [0, 1]}
    assert re.search(r"b.tar/img/0003: .*No such file", data.skipped[0])


def test_labels_and_times_that_are_structures(tmp_path):
    deep = "[" * 900 + "]" * 900
    members = sample(0)
    for i, text in enumerate((f'{{"label": {deep}}}', f'{{"label": 1, "timestamp": {deep}}}'), 1):
        members += [(f"{i}.png", png(i)), (f"{i}.json", text.encode())]
    path = shard(tmp_path / "a.tar", members)
    data = load_data("webdataset", root=path, classes=["a", "b"], cut=1)
    assert [said.partition(": ")[2] for said in data.skipped] == [
        "its label is a list, neither a name nor a whole number",
        "its time is a list",
    ]


def test_members_that_are_no_plain_files_are_left_alone(tmp_path):
    (tmp_path / "secret.png").write_bytes(png(200))
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind, target in [
            ("../../evil.png", tarfile.REGTYPE, ""),
            ("link.png", tarfile.SYMTYPE, str(tmp_path / "secret.png")),
            ("hard.png", tarfile.LNKTYPE, "/etc/passwd"),
            ("device.png", tarfile.CHRTYPE, ""),
            ("folder.png", tarfile.DIRTYPE, ""),
        ]:
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, target
            header.size = len(png(3)) if kind == tarfile.REGTYPE else 0
            tar.addfile(header, io.BytesIO(png(3)) if header.size else None)
    before = sorted(p.name for p in tmp_path.parent.rglob("*"))
    data = load_data("webdataset", root=path, classes=["cat", "dog"], cut=1)
    assert order_seen(data) == {"1": [3]}  # read as bytes, whatever its name
    assert sorted(p.name for p in tmp_path.parent.rglob("*")) == before


def test_shards_that_do_not_fit(tars):
    whole = (tars / "part-000.tar").read_bytes()
    (tars / "bad").mkdir()
    (tars / "bad" / "cut.tar").write_bytes(whole[: len(whole) // 2 + 100])
    with tarfile.open(tars / "part-000.tar") as tar:
        header = tar.getmembers()[4].offset
    (tars / "bad" / "hit.tar").write_bytes(whole[:header] + b"\7" * 512 + whole[header + 512 :])
    with tarfile.open(tars / "bad" / "zip.tar", "w:gz") as tar:
        tar.add(tars / "part-000.tar", "a.png")
    (tars / "bad" / "text.tar").write_text("no tar at all")
    (tars / "none").mkdir()
    five = shard(
        tars / "five.tar",
        [m for i in range(4) for m in [*sample(i)[:1], (f"img/{i:04}.cls", b"5")]],
    )
    for root, options, message in [
        (None, {}, "pass root=PATTERN"),
        (tars / "none", {}, r"no tar file is found as .*none.\*.tar"),
        (tars / "part-{001..004}.tar", {}, "no tar file is found as .*part-003.tar"),
        (tars / "bad" / "cut.tar", {}, "cut.tar cannot be read as a plain tar file"),
        (tars / "bad" / "hit.tar", {}, "hit.tar cannot be read .*damaged at byte"),
        (tars / "bad" / "zip.tar", {}, "zip.tar cannot be read .*decompress it"),
        (tars / "bad" / "text.tar", {}, "text.tar cannot be read"),
        (tars / "part-000.tar", {"cut": 2}, r"are numbers without names \(0, 1\).*pass classes"),
        (five, {"classes": ["a", "b"], "cut": 2}, r"4 of 4 labels .*first one '5' \(sample 1, "),
    ]:
        with pytest.raises(ValueError, match=message):
            load_data("webdataset", root=root, **options)


# --- the extra that may be missing, and the page of documentation ---


def test_hugging_face_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'not installed: pip install "bayestta\[datasets\]"'):
        load_data("hf-datasets", root="me/mine")
    with pytest.raises(ValueError, match="pass root=DIR or root=owner/name"):
        load_data("hf-datasets")


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    """All Python of docs/data.md but that of the extra, and the table that it shows."""
    for year in (2023, 2024):
        for kind in ("cat", "dog"):
            (tmp_path / "photos" / str(year) / kind).mkdir(parents=True)
            for i in range(2):
                (tmp_path / "photos" / str(year) / kind / f"{i}.png").write_bytes(png(i))
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "0.png").write_bytes(png(0))
    (tmp_path / "shards").mkdir()
    for part in range(2):
        members = [m for i in range(4) for m in sample(4 * part + i)]
        shard(tmp_path / "shards" / f"day-{part}.tar", members)
    page = DOCS.read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```\n(path,.+?)^```", page, re.M | re.S)
    more = ["2023/cat/1.png,cat,2023-12-01", "2024/dog/0.png,dog,2024-02-02T00:00:00+01:00"]
    (tmp_path / "table.csv").write_text(shown + "".join(f"photos/{row}\n" for row in more))
    monkeypatch.chdir(tmp_path)
    blocks = [b for b in re.findall(r"^```python\n(.+?)^```", page, re.M | re.S) if "hf-" not in b]
    assert len(blocks) == 5
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    said = re.findall(r"^print\(.+\)  # (.+)$", page, re.M)
    assert len(said) == 2
    assert capsys.readouterr().out.splitlines() == said
    assert names["unlabelled"].domains == ["stream"]
    assert names["logits"].shape == (1, 2)
