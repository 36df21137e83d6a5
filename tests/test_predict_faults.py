"""`predict` and `run --state` under faults: kills, two processes, a full disk, odd names."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner, Result

import bayestta.cli.predict as predict_command
import bayestta.models.base
import bayestta.state_file
from bayestta.cli import app
from bayestta.cli._table import escaped, unescaped
from bayestta.cli._words import unknown_words
from bayestta.models.base import VLM, Preprocess
from faults import Killed, file_limit

IMAGES, BATCH = 22, 2


class Tiny(VLM):
    """A tower with a BatchNorm, and text that any class name has."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        tower = nn.Sequential(
            nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12)
        )
        super().__init__("tiny", tower, Preprocess(16), dim=12, scale=20.0)

    def encode_text(self, prompts: Any) -> Tensor:
        rows = [
            torch.randn(12, generator=torch.Generator().manual_seed(zlib.crc32(p.encode())))
            for p in prompts
        ]
        return nn.functional.normalize(torch.stack(rows), dim=1)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`tiny` is the small model, a folder has images, and every second batch is committed."""
    monkeypatch.setattr(bayestta.models.base, "load_model", lambda name, **_: Tiny())
    monkeypatch.setitem(bayestta.models.base.MODELS._known, "tiny", "made here")
    monkeypatch.setattr(predict_command, "SAVE_EVERY", 2)
    monkeypatch.chdir(tmp_path)
    for i in range(IMAGES):
        photograph(tmp_path / "photos" / f"img{i}.png", i)


def photograph(path: Path | bytes, seed: int) -> None:
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    with open(path, "wb") as file:
        file.write(data.getvalue())


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def fails(*words: object) -> str:
    """The one sentence on stderr."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    told = result.stderr.strip().splitlines()
    assert sum(line.startswith("Error: ") for line in told) == 1
    assert "Traceback" not in result.stderr
    return told[-1]


WORDS = ["predict", "-i", "photos", "-c", "cat,dog,bird", "--model", "tiny", "-b", BATCH, "-q"]


def predict(*more: object, out: str = "p.csv", state: str = "s") -> Result:
    result = call(*WORDS, "--out", out, "--state", state, *more)
    assert result.exit_code == 0, result.output
    return result


def files(out: str = "p.csv") -> tuple[bytes, bytes]:
    return Path(out).read_bytes(), Path("s").read_bytes()


def start_over() -> None:
    for path in Path().glob("*"):
        if path.is_file():
            path.unlink()


# --- kills ---


@contextmanager
def killed_at(number: int, patch: pytest.MonkeyPatch, where: str) -> Iterator[None]:
    """The process ends at the n-th commit, before or after the state is in place."""
    write, count = bayestta.state_file.write_state, [0]

    def dies(*words: Any) -> None:
        count[0] += 1
        if count[0] == number and where == "before":
            raise Killed
        write(*words)
        if count[0] == number:
            raise Killed

    with patch.context() as inner:
        inner.setattr(bayestta.state_file, "write_state", dies)
        yield


@pytest.mark.parametrize("out", ["p.csv", "p.jsonl"])
@pytest.mark.parametrize("settings", [["refine=true", "lr=0.5"], ["refine=false"]], ids=len)
def test_killed_at_any_commit(
    monkeypatch: pytest.MonkeyPatch, settings: list[str], out: str
) -> None:
    more = [word for pair in settings for word in ("--set", pair)]
    predict(*more, out=out)
    whole = files(out)
    for where in ("before", "after"):
        for number in (1, 2, 4, 6):
            start_over()
            with killed_at(number, monkeypatch, where), pytest.raises(Killed):
                predict(*more, out=out)
            Path(f".{out}.4194304-0123abcd.part").write_text("half")  # of a process long dead
            Path(".s.4194304-0123abcd.part").write_text("half")
            predict(*more, out=out)
            assert files(out) == whole, f"{where} commit {number}"
            assert not list(Path().glob(".*.part"))


def test_killed_while_answers_are_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    predict()
    whole = files()
    start_over()
    with killed_at(3, monkeypatch, "before"), pytest.raises(Killed):
        predict()
    with Path("p.csv").open("ab") as file:
        file.write(b'photos/img9.png,"ca')  # half a line
    predict()
    assert files() == whole


def test_views_are_the_same_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["--method", "tda", "--set", "views=3"]
    predict(*more)
    whole = files()
    start_over()
    with killed_at(4, monkeypatch, "before"), pytest.raises(Killed):
        predict(*more)
    predict(*more)
    assert files() == whole


