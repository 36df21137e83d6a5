"""The command line, on a small model made here and images made here: no network, no weights."""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import re
import resource
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner, Result

import bayestta.cli.predict as predict_command
import bayestta.models.base
from bayestta.cli import app
from bayestta.cli._options import parse_settings, parse_value
from bayestta.cli._screen import Bars, Screen
from bayestta.data import load_data, stream
from bayestta.data.folder import Folder
from bayestta.methods import make_adapter, methods
from bayestta.models.base import VLM, Preprocess
from stand_in import seal

SRC = Path(__file__).parents[1] / "src"


class Tiny(VLM):
    """A tower with a BatchNorm, and text that any class name has."""

    def __init__(self, name: str = "tiny", trained_on: frozenset[str] = frozenset()) -> None:
        torch.manual_seed(3)
        tower = nn.Sequential(
            nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12)
        )
        super().__init__(name, tower, Preprocess(16), dim=12, scale=20.0, trained_on=trained_on)

    def encode_text(self, prompts: Any) -> Tensor:
        rows = [
            torch.randn(12, generator=torch.Generator().manual_seed(zlib.crc32(p.encode())))
            for p in prompts
        ]
        return nn.functional.normalize(torch.stack(rows), dim=1)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`tiny` and the names of the demo load the small model; all else goes the usual way."""
    usual = bayestta.models.base.load_model

    def load(name: str, **options: Any) -> VLM:
        if name in ("tiny", "lit", "mini-rn"):
            return Tiny(name)
        return (
            Tiny(name, frozenset({"cifar10/train"})) if name == "seen" else usual(name, **options)
        )

    monkeypatch.setattr(bayestta.models.base, "load_model", load)
    for name in ("tiny", "seen"):
        monkeypatch.setitem(
            bayestta.models.base.MODELS._known,
            name,
            bayestta.models.base.Entry(lambda *_: Tiny(), "made here"),
        )
    monkeypatch.setenv("BAYESTTA_DATA", str(tmp_path / "cache"))
    monkeypatch.delenv("BAYESTTA_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """CIFAR-10 and MNIST as they lie in the cache, but of 24 random images."""
    rng = np.random.default_rng(0)
    for name, shape in (("cifar10", (32, 32, 3)), ("mnist", (28, 28))):
        folder = tmp_path / "cache" / name
        folder.mkdir(parents=True)
        for part in ("train", "test"):
            np.save(folder / f"{part}_x.npy", rng.integers(0, 256, (24, *shape), dtype=np.uint8))
            np.save(folder / f"{part}_y.npy", (np.arange(24) % 10).astype(np.uint8))
        seal(folder)
    return tmp_path / "cache"


def photographs(folder: Path, start: int, stop: int) -> None:
    """Image i is the i-th by name, and the newest first by time."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(start, stop):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        path = folder / f"img{i}.png"
        Image.fromarray(pixels).save(path)
        os.utime(path, (2_000_000 - i, 2_000_000 - i))


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def fails(*words: str | Path, code: int = 2) -> str:
    """The one sentence on stderr."""
    result = call(*words)
    assert result.exit_code == code, result.output
    assert not result.stdout
    told = result.stderr.strip().splitlines()
    assert told[-1].startswith("Error: ")
    assert sum(line.startswith("Error") for line in told) == 1
    assert "Traceback" not in result.stderr
    return told[-1]


