"""For each class the few samples of lowest entropy, as TDA and DPE keep them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.state import matching


class Cache:
    """Up to `shots` entries per class, in order of entropy; a full class gives up its worst entry.

    Parameters
    ----------
    classes, shots
        How many classes, and entries of each.
    like
        A tensor of the type and on the device of the entries.
    columns
        What an entry holds: names and lengths of vectors.

    >>> cache = Cache(2, 2, torch.zeros(0), feature=1)
    >>> for entropy in (0.3, 0.1, 0.2, 0.9):
    ...     cache.insert(1, entropy, feature=torch.tensor([entropy]))
    >>> cache.entropy[1], cache.filled.tolist()
    ([0.1, 0.2], [[0.0, 0.0], [1.0, 1.0]])
    """

    def __init__(self, classes: int, shots: int, like: Tensor, **columns: int) -> None:
        self.classes, self.shots, self._like, self._lengths = classes, shots, like, columns
        self.reset()

    def reset(self) -> None:
        K, S = self.classes, self.shots
        self.entropy: list[list[float]] = [[] for _ in range(K)]
        self.filled = self._like.new_zeros(K, S)  # 1 where there is an entry
        self.columns = {
            name: self._like.new_zeros(K, S, length) for name, length in self._lengths.items()
        }

    def __getitem__(self, column: str) -> Tensor:
        return self.columns[column]  # (K,S,length), zero where there is no entry

    def insert(self, k: int, entropy: float, **entry: Tensor) -> None:
        """Add to class `k`; where it is full, only in place of an entry of higher entropy."""
        stored = self.entropy[k]
        if len(stored) == self.shots:
            if not self.shots or entropy >= stored[-1]:
                return
            stored.pop()
        place, end = bisect_right(stored, entropy), len(stored)
        stored.insert(place, entropy)
        self.filled[k, end] = 1.0
        for name, value in entry.items():
            rows = self.columns[name][k]
            rows[place + 1 : end + 1] = rows[place:end].clone()
            rows[place] = value

    def merge(self, other: Cache, share: float) -> None:
        """Insert all entries of another cache."""
        for k, stored in enumerate(other.entropy):
            for i, entropy in enumerate(stored):
                entry = {name: rows[k, i] for name, rows in other.columns.items()}
                self.insert(k, entropy, **entry)

    def state(self) -> dict[str, Any]:
        """Columns, entropies and counts."""
        table = torch.zeros(self.classes, self.shots, dtype=torch.float64)
        for k, stored in enumerate(self.entropy):
            table[k, : len(stored)] = torch.tensor(stored, dtype=torch.float64)
        columns = {name: rows.clone() for name, rows in self.columns.items()}
        return {**columns, "entropy": table, "filled": self.filled.clone()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        mine = self.state()
        if state.keys() != mine.keys():
            raise ValueError(f"a cache of {sorted(state)} is not one of {sorted(mine)}.")
        new = {key: matching(key, state[key], like) for key, like in mine.items()}
        filled = state["filled"].cpu()
        count = filled.sum(1).long()
        full = torch.arange(self.shots) < count[:, None]
        if not torch.equal(filled, full.to(filled)):
            raise ValueError("filled does not count the entries of each class from the first on.")
        table = zip(new.pop("entropy").tolist(), count.tolist(), strict=True)
        self.entropy = [row[:n] for row, n in table]
        self.filled = new.pop("filled")
        self.columns = new