def test_images_that_cannot_be_read_do_not_shift_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("img3", "img4", "img12"):
        Path("photos", f"{name}.png").write_bytes(b"no image")
    predict()
    whole = files()
    start_over()
    with killed_at(4, monkeypatch, "before"), pytest.raises(Killed):
        predict()
    predict()
    assert files() == whole


def test_a_table_that_is_not_the_state_s_is_refused() -> None:
    predict()
    whole = Path("p.csv").read_bytes()
    Path("p.csv").write_bytes(whole.replace(b"\n", b"\r\n"))  # as a spreadsheet saves it
    assert "p.csv is not as s left it" in fails(*WORDS, "--out", "p.csv", "--state", "s")
    Path("p.csv").write_bytes(whole)
    assert "knows nothing of" in fails(*WORDS, "--out", "p.csv", "--state", "other")
    assert Path("p.csv").read_bytes() == whole
    assert not Path("other").exists()
    predict(out="q.csv")  # one state may have several tables, and go back to the first
    assert "answered in p.csv already" in predict().stdout


def test_the_state_cannot_be_the_table_and_links_stay_links() -> None:
    os.symlink("p.csv", "link.csv")
    for out in ("p.csv", "link.csv"):
        told = fails(*WORDS, "--out", out, "--state", "p.csv")
        assert f"--out and --state are both {out}" in told
    assert not Path("p.csv").exists()
    Path("elsewhere").mkdir()
    os.symlink("elsewhere/s", "s")
    predict(out="link.csv")
    assert os.readlink("s") == "elsewhere/s"
    assert os.readlink("link.csv") == "p.csv"
    assert "answered in link.csv already" in predict(out="link.csv").stdout


RUN = ["run", "--data", "folder", "--root", "own", "--model", "tiny", "-b", "4", "-q"]
PAIR = ["--out", "r.json", "--state", "s"]


