"""Which results belong in one table, which of them in one row, and what the rows are called."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from bayestta.evaluation.result import Result, plain

ZERO_SHOT = "zero-shot"
CURVES = 12  # in one figure, before nobody can tell them apart
SHOWN = 4  # settings that a label names before it gives up


@dataclass(frozen=True)
class Value:
    """A mean over seeds, with the sample standard deviation if there are several."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, numbers: Sequence[float | None]) -> Value | None:
        """None if nothing was measured.

        >>> Value.of([1.0, 3.0])
        Value(mean=2.0, std=1.4142135623730951)
        """
        known = [x for x in numbers if x is not None]
        if not known:
            return None
        return cls(fmean(known), stdev(known) if len(known) > 1 else None)


@dataclass
class Row:
    """One method with one setting: a run a seed."""

    label: str
    runs: list[Result]

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def accuracy(self) -> float:
        """The mean over seeds."""
        return fmean(run.accuracy for run in self.runs)

    def value(self, read: Callable[[Result], float | None]) -> Value | None:
        return Value.of([read(run) for run in self.runs])

    def domain(self, name: str, key: str = "accuracy") -> Value | None:
        return self.value(lambda run: _domain(run, name, key))

    def difference(self, other: Row) -> Value | None:
        """Accuracy minus that of another row, seed by seed; None if they share no seed."""
        theirs = {run.seed: run.accuracy for run in other.runs}
        return Value.of([r.accuracy - theirs[r.seed] for r in self.runs if r.seed in theirs])


@dataclass
class Group:
    """The runs on one stream with one model: a table."""

    title: str
    about: str  # which images, which seeds
    domains: list[str]
    rows: list[Row]  # zero-shot first

    @property
    def data(self) -> str:
        return self.rows[0].runs[0].data

    @property
    def model(self) -> str:
        return self.rows[0].runs[0].model

    @property
    def reference(self) -> Row | None:
        """What the others are compared to: plain zero-shot."""
        return next((row for row in self.rows if row.method == ZERO_SHOT), None)

    @property
    def best(self) -> Row | None:
        """The most accurate row beside the reference."""
        others = [row for row in self.rows if row is not self.reference]
        return max(others, key=lambda row: row.accuracy, default=None)

    def shown(self, most: int = CURVES) -> list[Row]:
        """The rows that a figure has room for: the reference and the most accurate ones."""
        ranked = sorted(self.rows, key=lambda row: (row is not self.reference, -row.accuracy))
        kept = {row.label for row in ranked[:most]}
        return [row for row in self.rows if row.label in kept]


def group(results: Sequence[Result]) -> list[Group]:
    """Results by data, model and images, then by method and setting, in order of appearance.

    Of two runs that differ in nothing but their time, the later one counts.
    """
    if not results:
        raise ValueError(
            "there are no results to report: pass files that `bayestta run --out` wrote."
        )
    tables: dict[tuple[Any, ...], dict[str, dict[int, Result]]] = {}
    for run in results:
        options = _key(plain(run.notes.get("options") or {}))
        images = (run.split, run.limit, run.order, len(run.rounds), options)
        rows = tables.setdefault((run.data, run.model, *images), {})
        rows.setdefault(_key(settings(run), run.method, name(run)), {})[run.seed] = run
    titles = [key[:2] for key in tables]
    groups = []
    for key, variants in tables.items():
        runs = [[seeds[s] for s in sorted(seeds)] for seeds in variants.values()]
        runs.sort(key=lambda same: same[0].method != ZERO_SHOT)
        rows_ = [
            Row(name, same) for name, same in zip(labels([r[0] for r in runs]), runs, strict=True)
        ]
        domains = list(
            dict.fromkeys(d["name"] for row in rows_ for r in row.runs for d in r.domains)
        )
        names = [*key[:2], *(_images(runs[0][0]) if titles.count(key[:2]) > 1 else [])]
        groups.append(Group(" · ".join(names), _about(rows_), domains, rows_))
    return groups


def settings(run: Result) -> dict[str, Any]:
    """What makes two runs of a method on the same images different, seeds aside."""
    extra = {
        k: getattr(run, k) for k in ("reset_every", "batch_size", "templates", "norms", "precision")
    }
    return plain({**extra, **{k: v for k, v in run.settings.items() if k != "seed"}})  # type: ignore[no-any-return]


def name(run: Result) -> str:
    """What a run is called: the label that it was given, or its method."""
    return str(run.notes.get("label") or run.method)


def labels(runs: Sequence[Result]) -> list[str]:
    """The name, and of the settings those in which runs of the same name differ."""
    found = []
    for run in runs:
        rivals = [settings(other) for other in runs if name(other) == name(run)]
        mine, words = settings(run), []
        if _differ(rivals, "preset"):
            if mine.get("preset") is not None:
                words.append(str(mine["preset"]))
            rivals = [s for s in rivals if s.get("preset") == mine.get("preset")]
        keys = [k for k in mine if k != "preset" and _differ(rivals, k)]
        words += [_setting(k, mine[k]) for k in keys[:SHOWN]] + ["…"] * (len(keys) > SHOWN)
        label = f"{name(run)} ({', '.join(words)})" if words else name(run)
        found.append(label)
    return [
        f"{label} #{found[: i + 1].count(label)}" if found.count(label) > 1 else label
        for i, label in enumerate(found)
    ]


def _differ(rivals: Sequence[dict[str, Any]], key: str) -> bool:
    return len({_key(s.get(key)) for s in rivals}) > 1


def _setting(key: str, value: Any) -> str:
    if key == "templates" and isinstance(value, list):
        return f"{len(value)} template{'s' * (len(value) != 1)}"
    return f"{key}={value}"


def _key(*value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _domain(run: Result, name: str, key: str) -> float | None:
    return next((d.get(key) for d in run.domains if d["name"] == name), None)


def _images(run: Result) -> list[str]:
    """Which images of the data the run saw, and in what order."""
    parts = [f"split {run.split}"] if run.split else []
    parts += [f"{key} {value}" for key, value in (run.notes.get("options") or {}).items()]
    parts += [f"at most {run.limit:,} images per domain"] if run.limit else []
    parts += [f"{run.order} order"] if run.order else []
    return parts + ([f"{len(run.rounds)} rounds"] if run.rounds else [])


def _about(rows: Sequence[Row]) -> str:
    """Which images and seeds the numbers stand on, in one line."""
    seeds = sorted({seed for row in rows for seed in row.seeds})
    run = rows[0].runs[0]
    parts = [f"{run.n:,} images in {len(run.domains)} domain{'s' * (len(run.domains) != 1)}"]
    parts += _images(run)
    parts.append(f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}")
    if any(len(row.runs) > 1 for row in rows):
        parts.append("mean ± standard deviation over seeds")
    return "; ".join(parts)
