"""The loggers write what the run said, each read back by its own package."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bayestta.cli import app
from bayestta.evaluation.result import Result
from feature_file import feature_file


def run(tmp_path: Path, kind: str) -> Result:
    path, out = feature_file(tmp_path / "f.safetensors"), tmp_path / "r.json"
    words = f"run --model features:{path} --data features --root {path} --method tda -b 8 -q"
    words += f" --rounds 2 --log {kind} --log-dir {tmp_path / 'logs'} --out {out}"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 1
    return Result.load(out)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(tmp_path, "tensorboard")
    (folder,) = (tmp_path / "logs").iterdir()
    read = EventAccumulator(str(folder))
    read.Reload()
    curve = read.Scalars("accuracy/so far")
    assert [point.step for point in curve] == [8 * (i + 1) for i in range(result.steps)]
    assert curve[-1].value == pytest.approx(result.accuracy, abs=1e-4)
    assert read.Scalars("final/nll")[0].value == pytest.approx(result.nll, rel=1e-5)
    assert {f"domain/day {day}" for day in range(3)} <= set(read.Tags()["scalars"])


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    result = run(tmp_path, "wandb")
    (file,) = (tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb")
    keys = ("accuracy/so far", "final/nll", "domain/day 2", "round/2", repr(result.nll))
    deadline = time.monotonic() + 60  # another process writes it, and may still be at it
    while time.monotonic() < deadline:
        told = file.read_bytes()  # a log of protobuf records, of which no reader is public
        if all(key.encode() in told for key in keys):
            break
        time.sleep(0.5)
    for key in keys:
        assert key.encode() in told


def test_mlflow(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")

    result = run(tmp_path, "mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'logs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("bayestta")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.metrics["final/accuracy"] == pytest.approx(result.accuracy)
    assert found.data.params["method"] == "tda"
    curve = client.get_metric_history(found.info.run_id, "accuracy/so far")
    assert len(curve) == result.steps
    assert found.info.status == "FINISHED"


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_one_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    usual = importlib.import_module

    def refuse(name: str, *more: object) -> object:
        if name == kind:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return usual(name, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(importlib, "import_module", refuse)
    path = feature_file(tmp_path / "f.safetensors")
    words = f"run --model features:{path} --data features --root {path} --log {kind}"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2
    assert done.stderr.strip().endswith(f"pip install 'bayestta[{kind}]'.")
    assert len(done.stderr.strip().splitlines()) == 1