@pytest.mark.parametrize("moment", ["waiting", "state", "result"])
def test_run_saves_state_and_result_together(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    for i in range(12):
        photograph(Path("own", "day", "cat" if i % 2 else "dog", f"{i}.png"), i)
    assert call(*RUN, *PAIR).exit_code == 0
    learnt, accuracy = Path("s").read_bytes(), json.loads(Path("r.json").read_text())["accuracy"]
    start_over()
    replace = os.replace

    def dies(source: Any, target: Any) -> None:
        name = Path(target).name
        if moment == "waiting" and name.endswith(".waiting"):
            raise Killed
        if (moment, name) in (("state", "s"), ("result", "r.json")):
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        with pytest.raises(Killed):
            call(*RUN, *PAIR)
    assert Path("s").exists() is (moment == "result")
    result = call(*RUN, *PAIR)
    assert result.exit_code == 0
    assert Path("s").read_bytes() == learnt  # learnt from once
    assert json.loads(Path("r.json").read_text())["accuracy"] == accuracy
    left = {path.name for path in Path().iterdir()}
    assert left == {"own", "photos", "r.json", "s", ".s.lock"}
    assert call(*RUN, *PAIR).exit_code == 0  # a new run goes on
    assert "after 12 images" in json.loads(Path("r.json").read_text())["notes"]["state"]


# --- two processes ---


def test_a_second_process_is_refused_by_the_first_one_s_number() -> None:
    predict()
    learnt = files()
    code = (
        "import os, sys, time\nfrom bayestta.locks import claim\n"
        "with claim('s', 'wait.'):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        photograph(Path("photos", "new.png"), 99)
        for words in ([*WORDS, "--out", "p.csv"], [*RUN, "--root", "photos"]):
            told = fails(*words, "--state", "s")
            assert f"s is in use by another process (process {holder.pid})" in told
        assert files() == learnt
    finally:
        holder.kill()  # as hard as can be: its lock must not outlive it
        holder.wait()
    assert f"{IMAGES + 1} images answered" in predict().stdout


# --- a full disk, modes ---


@pytest.mark.parametrize("target", ["state", "table"])
def test_a_full_disk_is_one_sentence_and_the_old_files_stay(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    photograph(Path("few", "a.png"), 1)
    assert call(*WORDS, "-i", "few", "--out", "p.csv", "--state", "s").exit_code == 0
    before = files()
    limit = len(before[1]) // 2 if target == "state" else len(before[0]) + 30
    if target == "table":  # the state must fit, the table not
        monkeypatch.setattr(bayestta.state_file, "write_state", lambda *_: None)
    with file_limit(limit):
        told = fails(*WORDS, "--out", "p.csv", "--state", "s")
    name = {"state": "s", "table": "p.csv"}[target]
    assert f"{name} could not be written: the disk was full after {limit:,} bytes" in told
    assert "free some space" in told
    assert Path("s").read_bytes() == before[1]
    assert Path("p.csv").read_bytes().startswith(before[0])
    assert not list(Path().glob(".*.part"))
    monkeypatch.undo()


def test_a_full_disk_at_the_end_of_a_run() -> None:
    for i in range(4):
        photograph(Path("own", "day", "cat" if i % 2 else "dog", f"{i}.png"), i)
    Path("r.json").write_text("earlier")
    with file_limit(200):
        told = fails(*RUN, *PAIR)
    assert "the disk was full after 200 bytes" in told
    assert Path("r.json").read_text() == "earlier"
    assert {path.name for path in Path().iterdir()} == {"own", "photos", "r.json", ".s.lock"}


def test_files_have_the_modes_of_the_umask() -> None:
    for i in range(4):
        photograph(Path("own", "day", "cat" if i % 2 else "dog", f"{i}.png"), i)
    before = os.umask(0o027)
    try:
        Path("photos", "img1.png").write_bytes(b"no image")
        predict()
        assert call(*RUN, "--out", "r.json", "--state", "t").exit_code == 0
        words = ["features", "--data", "folder", "--root", "own", "--model", "tiny", "-q"]
        assert call(*words, "--out", "f.safetensors").exit_code == 0
    finally:
        os.umask(before)
    for name in ("s", "p.csv", "p.skipped.csv", "r.json", "t", "f.safetensors"):
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o640, name


# --- names and cells ---


@pytest.mark.parametrize("out", ["p.csv", "p.jsonl"])
def test_names_that_are_not_utf_8_are_written_back_as_they_are(out: str) -> None:
    odd = b"photos/caf\xe9\xff.png"
    photograph(odd, 50)
    Path("photos", 'two\nlines,\r and "quotes".png').write_bytes(
        Path("photos", "img0.png").read_bytes()
    )
    predict(out=out)
    data = Path(out).read_bytes()
    if out == "p.csv":
        assert odd in data
        text = data.decode("utf-8", "surrogateescape")
        found = [row["path"] for row in csv.DictReader(io.StringIO(text, newline=""))]
    else:
        found = [json.loads(line)["path"] for line in data.decode().splitlines()]
    assert sorted(map(os.fsencode, found)) == sorted(
        b"photos/" + name for name in os.listdir(b"photos")
    )
    assert "answered in" in predict(out=out).stdout  # they are found again
    result = subprocess.run(  # and printed, where no file is given
        [sys.executable, "-c", PRINTS], capture_output=True, env={**os.environ, "LC_ALL": "C"}
    )
    assert result.returncode == 0, result.stderr
    assert odd in result.stdout


PRINTS = """
from bayestta.cli._transaction import Journal
from bayestta.cli._table import Table
journal = Journal(Table(None, ["path"]), None)
journal.add([{"path": b"photos/caf\\xe9\\xff.png".decode("utf-8", "surrogateescape")}])
journal.close(None)
"""


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "'=", "''@"])
def test_cells_that_a_spreadsheet_would_compute(start: str) -> None:
    text = f"{start}cmd|'/C calc'!A0"
    assert escaped(text)[0] == "'"
    assert unescaped(escaped(text)) == text
    assert escaped("it's") == "it's"


def test_formulas_in_names_and_classes_are_text() -> None:
    os.rename("photos/img0.png", "=1+1.png")
    words = ["predict", "-i", ".", "-c", "=cat,@dog", "--model", "tiny", "-q", "--state", "s"]
    assert call(*words, "--out", "p.csv").exit_code == 0
    with Path("p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert "'=1+1.png" in {row["path"] for row in rows}
    assert {row["label"] for row in rows} <= {"'=cat", "'@dog"}
    assert "answered in p.csv already" in call(*words, "--out", "p.csv").stdout


def test_ten_thousand_classes_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 0.1 two images took a minute: prompts were encoded for the method and for zero-shot."""
    asked: list[str] = []
    encode = Tiny.encode_text

    def counted(self: Tiny, prompts: Any) -> Tensor:
        asked.extend(prompts)
        return encode(self, prompts)

    monkeypatch.setattr(Tiny, "encode_text", counted)
    Path("names.txt").write_text("".join(f"class {i}\n" for i in range(10_000)))
    for i in range(2):
        photograph(Path("two", f"{i}.png"), i)
    words = ["predict", "-i", "two", "-c", "names.txt", "--model", "tiny", "-q", "--out", "p.csv"]
    assert call(*words).exit_code == 0
    assert len(asked) == len(set(asked)) == 7 * 10_000  # seven templates


# --- what a new user tried ---


def test_skipped_files_are_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("photos", "a: b.png").write_bytes(b"no image")
    Path("photos", "img2.heic").write_bytes(b"no image")
    result = call(*WORDS[:-1], "--out", "p.csv", "--state", "s")
    assert "2 skipped" in result.stdout
    assert "p.skipped.csv" in result.stderr
    with Path("p.skipped.csv").open(newline="") as file:
        rows = {row["path"]: row["reason"] for row in csv.DictReader(file)}
    assert rows == {
        "photos/a: b.png": "not an image (8 bytes)",
        "photos/img2.heic": "HEIC cannot be read: save a copy as JPEG",
    }
    with monkeypatch.context() as patch:
        no_model(patch)  # they were tried, and are as they were
        assert "answered in p.csv already" in predict().stdout
    photograph(Path("photos", "a: b.png"), 70)
    predict()
    assert "photos/a: b.png" in Path("p.csv").read_text()  # mended, so answered


def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, **_: Any) -> VLM:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(bayestta.models.base, "load_model", load)


def test_nothing_new_to_do_does_not_load_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    predict()
    no_model(monkeypatch)
    assert "answered in p.csv already" in predict().stdout


def test_one_image() -> None:
    result = call(*WORDS, "-i", "photos/img5.png")
    (row,) = csv.DictReader(io.StringIO(result.stdout))
    assert row["path"] == "photos/img5.png"


def test_top_k_the_time_and_the_guard() -> None:
    os.utime("photos/img0.png", (1_000_000_000, 1_000_000_000))
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2020:02:03 04:05:06"
    Image.new("RGB", (20, 24)).save("photos/img1.jpg", exif=exif)
    Path("photos", "img1.png").unlink()
    assert call(*WORDS, "--out", "p.jsonl", "--top-k", "3").exit_code == 0
    rows = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    for row in rows:
        labels = [row["label"], row["runner_up"], row["label_3"]]
        sure = [row["confidence"], row["runner_up_confidence"], row["confidence_3"]]
        assert sorted(labels) == ["bird", "cat", "dog"]
        assert sure == sorted(sure, reverse=True)
        assert sum(sure) == pytest.approx(1, abs=2e-4)
        assert row["guard"] in ("ok", "returned")
    assert rows[0]["timestamp"].startswith("2001-09-0")
    assert rows[1]["timestamp"] == "2020-02-03T04:05:06"
    assert call(*WORDS, "--out", "p.csv", "--top-k", "1").exit_code == 0
    assert Path("p.csv").read_text().startswith("path,label,confidence,zero_shot,")
    assert "--top-k is 4, and there are 3 classes" in fails(*WORDS, "--top-k", "4")


def test_the_guard_wraps_any_method() -> None:
    words = [*WORDS, "--method", "tent-continual"]
    for flag, seen in (([], {""}), (["--guard"], {"ok", "returned"})):
        assert call(*words, *flag, "--out", "p.csv").exit_code == 0
        with Path("p.csv").open(newline="") as file:
            assert {row["guard"] for row in csv.DictReader(file)} <= seen
    for i in range(4):
        photograph(Path("own", "day", "cat" if i % 2 else "dog", f"{i}.png"), i)
    assert call(*RUN, "--method", "tda", "--guard", "--out", "r.json").exit_code == 0
    assert json.loads(Path("r.json").read_text())["guard"]["on"] is True
    assert call(*RUN, "--set", "guard=false", "--out", "r.json").exit_code == 0
    assert json.loads(Path("r.json").read_text())["guard"]["on"] is False


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "p.xlsx"], "ending of a table of answers '.xlsx'"),
        (["--templates", "sevn"], "did you mean 'seven'"),
        (["--set", "learning_rate=1"], "did you mean 'lr'"),
        (["--model", "tinny"], "did you mean 'tiny'"),
    ],
)
def test_options_are_checked_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    no_model(monkeypatch)
    assert sentence in fails(*WORDS, *words)


def test_words_that_a_mini_model_does_not_know() -> None:
    assert unknown_words("mini-rn", ["cat", "pickup_truck", "number seven"]) == []
    assert unknown_words("mini-vit", ["cat", "eagle", "traffic light"]) == [
        "eagle",
        "traffic light",
    ]
    assert unknown_words("lit", ["eagle"]) == []
    result = call(*WORDS[:-1], "--model", "mini-rn", "-c", "cat,eagle")
    assert "mini-rn knows only the words of its captions" in result.stderr
    assert "'eagle'" in result.stderr
