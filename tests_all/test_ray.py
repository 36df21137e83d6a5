"""Runs handed to Ray give the results of runs here, and fail as these do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bayestta.bench import Event, execute, run_bench
from feature_file import feature_file, feature_run

pytest.importorskip("ray")


def test_ray_does_the_runs_and_the_driver_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
    one = feature_run(feature_file(tmp_path / "f.safetensors"), limit=10)
    runs = [one, replace(one, method="tda"), replace(one, method="no-such-method")]
    events: list[Event] = []
    home = tmp_path / "runs"
    results, failed = run_bench(runs, home, processes=2, ray=True, progress=events.append)
    assert sorted(event.kind for event in events) == ["done", "done", "failed"]
    assert [r.method for r in results] == ["zero-shot", "tda"]
    assert "unknown method" in failed[runs[2].file]
    assert (home / runs[2].file.replace(".json", ".error.json")).exists()
    for run, result in zip(runs, results, strict=False):
        here = execute(run)
        assert [d["hits"] for d in here.domains] == [d["hits"] for d in result.domains]
        assert here.nll == pytest.approx(result.nll)
    events.clear()
    again, _ = run_bench(runs[:2], home, ray=True, progress=events.append)
    assert [event.kind for event in events] == ["kept", "kept"]
    assert [r.accuracy for r in again] == [r.accuracy for r in results]
