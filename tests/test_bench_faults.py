"""What goes wrong around a bench: damaged and misplaced results, no network, a full disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bayestta.bench import Event, Run, run_bench
from bayestta.bench.pool import attempt
from bayestta.cli import app
from bayestta.evaluation.result import Result
from faults import file_limit
from feature_file import feature_file, feature_run


def here(runs: Sequence[Run], *, processes: int, threads: int, cache_gb: float) -> Iterator[Event]:
    """The runs, in this process."""
    for run in runs:
        kind, value = attempt(run, cache_gb)
        if kind == "done":
            yield Event(run, kind, result=Result.from_json(value))
        else:
            yield Event(run, kind, error=value[0], traceback=value[1], stage=value[2])


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    path = feature_file(tmp_path / "f.safetensors")
    return [feature_run(path, seed=seed) for seed in (1, 2)]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayestta.bench.matrix.carry_out", here)


@pytest.mark.parametrize("text", ["", '{"schema": 2', "[]", '{"schema": 2, "method": 3}'])
@pytest.mark.usefixtures("in_process")
def test_a_damaged_result_is_set_aside_named_and_run_again(
    tmp_path: Path, runs: list[Run], text: str
) -> None:
    home = tmp_path / "runs"
    (undamaged, _), _ = run_bench(runs, home)
    (home / runs[1].file).write_text(text)
    events: list[Event] = []
    (first, second), failed = run_bench(runs, home, progress=events.append)
    assert not failed
    assert [event.kind for event in events] == ["set aside", "kept", "done"]
    assert str(home / runs[1].file) in events[0].error
    assert (home / f"{runs[1].file}.set-aside").read_text() == text
    assert first.to_json() == undamaged.to_json()
    assert Result.load(home / runs[1].file).to_json() == second.to_json()
    (home / runs[1].file).write_text(text)
    run_bench(runs, home)
    assert (home / f"{runs[1].file}.set-aside").exists()  # the first one is not lost
    assert (home / f"{runs[1].file}.set-aside-2").exists()


@pytest.mark.usefixtures("in_process")
def test_a_result_under_another_run_s_name_is_noticed(tmp_path: Path, runs: list[Run]) -> None:
    home = tmp_path / "runs"
    run_bench(runs[:1], home)
    (home / runs[1].file).write_bytes((home / runs[0].file).read_bytes())
    events: list[Event] = []
    results, _ = run_bench(runs, home, progress=events.append)
    assert [result.seed for result in results] == [1, 2]
    assert f"holds the result of {runs[0].file}" in events[0].error
    assert (home / f"{runs[1].file}.set-aside").exists()


def test_what_cannot_be_loaded_is_tried_once(tmp_path: Path, runs: list[Run]) -> None:
    """In a real process: data that are not there, and a model whose weights are not."""
    good = runs[0]
    lost = [replace(good, root=str(tmp_path / "none"), seed=seed) for seed in (1, 2, 3)]
    weights = [replace(good, model="features:nowhere.st", seed=seed) for seed in (1, 2, 3)]
    events: list[Event] = []
    _, failed = run_bench(
        [*lost, *weights, good], tmp_path / "runs", processes=1, progress=events.append
    )
    assert failed.keys() == {run.file for run in (*lost, *weights)}
    for group, stage in ((lost, "data"), (weights, "model")):
        assert len([e for e in events if e.kind == "started" and e.run in group]) == 1
        (first,) = (e for e in events if e.kind == "failed" and e.stage == stage)
        others = [failed[run.file] for run in group if run != first.run]
        assert all(f"(as in the run {first.run})" in error for error in others)
    known = {(run.data, run.root): "DownloadError: no network" for run in lost}
    again: list[Event] = []
    run_bench([*lost, good], tmp_path / "runs", progress=again.append, unavailable=known)
    assert [event.kind for event in again] == ["kept", "failed", "failed", "failed"]
    assert {event.error for event in again[1:]} == {"DownloadError: no network"}


@pytest.mark.usefixtures("in_process")
def test_offline_the_data_are_asked_for_once_and_before_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bayestta.data import _sources as sources

    asked: list[str] = []

    def offline() -> sources.Arrays:
        asked.append("data")
        raise OSError("timed out")

    def weights(run: Run) -> object:
        asked.append("weights")
        raise OSError("timed out")

    source = sources.Source("mnist", {}, (("the mirror", offline),))
    monkeypatch.setitem(sources.SOURCES, "mnist", source)
    monkeypatch.setattr("bayestta.bench._assembly.load_run_model", weights)
    monkeypatch.setenv("BAYESTTA_DATA", str(tmp_path / "cache"))
    plan = tmp_path / "b.toml"
    plan.write_text(
        '[[runs]]\ndata = "rmnist"\nmodels = ["clip-rn50", "clip-vit-b16"]\n'
        'methods = "zero-shot"\nseeds = [1, 2, 3]\n'
    )
    done = CliRunner().invoke(app, ["bench", str(plan), "--folder", str(tmp_path / "runs")])
    assert done.exit_code == 1
    assert asked == ["data"]
    assert "6 of 6 runs failed" in done.stderr
    assert "timed out" in done.stderr
    assert "and 5 more: DownloadError" in done.stderr  # one cause is told once


def test_a_report_of_no_known_kind_is_refused_before_the_runs(tmp_path: Path) -> None:
    plan = tmp_path / "b.toml"
    plan.write_text('[[runs]]\ndata = "rmnist"\nmodels = "mini-rn"\nmethods = "zero-shot"\n')
    done = CliRunner().invoke(app, ["bench", str(plan), "--out", str(tmp_path / "table.doc")])
    assert done.exit_code == 2
    assert "unknown ending of a report '.doc'" in done.stderr


@pytest.mark.usefixtures("in_process")
def test_data_of_finished_runs_are_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[Run]
) -> None:
    home, plan = tmp_path / "runs", tmp_path / "b.toml"
    run_bench(runs, home)
    plan.touch()
    monkeypatch.setattr("bayestta.bench.read_bench", lambda file: runs)

    def fetch_data(*_: object, **__: object) -> None:
        raise AssertionError("the data were asked for")

    monkeypatch.setattr("bayestta.cli._preparation.fetch_data", fetch_data)
    done = CliRunner().invoke(app, ["bench", str(plan), "--folder", str(home)])
    assert (done.exit_code, done.exception) == (0, None)


@pytest.mark.usefixtures("in_process")
def test_a_full_disk_names_the_file_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[Run]
) -> None:
    save = Result.save

    def full(self: Result, path: Path) -> None:
        with file_limit(100 if self.seed == 2 else 10**9):
            save(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(Result, "save", full)
        with pytest.raises(OSError, match=r"the disk was full after 100 bytes") as error:
            run_bench(runs, tmp_path / "runs")
    assert str(tmp_path / "runs" / runs[1].file) in str(error.value)
    assert "free some space" in str(error.value)
    assert Result.load(tmp_path / "runs" / runs[0].file).seed == 1
    assert not list((tmp_path / "runs").glob(".*.part"))
    results, failed = run_bench(runs, tmp_path / "runs")
    assert (len(results), failed) == (2, {})
