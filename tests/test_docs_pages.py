"""README.md, docs/tutorial.md and docs/own_model.md: their Python runs as it stands.

Weights that would be downloaded, and `lit`, are replaced by small models.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import transformers
from PIL import Image

from bayestta import _pipeline, load_model
from bayestta.evaluation.result import Result
from conftest import tiny_clip
from test_transformers import write

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two photographs, where nothing is downloaded."""
    for i in (1, 2):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"photo{i}.jpg")
    clip = tiny_clip("mini-vit")
    size = clip.visual.image_size
    size = size[0] if isinstance(size, tuple) else size
    made = (clip, None, open_clip.image_transform(size, is_train=False))
    tokenizer = open_clip.SimpleTokenizer(context_length=32)
    monkeypatch.setattr(open_clip, "create_model_and_transforms", lambda *a, **k: made)
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda *a, **k: tokenizer)
    monkeypatch.setattr(
        _pipeline, "load_model", lambda name, **k: load_model(name.replace("lit", "mini-rn"), **k)
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_pretrained` of a CLIP finds a small one."""
    path = folder / "clip"
    write("clip", path)
    parts = [
        transformers.AutoImageProcessor.from_pretrained(path),
        transformers.AutoTokenizer.from_pretrained(path),
    ]
    made = {
        "CLIPModel": transformers.CLIPModel.from_pretrained(path),
        "CLIPProcessor": transformers.CLIPProcessor(*parts),
    }
    for name, value in made.items():
        monkeypatch.setattr(
            getattr(transformers, name), "from_pretrained", lambda *a, value=value, **k: value
        )


def run(page: str) -> dict[str, Any]:
    """All Python blocks of a page, one after the other."""
    content = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", content, re.S | re.M)
    assert blocks
    names: dict[str, Any] = {"__name__": page}
    with torch.random.fork_rng():
        for i, block in enumerate(blocks):
            exec(compile(block, f"{page}, block {i + 1}", "exec"), names)
    return names


def test_the_readme(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("README.md")
    before, after = map(float, re.findall(r"([\d.]+) %", capsys.readouterr().out))
    assert after > before
    assert names["answers"].shape == (2, 3)
    assert (folder / "camera.state").is_file()


def test_the_tutorial(folder: Path) -> None:
    names = run("docs/tutorial.md")
    for name in ("bayestta.json", "tent.json"):
        assert Result.load(folder / name).n == 7 * 32
    assert names["later"].samples == 7 * 32


def test_your_own_model(folder: Path, hub: None) -> None:
    names = run("docs/own_model.md")
    assert names["logits"].shape == (2, 3)
    assert [len(answer) for answer in names["answers"]] == [1, 1]
    assert names["copy"].settings == names["adapter"].settings


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_links_lead_somewhere(page: str) -> None:
    """MkDocs checks the pages of the site; the README is read on its own."""
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert "://" in link or (path.parent / link).exists(), link
