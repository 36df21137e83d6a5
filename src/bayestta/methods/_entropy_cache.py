"""For each class the few samples of lowest entropy, as TDA and DPE keep them."""

from __future__ import annotations

from bisect import bisect_right

import torch
from torch import Tensor

from bayestta.state import StatefulPart


class Cache(StatefulPart):
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
        self.shots, self.columns = shots, list(columns)
        # Order and number of entries are read at every sample: they stay on the host.
        numbers = torch.zeros(classes, dtype=torch.int64)
        self.counts = self.add_state("counts", numbers, least=0, most=shots)
        entropies = torch.zeros(classes, shots, dtype=torch.float64)
        self.entropies = self.add_state("entropies", entropies, least=0)
        for name, length in columns.items():
            self.add_state(name, like.new_zeros(classes, shots, length))
        self._like = like

    def __getitem__(self, column: str) -> Tensor:
        rows: Tensor = getattr(self, column)
        return rows  # (K,S,length), zero where there is no entry

    @property
    def entropy(self) -> list[list[float]]:
        """The entropies of the entries, by class."""
        pairs = zip(self.entropies.tolist(), self.counts.tolist(), strict=True)
        return [row[:n] for row, n in pairs]

    @property
    def filled(self) -> Tensor:
        """(K,S), 1 where there is an entry."""
        return (torch.arange(self.shots) < self.counts[:, None]).to(self._like)

    def insert(self, k: int, entropy: float, **entry: Tensor) -> None:
        """Add to class `k`; where it is full, only in place of an entry of higher entropy."""
        end = int(self.counts[k])
        stored = self.entropies[k, :end].tolist()
        if end == self.shots:
            if not self.shots or entropy >= stored[-1]:
                return
            stored.pop()
            end -= 1
        place = bisect_right(stored, entropy)
        stored.insert(place, entropy)
        self.entropies[k, : end + 1] = torch.tensor(stored, dtype=torch.float64)
        self.counts[k] = end + 1
        for name, value in entry.items():
            rows = self[name][k]
            rows[place + 1 : end + 1] = rows[place:end].clone()
            rows[place] = value

    def merge(self, other: Cache, share: float) -> None:
        """Insert all entries of another cache."""
        for k, stored in enumerate(other.entropy):
            for i, entropy in enumerate(stored):
                self.insert(k, entropy, **{name: other[name][k, i] for name in self.columns})

    def check_state(self) -> None:
        for k, stored in enumerate(self.entropy):
            if stored != sorted(stored):
                raise ValueError(f"the entries of class {k} are not in order of their entropy.")
