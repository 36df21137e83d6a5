"""The matrix of runs: multiplied out, resumed, isolated."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayestta.bench import Run, read_bench, run_bench
from bayestta.result import Result

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
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_axes_and_grid_are_multiplied_out(tmp_path: Path) -> None:
    runs = read_bench(write(tmp_path / "b.toml", BENCH))
    assert len(runs) == 6
    assert len({run.file for run in runs}) == 6
    assert {run.hyper.get("alpha") for run in runs} == {None, 0.1, 1.0}
    assert all(run.limit == 6 for run in runs)


def test_every_bench_file_is_readable() -> None:
    files = sorted((Path(__file__).parents[1] / "bench").glob("*.toml"))
    assert files
    assert all(read_bench(file) for file in files)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[runs]]\ndata = "rmnist"\nmodels = "m"', "lacks methods"),
        ('[[runs]]\ndata = "a"\nmodels = "m"\nmethods = "b"\nseed = 1', "did you mean 'seeds'"),
        ("[[runs]", "not valid TOML"),
        ("[bench]", "holds no run"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_bench(write(tmp_path / "b.toml", text))


def test_finished_runs_are_kept_and_a_failure_is_isolated(tmp_path: Path) -> None:
    runs = [
        Run("rmnist", "mini-rn", "zero-shot", limit=4),
        Run("rmnist", "mini-rn", "zero-shot", limit=4, seed=2),
        Run("rmnist", "mini-rn", "no-such-method", limit=4),
    ]
    said: list[str] = []
    results, failed = run_bench(runs, tmp_path, processes=1, progress=lambda _, w: said.append(w))
    assert sorted(said) == ["done", "done", "failed"]
    assert [r.seed for r in results] == [1, 2]
    assert "unknown method" in failed[runs[2].file]
    before = (tmp_path / runs[0].file).stat().st_mtime_ns
    said.clear()
    again, _ = run_bench(runs[:2], tmp_path, processes=1, progress=lambda _, w: said.append(w))
    assert said == ["kept", "kept"]
    assert (tmp_path / runs[0].file).stat().st_mtime_ns == before
    assert again[0].accuracy == Result.load(tmp_path / runs[0].file).accuracy
    assert again[0].limit == 4
