"""Tables and the page: the right numbers, the right names, and nothing from elsewhere."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayestta.evaluation.result import Result
from bayestta.report import FORMATS, render_page, render_table, write_page, write_report
from bayestta.report.curves import reliability, stream_points
from bayestta.report.decisions import covariance_sentence
from bayestta.report.groups import group
from bayestta.report.plots import Frame
from bayestta.report.scales import ticks
from bayestta.report.style import CSS

DOMAINS = ("dawn", "noon", "night")
SIZES = (100, 100, 50)


def run(
    method: str = "bayestta",
    seed: int = 1,
    accuracy: tuple[float, ...] = (80.0, 70.0, 60.0),
    *,
    domains: tuple[str, ...] = DOMAINS,
    sizes: tuple[int, ...] = SIZES,
    **more: Any,
) -> Result:
    """A result with these accuracies; every domain takes two steps."""
    rows, trace = [], []
    for name, n, percent in zip(domains, sizes, accuracy, strict=True):
        hits = round(n * percent / 100)
        bins = [[0, 0.0, 0]] * 14 + [[n, 0.95 * n, hits]]
        rows.append({"name": name, "n": n, "accuracy": 100 * hits / n, "ece": 0.1, "hits": hits})
        rows[-1] |= {"nll": 1.0, "brier": 0.5, "bins": bins, "classes": 10}
        for part, right in ((n // 2, hits // 2), (n - n // 2, hits - hits // 2)):
            trace.append({"domain": name, "steps": 1, "n": part, "hits": right})
    total = sum(d["hits"] for d in rows)
    base: dict[str, Any] = {
        "ece": 0.1,
        "nll": 1.0,
        "brier": 0.5,
        "data": "sky",
        "model": "lit",
        "settings": {"alpha": 1.0},
        "trace": trace,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "seconds": {"data": 1.0, "encode": 2.0, "adapt": 3.0, "total": 6.0},
        "created": "2026-01-01T00:00:00+00:00",
        "peak_memory_bytes": 2_345_000_000,
    }
    return Result(
        method=method,
        seed=seed,
        n=sum(sizes),
        accuracy=100 * total / sum(sizes),
        accuracy_unweighted=float(np.mean([d["accuracy"] for d in rows])),
        domains=rows,
        steps=len(trace),
        **{**base, **more},
    )


def three_seeds() -> list[Result]:
    ours = [(80.0, 70.0, 60.0), (82.0, 71.0, 66.0), (84.0, 75.0, 62.0)]
    base = [(79.0, 60.0, 40.0), (83.0, 63.0, 38.0), (80.0, 58.0, 44.0)]
    return [run(seed=i, accuracy=a) for i, a in enumerate(ours, 1)] + [
        run("zero-shot", i, a, settings={}) for i, a in enumerate(base, 1)
    ]


def markdown(results: list[Result]) -> list[dict[str, str]]:
    lines = [x for x in render_table(results, "markdown").splitlines() if x.startswith("|")]
    cells = [[c.strip() for c in x.strip("|").split(" | ")] for x in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_numbers_equal_numpy() -> None:
    zero, ours = markdown(three_seeds())
    assert (zero["method"], ours["method"]) == ("zero-shot", "bayestta")
    mine = np.array([[80, 70, 60], [82, 71, 66], [84, 75, 62]], float)
    theirs = np.array([[79, 60, 40], [83, 63, 38], [80, 58, 44]], float)
    for i, name in enumerate(DOMAINS):
        mean, std = mine[:, i].mean(), mine[:, i].std(ddof=1)
        assert ours[name].strip("*") == f"{mean:.1f} ± {std:.1f}"
    weights = np.array(SIZES) / sum(SIZES)
    average, difference = mine @ weights, (mine - theirs) @ weights
    assert ours["average"] == f"**{average.mean():.1f} ± {average.std(ddof=1):.1f}**"
    assert ours["vs zero-shot"] == f"{difference.mean():+.1f} ± {difference.std(ddof=1):.1f}"
    assert zero["vs zero-shot"] == "–"
    assert (ours["ECE %"], ours["seconds"]) == ("10.0 ± 0.0", "6.0")
    assert ours["MB"] == "2,345"


def test_the_estimate_without_labels_stands_beside_accuracy_with_its_error() -> None:
    told = [{"accuracy": 71.0, "error": 2.0}, {"accuracy": 75.0, "error": -3.0}]
    ours, other = markdown(
        [*(run(seed=i, estimate=one) for i, one in enumerate(told)), run("tent", estimate=None)]
    )
    assert ours["estimate"] == "73.0 (-0.5)"
    assert other["estimate"] == "–"
    assert "estimate" not in markdown([run()])[0]


def test_best_is_bold_and_ties_are_shared() -> None:
    a, b = (80.0, 70.0, 60.0), (80.0, 50.0, 70.0)
    zero, ours, other = markdown(
        [run("zero-shot", accuracy=b), run(accuracy=a), run("tent", accuracy=a)]
    )
    assert [row["dawn"] for row in (zero, ours, other)] == ["80.0"] * 3  # all the same
    assert [row["noon"] for row in (zero, ours, other)] == ["50.0", "**70.0**", "**70.0**"]
    assert [row["night"] for row in (zero, ours, other)] == ["**70.0**", "60.0", "60.0"]
    assert "**" not in render_table([run()], "markdown")
    low = markdown([run("tent", ece=0.2), run(ece=0.05)])
    assert [row["ECE %"] for row in low] == ["20.0", "**5.0**"]


def test_differences_need_a_common_seed_and_seeds_are_shown() -> None:
    zero, ours = markdown([run(seed=1), run("zero-shot", seed=2)])
    assert ours["vs zero-shot"] == "–"
    results = [run(seed=1), run(seed=2), run("zero-shot", seed=2, accuracy=(70.0, 60.0, 50.0))]
    zero, ours = markdown(results)
    assert (zero["seeds"], ours["seeds"], ours["vs zero-shot"]) == ("1", "2", "+10.0")
    assert "vs zero-shot" not in markdown([run(), run("tent")])[0]


def test_settings_make_rows_and_name_them() -> None:
    def labels(*runs: Result) -> list[str]:
        (only,) = group(runs)
        return [row.label for row in only.rows]

    alphas = [run(settings={"alpha": a, "rate": 0.1}) for a in (1.0, 10.0)]
    assert labels(*alphas) == ["bayestta (alpha=1.0)", "bayestta (alpha=10.0)"]
    presets = [
        run(settings={"preset": None, "alpha": 1.0, "rate": 0.1}),
        run(settings={"preset": "paper", "alpha": 9.0, "rate": 0.2}),
        run(settings={"preset": "released", "alpha": 1.0, "rate": 0.3}),
        run(settings={"preset": "released", "alpha": 10.0, "rate": 0.3}),
        run("tent", settings={}),
    ]
    assert labels(*presets) == [
        "bayestta",
        "bayestta (paper)",
        "bayestta (released, alpha=1.0)",
        "bayestta (released, alpha=10.0)",
        "tent",
    ]
    one, many = run(templates=["a {}"]), run(templates=["a {}", "b {}"])
    assert labels(one, many) == ["bayestta (1 template)", "bayestta (2 templates)"]
    assert labels(run(batch_size=8), run(batch_size=64))[0] == "bayestta (batch_size=8)"
    assert labels(run(seed=1), run(seed=2)) == ["bayestta"]


def test_a_repeated_run_counts_once_the_later_one() -> None:
    (only,) = group([run(), run(accuracy=(10.0, 10.0, 10.0))])
    assert [r.accuracy for r in only.rows[0].runs] == [10.0]


def test_other_images_are_another_table() -> None:
    groups = group([run(limit=100), run(limit=50), run(model="mini-rn"), run(data="digits")])
    assert [g.title for g in groups] == [
        "sky · lit · at most 100 images per domain",
        "sky · lit · at most 50 images per domain",
        "sky · mini-rn",
        "digits · lit",
    ]


def test_nothing_to_report() -> None:
    for render in (render_table, render_page):
        with pytest.raises(ValueError, match="no results"):
            render([])
    with pytest.raises(ValueError, match=r"'markdwon'.*'markdown'"):
        render_table([run()], "markdwon")


def test_csv_reads_back() -> None:
    rows = list(csv.DictReader(io.StringIO(render_table(three_seeds(), "csv"))))
    assert len(rows) == 2 * (len(DOMAINS) + 1)
    noon = next(r for r in rows if r["method"] == "bayestta" and r["domain"] == "noon")
    assert float(noon["accuracy"]) == pytest.approx(72.0)
    assert float(noon["accuracy_std"]) == pytest.approx(np.std([70, 71, 75], ddof=1))
    assert (noon["images"], noon["seeds"], noon["difference"]) == ("100", "1 2 3", "")
    whole = next(r for r in rows if r["method"] == "bayestta" and not r["domain"])
    assert float(whole["accuracy"]) == pytest.approx(
        np.mean([r.accuracy for r in three_seeds()[:3]])
    )
    assert (float(whole["ece"]), float(whole["seconds"])) == pytest.approx((0.1, 6.0))
    gains = [
        a.accuracy - b.accuracy for a, b in zip(three_seeds()[:3], three_seeds()[3:], strict=True)
    ]
    assert float(whole["difference"]) == pytest.approx(np.mean(gains))


def test_terminal_fits_its_width() -> None:
    results = three_seeds()
    free = render_table(results, "terminal")
    assert "82.0 ± 2.0*" in free  # not a terminal: stars
    width = max(map(len, free.splitlines()[1:-2]))
    assert render_table(results, "terminal", width=width) == free
    turned = render_table(results, "terminal", width=60)
    lines = turned.splitlines()
    assert lines[2].split() == ["zero-shot", "bayestta"]
    assert max(map(len, lines)) <= 60
    assert [x.split()[0] for x in lines[4:7]] == list(DOMAINS)
    narrow = render_table(results, "terminal", width=20)
    assert "dawn" not in narrow
    assert "3 domains not shown" in " ".join(narrow.split())
    assert "average" in narrow


def test_terminal_columns_line_up_with_and_without_bold() -> None:
    for bold in (True, False):
        text = render_table(three_seeds(), "terminal", bold=bold)
        assert ("\x1b[1m" in text) == bold
        lines = re.sub("\x1b\\[[0-9]*m", "", text).splitlines()
        ends = [[m.end() for m in re.finditer(r"± \d+\.\d", x)] for x in lines[4:6]]
        assert ends[0][:4] == ends[1][:4]


def test_markup_in_names_is_harmless() -> None:
    odd = run("50%_a&b", domains=("x|y", "#1", "*z*"))
    tex = render_table([odd, run("zero-shot", domains=("x|y", "#1", "*z*"))], "latex")
    assert r"50\%\_a\&b" in tex
    assert r"\#1" in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 1
    body = tex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    header = next(x for x in tex.splitlines() if x.startswith("method"))
    assert {len(re.findall(r"(?<!\\)&", x)) for x in [header, *body]} == {8}
    md = render_table([odd], "markdown")
    counts = {len(re.findall(r"(?<!\\)\|", x)) for x in md.splitlines() if x.startswith("|")}
    assert counts == {9}
    assert "\\*z\\*" in md


def test_many_domains_are_left_to_the_csv() -> None:
    names = tuple(str(year) for year in range(1930, 1960))
    results = [run(domains=names, sizes=(10,) * 30, accuracy=(50.0,) * 30)]
    text = render_table(results, "markdown")
    assert "1945" not in text
    assert "30 domains not shown" in text
    assert "1945" in render_table(results, "csv")
    assert "1945" in render_page(results)


# --- the page ---

NASTY = '<script>alert("x")</script>&'
COVARIANCE = {"statistic": 0.0612, "critical": 1.643, "df1": 495, "df2": 1023.5, "usable": False}


def page_results() -> list[Result]:
    sketch = {"accuracy": 60.0, "ece": 0.2, "bins": [[0, 0.0, 0]] * 14 + [[250, 240.0, 150]]}
    more: dict[str, Any] = {
        "covariance": {**COVARIANCE, "structure": "shared"},
        "guard": {"returns": 2, "last": {"agreement": 0.875}, "history": list(range(50))},
        "provenance": {"alpha": "user"},
        "sketch": sketch,
        "templates": ["a photo of a {}."],
    }
    ours = [run(seed=s, path=Path(f"/secret/place/r{s}.json"), **more) for s in (1, 2)]
    return [*ours, run("zero-shot", 1, (70.0, 60.0, 50.0)), run("zero-shot", 2, (71.0, 60.0, 50.0))]


def parse(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>"))


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out" / "page.html"
    write_page(page_results(), path)
    page = path.read_text("utf-8")
    assert page == render_page(page_results())
    root = parse(page)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page)
    for node in root.iter():
        assert node.tag not in ("script", "link", "img", "iframe", "object", "embed")
        assert not {"src", "href", "onclick", "onload"} & set(node.keys())
    assert root.find("head/meta[@charset='utf-8']") is not None
    assert "width=device-width" in page
    assert "prefers-color-scheme: dark" in page


def test_page_has_its_figures_tables_and_records() -> None:
    page = render_page(page_results())
    root = parse(page)
    charts = root.findall(".//svg[@class='chart']")
    assert [c.get("aria-label", "").split(" on ")[0] for c in charts] == [
        "Accuracy by domain",
        "Accuracy over the stream",
        "Accuracy against seconds",
        "Calibration of zero-shot",
        "Calibration of bayestta",
    ]
    tips = [t.text or "" for t in root.iterfind(".//svg//title")]
    assert "bayestta, noon: 70.0 ± 0.0 %" in tips
    assert any("confidence 0.95, accuracy 0.72, 500 images" in t for t in tips)
    captions = ["".join(c.itertext()) for c in root.iterfind(".//figcaption")]
    assert captions == ["ECE 10.0 ± 0.0 %", "ECE 10.0 ± 0.0 %sketch 20.0 ± 0.0 %"]
    assert any("zero-shot sketch: confidence 0.96, accuracy 0.60" in t for t in tips)
    text = " ".join("".join(root.itertext()).split())
    for word in (
        "One covariance for all classes",
        "critical value 1.64",
        "last agreement",
        "0.875",
    ):
        assert word in text
    assert "history" not in text
    assert "4 runs over 1,000 images, seeds 1, 2" in text
    assert "Made from 2 result files: r1.json, r2.json." in text
    assert "/secret" not in page
    assert "bayestta reaches 72.0" in text
    rows = ["".join(tr.itertext()) for tr in root.iterfind(".//details//tr")]
    assert "alpha1user" in rows
    assert "torch2.13.0" in rows
    assert "templatesa photo of a {}." in rows
    for table in root.iterfind(".//table"):
        widths = {len(tr) for tr in table.iter("tr")}
        assert len(widths) == 1


def test_wide_things_scroll_in_their_own_box() -> None:
    root = parse(render_page(page_results()))
    tables = root.findall(".//table")
    assert len(tables) == len(root.findall(".//div[@class='wide']/table")) > 3
    assert re.search(r"\.wide \{[^}]*overflow-x: auto", CSS)


def test_page_escapes_every_name() -> None:
    nasty = run(
        NASTY,
        data=NASTY,
        model=NASTY,
        domains=(NASTY, "b", "c"),
        settings={NASTY: NASTY},
        provenance={NASTY: NASTY},
        covariance={NASTY: NASTY},
        templates=[NASTY],
        commit=NASTY,
        split=NASTY,
        path=Path("<b>.json"),
    )
    page = render_page([nasty, run("zero-shot", data=NASTY, model=NASTY, split=NASTY)])
    assert "<script" not in page
    assert "<b>" not in page
    root = parse(page)
    assert NASTY in (root.findtext("body/header/h1") or "")
    assert any(node.text and NASTY in node.text for node in root.iterfind(".//svg//title"))


def test_a_bare_result_has_a_page() -> None:
    bare = run(trace=[], versions={}, settings={}, seconds={})
    for domain in bare.domains:
        del domain["bins"], domain["ece"]
    root = parse(render_page([bare]))
    assert len(root.findall(".//svg[@class='chart']")) == 1
    single = run(domains=("only",), sizes=(4,), accuracy=(50.0,))
    parse(render_page([single]))
    for form in FORMATS:
        assert render_table([bare], form)


def test_curves_are_drawn_where_the_numbers_are() -> None:
    root = parse(render_page([run(accuracy=(80.0, 70.0, 60.0))]))
    chart = root.find(".//svg[@class='chart']")
    assert chart is not None
    dots = [
        (float(c.attrib["cx"]), float(c.attrib["cy"]))
        for c in chart.iterfind(".//circle[@class='dot']")
    ]
    assert len(dots) == 3
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.2)
    labels = {t.text: float(t.attrib["y"]) - 4 for t in chart.iterfind("text")}  # of the y axis
    assert [y for _, y in dots] == pytest.approx(
        [labels["80"], labels["70"], labels["60"]], abs=0.2
    )


def test_frame_maps_corners() -> None:
    frame = Frame((0, 10), (50, 100))
    assert frame.at(0, 50) == (frame.left, frame.height - frame.bottom)
    assert frame.at(10, 100) == (frame.width - frame.right, frame.top)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (41.3, 58), (0, 100), (99.95, 99.96), (3, 3), (0, 63000), (12, 97)]
)
def test_ticks_enclose_the_range(low: float, high: float) -> None:
    marks = ticks(low, high)
    assert marks[0] <= low
    assert marks[-1] >= high
    assert 2 <= len(marks) <= 9
    assert len(set(np.round(np.diff(marks), 6))) == 1


def test_stream_points_keep_every_hit_and_no_boundary_is_crossed() -> None:
    rng = np.random.default_rng(0)
    trace = [
        {"domain": d, "n": 10, "hits": int(rng.integers(11))}
        for d, k in (("a", 130), ("b", 7))
        for _ in range(k)
    ]
    points = stream_points([trace])
    assert len(points) <= 62
    assert [p[2] for p in points] == sorted(p[2] for p in points)
    edges, seen, hits = [], 0.0, 0.0
    for middle, value, _ in points:
        n = 2 * (middle - seen)
        hits += value.mean / 100 * n
        seen += n
        edges.append(seen)
    assert 1300 in np.round(edges, 6)
    assert hits == pytest.approx(sum(e["hits"] for e in trace))
    two = stream_points([trace, [{**e, "hits": 10} for e in trace], trace[:5]])
    assert two[0][1].mean == pytest.approx((points[0][1].mean + 100) / 2)


def test_reliability_adds_bins() -> None:
    first = [[10, 3.0, 4], [0, 0.0, 0], [1, 0.9, 1]]
    second = [[30, 9.0, 8], [0, 0.0, 0], [3, 2.7, 3]]
    found = reliability("m", [first, None, second], 1)
    assert found is not None
    series, counts = found
    assert counts == [40, 4]
    assert [(p.x, p.y) for p in series.points] == [
        pytest.approx((0.3, 0.3)),
        pytest.approx((0.9, 1.0)),
    ]
    assert reliability("m", [None], 1) is None


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_colours_stand_out_in_light_and_dark() -> None:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        page = luminance(colours.pop("page"))
        for name, least in {
            "text": 7.0,
            "soft": 4.5,
            "best": 4.5,
            **{f"c{i}": 3.0 for i in range(7)},
        }.items():
            bright, dim = sorted((luminance(colours[name]), page), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= least, name


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".html", "<!DOCTYPE"), (".md", "### sky"), (".tex", "%"), (".csv", "data,"), (".txt", "sky")],
)
def test_the_ending_chooses_the_form(tmp_path: Path, suffix: str, start: str) -> None:
    path = tmp_path / f"report{suffix}"
    write_report([run()], path)
    assert path.read_text("utf-8").startswith(start)


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.htm.*did you mean '\.html'"):
        write_report([run()], tmp_path / "r.htm")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"test": "shared", "structure": "shared"}, "the settings say so"),
        ({"structure": "shared", "reason": "nothing was seen yet"}, "no test was carried out"),
        (
            {"structure": "shared", "statistic": 0.5, "critical": 1.1, "rejects": False},
            "do not differ by more than chance",
        ),
        (
            {"structure": "per-class", "statistic": 3.0, "critical": 1.1, "rejects": True},
            "every class has enough images",
        ),
        (
            {"structure": "shared", "statistic": 3.0, "critical": 1.1, "rejects": True}
            | {"waits": True},
            "not every class has been seen often enough",
        ),
    ],
)
def test_the_homogeneity_test_is_told_to_a_layman(record: dict[str, Any], words: str) -> None:
    said = covariance_sentence(record)
    assert words in said
    assert said.endswith(".")
    assert "rejects" not in said


def test_turned_answers_are_counted_and_shown() -> None:
    shown = {"domain": "noon", "truth": 0, "answer": 0, "sketch": 1, "png": "aGk="}
    turned = {"mended": 30, "broken": 10, "shown": {"mended": [shown], "broken": []}}
    page = render_page([run("zero-shot"), run("bayestta", turned=turned, classes=["cat", "<dog>"])])
    text = " ".join("".join(parse(page).itertext()).split())
    assert "bayestta: 30 mended, 10 broken of" in text
    assert "<dog> → cat" in text
    assert 'src="data:image/png;base64,aGk="' in page
