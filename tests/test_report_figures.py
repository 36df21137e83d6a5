"""Names, rounds, sweeps and costs in a report."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest

from bayestta.evaluation.result import Result
from bayestta.report import render_page, render_table
from bayestta.report.groups import group
from bayestta.report.scales import Scale, scale
from bayestta.report.sensitivity import sweeps
from test_report import DOMAINS, SIZES, parse, run


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
    less = run(notes={"label": "(b) w/o fusion"}, settings={"alpha": 0.0})
    twin = run(notes={"label": "twin"})  # the same settings under another name
    rows = group([full, less, twin])[0].rows
    assert [row.label for row in rows] == ["(a) full", "(b) w/o fusion", "twin"]
    swept = [run(notes={"label": "ours"}, settings={"alpha": a}) for a in (1.0, 2.0)]
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
            "domains": [
                {"name": d, "accuracy": value, "n": n} for d, n in zip(DOMAINS, SIZES, strict=True)
            ],
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
    results = [run("zero-shot", accuracy=(50.0, 50.0, 50.0), settings={})]
    for value, top in ((0.1, 60.0), (1.0, 80.0), (100.0, 70.0)):
        results.append(run(settings={"alpha": value, "lr": 0.1}, accuracy=(top, top, top)))
    results.append(run(settings={"alpha": 1.0, "lr": 0.2}))
    results.append(run(settings={"alpha": 1.0, "lr": 0.1, "refine": False}))
    results += [run("tent", batch_size=b, settings={}) for b in (8, 64, 256)]
    return results


def test_sweeps_are_runs_that_differ_in_one_number() -> None:
    (only,) = group(swept())
    found = sweeps(only)
    assert set(found) == {"alpha", "batch_size"}  # two learning rates make no curve
    (alpha,) = found["alpha"]
    assert (alpha.label, list(alpha.rows)) == ("bayestta", [0.1, 1.0, 100.0])
    assert [row.accuracy for row in alpha.rows.values()] == [60.0, 80.0, 70.0]
    assert list(found["batch_size"][0].rows) == [8, 64, 256]
    grid = [run(settings={"a": a, "b": b}) for a in (1, 2, 3) for b in (1, 2, 3)]
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
