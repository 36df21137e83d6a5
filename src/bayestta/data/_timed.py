"""Images of one's own with times: what a table, shards and a Hugging Face split have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bayestta.data._base import Data, Dataset, Index
from bayestta.data._time_cuts import check_cut, cut_by_time, iso, read_times
from bayestta.data._walk import natural
from bayestta.data.folder import read_names
from bayestta.names import unknown

DOMAINS = 10  # where the caller does not say
Label = str | int | None


class TimedDomain(Dataset):
    """Rows of a `TimedData`, in time order."""

    def __init__(self, data: TimedData, rows: NDArray[np.int64]) -> None:
        self._data, self.rows = data, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Image.Image, int | None]:
        row, numbers = int(self.rows[i]), self._data.numbers
        return self._data.image(row), None if numbers is None else int(numbers[row])

    def labels(self, index: Index) -> Tensor | None:
        numbers = self._data.numbers
        return None if numbers is None else torch.from_numpy(numbers[self.rows[index]])

    def path(self, i: int) -> str:
        return self._data.path(int(self.rows[i]))


class TimedData(Data):
    """Rows with a time each, sorted by it and cut into domains.

    A subclass knows a row (`image`, `path`, `where`) and calls `arrange` with the labels and times
    of all of them. Rows keep the numbers of the order in which they were given.
    """

    split = "own"
    kind: ClassVar[str] = "rows"  # what messages call them
    origin: str  # and the whole
    numbers: NDArray[np.int64] | None  # a row's class
    spans: dict[str, tuple[str, str]]  # domain -> first and last time, where times are known

    def image(self, row: int) -> Image.Image:
        """The image of a row as RGB; an ImageError where it cannot be decoded."""
        raise NotImplementedError

    def path(self, row: int) -> str:
        """Where the image comes from, for tables of predictions."""
        raise NotImplementedError

    def where(self, row: int) -> str:
        """Which row it is, for messages."""
        raise NotImplementedError

    def arrange(
        self,
        labels: Sequence[Label],
        times: Sequence[object] | None,
        *,
        classes: Sequence[str] | str | os.PathLike[str] | None,
        templates: Sequence[str] | None,
        cut: int | str,
        wrong: Mapping[int, str] | None = None,
    ) -> None:
        """Number the classes, sort by time and cut.

        `labels` are names, or numbers of `classes`, and all None where nobody knows; `times` None
        keeps the order of the rows; `wrong` are rows to leave out, and why.
        """
        from bayestta.models._text import check_names, check_templates
        from bayestta.models._text import templates as template_set

        self.templates = check_templates(templates or template_set("seven"))
        self.labelled = any(label is not None for label in labels)
        if times is None and isinstance(check_cut(cut), str):
            raise ValueError(
                f"cut is {cut!r} and {self.origin} has no times: say where they are, or give a "
                "number of domains."
            )
        seconds, unread = (
            (np.arange(float(len(labels))), {}) if times is None else read_times(times)
        )
        keep = self._usable(labels, {**unread, **(wrong or {})})
        kept = [labels[i] for i in keep]
        self.classes = check_names(
            self._own_classes(kept) if classes is None else read_names(classes)
        )
        self.numbers = None
        if self.labelled:
            self.numbers = np.full(len(labels), -1, np.int64)
            self.numbers[keep] = self._numbers(kept, keep)
        found = cut_by_time(seconds[keep], cut)
        self.domains, self.spans = list(found), {}
        self._rows = {name: keep[part] for name, part in found.items()}
        if times is not None:
            for name, rows in self._rows.items():
                self.spans[name] = iso(seconds[rows[0]]), iso(seconds[rows[-1]])

    def __getitem__(self, domain: str) -> TimedDomain:
        if domain not in self._rows:
            raise ValueError(unknown(f"domain of {self.origin}", domain, self.domains))
        return TimedDomain(self, self._rows[domain])

    def _usable(self, labels: Sequence[Label], wrong: dict[int, str]) -> NDArray[np.int64]:
        if self.labelled:
            blank = (i for i, label in enumerate(labels) if label is None)
            wrong = {**dict.fromkeys(blank, "has no label"), **wrong}
        self.skipped = [f"{self.where(i)}: {wrong[i]}" for i in sorted(wrong)]
        keep = np.array([i for i in range(len(labels)) if i not in wrong], np.int64)
        if not len(keep):
            because = f" ({self.skipped[0]})" if wrong else ""
            raise ValueError(
                f"none of the {len(labels)} {self.kind} of {self.origin} can be used{because}: "
                "correct them."
            )
        return keep

    def _own_classes(self, labels: list[Label]) -> list[str]:
        if not self.labelled:
            raise ValueError(
                f"{self.origin} has no labels to take class names from: pass classes=NAMES."
            )
        if any(isinstance(label, int) for label in labels):
            shown = ", ".join(sorted({str(label) for label in labels}, key=natural)[:5])
            raise ValueError(
                f"the labels of {self.origin} are numbers without names ({shown}), and a text "
                "tower reads names: pass classes=NAMES in the order of the numbers."
            )
        return sorted({str(label) for label in labels}, key=natural)

    def _numbers(self, labels: list[Label], rows: NDArray[np.int64]) -> list[int]:
        """Labels as positions in `classes`: all of them names, or all of them numbers."""
        position, size = {name: k for k, name in enumerate(self.classes)}, len(self.classes)
        texts = [str(label) for label in labels]
        typed = all(isinstance(label, int) for label in labels)
        if not typed and all(text in position for text in texts):
            return [position[text] for text in texts]
        if all(text.isdecimal() and len(text) < 10 and int(text) < size for text in texts):
            return [int(text) for text in texts]
        known = {*map(str, range(size))} if typed else position.keys()
        strange = [i for i, text in enumerate(texts) if text not in known]
        first = strange[0]
        raise ValueError(
            f"{len(strange)} of {len(texts)} labels are no class, the first one "
            f"{texts[first][:60]!r} ({self.where(int(rows[first]))}): correct them, or add to the "
            f"{size} classes ({', '.join(self.classes[:10])}{', …' * (size > 10)})."
        )
