"""Every script of examples/ runs as it stands, in an empty folder and without a network."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from bayestta.methods import METHODS
from test_package import ROOT, python

EXAMPLES = [  # those of the service need one: tests_all/test_serve_process.py
    path for path in sorted((ROOT / "examples").glob("*.py")) if not path.stem.startswith("serve_")
]


@pytest.fixture(autouse=True)
def unregistered():
    """What an example registers goes with it."""
    known = set(METHODS)
    yield
    for name in set(METHODS) - known:
        del METHODS._known[name]


def test_there_is_one_for_each():
    names = {path.stem for path in EXAMPLES}
    assert names == {"own_clip", "camera_folder", "dataloader", "add_method"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_is_short(path, tmp_path, monkeypatch, capsys):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 70
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed
    if path.stem in ("camera_folder", "dataloader"):  # drift, which adaptation is for
        before, after = (float(x) for x in re.findall(r"(?:zero-shot|adapted):? ([\d.]+)", printed))
        assert after > before


def test_an_example_runs_in_an_interpreter_of_its_own(tmp_path):
    """The one whose order of imports matters."""
    done = python(Path(ROOT / "examples" / "own_clip.py").read_text(), ROOT / "src", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "BayesTTA(model='CLIP', 3 classes, 24 samples)" in done.stdout
