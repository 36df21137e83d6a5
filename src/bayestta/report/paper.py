"""The paper's reported numbers (`bench/paper.json`); reading them needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Reported:
    """What one row of one table says about one method on one data set, in %."""

    table: str  # "I" to "VI"
    row: str  # as it is printed
    average: float
    domains: dict[str, float] = field(default_factory=dict)  # empty where the table has none


@dataclass(frozen=True)
class Doubt:
    """An average that does not follow from the numbers beside it."""

    table: str
    model: str
    method: str
    reported: float
    recomputed: float


class Paper:
    """The tables of the paper.

    >>> row = {"row": "WATT", "model": "clip-rn50", "method": "watt", "values": [57.26]}
    >>> paper = Paper([{"table": "V", "data": ["ucf101"], "rows": [row]}])
    >>> paper.find("ucf101", "clip-rn50", "watt")
    Reported(table='V', row='WATT', average=57.26, domains={})
    >>> paper.find("ucf101", "mini-rn", "watt") is None
    True
    """

    def __init__(self, tables: Sequence[Mapping[str, Any]], citation: str = "") -> None:
        self.tables, self.citation = list(tables), citation

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Paper:
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(found["tables"], found["citation"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} does not hold the paper's tables ({type(error).__name__}: {error}): use "
                "bench/paper.json of the repository."
            ) from None

    def find(
        self, data: str, model: str, method: str, *, label: str | None = None
    ) -> Reported | None:
        """The row of a method, or None where the paper has no such number.

        `label` chooses a row of the ablation table by its `label` in a bench file; a label that the
        paper does not know is a setting that it did not measure.
        """
        for table in self.tables:
            sets = table["data"] if isinstance(table["data"], list) else [table["data"]]
            if data not in sets:
                continue
            for row in table["rows"]:
                if (row["model"], row["method"], row.get("label")) == (model, method, label):
                    return _reported(table, row, data)
        return None

    def doubts(self) -> list[Doubt]:
        """The averages that no rounding explains, with the weighting that the paper states."""
        found = []
        for table in self.tables:
            counts = table.get("counts")
            for row in table["rows"]:
                if row.get("average") is None or not row.get("values"):
                    continue
                recomputed = average(row["values"], counts)
                if (
                    abs(recomputed - row["average"])
                    > rounding(counts, row.get("decimals", 2)) + 1e-9
                ):
                    who = (table["table"], row["model"], row["method"])
                    found.append(Doubt(*who, row["average"], round(recomputed, 4)))
        return found


def average(values: Sequence[float], counts: Sequence[int] | None = None) -> float:
    """The mean of percentages, by the counts of their domains if there are any.

    >>> average([50.0, 80.0], [2, 1])
    60.0
    """
    counts = counts or [1] * len(values)
    return sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts)


def rounding(counts: Sequence[int] | None, decimals: int = 2) -> float:
    """How far an average of printed numbers may be from the printed average.

    Half a unit of the last digit for the average, and as much for its parts; but percentages of
    10,000 images are exact with two decimals.

    >>> rounding([10_000, 10_000]), rounding([7_778, 7_777])
    (0.005, 0.01)
    """
    exact = counts is not None and all(10 ** (decimals + 2) % count == 0 for count in counts)
    return (0.5 if exact else 1.0) * 10.0**-decimals


def _reported(table: Mapping[str, Any], row: Mapping[str, Any], data: str) -> Reported | None:
    if isinstance(table["data"], list):  # a column a data set
        value = row["values"][table["data"].index(data)]
        return None if value is None else Reported(table["table"], row["row"], value)
    domains = dict(zip(table["domains"], row.get("values", []), strict=True))
    return Reported(table["table"], row["row"], row["average"], domains)
