"""A table of images with labels and times, as a stream in time."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from bayestta.data._base import register_data
from bayestta.data._timed import DOMAINS, TimedData
from bayestta.images import ImageError, read_image
from bayestta.names import unknown


@register_data("csv")
class CSVTable(TimedData):
    """Your own images, listed in a CSV file of path, label and timestamp.

    Rows are sorted by time and cut into domains; one that cannot be read is left out, and
    `skipped` says which and why.

    Parameters
    ----------
    root
        The CSV file, with a header. Paths of images are relative to it.
    classes
        The class names in their order, as a list or a text file with one per line; by default the
        labels, sorted. Labels may then also be positions in this list (0 is the first).
    path, label, time
        The names of the columns. Without the column `label` the images are unlabelled.
    cut
        A number of domains of equal count, or `year`, `month`, `week`, `day` or `hour` (UTC).
        Times are ISO 8601 (UTC unless they say otherwise), seconds since 1970, or bare years.
    templates
        Prompts with a place {} for the class name.
    delimiter
        What stands between two columns.

    Citation: none, the images are yours
    Licence: none, the images are yours
    Get: nothing to get
    """

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | str | os.PathLike[str] | None = None,
        path: str = "path",
        label: str | None = None,
        time: str = "timestamp",
        cut: int | str = DOMAINS,
        templates: Sequence[str] | None = None,
        delimiter: str = ",",
    ) -> None:
        if root is None:
            raise ValueError("the table is not given: pass root=FILE.csv.")
        self.root = Path(root).expanduser()
        self.origin = str(self.root)
        if not self.root.is_file():
            raise ValueError(f"{self.root} is not a file: pass root=FILE.csv, the table of images.")
        if len(delimiter) != 1:
            raise ValueError(f"delimiter is {delimiter!r}: give one character, as ',' or ';'.")
        if delimiter in '"\r\n\0':
            raise ValueError(
                f"delimiter is {delimiter!r}, which ends cells and rows: give another."
            )
        lines = _lines(self.root, delimiter)
        _, header = next(lines, (0, []))
        for name in (path, time) if label is None else (path, time, label):
            if name not in header:
                # a stray quote makes one cell of the whole table
                raise ValueError(
                    unknown(f"column of {self.root}", name, [cell[:60] for cell in header])
                )
        if label is None and "label" in header:
            label = "label"
        columns = [header.index(name) for name in (path, time)]
        self._lines: list[int] = []
        self._paths: list[str] = []
        labels: list[str | None] = []
        times: list[str] = []
        wrong: dict[int, str] = {}
        for number, cells in lines:
            if len(cells) != len(header):
                wrong[len(labels)] = f"has {len(cells)} cells where the header has {len(header)}"
                cells = (cells + [""] * len(header))[: len(header)]
            if not cells[columns[0]]:
                wrong.setdefault(len(labels), "has no path")
            self._lines.append(number)
            self._paths.append(cells[columns[0]])
            times.append(cells[columns[1]])
            name = cells[header.index(label)] if label is not None else ""
            if name != name.encode("utf-8", "replace").decode():
                raise ValueError(
                    f"row {number} of {self.root} has the label {name[:60]!r}, which is not UTF-8: "
                    "save the table as CSV in UTF-8."
                )
            labels.append(name or None)
        self.arrange(labels, times, classes=classes, templates=templates, cut=cut, wrong=wrong)

    def image(self, row: int) -> Image.Image:
        try:
            return read_image(self.path(row))
        except ImageError as error:
            raise ImageError(f"{self.where(row)}: {error}") from error

    def path(self, row: int) -> str:
        return str(self.root.parent / self._paths[row])

    def where(self, row: int) -> str:
        return f"row {self._lines[row]} of {self.root}"


def _lines(table: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with its line in the file, as an editor counts.

    Bytes that are not UTF-8 are kept (as surrogates): the names of files may be made of any.
    """
    with open(table, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield reader.line_num, [cell.strip() for cell in cells]
        except csv.Error as error:
            raise ValueError(
                f"{table} cannot be read after row {reader.line_num} ({error}): save it as CSV in "
                "UTF-8."
            ) from error
