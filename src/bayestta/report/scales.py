"""Axes that suit their values: linear, by decades, or by decades of the distance from one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DECADE = 10.0


@dataclass(frozen=True)
class Scale:
    """Where a value lies on its axis.

    >>> scale([8, 64, 256]).kind, scale([0.9, 0.99, 0.999]).kind, scale([1, 2, 3]).kind
    ('log', 'near one', 'linear')
    """

    kind: str

    def place(self, value: float) -> float:
        if self.kind == "log":
            return math.log10(value)
        return -math.log10(1 - value) if self.kind == "near one" else value

    @property
    def about(self) -> str:
        return {"log": ", log scale", "near one": ", log scale from one"}.get(self.kind, "")

    def marks(self, values: Sequence[float]) -> list[tuple[float, str]]:
        """Ticks: round numbers on a linear axis, elsewhere the values themselves."""
        if self.kind == "linear":
            return [(mark, f"{mark:g}") for mark in ticks(min(values), max(values))]
        return [(self.place(v), f"{v:g}") for v in sorted(set(values))]

    def round_marks(self, values: Sequence[float]) -> list[tuple[float, str]]:
        """Ticks at round numbers that enclose the values."""
        if self.kind != "log":
            return self.marks(values)
        low = math.floor(math.log10(min(values)))
        high = math.floor(math.log10(max(values)))
        steps = (1, 2, 5) if high - low <= 2 else (1,)
        found = [m * 10.0**e for e in range(low, high + 1) for m in steps] + [10.0 ** (high + 1)]
        first = max((v for v in found if v <= min(values)), default=found[0])
        last = min(v for v in found if v >= max(values))
        return [(self.place(v), f"{v:g}") for v in found if first <= v <= last]


def scale(values: Sequence[float]) -> Scale:
    """By decades where the values span at least one, from zero or, below one, from one."""
    low, high = min(values), max(values)
    if low > 0 and high >= DECADE * low:
        return Scale("log")
    if 0.5 <= low < high < 1 and 1 - low >= DECADE * (1 - high):
        return Scale("near one")
    return Scale("linear")


def ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers that enclose the range.

    >>> ticks(41.3, 58.0)
    [40, 45, 50, 55, 60]
    """
    span = max(high - low, 1e-9)
    power = 10 ** math.floor(math.log10(span / 4))
    step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return [round(i * step, 10) if step < 1 else int(i * step) for i in range(first, last + 1)]