def answered(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- help ---

COMMANDS = (
    *(["demo"], ["run"], ["predict"], ["bench"], ["report"], ["features"], ["list"]),
    *(["data"], ["data", "get"]),
)


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help_has_examples(command: list[str]) -> None:
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:\n" in result.stdout
    assert "\n    bayestta " in result.stdout
    assert not result.stderr


def test_help_is_light_and_fast() -> None:
    code = (
        "import sys, bayestta.cli as c\n"
        "try:\n    c.main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'PIL', 'scipy', 'matplotlib', 'open_clip', 'transformers'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], env=environment, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "predict" in done.stdout
    # Processor time: a busy machine is not the command's fault.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def help_texts(command: Any) -> list[tuple[str, str]]:
    inside = getattr(command, "commands", {})
    own = [(p.name, p.help or "") for p in command.params if p.param_type_name == "option"]
    return own + [pair for one in inside.values() for pair in help_texts(one)]


def test_help_texts_are_sentences() -> None:
    texts = help_texts(typer.main.get_command(app))
    assert len(texts) > 80
    for name, text in texts:
        assert text[:1].isupper(), (name, text)
        assert text.endswith("."), (name, text)
        assert not re.match(r"(Of|See|Where|Also|The same|By default|Its)\b", text), (name, text)
        assert not re.search(r"\b(images|file|one|process) a \w+", text), (name, text)


def test_commands_are_found_by_walking_the_package() -> None:
    files = {path.stem for path in (SRC / "bayestta" / "cli").glob("[!_]*.py")}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {"list" if name == "listing" else name for name in files} == set(commands)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(shell: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "_BAYESTTA_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "bayestta pre",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "bayestta pre",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    code = "from bayestta.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "predict" in done.stdout, done.stderr
    assert "report" not in done.stdout
    assert {"--install-completion", "--show-completion"} <= set(call("--help").stdout.split())


def test_one_default_seed() -> None:
    from bayestta.bench import SEED, Run

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands |= commands["train"].commands
    seeds = {
        name: p.default for name, one in commands.items() for p in one.params if p.name == "seed"
    }
    assert seeds == dict.fromkeys(("run", "predict", "demo", "features", "coop"), SEED)
    assert Run("", "", "").seed == SEED == 1


def test_version() -> None:
    assert call("--version").stdout.startswith("bayestta ")


# --- run ---


def test_run_writes_what_the_library_measures(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "r.json"
    words = ["run", "--data", "cifar10-light", "--model", "tiny", "--limit", "16", "-b", "8"]
    result = call(*words, "--seed", "3", "--set", "alpha=2", "--set", "refine=no", "--out", out)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    keys = "method model data seed accuracy domains seconds peak_memory_bytes settings covariance"
    assert set(keys.split()) <= found.keys()
    assert found["settings"]["alpha"] == 2.0
    assert found["settings"]["refine"] is False
    assert found["provenance"]["alpha"] == found["provenance"]["refine"] == "user"
    assert found["provenance"]["half_life"] == "default"
    assert (found["limit"], found["batch_size"], found["split"]) == (16, 8, "test")

    data, model = load_data("cifar10-light"), Tiny()
    adapter = make_adapter(
        "bayestta", model, data.classes, data.templates, seed=3, alpha=2.0, refine=False
    )
    hits = n = 0
    for batch in stream(data, model.preprocess, batch_size=8, seed=3, limit=16):
        assert batch.y is not None
        hits += int((adapter.adapt(batch.x).argmax(1) == batch.y).sum())
        n += len(batch.y)
    assert n == found["n"] == 7 * 16
    assert found["accuracy"] == pytest.approx(100 * hits / n)

    assert found["key"].startswith("cifar10-light-tiny-bayestta-3-")
    assert "cifar10-light · tiny" in result.stdout  # the table
    zero_shot, gain = found["sketch"]["accuracy"], found["accuracy"] - found["sketch"]["accuracy"]
    assert f"images (zero-shot sketch: {zero_shot:.2f} %, {gain:+.2f})" in result.stdout
    assert f"{found['accuracy']:.2f} % of 112 images" in result.stdout
    assert result.stderr.count("0.25: bayestta") == 1  # a line per domain where bars cannot be
    assert "\x1b" not in result.output


def test_quiet_is_one_line_before_and_after_the_command(cache: Path) -> None:
    words = ["run", "--model", "tiny", "--method", "zero-shot", "--limit", "4"]
    for line in (["--quiet", *words], [*words, "-q"]):
        result = call(*line)
        assert result.exit_code == 0
        assert not result.stderr
        assert len(result.stdout.splitlines()) == 1


def test_presets_are_a_setting_and_recorded(cache: Path) -> None:
    words = ["run", "--model", "tiny", "--limit", "12", "-b", "12", "-q", "--out", "r.json"]
    assert call(*words, "--set", "preset=released", "--set", "alpha=10").exit_code == 0
    found = json.loads(Path("r.json").read_text())
    assert found["settings"]["preset"] == "released"
    assert found["provenance"]["preset"] == found["provenance"]["alpha"] == "user"
    assert found["provenance"]["lr"] == "preset released"


def test_run_goes_on_from_a_state(cache: Path) -> None:
    words = ["run", "--model", "tiny", "--limit", "8", "-q", "--out", "r.json", "--state", "s"]
    assert call(*words).exit_code == 0
    assert json.loads(Path("r.json").read_text())["notes"] == {}
    assert call(*words).exit_code == 0
    assert "after 56 images" in json.loads(Path("r.json").read_text())["notes"]["state"]


WRONG = {
    "method": (["--method", "bayesta"], "did you mean 'bayestta'"),
    "model": (["--model", "mini-rm"], "did you mean 'mini-rn'"),
    "data": (["--data", "rmnits"], "did you mean 'rmnist'"),
    "key": (["--set", "alhpa=1"], "did you mean 'alpha'"),
    "synonym": (["--set", "learning_rate=1"], "did you mean 'lr'"),
    "range": (["--set", "share=2"], "give a number above 0"),
    "number": (["--set", "alpha=big"], "alpha takes a number, not 'big'"),
    "no value": (["--set", "alpha"], "key=value"),
    "preset": (["--set", "preset=relased"], "did you mean 'released'"),
    "nothing to set": (["--method", "zero-shot", "--set", "alpha=1"], "no setting 'alpha'"),
    "order": (["--order", "tim"], "did you mean 'time'"),
    "reset": (["--reset-every", "domian"], "did you mean 'domain'"),
    "split": (["--split", "tset"], "did you mean 'test'"),
    "templates": (["--templates", "sevn"], "did you mean 'seven'"),
    "precision": (["--precision", "fp23"], "did you mean 'fp32'"),
    "device": (["--device", "cuda:77"], "cannot be used"),
    "trained on it": (["--model", "seen", "--split", "all"], "was trained on cifar10/train"),
    "folder": (["--data", "folder", "--root", "nowhere"], "not a folder"),
    "checkpoint": (["--model", "no/such.safetensors"], "no checkpoint at"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_get_a_sentence_and_spoil_nothing(cache: Path, name: str) -> None:
    words, sentence = WRONG[name]
    Path("r.json").write_text("earlier")
    given = words if "--model" in words else ["--model", "tiny", *words]
    assert sentence in fails("run", *given, "--out", "r.json", "--quiet")
    assert Path("r.json").read_text() == "earlier"
    assert {p.name for p in Path().iterdir()} <= {"r.json", "cache"}


@pytest.mark.parametrize(
    "name", [key for key in WRONG if key not in ("model", "checkpoint", "trained on it")]
)
def test_options_are_checked_before_the_model_is_loaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    breaking(monkeypatch, AssertionError("the model was loaded"))
    assert WRONG[name][1] in fails("run", "--model", "tiny", *WRONG[name][0], "--quiet")


def test_outputs_are_checked_before_the_work(cache: Path, tmp_path: Path) -> None:
    assert "is a folder" in fails("run", "--out", tmp_path)
    Path("file").touch()
    assert "choose another" in fails("demo", "--out", "file/demo.html")


def test_a_stream_that_breaks_leaves_the_earlier_result(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        photographs(tmp_path / "own" / "day" / kind, 0, 3)
    (tmp_path / "own" / "day" / "dog" / "broken.png").write_bytes(b"no image")
    words = ["run", "--data", "folder", "--root", "own", "--model", "tiny", "--out", "r.json"]
    Path("r.json").write_text("earlier")
    assert "broken.png" in fails(*words, "--strict", "-q")
    assert Path("r.json").read_text() == "earlier"
    result = call(*words)
    assert result.exit_code == 0
    assert "Skipped 1 image: own/day/dog/broken.png" in result.stderr
    found = json.loads(Path("r.json").read_text())
    assert (found["n"], found["notes"]["skipped"]) == (6, 1)


# --- errors that are no mistakes ---


def breaking(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[str]:
    """A model that cannot be loaded; returns the words of a run on a small folder."""

    def load(name: str, **options: Any) -> VLM:
        raise error

    monkeypatch.setattr(bayestta.models.base, "load_model", load)
    for kind in ("cat", "dog"):
        photographs(Path("own", "day", kind), 0, 1)
    return ["run", "--data", "folder", "--root", "own", "-q"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError("9 GB"), "memory ran out (9 GB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9"), "smaller --batch-size"),
        (ImportError("model 'lit' needs bayestta[lit]"), "needs bayestta[lit]"),  # no markup
        (PermissionError(13, "Permission denied", "w.pt"), "w.pt: Permission denied"),
        (NotImplementedError("no gradient path"), "no gradient path"),
    ],
)
def test_the_machine_s_errors(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    assert sentence in fails(*breaking(monkeypatch, error))


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "interrupted" in fails(*breaking(monkeypatch, KeyboardInterrupt()), code=130)


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    words = breaking(monkeypatch, ZeroDivisionError())
    assert isinstance(call(*words).exception, ZeroDivisionError)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(call("--debug", "list", "nothing").exception, ValueError)
    monkeypatch.setenv("BAYESTTA_DEBUG", "1")
    assert isinstance(call("list", "nothing").exception, ValueError)


# --- predict ---

PREDICT = ["predict", "--images", "photos", "--classes", "cat,dog, bird", "--model", "tiny"]
COLUMNS = [
    "path",
    "label",
    "confidence",
    "runner_up",
    "runner_up_confidence",
    "zero_shot",
    "timestamp",
    "guard",
]
ROWS = [*PREDICT, "--batch-size", "4", "--out", "p.csv", "--quiet"]


def test_predict_answers_as_the_library_does(tmp_path: Path) -> None:
    photographs(tmp_path / "photos" / "evening", 0, 5)
    photographs(tmp_path / "photos" / "morning", 5, 10)
    (tmp_path / "names.txt").write_text("cat\ndog\nbird\n")
    words = ["predict", "--images", "photos", "--classes", "names.txt", "--model", "tiny"]
    result = call(
        *words, "--batch-size", "4", "--set", "alpha=2", "--set", "doubt=0", "-o", "p.csv"
    )
    assert result.exit_code == 0, result.output
    assert "10 images answered, 0 skipped -> p.csv" in result.stdout
    rows = answered(tmp_path / "p.csv")
    assert list(rows[0]) == COLUMNS
    assert [Path(row["path"]).name for row in rows] == [f"img{i}.png" for i in range(10)]

    model = Tiny()
    data = Folder(root="photos", classes=["cat", "dog", "bird"], flat=True)
    adapter = make_adapter(
        "bayestta", model, data.classes, data.templates, seed=1, alpha=2.0, doubt=0.0
    )
    plain = make_adapter("zero-shot", model, data.classes, data.templates)
    labels, zero_shot, sure = [], [], []
    for batch in stream(data, model.preprocess, batch_size=4, order="given"):
        zero_shot += plain.predict(batch.x).argmax(1).tolist()
        p = adapter.probabilities(adapter.adapt(batch.x))
        labels += p.argmax(1).tolist()
        sure += p.max(1).values.tolist()
    assert [row["label"] for row in rows] == [data.classes[k] for k in labels]
    assert [row["zero_shot"] for row in rows] == [data.classes[k] for k in zero_shot]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(sure, abs=1e-4)


def test_predict_in_order_of_time_over_all_folders(tmp_path: Path) -> None:
    photographs(tmp_path / "photos" / "a", 0, 3)
    photographs(tmp_path / "photos" / "b", 3, 6)
    result = call(*PREDICT, "--sort", "time", "--method", "zero-shot", "-q")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))  # stdout holds the table alone
    assert [Path(row["path"]).name for row in rows] == [f"img{i}.png" for i in range(5, -1, -1)]
    assert all(row["label"] == row["zero_shot"] for row in rows)


def test_predict_goes_on_where_it_stopped(tmp_path: Path) -> None:
    photographs(tmp_path / "photos", 0, 16)
    assert call(*ROWS).exit_code == 0
    whole = answered(tmp_path / "p.csv")
    (tmp_path / "p.csv").unlink()
    for i in range(8, 16):
        (tmp_path / "photos" / f"img{i}.png").rename(tmp_path / f"img{i}.png")
    assert call(*ROWS, "--state", "s").exit_code == 0
    assert answered(tmp_path / "p.csv") == whole[:8]
    for i in range(8, 16):
        (tmp_path / f"img{i}.png").rename(tmp_path / "photos" / f"img{i}.png")
    assert "16 images answered, 8 from before" in call(*ROWS, "--state", "s").stdout
    assert answered(tmp_path / "p.csv") == whole
    learnt = (tmp_path / "s").read_bytes()
    assert "answered in p.csv already" in call(*ROWS, "--state", "s").stdout
    assert answered(tmp_path / "p.csv") == whole
    assert (tmp_path / "s").read_bytes() == learnt


def test_predict_survives_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photographs(tmp_path / "photos", 0, 16)
    assert call(*ROWS).exit_code == 0
    whole = answered(tmp_path / "p.csv")
    (tmp_path / "p.csv").unlink()
    monkeypatch.setattr(predict_command, "SAVE_EVERY", 2)
    adapt, steps = methods()["bayestta"].adapt, []

    def stops(self: Any, x: Tensor) -> Tensor:
        steps.append(len(x))
        if len(steps) == 4:
            raise KeyboardInterrupt
        return adapt(self, x)

    with monkeypatch.context() as patch:
        patch.setattr(methods()["bayestta"], "adapt", stops)
        assert call(*ROWS, "--state", "s").exit_code == 130
    assert answered(tmp_path / "p.csv") == whole[:8]  # two batches were saved, the third was not
    assert call(*ROWS, "--state", "s").exit_code == 0
    assert answered(tmp_path / "p.csv") == whole


def test_predict_counts_what_cannot_be_read(tmp_path: Path) -> None:
    photographs(tmp_path / "photos", 0, 3)
    (tmp_path / "photos" / "img9.jpg").write_bytes(b"no image")
    result = call(*PREDICT, "--out", "p.csv", "--state", "s")
    assert result.exit_code == 0
    assert "3 images answered, 1 skipped" in result.stdout
    assert "img9.jpg: not an image (8 bytes)" in result.stderr
    first = (tmp_path / "p.csv").read_text()
    assert call(*PREDICT, "--out", "p.csv", "--state", "s").exit_code == 0  # only that one is left
    assert (tmp_path / "p.csv").read_text() == first
    assert "img9.jpg" in fails(*PREDICT, "--out", "p.csv", "--strict", "-q")
    assert (tmp_path / "p.csv").read_text() == first


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--classes", "cat"], "neither a file nor names with commas"),
        (["--classes", "cat,cat"], "occur more than once"),
        (["--classes", "cat,"], "empty"),
        (["--images", "nowhere"], "give --images a folder or an image"),
        (["--sort", "tim"], "did you mean 'time'"),
        (["--state", "p.csv"], "are both p.csv: give two files"),
    ],
)
def test_predict_s_mistakes(tmp_path: Path, words: list[str], sentence: str) -> None:
    photographs(tmp_path / "photos", 0, 2)
    head = ",".join(COLUMNS) + "\n"
    (tmp_path / "p.csv").write_text(head)
    assert sentence in fails(*ROWS, *words)
    assert (tmp_path / "p.csv").read_text() == head


def test_predict_refuses_a_state_of_other_classes_and_another_table(tmp_path: Path) -> None:
    photographs(tmp_path / "photos", 0, 2)
    assert call(*ROWS, "--state", "s").exit_code == 0
    learnt = (tmp_path / "s").read_bytes()
    other = [*ROWS, "--classes", "cat,cow", "--state", "s", "--out", "q.csv"]
    assert "another classes" in fails(*other)
    (tmp_path / "q.csv").write_text("mine\n1\n")
    assert "no table of `bayestta predict`" in fails(*ROWS, "--state", "s", "--out", "q.csv")
    assert (tmp_path / "q.csv").read_text() == "mine\n1\n"
    assert (tmp_path / "s").read_bytes() == learnt


# --- demo, report, list, data ---


def test_demo_compares_on_two_streams(cache: Path, tmp_path: Path) -> None:
    result = call("demo", "--limit", "2", "--seed", "2")
    assert result.exit_code == 0, result.output
    for title in ("cifar10-light · lit", "rmnist · mini-rn", "vs zero-shot"):
        assert title in result.stdout
    assert f"Page with the curves: {tmp_path / 'demo.html'}" in result.stdout
    page = (tmp_path / "demo.html").read_text()
    assert "cifar10-light" in page
    assert "rmnist" in page
    for method in ("zero-shot", "bayestta"):
        assert len(re.findall(rf"^  \S+: {method} ", result.stderr, re.M)) == 7 + 9  # domains


def test_a_demo_that_fails_leaves_the_earlier_page(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("demo.html").write_text("earlier")
    breaking(monkeypatch, ImportError("model 'lit' needs a package"))
    assert "needs a package" in fails("demo", "-q")
    assert Path("demo.html").read_text() == "earlier"


def test_report_in_every_form(cache: Path) -> None:
    for method in ("zero-shot", "bayestta"):
        words = ["run", "--method", method, "--model", "tiny", "--limit", "4", "-q"]
        assert call(*words, "--out", f"{method}.json").exit_code == 0
    files = ["zero-shot.json", "bayestta.json"]
    assert "vs zero-shot" in call("report", *files).stdout
    outs = [f"r.{kind}" for kind in ("html", "md", "tex", "csv", "txt")]
    result = call("report", *files, *(word for out in outs for word in ("--out", out)))
    assert result.stdout.split() == outs
    for out in outs:
        assert "bayestta" in Path(out).read_text()
    Path("r.md").write_text("earlier")
    told = fails("report", *files, "--out", "r.md", "--out", "r.pdf")
    assert "ending of a report '.pdf'" in told
    assert Path("r.md").read_text() == "earlier"
    assert "1 of 2 files are not there (gone.json)" in fails("report", "gone.json", files[0])
    Path("cut.json").write_text(Path(files[0]).read_text()[:100])
    assert "cut.json is not a complete JSON file" in fails("report", "cut.json")


def test_list_tells_all_in_json() -> None:
    found = {row["name"]: row for row in json.loads(call("list", "methods", "--json").stdout)}
    assert found.keys() == methods().keys()
    keys = {"title", "citation", "tunes", "views", "reset_every", "cost", "fidelity", "settings"}
    assert all(keys <= row.keys() for row in found.values())
    names = {row["name"] for row in json.loads(call("list", "data", "--json").stdout)}
    assert {"rmnist", "cifar10-light", "folder"} <= names
    names = {row["name"] for row in json.loads(call("list", "models", "--json").stdout)}
    assert {"lit", "mini-rn", "mini-vit", "clip-vit-b16"} <= names
    assert "did you mean 'methods'" in fails("list", "method")


def test_list_is_aligned_and_plain() -> None:
    lines = call("list", "methods").stdout.splitlines()
    column = lines[0].index("about")
    assert max(map(len, lines)) <= 80
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines)
    assert call("list", "methods", "-q").stdout.split() == list(methods())


def test_list_one_in_detail() -> None:
    for what, name, words in (
        ("methods", "bayestta", ["settings (--set NAME=VALUE)", "alpha = 8.0  (a number of 0 or"]),
        ("methods", "tda", ["citation", "fidelity", "Karmanov", "Weight of the positive cache."]),
        (
            "data",
            "rmnist",
            ["licence", "bayestta data get rmnist", "options (--option NAME=VALUE)"],
        ),
        ("models", "mini-rn", ["small CLIP with BatchNorm"]),
    ):
        lines = call("list", what, name).stdout.splitlines()
        assert lines[0] == name
        assert max(map(len, lines)) <= 80
        assert all(word in "\n".join(lines) for word in words), words
        (row,) = json.loads(call("list", what, name, "--json").stdout)
        assert row["name"] == name
    assert "did you mean 'rmnist'" in fails("list", "data", "rmnits")


@pytest.mark.parametrize("what", ["methods", "data", "models"])
def test_lists_fit_a_terminal(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = call("list", what).stdout.splitlines()
    assert max(map(len, rows)) <= 80
    assert len(rows) == 1 + len(json.loads(call("list", what, "--json").stdout))
    screen = Screen()
    monkeypatch.setattr("bayestta.cli.listing.screen", lambda *_: screen)
    for width in (80, 200):  # one line per row; a wider terminal cuts less
        screen.out = Console(force_terminal=True, width=width, color_system=None)
        shown = call("list", what).stdout.splitlines()
        assert len(shown) == len(rows)
        assert max(map(len, shown)) <= width
        assert (shown == rows) == (width == 80)
    assert "…" not in "".join(shown)


def test_data_get(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("data", "get", "rmnist", "cifar10", "folder")
    assert result.stdout.splitlines() == [
        f"rmnist: {cache / 'mnist'}",
        f"cifar10: {cache / 'cifar10'}",
        "folder: nothing to get",
    ]
    assert "did you mean 'mnist'" in fails("data", "get", "mnits")

    from bayestta.data import _sources as sources

    def offline() -> sources.Arrays:
        raise OSError("no route to host")

    broken = sources.Source("mnist", {}, (("the mirror", offline),))
    monkeypatch.setitem(sources.SOURCES, "mnist", broken)
    result = call("data", "get", "rmnist", "--root", "elsewhere")
    assert result.exit_code == 2
    assert "Downloading mnist into elsewhere/mnist" in result.stderr
    assert "no route to host" in result.stderr.splitlines()[-1]


# --- parts ---


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        ("float", "1e-3", 1e-3),
        ("float", "2", 2.0),
        ("float", "inf", float("inf")),
        ("int | None", "None", None),
        ("int | None", "7", 7),
        ("bool", "no", False),
        ("bool", "TRUE", True),
        ("float | str", "auto", "auto"),
        ("float | str", "0.5", 0.5),
        ("Literal['a', 'b'] | None", "a", "a"),
        ("tuple[float, ...]", "[1, 2]", [1, 2]),
        ("str", "1", "1"),
        (float, "3", 3.0),
    ],
)
def test_settings_have_the_types_of_the_signature(annotation: Any, text: str, value: Any) -> None:
    parameter = inspect.Parameter("p", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    found = parse_value(text, parameter)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("annotation", "text"), [("int", "1.5"), ("float", "nan"), ("bool", "2"), ("tuple", "(1,")]
)
def test_settings_of_another_type_are_refused(annotation: str, text: str) -> None:
    parameter = inspect.Parameter("p", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    with pytest.raises(ValueError, match="p takes"):
        parse_value(text, parameter)


def test_a_setting_without_annotation_has_the_type_of_its_default() -> None:
    parameter = inspect.Parameter("p", inspect.Parameter.KEYWORD_ONLY, default=0.5)
    assert parse_value("1", parameter) == 1.0
    assert type(parse_value("1", parameter)) is float
    assert parse_settings("bayestta", ["alpha = 1", "alpha=3"]) == {"alpha": 3.0}


def test_bars_on_a_terminal(tmp_path: Path) -> None:
    model, data = Tiny(), Folder(root=_labelled(tmp_path))
    screen = Screen()
    screen.err = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Bars(screen, "tiny", dict.fromkeys(data.domains, 4)) as bars:
        from bayestta.evaluation.steps import steps

        for method in ("zero-shot", "ensemble"):
            adapter = make_adapter("zero-shot", model, data.classes, data.templates)
            progress = bars.follow(method)
            for step in steps(adapter, stream(data, model.preprocess, batch_size=2)):
                progress(step)
    shown = screen.err.file.getvalue()  # type: ignore[attr-defined]
    last = shown[shown.rindex("[∕red]") :]  # a folder's name, not markup
    assert "4/4" in last
    assert "zero-shot" in last
    assert "ensemble" in last


def test_progress_fits_80_columns(tmp_path: Path) -> None:
    from bayestta.bench import Event, Run, TimeLeft
    from bayestta.cli._progress import BenchBars

    screen, text = Screen(), io.StringIO()
    screen.err = Console(file=text, force_terminal=True, width=80, color_system=None)
    long = "a domain with a name that is much too long for any bar"
    with Bars(screen, "tiny", {long: 10_000}) as bars:
        for method in ("zero-shot", "bayestta"):
            y = torch.zeros(2, dtype=torch.int64)
            step = SimpleNamespace(domain=long, round=1, n=2, y=y, probabilities=torch.eye(2))
            bars.follow(method)(step)  # type: ignore[arg-type]
    assert "zero-shot 50.0 %" in text.getvalue()
    runs = [Run("cifar10-corruptions", "open_clip:ViT-B-16-quickgelu/openai", "tent-continual")]
    with BenchBars(screen, "long_term_clip", runs, TimeLeft(runs, processes=1)) as bench:
        bench(Event(runs[0], "started"))
        bench(Event(runs[0], "step", 1000, 120000))
        bench.progress.refresh()
        bench(Event(runs[0], "failed", error="ValueError: " + "word " * 40))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, shown)) <= 80
    assert any("1000 of 120000" in line and "left" in line for line in shown)  # on one line
    words = {word.strip(":,") for line in shown for word in line.split()}
    assert not words & {"wor", "rd", "wo"}  # no word is broken


def _labelled(root: Path) -> Path:
    for domain in ("day", "[/red]"):
        for kind in ("cat", "dog"):
            photographs(root / "own" / domain.replace("/", "∕") / kind, 0, 2)
    return root / "own"
