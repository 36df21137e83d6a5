"""docs/results.md from the folders that `bayestta bench` filled: `python bench/results.py runs`.

A section a bench file, with the command that made it; nothing in the tables is written by hand. A
folder that is not there is left out, and a run that is missing from one is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean

from bayestta.bench import read_bench
from bayestta.evaluation.result import Result
from bayestta.report.formats import markdown
from bayestta.report.groups import Value, group, name
from bayestta.report.tables import comparison, number

HERE = Path(__file__).parent
Key = Callable[[Result], str | None]
Read = Callable[[Result], float | None]


def spread(numbers: Iterable[float | None]) -> str:
    """Mean ± deviation over the seeds."""
    return number(Value.of(list(numbers)), digits=2)


def pivot(results: list[Result], row: Key, column: Key, read: Read, corner: str) -> str:
    """Rows and columns in order of appearance; results that have no row or column are left out."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for result in results:
        if (r := row(result)) is not None and (c := column(result)) is not None:
            found.setdefault((r, c), []).append(read(result))
    rows = list(dict.fromkeys(r for r, _ in found))
    columns = list(dict.fromkeys(c for _, c in found))
    lines = [f"| {corner} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    lines += [
        f"| {r} | {' | '.join(spread(found.get((r, c), [])) for c in columns)} |" for r in rows
    ]
    return "\n".join(lines)


def accuracy(result: Result) -> float:
    return result.accuracy


def stream(result: Result) -> str:
    return f"{result.data}, {result.model}"


# --- a section each ---


def full(results: list[Result]) -> str:
    return "\n\n".join(markdown(comparison(g)) for g in group(results))


def by_name(results: list[Result]) -> str:
    return pivot(results, name, stream, accuracy, "")


