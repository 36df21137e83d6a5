"""What the scripts here share: results of a folder, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bayestta.bench import read_bench
from bayestta.evaluation.result import Result
from bayestta.report.groups import Value
from bayestta.report.tables import NONE, number

HERE = Path(__file__).parent
Key = Callable[[Result], str | None]
Read = Callable[[Result], float | None]


def load(folder: str | Path) -> list[Result]:
    """All results of a folder that `bayestta bench` filled, in the order of its bench file."""
    files = sorted(Path(folder).glob("*.json"))
    plan = HERE / f"{Path(folder).name}.toml"
    place = {run.file: i for i, run in enumerate(read_bench(plan))} if plan.exists() else {}
    files.sort(key=lambda path: place.get(path.name, len(place)))
    return [Result.load(path) for path in files if not path.name.endswith(".error.json")]


def is_default(result: Result) -> bool:
    """Whether it is BayesTTA as it comes, with no setting changed."""
    given = [key for key, origin in result.provenance.items() if origin != "default"]
    return result.method == "bayestta" and not given


def sketch(result: Result, key: str = "accuracy") -> float:
    """A figure of the zero-shot answers to the same images."""
    if result.sketch is None:
        raise ValueError(f"{result.path} holds no zero-shot answers: run the bench again.")
    return float(result.sketch[key])


def gain(result: Result) -> float:
    """Points above zero-shot on the same images."""
    return result.accuracy - sketch(result)


def stream(result: Result) -> str:
    options = " ".join(f"{k}={v}" for k, v in (result.notes.get("options") or {}).items())
    model = result.model.removeprefix("features:")
    return f"{' '.join(filter(None, [result.data, options]))}, {Path(model).name}"


def spread(numbers: Iterable[float | None], *, sign: bool = False) -> str:
    """Mean ± deviation over the seeds."""
    return number(Value.of(list(numbers)), sign=sign, digits=2)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def pivot(
    results: Sequence[Result], row: Key, column: Key, read: Read, corner: str, *, sign: bool = False
) -> str:
    """Rows and columns in order of appearance; results that have no row or column are left out."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for result in results:
        if (r := row(result)) is not None and (c := column(result)) is not None:
            found.setdefault((r, c), []).append(read(result))
    columns = list(dict.fromkeys(c for _, c in found))
    cells = {
        r: [spread(found[r, c], sign=sign) if (r, c) in found else NONE for c in columns]
        for r, _ in found
    }
    return markdown_table([corner, *columns], [[r, *row] for r, row in cells.items()])
