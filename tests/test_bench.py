"""The matrix of runs: multiplied out, resumed, isolated."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from rich.console import Console
from typer.testing import CliRunner

from bayestta.bench import Event, Run, TimeLeft, execute, read_bench, run_bench
from bayestta.bench.pool import _choose, attempt
from bayestta.cli import app
from bayestta.cli._progress import BenchBars
from bayestta.cli._screen import Screen
from bayestta.evaluation.result import Result
from feature_file import feature_file, feature_run

BENCH = """
[bench]
limit = 6
batch_size = 4
[[runs]]
data = "rmnist"
models = "mini-rn"
methods = ["zero-shot", "bayestta"]
seeds = [1, 2]
[[runs]]
data = "rmnist"
models = "mini-rn"
methods = "bayestta"
set = { preset = "released" }
grid = { alpha = [0.1, 1.0] }
provenance = "authors"
[[runs]]
data = "rmnist"
models = "mini-rn"
methods = "bayestta"
batch_size = [2, 3]
order = ["time", "correlated"]
rounds = 3
options = { sort = "time" }
label = "long"
root = "here"
device = "cuda"
precision = "bf16"
explain = true
guard = true
"""
ONE = Run("rmnist", "mini-rn", "zero-shot", limit=4)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_axes_and_grid_are_multiplied_out(tmp_path: Path) -> None:
    runs = read_bench(write(tmp_path / "b.toml", BENCH))
    assert len(runs) == 10
    assert len({run.file for run in runs}) == 10
    assert {run.settings.get("alpha") for run in runs} == {None, 0.1, 1.0}
    assert all(run.limit == 6 for run in runs)
    assert {(run.batch_size, run.order) for run in runs[6:]} == {
        *((2, "time"), (2, "correlated"), (3, "time"), (3, "correlated"))
    }
    last = runs[-1]
    assert (last.rounds, last.label, last.root, last.explain) == (3, "long", "here", True)
    assert last.guard
    assert "guarded" in str(last)
    assert (last.options, last.device, last.precision) == ({"sort": "time"}, "cuda", "bf16")


def test_names_of_results_stay_as_they_were() -> None:
    settings = {"preset": "released", "alpha": 0.1}
    run = Run("rmnist", "mini-vit", "bayestta", limit=1000, settings=settings, provenance="authors")
    assert run.file == "rmnist-mini-vit-bayestta-1-a20d094e90.json"
    assert replace(run, rounds=2).file != run.file
    assert len(replace(run, model="features:" + 99 * "/folder").file) < 255


def test_every_bench_file_is_readable() -> None:
    files = sorted((Path(__file__).parents[1] / "bench").glob("*.toml"))
    assert files
    assert all(read_bench(file) for file in files)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[runs]]\ndata = "rmnist"\nmodels = "m"', "lacks methods"),
        ('[[runs]]\ndata = "a"\nmodels = "m"\nmethods = "b"\nseed = 1', "did you mean 'seeds'"),
        ('[[runs]]\ndata = "a"\nmodels = "m"\nmethods = "b"\nrounds = "2"', "rounds .* is '2'"),
        ('[[runs]]\ndata = "a"\nmodels = "m"\nmethods = "b"\nseeds = [1, true]', "seeds .* True"),
        ('[[run]]\ndata = "a"', "did you mean 'runs'"),
        ("[[runs]", "not valid TOML"),
        ("[bench]", "holds no run"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_bench(write(tmp_path / "b.toml", text))


def test_where_settings_came_from(tmp_path: Path) -> None:
    path = feature_file(tmp_path / "f.safetensors")
    settings = {"preset": "released", "alpha": 0.1, "refine": False}
    told = {"settings": settings, "provenance": "authors", "label": "as released"}
    found = execute(feature_run(path, "bayestta", **told))
    assert found.provenance["preset"] == found.provenance["alpha"] == "authors"
    assert found.provenance["lr"] == "preset released"
    assert found.notes == {"label": "as released"}
    assert set(execute(feature_run(path, "tda")).provenance.values()) == {"default"}


def test_a_guarded_run(tmp_path: Path) -> None:
    path = feature_file(tmp_path / "f.safetensors")
    plain, guarded = (execute(feature_run(path, "tda", guard=on)) for on in (False, True))
    assert plain.guard is None
    assert guarded.guard == {"on": True, "returns": 0, "events": []}
    assert [d["hits"] for d in plain.domains] == [d["hits"] for d in guarded.domains]
    own = feature_run(path, "bayestta", settings={"refine": False}, guard=True)
    assert execute(own).guard["on"] is True  # type: ignore[index]
    off = {"refine": False, "guard": False}  # which says so in as many words
    assert execute(feature_run(path, "bayestta", settings=off)).guard["on"] is False  # type: ignore[index]


def test_finished_runs_are_kept_failures_isolated_and_a_death_fails_one_run(
    tmp_path: Path,
) -> None:
    small = feature_file(tmp_path / "small.safetensors")
    long = feature_file(tmp_path / "long.safetensors", images=100_000)
    one = feature_run(small, limit=10)
    runs = [
        one,
        replace(one, method="no-such-method"),
        feature_run(long, batch_size=1),  # killed below, long before its end
        replace(one, seed=2),
    ]
    home = tmp_path / "runs"
    home.mkdir()
    stale = write(home / f".{one.file}.0123abcd.part", "half a res")
    events: list[Event] = []

    def follow(event: Event) -> None:
        events.append(event)
        if event.kind == "step" and event.run is runs[2]:
            (child,) = multiprocessing.active_children()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

    results, failed = run_bench(runs, home, processes=1, progress=follow)
    assert not multiprocessing.active_children()
    ends = {event.run.file: event.kind for event in events}
    assert [ends[run.file] for run in runs] == ["done", "failed", "failed", "done"]
    assert [r.seed for r in results] == [1, 2]
    assert "unknown method" in failed[runs[1].file]
    assert "SIGKILL" in failed[runs[2].file]
    told = json.loads((home / runs[1].file.replace(".json", ".error.json")).read_text())
    assert told["error"] == failed[runs[1].file]
    assert "check_options" in told["traceback"]
    assert told["run"]["method"] == "no-such-method"
    assert not stale.exists()
    totals = [e.total for e in events if e.kind == "step" and e.run == one]
    assert set(totals) == {3 * 10}

    before = (home / one.file).stat().st_mtime_ns
    kinds: list[str] = []
    again, _ = run_bench([one], home, progress=lambda event: kinds.append(event.kind))
    assert kinds == ["kept"]
    assert (home / one.file).stat().st_mtime_ns == before
    assert again[0].accuracy == Result.load(home / one.file).accuracy
    here = execute(one)
    assert [d["hits"] for d in here.domains] == [d["hits"] for d in again[0].domains]
    assert here.nll == pytest.approx(again[0].nll)


def test_two_benches_do_not_share_a_folder(tmp_path: Path) -> None:
    write(tmp_path / ".bench.pid", "4711\n")
    with (
        FileLock(tmp_path / ".bench.lock"),
        pytest.raises(ValueError, match=r"in use by another bench \(process 4711\)"),
    ):
        run_bench([ONE], tmp_path)


class Seat:
    """A worker, as far as the choice of its next run goes."""

    def __init__(self, last: Run | None) -> None:
        self.last = last


def test_a_process_keeps_its_model_and_its_data() -> None:
    runs = [Run(d, m, "tda") for d in ("a", "b") for m in ("x", "y")]
    first, second = Seat(runs[0]), Seat(None)
    seats = [first, second]
    assert _choose(runs[1:], second, seats).model == "y"
    assert _choose(runs[1:], first, seats) == Run("b", "x", "tda")
    assert _choose([runs[2], runs[0]], first, seats) == runs[0]
    assert _choose([runs[1]], first, seats) == runs[1]


def test_the_time_left_is_judged_by_runs_alike() -> None:
    now = [0.0]
    slow = [replace(ONE, method="watt", seed=seed) for seed in (1, 2, 3)]
    quick = [replace(ONE, seed=seed) for seed in (1, 2)]
    left = TimeLeft([*slow, *quick], processes=2, clock=lambda: now[0])
    assert left.seconds() is None
    for run, seconds in ((slow[0], 100), (quick[0], 2)):
        left.add(Event(run, "started"))
        now[0] += seconds
        left.add(Event(run, "done"))
    assert left.seconds() == (100 + 100 + 2) / 2
    left.add(Event(slow[1], "started"))
    now[0] += 30
    left.add(Event(slow[1], "step", 60, 100))  # twice as fast as the first
    assert left.of(slow[1]) == pytest.approx(20)
    assert left.seconds() == pytest.approx((20 + 100 + 2) / 2)
    for run in (slow[1], slow[2], quick[1]):
        left.add(Event(run, "failed"))
    assert left.seconds() == 0


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_all_and_of_each(terminal: bool, tmp_path: Path) -> None:
    runs = [replace(ONE, seed=seed) for seed in (1, 2, 3)]
    result = execute(feature_run(feature_file(tmp_path / "f.safetensors"), limit=12))
    screen, text = Screen(), io.StringIO()
    screen.err = Console(file=text, force_terminal=terminal, width=200, highlight=False)
    left = TimeLeft(runs, processes=1)
    with BenchBars(screen, "readme", runs, left) as bars:
        bars(Event(runs[0], "kept", result=result))
        bars(Event(runs[1], "started"))
        bars(Event(runs[1], "step", 12, 36))
        bars.progress.refresh()
        bars(Event(runs[1], "done", 36, 36, result=result))
        bars(Event(runs[2], "started"))
        bars(Event(runs[2], "failed", error="ValueError: no"))
        bars.progress.refresh()
    shown = text.getvalue()
    assert "1 of 3 runs are there already." in shown
    assert f"done (2 of 3): {runs[1]}: {result.accuracy:.2f} % of 36 images" in shown
    assert "failed (3 of 3): zero-shot, mini-rn on rmnist, seed 3: ValueError: no" in shown
    assert ("12 of 36" in shown) is terminal
    assert ("3 of 3 runs" in shown) is terminal
    assert "left" in shown


def test_the_command_reports_at_the_end_and_fails_if_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = feature_file(tmp_path / "f.safetensors")
    plan = write(
        tmp_path / "b.toml",
        f'[[runs]]\ndata = "features"\nroot = "{path}"\nmodels = "features:{path}"\n'
        'methods = ["zero-shot", "no-such-method"]\n',
    )
    done: list[tuple[int, int]] = []

    def here(
        runs: Sequence[Run], *, processes: int, threads: int, cache_gb: float
    ) -> Iterator[Event]:
        """The runs, in this process."""
        done.append((processes, threads))
        for run in runs:
            kind, value = attempt(run, cache_gb)
            if kind == "done":
                yield Event(run, kind, result=Result.from_json(value))
            else:
                yield Event(run, kind, error=value[0], traceback=value[1])

    monkeypatch.setattr("bayestta.bench.matrix.carry_out", here)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    words = ["bench", plan, "--folder", tmp_path / "runs", "-p", 9, "--out", tmp_path / "t.csv"]
    first = CliRunner().invoke(app, [str(word) for word in words])
    assert first.exit_code == 1
    assert "points · features:clusters" in first.stdout
    assert "1 of 2 runs failed: start again" in first.stderr
    assert "<html" in (tmp_path / "runs" / "report.html").read_text()
    assert "zero-shot" in (tmp_path / "t.csv").read_text()
    assert len(list((tmp_path / "runs").glob("*.error.json"))) == 1
    table = CliRunner().invoke(app, ["report", *map(str, (tmp_path / "runs").glob("*.json"))])
    assert table.exit_code == 0, table.output
    assert "Left out 1 of 2 files" in table.stderr
    write(plan, plan.read_text().replace("no-such-method", "tda"))
    second = CliRunner().invoke(app, [str(word) for word in words])
    assert second.exit_code == 0, second.output
    assert "1 of 2 runs are there already." in second.stderr
    assert done == [(2, 3), (2, 3)]  # no more processes than runs


def test_ray_is_asked_for_by_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"pip install 'bayestta\[ray\]'"):
        run_bench([ONE], tmp_path, ray=True)