def long_term(results: list[Result]) -> str:
    parts = []
    for where in dict.fromkeys(map(stream, results)):
        here = [r for r in results if stream(r) == where]
        columns: dict[str, Read] = {
            f"round {i + 1}": lambda r, i=i: r.rounds[i]["accuracy"]  # type: ignore[misc]
            for i in range(3)
        }
        columns["forgotten"] = lambda r: fmean(d["then"] - d["now"] for d in r.forgetting)
        lines = [f"| {where} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        for method in dict.fromkeys(map(name, here)):
            mine = [r for r in here if name(r) == method]
            cells = [spread(map(read, mine)) for read in columns.values()]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def sensitivity(results: list[Result]) -> str:
    ours = [r for r in results if r.method == "bayestta"]
    usual = {key: _most([r.settings[key] for r in ours]) for key in ("lr", "beta", "alpha")}
    parts = [pivot(results, lambda r: None if r in ours else r.method, stream, accuracy, "")]
    for key in usual:
        others = [k for k in usual if k != key]
        chosen = [r for r in ours if all(r.settings[k] == usual[k] for k in others)]
        chosen.sort(key=lambda r: (r.settings[key], r.data))
        parts.append(pivot(chosen, lambda r: f"{r.settings[key]:g}", stream, accuracy, key))  # noqa: B023
    return "\n\n".join(parts)


def _most(values: list[float]) -> float:
    return max(set(values), key=values.count)


def batch_size(results: list[Result]) -> str:
    def size(result: Result) -> str:
        return "zero-shot" if result.method == "zero-shot" else str(result.batch_size)

    return pivot(results, size, stream, accuracy, "batch size")


def efficiency(results: list[Result]) -> str:
    parts = []
    for where in dict.fromkeys(map(stream, results)):
        lines = [f"| {where} | accuracy | seconds | times zero-shot |", "|---|---:|---:|---:|"]
        here = [r for r in results if stream(r) == where]
        base = fmean(r.seconds["total"] for r in here if r.method == "zero-shot")
        for method in dict.fromkeys(map(name, here)):
            mine = [r for r in here if name(r) == method]
            spent = fmean(r.seconds["total"] for r in mine)
            scored = spread(map(accuracy, mine))
            lines.append(f"| {method} | {scored} | {spent:.1f} | {spent / base:.1f} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def controls(results: list[Result]) -> str:
    return pivot(
        results, lambda r: f"{name(r)}, {r.order}", stream, accuracy, "method, order of the stream"
    )


def collapse(results: list[Result]) -> str:
    def setting(result: Result) -> str:
        if result.method == "zero-shot":
            return "zero-shot"
        return f"lr {result.settings['lr']:g}, {result.settings['norms']} statistics"

    whole = pivot(results, setting, stream, accuracy, "average")
    last = pivot(results, setting, stream, lambda r: r.domains[-1]["accuracy"], "last domain")
    return f"{whole}\n\n{last}"


SECTIONS: dict[str, tuple[str, str, Callable[[list[Result]], str]]] = {
    "readme": (
        "The default against zero-shot and the two published forms",
        "1,000 images per domain. The released form gets its alpha chosen on the reported stream.",
        full,
    ),
    "embedded": (
        "All methods",
        "512 images per domain, and 128 for CoTTA, WATT and the 64-view methods (TPT, DynaPrompt), "
        "with zero-shot and BayesTTA on the same 128 beside them. Methods that need gradients "
        "through the text tower (CoOp, TPT, AdaPrompt, DynaPrompt, HisTPT) do not run on lit, "
        "whose text tower has none. CoOp's context was learnt on 16 labelled images per class of "
        "the unshifted domain of the held-out split: it is the only supervised row. TPT and "
        "DynaPrompt come out alike because the text towers of the minis hardly listen to the "
        "context: a step at the published rate of 5e-3 leaves the answers those of "
        "`a photo of a {}` (zero-shot "
        "with `--templates single`) but for an image in a thousand.",
        full,
    ),
    "tent_collapse": (
        "TENT-continual, and where it collapses",
        "Batches of 16, so more than 500 steps. Ten classes: 10 % is one answer for everything.",
        collapse,
    ),
    "long_term": (
        "Three rounds",
        "One state through all domains three times. Forgotten: accuracy when a domain was last "
        "adapted to, less that of `predict` on the same images at the end; mean over all domains "
        "but the last.",
        long_term,
    ),
    "ablation": ("What the parts are worth", "Rows as defined in docs/method.md.", by_name),
    "sensitivity": (
        "Learning rate, EMA decay, alpha",
        "One is varied, the others as by default.",
        sensitivity,
    ),
    "batch_size": ("Batch size", "", batch_size),
    "efficiency": (
        "Accuracy against time",
        "One thread a run: seed 1 with nothing else running, seeds 2 and 3 two at a time on two "
        "cores. CoTTA, WATT and the 64-view methods are in the section on all methods; "
        "benchmarks/methods.py counts forwards.",
        efficiency,
    ),
    "controls": ("Other orders", "", controls),
}


def section(folder: Path, title: str, about: str, make: Callable[[list[Result]], str]) -> str:
    wanted = read_bench(HERE / f"{folder.name}.toml")
    there = [run for run in wanted if (folder / run.file).exists()]
    text = make([Result.load(folder / run.file) for run in there])
    missing = len(wanted) - len(there)
    note = f" {missing} of {len(wanted)} runs of the file were not carried out." * bool(missing)
    made = f"Made by `bayestta bench bench/{folder.name}.toml`.{note}"
    return f"## {title}\n\n{' '.join(filter(None, [about, made]))}\n\n{text}\n"


def main(folder: str) -> None:
    print(
        "# Results\n\nMeasured on two CPU cores without a GPU, seeds as shown, accuracy in % (mean "
        "± sample deviation over seeds). Written by `python bench/results.py runs` from the "
        "folders that `bayestta bench` fills. Except under accuracy against time, seconds were "
        "taken while other programs ran, and say little; [speed.md](speed.md) has ratios measured "
        "in one run.\n"
    )
    for key, (title, about, make) in SECTIONS.items():
        if any((Path(folder) / key).glob("*.json")):
            print(section(Path(folder) / key, title, about, make))


if __name__ == "__main__":
    main(sys.argv[1])
