"""`bayestta features`, and the pair of model and data that reads its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bayestta.bench import Run, execute
from bayestta.cli import app
from bayestta.data import load_data, stream
from bayestta.evaluation.result import Result
from bayestta.methods import make_adapter, methods
from bayestta.models._feature_file import read_features
from bayestta.models.base import load_model
from feature_file import feature_file, feature_run
from stand_in import save_stand_in

LIMIT = 6


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST's test images, cut down to the first 90 by a cache of its own."""
    from bayestta.data._sources import arrays

    root, path = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("f") / "f.safetensors"
    save_stand_in(root / "mnist", **{k: value[:90] for k, value in arrays("mnist").items()})
    words = f"features --data rmnist --model mini-vit --root {root} -b 7 --out {path}"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert done.stdout == f"90 images of rmnist by mini-vit, 128 features -> {path}\n"
    assert "0: features, 10 images" in done.stderr.replace(" 0 %", "")
    (path.parent / "root").write_text(str(root))
    return path


def pair(file: Path, method: str, **fields: object) -> tuple[Run, Run]:
    """The same run on pixels and on features."""
    root = (file.parent / "root").read_text()
    told = {"limit": LIMIT, "batch_size": 4, "seed": 3, **fields}
    slow = Run("rmnist", "mini-vit", method, root=root, **told)  # type: ignore[arg-type]
    return slow, replace(slow, data="features", model=f"features:{file}", root=str(file))


def test_the_header_says_what_it_is_of(file: Path) -> None:
    found, model = read_features(file), load_model("mini-vit")
    data = load_data("rmnist")
    assert found.header["fingerprint"] == model.fingerprint
    assert found.header["sizes"] == [10] * 9
    assert found.header["classes"] == data.classes
    assert found.header["scale"] == model.scale
    assert len(found.header["prompts"]) == 10 * (len(data.templates) + 1) == len(found.text)
    root = (file.parent / "root").read_text()
    first = next(stream(load_data("rmnist", root=root), model.preprocess, order="given"))
    with torch.no_grad():
        torch.testing.assert_close(found.images[:10], model.encode_image(first.x))
    assert found.labels is not None
    assert torch.equal(found.labels[:10], first.y)


@pytest.mark.parametrize("method", ["zero-shot", "tda", "dota", "bca", "dpe", "bayestta"])
def test_a_run_on_features_is_the_run_on_pixels(file: Path, method: str) -> None:
    settings = {"refine": False} if method == "bayestta" else {}
    slow, fast = (execute(run) for run in pair(file, method, settings=settings))
    assert (fast.data, fast.model) == ("rmnist", "features:mini-vit")
    assert fast.fingerprint == slow.fingerprint
    assert [d["hits"] for d in fast.domains] == [d["hits"] for d in slow.domains]
    assert fast.nll == pytest.approx(slow.nll, rel=1e-4)
    assert fast.n == 9 * LIMIT


def test_templates_are_there_or_the_cure_is(file: Path) -> None:
    slow, fast = (execute(run) for run in pair(file, "zero-shot", templates="single"))
    assert fast.accuracy == slow.accuracy
    with pytest.raises(ValueError, match=r"800 of 800|7\d\d of 800.*--templates"):
        execute(pair(file, "ensemble")[1])


def test_methods_that_run_a_tower_refuse_it(file: Path) -> None:
    model, data = load_model(f"features:{file}"), load_data("features", root=file)
    for name, cls in methods().items():
        if cls.needs_encoder:
            with pytest.raises(ValueError, match="use"):
                make_adapter(name, model, data.classes, data.templates)


def test_what_does_not_belong_together_is_refused(file: Path, tmp_path: Path) -> None:
    other = feature_file(tmp_path / "other.safetensors")
    images, features = pair(file, "zero-shot")
    for run, words in (
        (replace(images, model=features.model), "cannot encode the images of 'rmnist'"),
        (replace(features, model="mini-vit"), "'mini-vit' takes images"),
        (replace(features, model=f"features:{other}"), "'features:clusters' has c1u57e25"),
        (replace(features, root=None), "is not given"),
        (replace(features, split="test"), "option of features"),
    ):
        with pytest.raises(ValueError, match=words):
            execute(run)
    with pytest.raises(FileNotFoundError, match="make it with `bayestta features"):
        load_model(f"features:{tmp_path / 'none'}")
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(ValueError, match="no complete file of `bayestta features`"):
        load_data("features", root=tmp_path / "text")
    with pytest.raises(ValueError, match="hold no images"):
        load_data("features", root=other)["day 0"][0]


def test_run_takes_the_file_and_the_new_options(tmp_path: Path) -> None:
    path, out = feature_file(tmp_path / "f.safetensors"), tmp_path / "r.json"
    words = f"run --model features:{path} --data features --root {path} --method tda --rounds 2"
    done = CliRunner().invoke(app, [*words.split(), "--label", "mine", "-q", "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = Result.load(out)
    expected = execute(feature_run(path, "tda", seed=0, rounds=2))
    assert found.accuracy == expected.accuracy
    assert found.forgetting == expected.forgetting != []
    assert found.notes == {"label": "mine"}
    wrong = CliRunner().invoke(app, [*words.split(), "--option", "sort=time"])
    assert wrong.exit_code == 2
    assert "unknown option of features 'sort'" in wrong.stderr
    logged = CliRunner().invoke(app, [*words.split(), "--log", "tensorbord"])
    assert "did you mean 'tensorboard'" in logged.stderr
