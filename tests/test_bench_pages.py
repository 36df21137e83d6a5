"""The scripts of bench/ that make pages: losses beyond chance, and single sections replaced."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module(request.param)


def run_of(*domains: tuple[int, int], right: int = 150) -> SimpleNamespace:
    """A result whose domains of 300 images had so many answers (broken, mended)."""
    rows = [
        {
            "broken": broken,
            "mended": mended,
            "accuracy": 100 * (right + mended - broken) / 300,
            "sketch_accuracy": 100 * right / 300,
        }
        for broken, mended in domains
    ]
    return SimpleNamespace(domains=rows)


@pytest.mark.parametrize("script", ["safety"], indirect=True)
def test_a_loss_is_told_from_chance(script: ModuleType) -> None:
    assert script.losses([run_of((0, 0), (12, 5), (24, 3))]) == (1, 3)
    # 12 against 2 comes by chance in one domain of 155: enough for one domain, not for 20
    assert script.losses([run_of((12, 2))]) == (1, 1)
    assert script.losses([run_of((12, 2), *[(0, 0)] * 19)]) == (0, 20)
    assert script.losses([run_of((3, 24))]) == (0, 1)


@pytest.mark.parametrize("script", ["safety"], indirect=True)
def test_six_images_of_three_hundred_are_not_below_two_points(script: ModuleType) -> None:
    found = {script.worst_domain(run_of((6, 0), (0, 9), right=n)) for n in range(6, 292)}
    assert found == {-2.0}


@pytest.mark.parametrize("script", ["results"], indirect=True)
@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("A", "# Page\n\n## A\n\nnew\n\n## B\n\nold b\n"),
        ("B", "# Page\n\n## A\n\nold a\n\n### A 1\n\n## B\n\nnew\n"),
        ("C", "# Page\n\n## A\n\nold a\n\n### A 1\n\n## B\n\nold b\n\n## C\n\nnew\n"),
    ],
)
def test_a_section_takes_the_place_of_the_one_it_has(
    script: ModuleType, title: str, expected: str
) -> None:
    page = "# Page\n\n## A\n\nold a\n\n### A 1\n\n## B\n\nold b\n"
    assert script.replaced(page, f"## {title}\n\nnew\n") == expected
