"""Confusions, pictures and the paper's numbers in a report."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typer.testing import CliRunner

from bayestta.cli import app
from bayestta.evaluation.metrics import Score
from bayestta.evaluation.result import Result, confusion
from bayestta.report import render_page, render_table, write_report
from bayestta.report.confusion import heat_map, matrices, worst
from bayestta.report.explanations import STYLES
from bayestta.report.groups import group
from bayestta.report.paper import Paper
from test_report import DOMAINS, NASTY, parse, run
from test_report_figures import table

# --- confusion ---


def confused(seed: int = 1, method: str = "bayestta", classes: int = 3) -> Result:
    rng = torch.Generator().manual_seed(seed)
    result = run(method, seed, classes=[f"c{k}" for k in range(classes)])
    for domain in result.domains:
        score = Score(classes)
        p = torch.rand(domain["n"], classes, generator=rng).softmax(1)
        score.update(p, torch.randint(classes, (domain["n"],), generator=rng))
        domain |= score.to_json()
    return result


def test_matrices_add_over_seeds() -> None:
    both = [confused(1), confused(2)]
    (only,) = group(both)
    found = matrices(only.rows[0])
    assert list(found) == list(DOMAINS)
    whole = sum(np.array(r.domains[1]["confusion"]) for r in both)
    assert np.array_equal(found["noon"], whole)
    assert whole.sum() == 200


def test_matrices_of_every_way_of_writing() -> None:
    cells = {"classes": 3, "n": 12, "confusion": [[0, 0, 5], [1, 1, 3], [2, 2, 4]]}
    assert confusion(cells) == [[5, 0, 0], [0, 3, 0], [0, 0, 4]]
    rows = {"classes": 3, "n": 12, "confusion": [[0, 0, 5], [0, 0, 3], [0, 0, 4]]}
    assert confusion(rows) == rows["confusion"]
    for classes in (2, 3, 100, 101):
        score = Score(classes)
        y = torch.arange(7) % classes
        score.update(torch.eye(classes)[(y + 1) % classes], y)
        told = json.loads(json.dumps(score.to_json()))
        assert (len(told["confusion"]) == classes) == (classes <= 100)
        assert np.array_equal(confusion(told), score.confusion.numpy())
        assert Score.from_json(told).confusion.equal(score.confusion)


def test_worst_confusions_in_words() -> None:
    matrix = [[90, 10, 0], [0, 5, 15], [1, 0, 9]]
    assert worst(matrix, ["cat", "dog"], most=2) == ["dog → class 2 75 %", "cat → dog 10 %"]
    (line, *_) = table([confused()], "most frequent confusions")
    assert line["domain"] == "dawn"
    assert re.fullmatch(r"c\d → c\d \d+ %(, c\d → c\d \d+ %)*", line["bayestta"])
    assert "$\\to$" in render_table([confused()], "latex")
    assert "→" not in render_table([confused()], "terminal")
    assert "→" in render_table([confused()], "csv")


def test_heat_maps_shade_the_share_of_a_class() -> None:
    root = parse(heat_map([[8, 2], [0, 10]], ["cat", "dog"], about="x"))
    shades = {
        (p.attrib["class"], round(float(p.attrib["fill-opacity"]), 3)): p.attrib["d"].count("M")
        for p in root.iterfind("path")
    }
    assert shades == {("hit", 1.0): 2, ("miss", 0.625): 1}
    assert [t.text for t in root.iterfind("text")] == ["cat", "dog"]
    page = parse(render_page([confused(), confused(method="zero-shot")]))
    maps = page.findall(".//details/div/figure/svg[@class='chart heat']")
    assert len(maps) == 2 * len(DOMAINS)


def test_many_classes_are_shown_for_the_best_only() -> None:
    methods = ["zero-shot", "a", "b", "c"]
    page = parse(render_page([confused(method=m, classes=62) for m in methods]))
    assert len(page.findall(".//svg[@class='chart heat']")) == 2 * len(DOMAINS)
    assert len(render_page([confused(classes=101)])) < 100_000
    assert not parse(render_page([confused(classes=101)])).findall(".//svg[@class='chart heat']")


# --- pictures ---

DOT = base64.b64encode(b"\x89PNG").decode()


def watched(method: str = "bayestta", classes: int = 4, **more: Any) -> Result:
    points = [[i / 40, 1 - i / 40] for i in range(41)]
    names = [f"c{k}" for k in range(classes)]
    cam = {"step": 0, "domain": "dawn", "image": 7, "truth": "c1", "png": DOT, "layer": "layer4"}
    cam |= {"zero_shot": {"answer": "c0", "png": DOT}, "adapted": {"answer": "c1", "png": DOT}}
    tsne = {"step": 0, "domain": "dawn", "labels": [i % classes for i in range(41)]}
    planes: dict[str, Any] = {"before": points, "after": points, **more}
    made = {"tsne": [{**tsne, **planes}], "cam": [cam], "notes": ["step 9 was not reached"]}
    return run(method, classes=names, pictures=made)


def test_pictures_are_on_the_page() -> None:
    page = render_page([watched(), run("zero-shot")])
    root = parse(page)
    planes = root.findall(".//svg[@class='chart plane']")
    assert [p.attrib["aria-label"].rsplit(", ", 1)[1] for p in planes] == ["before", "after"]
    marks = len(planes[0].findall(".//circle")) + len(planes[0].findall(".//path"))
    assert marks == 41
    images = root.findall(".//img")
    assert [i.attrib["alt"] for i in images] == ["image: c1", "zero-shot: c0", "adapted: c1"]
    assert all(i.attrib["src"] == f"data:image/png;base64,{DOT}" for i in images)
    text = "".join(root.itertext())
    assert "c0 ✗" in text
    assert "c1 ✓" in text
    assert "step 9 was not reached." in text
    policy = root.find("head/meta[@http-equiv='Content-Security-Policy']")
    assert policy is not None
    assert policy.attrib["content"].split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
    ]


def test_features_that_stay_the_same_are_drawn_once() -> None:
    root = parse(render_page([watched(after=None)]))
    (plane,) = root.findall(".//svg[@class='chart plane']")
    assert plane.attrib["aria-label"].endswith("which are the same")


def test_classes_beyond_the_palette_are_grey() -> None:
    root = parse(render_page([watched(classes=STYLES + 2)]))
    assert "2 more classes in grey" in "".join(root.itertext())
    unlabelled = parse(render_page([watched(labels=None)]))
    assert unlabelled.findall(".//svg[@class='chart plane']")


def test_names_in_pictures_and_matrices_are_escaped() -> None:
    result = watched()
    result.classes = [NASTY] * 4
    result.pictures["cam"][0] |= {"truth": NASTY, "domain": NASTY, "png": '"><script>'}
    result.pictures["tsne"][0]["domain"] = NASTY
    result.pictures["notes"] = [NASTY]
    for domain in result.domains:
        domain |= {"classes": 4, "confusion": [[1, 2, 0, 0], *[[0] * 4] * 3], "n": 3}
    page = render_page([result])
    assert "<script" not in page
    parse(page)


# --- the paper ---


def paper() -> Paper:
    def row(method: str, values: list[float], average: float, **more: str) -> dict[str, Any]:
        return {"row": f"{method}!", "model": "lit", "method": method} | {
            "values": values,
            "average": average,
            **more,
        }

    rows = [
        row("zero-shot", [50.0, 51.0, 52.0], 50.8),
        row("bayestta", [70.0, 71.0, 72.0], 70.8),
        row("bayestta", [60.0, 61.0, 62.0], 60.8, label="(b) less"),
    ]
    return Paper([{"table": "IV", "data": "sky", "domains": list(DOMAINS), "rows": rows}], "Cited")


def test_measured_beside_reported() -> None:
    results = [run(), run(notes={"label": "(b) less"}), run("tent"), run(notes={"label": "new"})]
    found = table(results, "measured and reported", paper=paper())
    assert [line["method"] for line in found] == ["bayestta", "(b) less"]  # the others: no number
    assert found[0] == {
        "method": "bayestta",
        "measured": "72.00",
        "reported": "70.80",
        "difference": "+1.20",
        "from": "Table IV, bayestta!",
    }
    assert found[1]["difference"] == "+11.20"
    apart = table(results, "difference from the paper by domain", paper=paper())
    assert [apart[0][d] for d in DOMAINS] == ["+10.0", "-1.0", "-12.0"]
    rows = list(csv.DictReader(io.StringIO(render_table(results, "csv", paper=paper()))))
    noon = next(r for r in rows if r["label"] == "bayestta" and r["domain"] == "noon")
    assert (float(noon["reported"]), float(noon["reported_difference"])) == (71.0, -1.0)
    text = "".join(parse(render_page(results, paper=paper())).itertext())
    assert "Measured and reported" in text
    assert "Reported numbers: Cited." in text
    assert "reported" not in render_table(results, "markdown")


def test_the_command_takes_the_papers_file(tmp_path: Path) -> None:
    run().save(tmp_path / "r.json")
    told = {"citation": "Cited", "tables": paper().tables}
    (tmp_path / "paper.json").write_text(json.dumps(told))
    out = tmp_path / "r.md"
    command = ["report", str(tmp_path / "r.json"), "--out", str(out), "--paper"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "paper.json")])
    assert done.exit_code == 0, done.output
    assert "| bayestta | 72.00 | 70.80 | +1.20 |" in out.read_text()
    write_report([run()], tmp_path / "p.html", paper=paper())
    assert "Cited" in (tmp_path / "p.html").read_text("utf-8")
    missing = CliRunner().invoke(app, [*command, str(tmp_path / "none.json")])
    assert missing.exit_code != 0


def test_old_results_are_still_read(tmp_path: Path) -> None:
    old = run().to_json()
    for key in ("rounds", "forgetting", "pictures"):
        assert old.pop(key) in ([], {})
    (tmp_path / "old.json").write_text(json.dumps(old))
    back = Result.load(tmp_path / "old.json")
    assert (back.rounds, back.forgetting, back.pictures) == ([], [], {})
    assert render_page([back])
