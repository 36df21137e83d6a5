"""Every bench file on a few images: embedded models for CLIP, and tiny files in the published
formats for data that cannot be fetched."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayestta.bench import Run, read_bench, run_bench
from bayestta.data import list_data, load_data
from bayestta.report import render_table, write_report
from bayestta.report.paper import Paper
from feature_file import feature_file

BENCH = Path(__file__).parents[1] / "bench"
FILES = sorted(path.stem for path in BENCH.glob("*.toml"))
MODELS = {"clip-rn50": "mini-rn", "clip-vit-b16": "mini-vit"}
TEN = {  # set: folder, folder of the images, split file
    "caltech101": ("caltech-101", "101_ObjectCategories", "Caltech101"),
    "cars": ("stanford_cars", "", "StanfordCars"),
    "dtd": ("dtd", "images", "DescribableTextures"),
    "eurosat": ("eurosat", "2750", "EuroSAT"),
    "flowers102": ("oxford_flowers", "jpg", "OxfordFlowers"),
    "food101": ("food-101", "images", "Food101"),
    "pets": ("oxford_pets", "images", "OxfordPets"),
    "sun397": ("sun397", "SUN397", "SUN397"),
    "ucf101": ("ucf101", "UCF-101-midframes", "UCF101"),
}
BY_HAND = {"fmow", "yearbook", "aircraft", *TEN}
FEW = {"yearbook": 1, "fmow": 2}  # images per domain, where there are many domains
SMALL: dict[str, dict[str, object]] = {  # less of the same, unless the file says how much
    "cotta": {"augmentations": 2},
    "dynaprompt": {"prompts": 3},
    "histpt": {"bank": 3, "hardest": 2},
    "watt": {"rounds": 1, "steps_each": 1},
}


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    Image.fromarray(levels).resize((50, 40), Image.Resampling.BICUBIC).save(path)


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with every set that has to be fetched by hand, of a few images each."""
    root = tmp_path_factory.mktemp("data")
    years = {y: {2: {"image_idxs": [2 * y, 2 * y + 1], "labels": [y, 61 - y]}} for y in range(16)}
    for parts in years.values():
        parts[2] = {key: np.array(value) for key, value in parts[2].items()}
        for number in parts[2]["image_idxs"]:
            picture(root / f"fmow_v1.1/images/rgb_img_{number}.png", int(number))
    (root / "fmow.pkl").write_bytes(pickle.dumps(years))
    faces = np.random.default_rng(0).integers(0, 256, (84, 2, 32, 32, 3), np.uint8)
    portraits = {
        1930 + i: {2: {"images": images, "labels": np.array([0, 1])}}
        for i, images in enumerate(faces)
    }
    (root / "yearbook.pkl").write_bytes(pickle.dumps(portraits))
    for folder, images, name in TEN.values():
        items = [[f"{k}/{i}.jpg", k, f"class {k}"] for k in range(3) for i in range(2)]
        for i, (path, _, _) in enumerate(items):
            picture(root / folder / images / str(path), i)
        split = {"train": [], "val": [], "test": items}
        (root / folder / f"split_zhou_{name}.json").write_text(json.dumps(split))
    plane = root / "fgvc_aircraft"
    for i in range(6):
        picture(plane / f"images/{i:07}.jpg", i)
    (plane / "variants.txt").write_text("707-320\nA310\nDC-3\n")
    lines = [f"{i:07} {name}" for i, name in enumerate(["707-320", "A310", "DC-3"] * 2)]
    (plane / "images_variant_test.txt").write_text("\n".join(lines))
    return root


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context of CoOp that fits the text towers of the embedded models."""
    from bayestta.methods.coop import save_context

    path = tmp_path_factory.mktemp("contexts") / "coop.safetensors"
    save_context(torch.randn(4, 96, generator=torch.Generator().manual_seed(0)), path)
    return path


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in the place of those that a bench file says how to make."""
    return feature_file(tmp_path_factory.mktemp("features") / "points.safetensors", images=8)


def small(run: Run, root: Path, context: Path, features: Path) -> Run:
    """The same run on a few images, with what this machine has."""
    if run.data == "features":
        told = {"model": f"features:{features}", "root": str(features)}
        return replace(run, orders=min(run.orders, 2), **told)
    settings = {**SMALL.get(run.method, {}), **run.settings}
    if "checkpoint" in settings:
        settings["checkpoint"] = str(context)
    return replace(
        run,
        model=MODELS.get(run.model, run.model),
        limit=FEW.get(run.data, 4),
        split=None if run.data == "rmnist" else run.split,  # the minis were trained on the others
        root=str(root) if run.data in BY_HAND else None,
        device="cpu",
        settings=settings,
    )


def covering(runs: list[Run]) -> list[Run]:
    """Runs among which is every stream, every form of a method on every model, and every order."""
    seen: set[str] = set()
    kept = []
    for run in runs:
        stream = f"{run.data} {run.options} {run.split}"
        form = f"{run.model} {run.method} {run.settings} {run.label} {run.guard}"
        new = {stream, form, f"{run.order} {run.orders} {run.rounds} {run.batch_size}"} - seen
        if new:
            kept.append(run)
            seen |= new
    return kept


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_stand_ins_are_whole(name: str, stand_ins: Path) -> None:
    data = load_data(name, root=stand_ins)
    assert all(len(data[domain]) >= 2 for domain in data.domains)
    assert name in {info.name for info in list_data()}


@pytest.mark.parametrize("name", FILES)
def test_a_few_images(
    name: str, stand_ins: Path, context: Path, features: Path, tmp_path: Path
) -> None:
    runs = covering(read_bench(BENCH / f"{name}.toml"))
    chosen = {run.file: run for run in (small(run, stand_ins, context, features) for run in runs)}
    results, failed = run_bench(list(chosen.values()), tmp_path / "runs", cache_gb=0)
    assert failed == {}
    assert len(results) == len(chosen)
    for run, result in zip(chosen.values(), results, strict=True):
        assert result.n >= run.rounds * len(result.domains)
        assert math.isfinite(result.accuracy)
        assert (result.method, result.data, result.batch_size) == (
            run.method,
            "points" if run.data == "features" else run.data,
            run.batch_size,
        )
        assert (result.tail is not None) == (run.orders > 1)
        assert result.notes.get("label") == run.label
        assert len(result.rounds) == (run.rounds if run.rounds > 1 else 0)
        told = {key for key, origin in result.provenance.items() if origin == run.provenance}
        assert set(run.settings) <= told
    assert render_table(results, "markdown")
    write_report(results, tmp_path / "report.html")


def test_the_command(tmp_path: Path) -> None:
    """A whole file through `bayestta bench`, and again: nothing is done twice."""
    file = str(BENCH / "long_term.toml")
    words = ["bench", file, "--limit", "4", "--folder", str(tmp_path), "--processes", "2"]
    command = [sys.executable, "-m", "bayestta", *words]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*-*.json")}
    assert set(written) == {replace(run, limit=4).file for run in read_bench(file)}
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert written == {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*-*.json")}


def test_every_reported_row_has_a_run() -> None:
    """A row of the paper without a run could never stand beside a measured one."""
    runs = {
        (run.data, run.model, run.method, run.label)
        for name in ("ct_tta", "cross_domain", "ablation_clip")
        for run in read_bench(BENCH / f"{name}.toml")
    }
    for table in Paper.load(BENCH / "paper.json").tables:
        sets = table["data"] if isinstance(table["data"], list) else [table["data"]]
        for row in table["rows"]:
            for data in sets:
                assert (data, row["model"], row["method"], row.get("label")) in runs
