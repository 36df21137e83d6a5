"""The page of real small runs in headless Chromium: at both widths, in light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayestta.bench import Run, execute
from bayestta.report import write_report
from bayestta.report.paper import Paper
from chromium import Chromium, find

if find() is None:
    pytest.fail("there is no Chromium: install the Debian package chromium.", pytrace=False)

SMALL = {"data": "cifar10-light", "limit": 24, "batch_size": 12}
RUNS = [
    Run(method="zero-shot", model="mini-rn", **SMALL),
    Run(method="bayestta", model="mini-rn", explain=True, **SMALL),
    *(Run(method="bayestta", model="mini-rn", settings={"alpha": a}, **SMALL) for a in (0.5, 32.0)),
    Run(method="zero-shot", model="mini-vit", rounds=2, label="CLIP as it is", **SMALL),
    Run(method="bayestta", model="mini-vit", rounds=2, explain=True, **SMALL),
]
FIGURES = (  # the beginning of each label, and how often it is there at least
    *(("Accuracy by domain", 2), ("Accuracy over the stream", 2), ("Accuracy against seconds", 2)),
    *(("Accuracy by round", 1), ("Change by domain", 1), ("Sensitivity to alpha", 1)),
    *(("Calibration of", 4), ("Confusion of", 6 * 7), ("Features of bayestta", 8)),
)
# What sticks out of the page, unless its own box scrolls it.
WIDE = """
[...document.querySelectorAll("body *")].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !e.closest(".wide") && !e.closest("svg");
}).map(e => e.outerHTML.slice(0, 120))
"""
FIGURE = """
[...document.querySelectorAll("svg[role=img]")].map(e => {
  const box = e.getBoundingClientRect();
  return [e.getAttribute("aria-label"), box.width, box.height, e.querySelectorAll(
    "path, polyline, circle, rect").length];
})
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    row = {"row": "BayesTTA", "model": "mini-rn", "method": "bayestta", "average": 70.0}
    paper = Paper([{"table": "I", "data": "cifar10-light", "domains": [], "rows": [row]}], "Cited")
    results = [execute(run) for run in RUNS]
    write_report(results, folder / "page.html", paper=paper)
    # What is folded is not drawn: a second page is unfolded from the start.
    text = (folder / "page.html").read_text("utf-8")
    opened = text.replace("<details>", '<details open="open">').replace(
        '<details class="figure">', '<details class="figure" open="open">'
    )
    (folder / "open.html").write_text(opened, "utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", ["page.html", "open.html"])
def test_the_page_opens(browser: Chromium, page: Path, name: str, width: int, dark: bool) -> None:
    browser.said.clear(), browser.asked.clear()
    browser.open(page / name, width=width, dark=dark)
    assert browser.said == []
    elsewhere = [url for url in browser.asked if not url.startswith("data:image/png;base64,")]
    assert elsewhere == [(page / name).as_uri()]
    assert browser.ask("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert browser.ask(WIDE) == []
    colour = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")


def test_the_figures_are_there(browser: Chromium, page: Path) -> None:
    browser.open(page / "open.html", width=390)
    figures = browser.ask(FIGURE)
    for start, least in FIGURES:
        found = [one for one in figures if one[0].startswith(start)]
        alike = sum("which are the same" in label for label, *_ in found)  # one figure for two
        assert len(found) + alike >= least, start
        for label, width, height, parts in found:
            assert width > 100, label
            assert height > 60, label
            assert parts > 1, label
    pictures = browser.ask("[...document.images].map(i => [i.naturalWidth, i.width, i.alt])")
    assert all(natural > 0 and shown > 30 and alt for natural, shown, alt in pictures)
    maps = [p for p in pictures if p[2].startswith(("image: ", "zero-shot: ", "adapted: "))]
    assert len(maps) == 2 * 2 * 4 * 3  # runs, steps, images, each with two maps
    assert all(natural == 112 and shown > 60 for natural, shown, _ in maps)
    assert len(pictures) > len(maps)  # answers that adaptation turned
    text = browser.ask("document.body.innerText")
    for words in ("Measured and reported", "Forgetting", "Guard against collapse", "CLIP as it is"):
        assert words in text


def test_a_fold_opens_by_a_click(browser: Chromium, page: Path) -> None:
    browser.open(page / "page.html", width=390)
    first = "document.querySelector('details:not([open])')"
    seen = "fold.querySelector('svg, table').checkVisibility()"
    assert browser.ask(f"window.fold = {first}; {seen}") is False
    browser.ask("fold.querySelector('summary').click()")
    assert browser.ask(seen) is True


def test_a_script_in_a_page_would_not_run(browser: Chromium, page: Path) -> None:
    bad = '<script>document.title = "ran"</script><img src="https://example.org/x.png" />'
    text = (page / "page.html").read_text("utf-8").replace("<main>", f"<main>{bad}")
    (page / "bad.html").write_text(text, "utf-8")
    browser.open(page / "bad.html", width=390)
    assert browser.ask("document.title") != "ran"
    assert "Content Security Policy" in json.dumps(browser.said)
