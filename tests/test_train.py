"""`bayestta train coop`: a context from labelled images that no result is reported on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import nn
from typer.testing import CliRunner, Result

import bayestta.models.base
from bayestta.cli import app
from bayestta.data import load_data
from bayestta.data._base import REGISTRY, Data
from bayestta.methods import make_adapter
from bayestta.methods.coop import load_context, train_coop
from bayestta.models.base import VLM, Preprocess
from conftest import tiny_vlm
from stand_in import save_stand_in


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`tiny` is a random model, `bare` has no text tower; MNIST has 30 images of each kind."""
    bare = VLM(
        "bare", nn.Sequential(nn.Flatten(), nn.Linear(768, 8)), Preprocess(16), dim=8, scale=1
    )
    known = {"tiny": tiny_vlm("mini-vit"), "bare": bare}
    monkeypatch.setattr(bayestta.models.base, "load_model", lambda name, **_: known[name])
    for name in known:
        entry = bayestta.models.base.Entry(lambda *_: bare, "made here")
        monkeypatch.setitem(bayestta.models.base.MODELS._known, name, entry)
    monkeypatch.setenv("BAYESTTA_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cache" / "mnist"
    for part, seed in (("train", 0), ("test", 1)):
        images = np.random.default_rng(seed).integers(0, 256, (30, 28, 28), dtype=np.uint8)
        save_stand_in(folder, **{f"{part}_x": images, f"{part}_y": np.arange(30) % 10})


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["train", "coop", *words])


def refused(*words: str) -> str:
    result = call(*words)
    assert result.exit_code == 2
    assert not result.stdout
    assert result.stderr.count("Error: ") == 1
    return result.stderr.strip().splitlines()[-1]


QUICK = ("--model", "tiny", "--shots", "1", "--epochs", "2", "--out", "deep/ctx.safetensors")


def test_it_learns_what_the_library_learns_from_the_held_out_split() -> None:
    result = call("--data", "rmnist", "--seed", "3", *QUICK)
    assert result.exit_code == 0, result.output
    assert "epoch 2 of 2: loss" in result.stderr
    assert result.stdout.startswith("4 tokens learnt with tiny:mini-vit on 10 images of rmnist")
    held_out = load_data("rmnist", split="held-out")
    want = train_coop(tiny_vlm("mini-vit"), held_out, shots=1, epochs=2, seed=3)
    assert torch.equal(load_context("deep/ctx.safetensors"), want)
    with safe_open("deep/ctx.safetensors", "pt") as file:
        about = json.loads(file.metadata()["coop"])
    assert (about["split"], about["shots"], about["epochs"], about["seed"]) == ("held-out", 1, 2, 3)
    assert len(about["losses"]) == 2
    # The other images give another context: the test split was not looked at.
    other = load_data("rmnist", split="test")
    assert not torch.equal(want, train_coop(tiny_vlm("mini-vit"), other, shots=1, epochs=2, seed=3))
    make_adapter(
        "coop", tiny_vlm("mini-vit"), held_out.classes, ["{}"], checkpoint="deep/ctx.safetensors"
    )


def test_it_learns_from_a_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        folder = tmp_path / "photos" / "2020" / name
        folder.mkdir(parents=True)
        for i in range(2):
            pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    for words in (("photos",), ("folder", "--root", "photos")):
        result = call("--data", *words, *QUICK, "--quiet", "--tokens", "3")
        assert result.exit_code == 0, result.output
        assert not result.stderr
        assert len(result.stdout.splitlines()) == 1
        assert load_context("deep/ctx.safetensors").shape == (3, 96)
    assert "'cat' has 2 images and 3 shots" in refused("--data", "photos", *QUICK, "--shots", "3")


class Stream(Data):
    """Only a stream.

    Citation: none
    Licence: none
    Get: nothing
    """

    name = "only-a-stream"

    def __init__(self, *, root: object = None) -> None: ...


def test_mistakes_get_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("test", "all"):
        told = refused("--data", "rmnist", "--split", split, *QUICK)
        assert "holds the images that results are reported on" in told
        assert "use --split held-out or train" in told
    assert "did you mean 'rmnist'" in refused("--data", "rmnits", *QUICK)
    assert "should end in .safetensors" in refused("--data", "rmnist", *QUICK[:-1], "ctx.pt")
    monkeypatch.setitem(REGISTRY._known, "only-a-stream", Stream)
    assert "no images apart from its stream" in refused("--data", "only-a-stream", *QUICK)
    assert not Path("deep").exists()


def test_a_model_without_text_gradients_is_refused() -> None:
    told = refused("--data", "rmnist", "--model", "bare", *QUICK[2:])
    assert "'bare' has no gradient path through its text tower" in told


def test_help_has_examples() -> None:
    for words in (["train"], ["train", "coop"]):
        shown = CliRunner().invoke(app, [*words, "--help"]).stdout
        assert "Examples:\n" in shown
        assert "\n    bayestta train coop " in shown
