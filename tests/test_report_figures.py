"""Rounds, sweeps, costs, confusions, pictures and the paper's numbers in a report."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bayestta.cli import app
from bayestta.metrics import Score
from bayestta.paper import Paper
from bayestta.report import render_page, render_table, write_report
from bayestta.report.confused import heat_map, matrices, worst
from bayestta.report.groups import group
from bayestta.report.pictures import STYLES
from bayestta.report.scales import Scale, scale
from bayestta.report.sensitivity import sweeps
from bayestta.result import Result, confusion
from test_report import DOMAINS, NASTY, SIZES, parse, run


def table(results: list[Result], title: str, **more: Any) -> list[dict[str, str]]:
    """The lines of the Markdown table whose title ends so."""
    text = render_table(results, "markdown", **more)
    part = next(p for p in text.split("### ")[1:] if p.splitlines()[0].endswith(title))
    lines = [x for x in part.splitlines() if x.startswith("|")]
    cells = [[c.strip() for c in x.strip("|").split(" | ")] for x in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def labels(page: str) -> list[str]:
    """What the charts of a page are about."""
    found = [svg.get("aria-label") for svg in parse(page).iterfind(".//svg[@role='img']")]
    return [label.split(" on ")[0] for label in found if label]


# --- names ---


def test_a_label_names_the_row_and_keeps_it_apart() -> None:
    full = run(notes={"label": "(a) full"})
    less = run(notes={"label": "(b) w/o fusion"}, hyper={"alpha": 0.0})
    twin = run(notes={"label": "twin"})  # the same settings under another name
    rows = group([full, less, twin])[0].rows
    assert [row.label for row in rows] == ["(a) full", "(b) w/o fusion", "twin"]
    swept = [run(notes={"label": "ours"}, hyper={"alpha": a}) for a in (1.0, 2.0)]
    assert [r.label for r in group(swept)[0].rows] == ["ours (alpha=1.0)", "ours (alpha=2.0)"]


def test_options_of_the_data_are_other_images() -> None:
    groups = group([run(notes={"options": {"severity": s}}) for s in (1, 5)])
    assert [g.title for g in groups] == ["sky · lit · severity 1", "sky · lit · severity 5"]


# --- rounds and forgetting ---


def long_run(method: str, seed: int, accuracies: tuple[float, ...], now: float) -> Result:
    rounds = [
        {
            "round": i + 1,
            "accuracy": value,
            "n": 250,
            "domains": [{"name": d, "accuracy": value, "n": n} for d, n in zip(DOMAINS, SIZES)],
        }
        for i, value in enumerate(accuracies)
    ]
    back = [
        {"domain": "dawn", "then": 80.0, "now": now, "n": 100},
        {"domain": "noon", "then": 70.0, "now": 70.0, "n": 300},
    ]
    return run(method, seed, rounds=rounds, forgetting=back)


def long_runs() -> list[Result]:
    return [
        *(long_run("zero-shot", s, (60.0, 60.0, 60.0), 80.0) for s in (1, 2)),
        long_run("bayestta", 1, (61.0, 66.0, 68.0), 76.0),
        long_run("bayestta", 2, (63.0, 67.0, 72.0), 78.0),
    ]


def test_rounds_and_forgetting_equal_numpy() -> None:
    zero, ours = table(long_runs(), "rounds")
    a = np.array([[61, 66, 68], [63, 67, 72]], float)
    for i in range(3):
        assert ours[f"round {i + 1}"] == f"**{a[:, i].mean():.1f} ± {a[:, i].std(ddof=1):.1f}**"
    change = a[:, 2] - a[:, 0]
    assert ours["change"] == f"**{change.mean():+.1f} ± {change.std(ddof=1):.1f}**"
    assert zero["change"] == "0.0 ± 0.0"
    zero, ours = table(long_runs(), "forgetting")
    now = np.array([(100 * v + 300 * 70) / 400 for v in (76, 78)])
    assert ours["then"] == "72.5 ± 0.0"
    assert ours["now"] == f"{now.mean():.1f} ± {now.std(ddof=1):.1f}"
    assert ours["change"] == f"{(now - 72.5).mean():+.1f} ± {now.std(ddof=1):.1f}"
    assert (ours["dawn"], ours["noon"]) == ("-3.0 ± 1.4", "0.0 ± 0.0")
    assert zero["dawn"] == "**0.0 ± 0.0**"


def test_rounds_are_another_table_and_have_curves() -> None:
    results = [*long_runs(), run(), run("zero-shot")]
    assert [g.title for g in group(results)] == ["sky · lit · 3 rounds", "sky · lit"]
    found = labels(render_page(results))
    assert found.count("Accuracy by round") == found.count("Change by domain") == 1
    chart = next(
        svg
        for svg in parse(render_page(long_runs())).iterfind(".//svg[@role='img']")
        if svg.attrib["aria-label"].startswith("Change by domain")
    )
    marks = {t.text: float(t.attrib["y"]) - 4 for t in chart.iterfind("text")}
    dots = [float(c.attrib["cy"]) for c in chart.iterfind(".//g[@class='c1']/circle[@class='dot']")]
    assert len(dots) == 2
    assert dots[1] == pytest.approx(marks["0"], abs=0.2)
    assert dots[0] == pytest.approx((marks["−2"] + marks["−4"]) / 2, abs=0.2)
    assert not {"Accuracy by round", "Change by domain"} & set(labels(render_page([run()])))


def test_rounds_in_the_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(render_table(long_runs(), "csv"))))
    turn = [r for r in rows if r["method"] == "bayestta" and r["round"] == "3"]
    assert [r["domain"] for r in turn] == [*DOMAINS, ""]
    assert float(turn[-1]["accuracy"]) == pytest.approx(70.0)
    dawn = next(
        r for r in rows if (r["method"], r["domain"], r["round"]) == ("bayestta", "dawn", "")
    )
    assert (float(dawn["then"]), float(dawn["now"])) == pytest.approx((80.0, 77.0))


def test_a_stretch_of_the_stream_ends_with_its_round() -> None:
    steps = [
        {"domain": "only", "n": 10, "hits": 5, **({"round": 2} if i > 2 else {})} for i in range(6)
    ]
    page = parse(render_page([run(domains=("only",), sizes=(60,), accuracy=(50.0,), trace=steps)]))
    chart = next(
        svg
        for svg in page.iterfind(".//svg[@role='img']")
        if svg.attrib["aria-label"].startswith("Accuracy over the stream")
    )
    assert len(chart.findall("rect")) == 2


# --- sweeps ---


def swept() -> list[Result]:
    results = [run("zero-shot", accuracy=(50.0, 50.0, 50.0), hyper={})]
    for value, top in ((0.1, 60.0), (1.0, 80.0), (100.0, 70.0)):
        results.append(run(hyper={"alpha": value, "lr": 0.1}, accuracy=(top, top, top)))
    results.append(run(hyper={"alpha": 1.0, "lr": 0.2}))
    results.append(run(hyper={"alpha": 1.0, "lr": 0.1, "refine": False}))
    results += [run("tent", batch_size=b, hyper={}) for b in (8, 64, 256)]
    return results


def test_sweeps_are_runs_that_differ_in_one_number() -> None:
    (only,) = group(swept())
    found = sweeps(only)
    assert set(found) == {"alpha", "batch_size"}  # two learning rates make no curve
    (alpha,) = found["alpha"]
    assert (alpha.label, list(alpha.rows)) == ("bayestta", [0.1, 1.0, 100.0])
    assert [row.accuracy for row in alpha.rows.values()] == [60.0, 80.0, 70.0]
    assert list(found["batch_size"][0].rows) == [8, 64, 256]
    grid = [run(hyper={"a": a, "b": b}) for a in (1, 2, 3) for b in (1, 2, 3)]
    (only,) = group(grid)
    assert [s.label for s in sweeps(only)["a"]] == [f"bayestta (b={b})" for b in (1, 2, 3)]


def test_sweeps_have_tables_and_curves_with_a_fitting_axis() -> None:
    (line,) = table(swept(), "alpha")
    assert line == {"method": "bayestta", "0.1": "60.0", "1": "**80.0**", "100": "70.0"}
    page = render_page(swept())
    assert {"Sensitivity to alpha", "Sensitivity to batch size"} <= set(labels(page))
    chart = next(
        svg
        for svg in parse(page).iterfind(".//svg[@role='img']")
        if svg.attrib["aria-label"].startswith("Sensitivity to alpha")
    )
    xs = [float(c.attrib["cx"]) for c in chart.iterfind(".//circle[@class='dot']")]
    assert xs[2] - xs[1] == pytest.approx(2 * (xs[1] - xs[0]), abs=0.3)  # decades: one, two
    assert len(chart.findall(".//polyline[@class='curve']")) == 2  # zero-shot is a level


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([8, 16, 256], "log"),
        ([0.9, 0.97, 0.999], "near one"),
        ([1, 2, 3], "linear"),
        ([0, 1, 100], "linear"),
        ([-1, 5, 20], "linear"),
        ([0.1, 0.5, 1.0], "log"),
    ],
)
def test_scales(values: list[float], kind: str) -> None:
    axis = scale(values)
    assert axis.kind == kind
    places = [axis.place(v) for v in values]
    assert places == sorted(places)
    for marks in (axis.marks(values), axis.round_marks(values)):
        assert min(m for m, _ in marks) <= places[0] + 1e-9
        assert max(m for m, _ in marks) >= places[-1] - 1e-9
    assert [name for _, name in Scale("log").round_marks([3, 40])] == ["2", "5", "10", "20", "50"]


# --- accuracy against seconds ---


def test_seconds_are_where_the_numbers_are() -> None:
    times = {"zero-shot": 1.0, "tent": 10.0, "bayestta": 100.0}
    results = [run(m, seconds={"total": s}) for m, s in times.items()]
    chart = next(
        svg
        for svg in parse(render_page(results)).iterfind(".//svg[@role='img']")
        if svg.attrib["aria-label"].startswith("Accuracy against seconds")
    )
    xs = sorted(float(c.attrib["cx"]) for c in chart.iterfind(".//circle"))
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.3)
    tips = {t.text for t in chart.iterfind(".//title")}
    assert "tent: 72.0 %, 10 s" in tips
    assert "Accuracy against seconds" not in labels(render_page([run()]))


def test_of_many_rows_the_best_are_drawn() -> None:
    results = [run(f"m{i}", accuracy=(50.0 + i,) * 3) for i in range(40)]
    root = parse(render_page([run("zero-shot", accuracy=(1.0,) * 3), *results]))
    chart = root.find(".//svg[@role='img']")
    assert chart is not None
    tips = {(t.text or "").split(",")[0] for t in chart.iterfind(".//title")}
    assert tips == {"zero-shot", *(f"m{i}" for i in range(29, 40))}
    assert "The 12 most accurate of 41 rows." in "".join(root.itertext())


# --- confusion ---


def confused(seed: int = 1, method: str = "bayestta", classes: int = 3) -> Result:
    import torch

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
    import torch

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
