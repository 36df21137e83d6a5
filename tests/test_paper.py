"""bench/paper.json against itself: its shape, its ranges, and its averages."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from bayestta.report.paper import Doubt, Paper, Reported, average

ROOT = Path(__file__).parents[1]
FILE = ROOT / "bench" / "paper.json"
PAPER = Paper.load(FILE)
TABLES: dict[str, Any] = {table["table"]: table for table in PAPER.tables}
MODELS = ("clip-rn50", "clip-vit-b16")
CT_TTA = (
    *("zero-shot", "ensemble", "tent-reset", "tent-continual", "cotta", "rotta", "tpt"),
    *("adaprompt", "tda", "watt", "dpe", "dynaprompt", "bayestta"),
)
COUNTS = {"I": 16, "II": 0, "III": 9, "IV": 7, "V": 10, "VI": 3}  # columns beside the average


def shares(value: float, count: int) -> range:
    """The numbers of hits among `count` that are printed as `value` %."""
    low, high = (value - 0.005) * count / 100, (value + 0.005) * count / 100
    return range(math.ceil(low - 1e-6), math.floor(high + 1e-6) + 1)


@pytest.mark.parametrize("number", COUNTS)
def test_every_row_is_complete(number: str) -> None:
    table = TABLES[number]
    for row in table["rows"]:
        numbers = [*row.get("values", []), row.get("average", 0.0)]
        assert len(row.get("values", [])) == COUNTS[number], row
        assert all(x is None or 0 <= x <= 100 for x in numbers), row
        assert row["model"] in MODELS
    if not isinstance(table["data"], list):
        assert len(table["domains"]) == len(table["counts"]) == COUNTS[number]
    else:
        assert len(table["data"]) == COUNTS[number]


@pytest.mark.parametrize("number", ["I", "II", "III", "IV", "V"])
def test_every_method_has_one_row_a_backbone(number: str) -> None:
    extra = {"coop", "dota", "histpt", "bca"} if number == "V" else set()
    rows = [(row["model"], row["method"]) for row in TABLES[number]["rows"]]
    assert sorted(rows) == sorted((m, k) for m in MODELS for k in {*CT_TTA, *extra})


def test_names_are_those_of_this_package() -> None:
    from bayestta.data import list_data, load_data
    from bayestta.methods import methods

    known = {info.name for info in list_data()}
    for table in PAPER.tables:
        sets = table["data"] if isinstance(table["data"], list) else [table["data"]]
        assert set(sets) <= known
        assert {row["method"] for row in table["rows"]} <= set(methods())
    for number in ("III", "IV"):
        assert TABLES[number]["domains"] == load_data(TABLES[number]["data"]).domains


def test_the_averages_that_do_not_follow() -> None:
    """The complete list, as docs/paper.md has it: any other number in the file changes it."""
    assert PAPER.doubts() == [
        Doubt("IV", "clip-rn50", "zero-shot", 60.35, 60.3586),
        Doubt("V", "clip-vit-b16", "bca", 68.59, 68.578),
    ]
    text = (ROOT / "docs" / "paper.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| I", "| V"))]
    assert rows == [
        f"| {d.table} | {d.model} | {d.method} | {d.reported:.2f} | {d.recomputed:.2f} |"
        for d in PAPER.doubts()
    ]


def test_a_changed_number_is_noticed() -> None:
    tables = json.loads(FILE.read_text())["tables"]
    row = tables[2]["rows"][4]
    row["values"][3] += 0.1
    found = {(d.table, d.model, d.method) for d in Paper(tables).doubts()}
    assert ("III", row["model"], row["method"]) in found


def test_satellite_counts_are_those_of_the_percentages() -> None:
    """A percentage of n images is a whole number over n, which gives most years away."""
    table = TABLES["I"]
    assert sum(table["counts"]) == 141_696
    assert sum(table["counts"][11:14]) == 19_915
    assert sum(table["counts"][14:]) == 22_108
    strange = [
        (table["domains"][i], row["model"], row["method"])
        for row in table["rows"]
        for i, (value, count) in enumerate(zip(row["values"], table["counts"], strict=True))
        if count < 7000 and not shares(value, count)
    ]
    assert strange == [("2005", "clip-rn50", "zero-shot"), ("2006", "clip-rn50", "zero-shot")]
    for i in (0, 1, 2, 5, 6, 11, 12, 15):  # none smaller fits
        fewer = range(1500, table["counts"][i])
        column = [row["values"][i] for row in table["rows"]]
        assert not any(all(shares(value, n) for value in column) for n in fewer), i


def test_satellite_averages_need_the_counts() -> None:
    """The plain mean does not give them: the weights are worth recording."""
    off = [abs(average(row["values"]) - row["average"]) for row in TABLES["I"]["rows"]]
    assert max(off) > 1


@pytest.mark.parametrize(("images", "follow"), [(141_696, 26), (118_886, 14)])
def test_how_many_satellite_averages_a_total_allows(images: int, follow: int) -> None:
    """The largest number of rows that some counts of 2009 to 2012 explain, as an integer program:
    a switch a row frees it from its two bounds."""
    table = TABLES["I"]
    values = np.array([row["values"] for row in table["rows"]])
    known = np.array(table["counts"], float)
    known[7:11] = 0
    parts = values[:, 7:11] / images
    rest = np.array([row["average"] for row in table["rows"]]) - values @ known / images
    free, n = 100 * np.eye(len(rest)), len(rest)
    found = milp(
        np.r_[np.zeros(4), np.ones(n)],
        constraints=[
            LinearConstraint(np.c_[parts, -free], ub=rest + 0.01),
            LinearConstraint(np.c_[-parts, -free], ub=0.01 - rest),
            LinearConstraint(np.r_[np.ones(4), np.zeros(n)], *2 * [images - known.sum()]),
        ],
        integrality=np.r_[np.zeros(4), np.ones(n)],
        bounds=Bounds(0, np.r_[np.full(4, images), np.ones(n)]),
    )
    assert found.success
    assert n - round(found.fun) == follow


def test_yearbook_gains_are_differences() -> None:
    for model in MODELS:
        rows = [row for row in TABLES["II"]["rows"] if row["model"] == model]
        for row in rows[1:]:
            assert row["average"] - rows[0]["average"] == pytest.approx(row["gain"], abs=1e-6)


def test_the_ablation_starts_from_the_other_tables() -> None:
    for name in TABLES["VI"]["data"]:
        for method, label in (("zero-shot", None), ("bayestta", "(a) BayesTTA (full)")):
            full = PAPER.find(name, "clip-rn50", method)
            rows = [row for row in TABLES["VI"]["rows"] if row.get("label") == label]
            column = rows[0]["values"][TABLES["VI"]["data"].index(name)]
            assert full is not None
            assert full.table != "VI"
            assert full.average == column


def test_find() -> None:
    angle = PAPER.find("rmnist", "clip-rn50", "bayestta")
    assert angle is not None
    assert angle.table == "III"
    assert angle.row == "BayesTTA(Ours)"
    assert angle.average == 75.07
    assert angle.domains["80"] == 66.45
    assert len(angle.domains) == 9
    assert PAPER.find("eurosat", "clip-vit-b16", "watt") == Reported("V", "WATT", 55.95)
    portraits = PAPER.find("yearbook", "clip-vit-b16", "tda")
    assert portraits is not None
    assert (portraits.average, portraits.domains) == (95.69, {})
    assert PAPER.find("sun397", "clip-rn50", "dynaprompt") is None  # printed as "-"
    assert PAPER.find("sun397", "mini-rn", "tda") is None
    assert PAPER.find("rmnist", "clip-rn50", "dota") is None


def test_labels_choose_rows_of_the_ablation() -> None:
    found = PAPER.find("rmnist", "clip-rn50", "bayestta", label="(b) w/o hypothesis test")
    assert found == Reported("VI", "(b) w/o Hypothesis Test", 17.58)
    assert PAPER.find("rmnist", "clip-rn50", "bayestta", label="w/o doubt") is None
    from bayestta.bench import read_bench

    labels = {row["label"] for row in TABLES["VI"]["rows"] if "label" in row}
    for name in ("ablation.toml", "ablation_clip.toml"):
        assert labels <= {run.label for run in read_bench(ROOT / "bench" / name)}


def test_reading_needs_no_torch() -> None:
    code = (
        "import sys; from bayestta.report.paper import Paper; Paper.load(sys.argv[1]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, FILE], check=False).returncode == 0


def test_another_file_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    for content in ("{", "[]", "{}"):
        wrong.write_text(content)
        with pytest.raises(ValueError, match=r"does not hold the paper's tables .* bench/paper"):
            Paper.load(wrong)
