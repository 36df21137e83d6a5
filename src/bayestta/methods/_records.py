"""Short lists of records as a piece of state: saved as columns, merged by insertion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayestta.state import matching

R = TypeVar("R", bound=tuple[Any, ...])
KINDS = {int: torch.int64, float: torch.float64}


def to_columns(records: Sequence[R], like: R) -> dict[str, Tensor]:
    """One tensor per field of the records, which are named tuples such as `like`."""
    columns = {}
    for place, field in enumerate(like._fields):  # type: ignore[attr-defined]
        values = [record[place] for record in records]
        first = like[place]
        if not isinstance(first, Tensor):
            columns[field] = torch.tensor(values, dtype=KINDS[type(first)])
        else:
            columns[field] = torch.stack(values) if values else first.new_zeros(0, *first.shape)
    return columns


def from_columns(
    state: Mapping[str, Any], like: R, limits: Mapping[str, tuple[float, float]], most: int
) -> list[R]:
    """The records again: at most so many, each field in the shape of `like` and in its range."""
    columns, sizes = [], set()
    for place, field in enumerate(like._fields):  # type: ignore[attr-defined]
        first = like[place]
        tensor = isinstance(first, Tensor)
        kind = first[None] if tensor else torch.zeros(1, dtype=KINDS[type(first)])
        low, high = limits.get(field, (None, None))
        column = matching(field, state.get(field), kind, grows=True, least=low, most=high)
        sizes.add(len(column))
        columns.append(list(column) if tensor else column.tolist())
    if len(sizes) > 1 or max(sizes) > most:
        raise ValueError(f"columns of {sorted(sizes)} records do not make at most {most} records.")
    return [type(like)(*row) for row in zip(*columns, strict=True)]


class Records(list[R]):
    """At most so many named tuples such as `like`; `insert` decides what another's add to them."""

    def __init__(
        self,
        like: R,
        most: int,
        insert: Callable[[list[R], R], list[R]],
        **limits: tuple[float, float],
    ) -> None:
        super().__init__()
        self.like, self.most, self.limits, self._insert = like, most, limits, insert

    def insert_record(self, record: R) -> None:
        self[:] = self._insert(list(self), record)

    def reset(self) -> None:
        self.clear()

    def state(self) -> dict[str, Any]:
        return dict(to_columns(self, self.like))

    def load(self, state: Mapping[str, Any]) -> None:
        self[:] = from_columns(state, self.like, self.limits, self.most)

    def merge(self, other: Records[R], share: float) -> None:
        for record in other:
            self.insert_record(record)
