"""The tables of docs/results.md that no other script prints; `python bench/results.py` does."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from _tables import Read, gain, is_default, markdown_table, pivot, spread, stream

from bayestta.evaluation.result import Result
from bayestta.report.formats import markdown
from bayestta.report.groups import Group, group, name
from bayestta.report.tables import comparison

SUPERVISED = ("coop",)


def accuracy(result: Result) -> float:
    return result.accuracy


def full(results: Sequence[Result]) -> str:
    """Methods by domains, one table per stream and model."""
    return "\n\n".join(markdown(comparison(g)) for g in group(results))


def ranked(results: Sequence[Result]) -> str:
    """First the default beside the best of the others, then all."""
    return f"{standing(group(results))}\n\n{full(results)}"


def standing(groups: Sequence[Group]) -> str:
    rows = []
    for one in groups:
        mine = [row for row in one.rows if is_default(row.runs[0])]
        others = [row for row in one.rows if row.method not in ("bayestta", *SUPERVISED)]
        if not mine or len(others) < 2:
            continue
        ours, best = mine[0].accuracy, max(others, key=lambda row: row.accuracy)
        place = 1 + sum(row.accuracy > ours for row in others)
        cells = [f"{ours:.2f}", f"{best.label} {best.accuracy:.2f}", f"{ours - best.accuracy:+.2f}"]
        rows.append([one.title, *cells, f"{place} of {len(others) + 1}"])
    return markdown_table(["stream", "BayesTTA", "best other", "difference", "place"], rows)


def by_name(results: Sequence[Result]) -> str:
    return pivot(results, name, stream, accuracy, "")


def tails(results: Sequence[Result]) -> str:
    rows = []
    for run in results:
        if run.tail is not None:
            keys = ("mean", "tail", "worst", "zero_shot_tail", "tail_gain")
            rows.append([f"{stream(run)}, {name(run)}", *(f"{run.tail[key]:.2f}" for key in keys)])
    header = ("mean of all", "tail", "worst order", "zero-shot's tail", "tail of the gains")
    return markdown_table(["stream, model, method", *header], rows)


def long_term(results: Sequence[Result]) -> str:
    parts = []
    for where in dict.fromkeys(map(stream, results)):
        here = [r for r in results if stream(r) == where]
        columns: dict[str, Read] = {
            f"round {i + 1}": lambda r, i=i: r.rounds[i]["accuracy"]  # type: ignore[misc]
            for i in range(3)
        }
        columns["forgotten"] = lambda r: fmean(d["then"] - d["now"] for d in r.forgetting)
        rows = []
        for method in dict.fromkeys(map(name, here)):
            mine = [r for r in here if name(r) == method]
            rows.append([method, *(spread(map(read, mine)) for read in columns.values())])
        parts.append(markdown_table([where, *columns], rows))
    return "\n\n".join(parts)


def sensitivity(results: Sequence[Result]) -> str:
    ours = [r for r in results if r.method == "bayestta"]
    usual = next(r for r in ours if is_default(r)).settings
    keys = [k for k in usual if len({str(r.settings[k]) for r in ours}) > 1]
    parts = [pivot(results, lambda r: None if r in ours else r.method, stream, accuracy, "")]
    for key in keys:
        others = [k for k in keys if k != key]
        chosen = [r for r in ours if all(r.settings[k] == usual[k] for k in others)]
        chosen.sort(key=lambda r: (r.settings[key], r.data))
        parts.append(pivot(chosen, lambda r: f"{r.settings[key]:g}", stream, accuracy, key))  # noqa: B023
    return "\n\n".join(parts)


def batch_size(results: Sequence[Result]) -> str:
    columns = list(dict.fromkeys(map(stream, results)))

    def cell(size: int | None, where: str) -> str:
        here = [r for r in results if stream(r) == where]
        if size is None:
            return spread(accuracy(r) for r in here if r.method == "zero-shot")
        mine = [r for r in here if r.method == "bayestta" and r.batch_size == size]
        return f"{spread(map(accuracy, mine))} ({fmean(map(gain, mine)):+.2f})" if mine else "–"

    sizes = sorted({r.batch_size or 0 for r in results if r.method == "bayestta"})
    rows = [["zero-shot", *(cell(None, where) for where in columns)]]
    rows += [[str(size), *(cell(size, where) for where in columns)] for size in sizes]
    return markdown_table(["batch size", *columns], rows)


def efficiency(results: Sequence[Result]) -> str:
    parts = []
    for where in dict.fromkeys(map(stream, results)):
        here = [r for r in results if stream(r) == where]
        base = fmean(r.seconds["total"] for r in here if r.method == "zero-shot")
        rows = []
        for method in dict.fromkeys(map(name, here)):
            mine = [r for r in here if name(r) == method]
            spent = fmean(r.seconds["total"] for r in mine)
            rows.append(
                [method, spread(map(accuracy, mine)), f"{spent:.1f}", f"{spent / base:.1f}"]
            )
        parts.append(markdown_table([where, "accuracy", "seconds", "times zero-shot"], rows))
    return "\n\n".join(parts)


def controls(results: Sequence[Result]) -> str:
    return pivot(
        results, lambda r: f"{name(r)}, {r.order}", stream, accuracy, "method, order of the stream"
    )


def collapse(results: Sequence[Result]) -> str:
    def setting(result: Result) -> str:
        if result.method == "zero-shot":
            return "zero-shot"
        return f"lr {result.settings['lr']:g}, {result.settings['norms']} statistics"

    whole = pivot(results, setting, stream, accuracy, "average")
    last = pivot(results, setting, stream, lambda r: r.domains[-1]["accuracy"], "last domain")
    return f"{whole}\n\n{last}"
