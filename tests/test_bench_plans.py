"""The bench files as plans: names, settings and published values; tests_all runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayestta.bench import Run, read_bench
from bayestta.data import list_data
from bayestta.methods import methods
from bayestta.models.base import MODELS as KNOWN_MODELS
from bayestta.settings import Settings, with_changes

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "bench").glob("*.toml"))
OTHERS = (  # which stand for no experiment of the paper
    *("readme", "embedded", "tent_collapse", "safety", "guard", "held_out", "full_length", "pets"),
    *("tail", "embedded_slow", "safety_held_out", "noise_held_out"),
)
MODELS = ("clip-rn50", "clip-vit-b16")
CT_TTA = ("fmow", "yearbook", "rmnist", "cifar10-light")
# alpha and lr * (1 - beta) of the released configurations, ResNet-50 and ViT-B/16
RELEASED = {
    "cifar10-light": ((0.1, 5e-5), (0.1, 1.5e-4)),
    "rmnist": ((100, 2.5e-4), (100, 2e-4)),
    "yearbook": ((0.1, 1e-5), (0.1, 2.5e-4)),
    "fmow": ((1, 1e-7), (1, 5e-6)),
    "caltech101": ((100, 2.5e-4), (0.1, 1e-5)),
    "dtd": ((100, 2.5e-4), (100, 5e-4)),
    "eurosat": ((1, 2.5e-4), (100, 5e-4)),
    "aircraft": ((100, 2e-5), (100, 5e-5)),
    "food101": ((0.1, 2e-5), (0.1, 2e-4)),
    "flowers102": ((100, 2.5e-5), (100, 5e-4)),
    "pets": ((100, 2e-4), (100, 5e-4)),
    "cars": ((1, 1e-4), (10, 5e-4)),
    "sun397": ((0.1, 5e-6), (100, 2.5e-4)),
    "ucf101": ((100, 2e-4), (100, 1e-7)),
}


def plan(name: str):
    return read_bench(ROOT / "bench" / f"{name}.toml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_name_is_known(path: Path) -> None:
    sets = {info.name for info in list_data()}
    for run in read_bench(path):
        assert run.data in sets
        assert run.model in KNOWN_MODELS or run.model == f"features:{run.root}"
        assert run.provenance in ("user", "authors", "tuned")
        assert set(run.settings) <= set(full_settings(run)), run


def full_settings(run: Run) -> Settings:
    """All settings of a run: an unknown name or a value out of range is refused."""
    declared = methods()[run.method].Settings
    return with_changes(declared.default(run.settings), run.settings, run.method)


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.stem not in OTHERS],
    ids=lambda p: p.stem,
)
def test_three_seeds_of_everything(path: Path) -> None:
    seeds: dict[str, set[int]] = {}
    for run in read_bench(path):
        told = {**vars(run), "seed": 0}
        seeds.setdefault(str(told), set()).add(run.seed)
    assert all(found == {1, 2, 3} for found in seeds.values())


@pytest.mark.parametrize("name", ["ct_tta", "cross_domain"])
def test_released_values(name: str) -> None:
    """A set and a backbone each, once, against the rates that the values come down to."""
    found = {}
    for run in plan(name):
        if run.settings.get("preset") == "released":
            assert run.provenance == "authors"
            rate = run.settings["lr"] * (1 - run.settings["beta"])
            found.setdefault((run.data, run.model), set()).add(
                (run.settings["alpha"], round(rate, 9))
            )
    sets = CT_TTA if name == "ct_tta" else [key for key in RELEASED if key not in CT_TTA]
    assert found == {
        (data, model): {RELEASED[data][i]} for data in sets for i, model in enumerate(MODELS)
    }


def test_batch_sizes() -> None:
    released = [run for run in plan("cross_domain") if run.settings.get("preset") == "released"]
    assert {run.batch_size for run in released} == {64, 128}
    assert {run.batch_size for run in plan("ct_tta")} == {128}
    sizes = {run.batch_size for run in plan("batch_size") if run.method == "bayestta"}
    assert sizes == {1, 8, 32, 128, 256}


def test_the_paper_streams_all_digits() -> None:
    for path in FILES:
        for run in read_bench(path):
            if run.data == "rmnist":
                ours = ("held-out",) if "held_out" in path.stem else (None, "test")
                assert run.split in (("all",) if run.model in MODELS else ours)


@pytest.mark.parametrize("name", ["long_term", "long_term_clip"])
def test_three_rounds(name: str) -> None:
    assert {run.rounds for run in plan(name)} == {3}


@pytest.mark.parametrize("name", ["controls", "controls_clip"])
def test_three_orders(name: str) -> None:
    assert {run.order for run in plan(name)} == {"time", "shuffled", "correlated"}


@pytest.mark.parametrize(
    "name", ["ablation", "sensitivity", "batch_size", "long_term", "efficiency", "controls"]
)
def test_embedded_runs_have_a_thousand_images_per_domain(name: str) -> None:
    for run in plan(name):
        assert run.limit == (256 if run.model == "lit" else 1000)
        assert run.model in ("mini-rn", "mini-vit", "lit")


NEWER = {"oga", "stata", "adapt-gaussian", "roid"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tables_of_methods_have_the_newer_ones(path: Path) -> None:
    runs = read_bench(path)
    found = {run.method for run in runs}
    assert not found & {"cotta", "tpt"} or path.stem != "embedded"  # hours: embedded_slow
    on_features = {run.data for run in runs} == {"features"}  # which roid cannot tune
    if found & {"tda", "dota"}:
        assert found >= (NEWER - {"roid"} if on_features else NEWER)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("sensitivity", ("half_life", "doubt", "alpha")),
        ("sensitivity_clip", ("lr", "beta", "alpha")),
    ],
)
def test_five_values_of_each(name: str, keys: tuple[str, ...]) -> None:
    """One thing is changed at a time, and the centre belongs to all three curves."""
    runs = [run for run in plan(name) if run.method == "bayestta" and run.seed == 1]
    first = {run.data for run in runs}.pop()
    full = [full_settings(run) for run in runs if run.data == first]
    centre = full[0]
    for key in keys:
        assert len({getattr(one, key) for one in full}) == 5
    for one in full[1:]:
        differ = [key for key in vars(one) if getattr(one, key) != getattr(centre, key)]
        assert len(differ) == 1


def test_the_docs_have_a_command_for_each() -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    for path in FILES:
        if path.stem not in OTHERS:
            assert f"`bayestta bench bench/{path.name}" in text
        assert "bayestta bench" in path.read_text() or path.stem == "readme"


def test_the_guard_is_stressed_by_multiples_of_the_rate() -> None:
    usual = methods()["bayestta"].Settings().lr
    rates = {run.label: run.settings["lr"] for run in plan("guard") if "lr" in run.settings}
    assert rates == pytest.approx({"lr x 100": 100 * usual, "lr x 1,000": 1000 * usual})
