"""What `bayestta list methods --json` says of a method, against its specification and a count."""

from __future__ import annotations

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from bayestta.cli import app
from bayestta.methods import make_adapter
from bayestta.models._norms import norm_parameters

NAMES, TEMPLATES = ["cat", "dog", "car"], ["a photo of a {}."]

# From the table of the specifications, less the passes that share one of the same weights:
# forwards and backwards of the image tower an image, views, reset, and whether the answer follows.
SPEC = {
    "zero-shot": (1, 0, 1, "never", "before"),
    "ensemble": (1, 0, 1, "never", "before"),
    "coop": (1, 0, 1, "never", "before"),
    "tent-reset": (2, 1, 1, "batch", "after"),
    "tent-continual": (1, 1, 1, "never", "before"),
    "cotta": (3, 1, 1, "never", "before"),
    "rotta": (3, 1, 1, "never", "before"),
    "tpt": (64, 0, 64, "batch", "after"),
    "adaprompt": (1, 0, 1, "domain", "after"),
    "tda": (1, 0, 1, "never", "after"),
    "watt": (81, 80, 1, "batch", "after"),
    "dpe": (1, 0, 1, "never", "after"),
    "dynaprompt": (64, 0, 64, "never", "after"),
    "dota": (1, 0, 1, "never", "before"),
    "histpt": (2, 0, 2, "never", "after"),
    "bca": (1, 0, 1, "never", "before"),
    "oga": (1, 0, 1, "never", "after"),
    "stata": (1, 0, 1, "never", "after"),
    "adapt-gaussian": (1, 0, 1, "never", "after"),
    "roid": (2, 2, 1, "never", "before"),
    "bayestta": (1, 0, 1, "never", "before"),
}
TEXT = {"tpt": (2, 1), "histpt": (2, 1), "adaprompt": (6, 3)}  # passes per image, or a batch
# Small memories, so that two batches fill them and a step costs what it costs in the long run.
FULL = {"rotta": {"capacity": 3, "every": 4}, "adaprompt": {"capacity": 2, "confidence": 0.0}}
FULL["bayestta"] = {"statistics": False, "refine": False}  # what a stream at rest costs


@pytest.fixture(scope="module")
def listed():
    rows = json.loads(CliRunner().invoke(app, ["list", "methods", "--json"]).stdout)
    return {row["name"]: row for row in rows}


def test_every_method_tells_all(listed):
    assert listed.keys() == SPEC.keys()
    for row in listed.values():
        for key in ("title", "citation", "tunes", "cost", "fidelity"):
            assert row[key].strip(), f"{row['name']} has no {key}"
        assert re.search(r", .*\b20\d\d$", row["citation"]) or "arXiv" in row["citation"]
    assert len({row["title"] for row in listed.values()}) == len(listed)


@pytest.mark.parametrize("name", SPEC)
def test_views_reset_and_answer_are_the_specification_s(listed, name):
    row = listed[name]
    assert (row["views"], row["reset_every"], row["answer"]) == SPEC[name][2:]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("histpt", "derived"),
        ("bca", "derived"),
        ("tent-reset", "inferred"),
        ("zero-shot", "inferred"),
        ("tent-continual", "extension"),
        ("rotta", "extension"),
        ("watt", "extension"),
        ("dynaprompt", "paper"),
        ("adaprompt", "carry=False"),
        ("dpe", "CuPL"),
        ("oga", "instead of 32"),
        ("stata", "fewer neighbours (ours)"),
        ("adapt-gaussian", "without the LLM's sentences"),
        ("roid", "inferred"),
    ],
)
def test_what_is_not_the_official_code_is_said(listed, name, word):
    assert word in listed[name]["fidelity"]


def test_docstrings_say_derived_and_inferred():
    from bayestta.methods import methods

    for name, word in (("histpt", "derived"), ("bca", "Derived"), ("tent-reset", "inferred")):
        assert word in methods()[name].__doc__


def told(cost):
    """Forwards and backwards of the image tower that a cost line states."""
    image = cost.split(";")[0].partition(" (")[0].partition(",")[0]
    found = [re.search(rf"(\d+) (full )?{word}s?\b(?! in the)", image) for word in PASSES]
    return tuple(int(match[1]) if match else 0 for match in found)


PASSES = ("forward", "backward")


@pytest.mark.parametrize("name", SPEC)
def test_the_cost_line_is_what_a_step_does(listed, tiny_vit, name, monkeypatch):
    forwards, backwards, views, *_ = SPEC[name]
    assert told(listed[name]["cost"]) == (forwards, backwards)
    adapter = make_adapter(name, tiny_vit, NAMES, TEMPLATES, **FULL.get(name, {}))
    B, size = 4, tiny_vit.preprocess.size
    x = torch.randn(2, B, views, 3, size, size, generator=torch.Generator().manual_seed(0))
    x = x if views > 1 else x[:, :, 0]
    if adapter.reset_every != "batch":
        adapter.adapt(x[0])
    count = {"forward": 0, "backward": 0, "text": 0, "text backward": 0}
    image, text = tiny_vit.encode_image, tiny_vit.encode_embeddings

    def back(z, key, n):
        if z.requires_grad:
            z.register_hook(lambda _: count.update({key: count[key] + n}))
        return z

    def encode_image(x, *args):
        count["forward"] += len(x)
        return back(image(x, *args), "backward", len(x))

    def encode_embeddings(*args):
        count["text"] += 1
        return back(text(*args), "text backward", 1)

    monkeypatch.setattr(tiny_vit, "encode_image", encode_image)
    monkeypatch.setattr(tiny_vit, "encode_embeddings", encode_embeddings)
    adapter.adapt(x[1])
    if name == "rotta":  # a batch of 4, and one update from a memory of up to 3
        assert B < count["forward"] <= forwards * B
        assert 0 < count["backward"] <= backwards * B
    elif name == "roid":  # the images that are unlike the stream are augmented
        assert B < count["forward"] <= forwards * B
        assert B < count["backward"] <= backwards * B
    else:
        assert (count["forward"], count["backward"]) == (forwards * B, backwards * B)
    if name in TEXT:
        times = 1 if name == "adaprompt" else B
        assert (count["text"], count["text backward"]) == tuple(n * times for n in TEXT[name])
        stated = "text tower {} forwards + {} backward".format(*TEXT[name])
        assert stated in listed[name]["cost"]


def test_tunes_only_norms_where_it_says_so(listed, tiny_vit):
    norms = norm_parameters(tiny_vit.visual).keys()
    for name in ("tent-continual", "tent-reset", "watt"):
        assert "norms of the image tower" in listed[name]["tunes"]
        assert make_adapter(name, tiny_vit, NAMES, TEMPLATES).tuned.keys() == norms
