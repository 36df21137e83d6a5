"""Expected tail accuracy: from many orders to the result of a run and the words of the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bayestta.bench import execute, read_bench
from bayestta.cli._app import app
from bayestta.evaluation.result import Result
from bayestta.evaluation.tail import tail_mean
from feature_file import feature_file, feature_run


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return feature_file(tmp_path_factory.mktemp("f") / "f.safetensors")


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [(range(100), 0.1, 4.5), ([3.0], 0.1, 3.0), ([4.0, 2.0, 9.0], 0.34, 3.0), ([1, 5], 1.0, 3.0)],
)
def test_the_tail_is_the_mean_of_the_worst(values, share, expected) -> None:
    assert tail_mean(list(values), share) == pytest.approx(expected)


def test_orders_are_runs_whose_seeds_count_up(file: Path) -> None:
    run = feature_run(file, "dota", seed=3, batch_size=8, orders=12)
    single = [execute(replace(run, orders=1, seed=3 + i)) for i in range(12)]
    found = execute(run).tail
    assert found is not None
    accuracies = [one.accuracy for one in single]
    assert len(set(accuracies)) > 1  # the order matters
    worst = sorted(accuracies)[:2]  # a tenth of 12, rounded up
    assert found["tail"] == pytest.approx(sum(worst) / 2)
    assert found["worst"] == pytest.approx(min(accuracies))
    assert found["mean"] == pytest.approx(sum(accuracies) / 12)
    gains = sorted(one.accuracy - one.sketch["accuracy"] for one in single)  # type: ignore[index]
    assert found["tail_gain"] == pytest.approx(sum(gains[:2]) / 2)
    assert found["zero_shot"] == pytest.approx(found["zero_shot_tail"])  # no order matters to it
    assert single[0].tail is None


def test_command_and_bench_file_have_it(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    words = ["run", "--model", f"features:{file}", "--data", "features", "--root", str(file)]
    done = CliRunner().invoke(app, [*words, "-m", "oga", "--orders", "5", "--out", str(out)])
    assert done.exit_code == 0, done.output
    tail = Result.load(out).tail
    assert tail is not None
    assert f"worst 10% of 5 orders: {tail['tail']:.2f} % (mean of all: {tail['mean']:.2f} %, " in (
        done.stdout
    )
    plan = tmp_path / "b.toml"
    lines = ['data = "rmnist"', 'models = "mini-rn"', 'methods = "oga"', "orders = 100"]
    plan.write_text("[[runs]]\n" + "\n".join(lines))
    (run,) = read_bench(plan)
    assert run.orders == 100
    with pytest.raises(ValueError, match="orders is 0: it must be at least 1"):
        execute(replace(run, orders=0))
