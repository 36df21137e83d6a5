"""A split of a Hugging Face data set, as a stream in time."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from bayestta.data._base import register_data
from bayestta.data._timed import DOMAINS, TimedData
from bayestta.images import ImageError, decode_image, read_image
from bayestta.names import unknown


@register_data("hf-datasets")
class HFDatasets(TimedData):
    """A split of a Hugging Face data set, from a folder of `save_to_disk` or from the hub.

    Files of data are read and no code of the hub is run: loading scripts are refused by the
    versions of `datasets` that are accepted (4.0 and later).

    Parameters
    ----------
    root
        The folder, or the id of a data set on the hub (`owner/name`).
    split
        Which one, where there are several.
    config
        The configuration of a data set on the hub that has several.
    image, label, time
        The names of the columns. Without the column `label` the images are unlabelled; without
        `time` rows stay in their order.
    classes
        The class names in the order of the labels' numbers, as a list or a text file with one per
        line; by default those of the column (`ClassLabel`), or its texts, sorted.
    cut
        A number of domains of equal count, or `year`, `month`, `week`, `day` or `hour` (UTC).
    templates
        Prompts with a place {} for the class name.

    Citation: that of the data set
    Licence: that of the data set
    Get: pip install "bayestta[datasets]"; a data set on the hub is fetched at first use
    """

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        split: str | None = None,
        config: str | None = None,
        image: str = "image",
        label: str | None = None,
        time: str | None = None,
        classes: Sequence[str] | str | os.PathLike[str] | None = None,
        cut: int | str = DOMAINS,
        templates: Sequence[str] | None = None,
    ) -> None:
        if root is None:
            raise ValueError("the data set is not given: pass root=DIR or root=owner/name.")
        self.origin = str(root)
        table, self.split = _open(self.origin, split, config)
        for name in (image, label, time):
            if name is not None and name not in table.column_names:
                raise ValueError(unknown(f"column of {root}", name, table.column_names))
        if label is None and "label" in table.column_names:
            label = "label"
        self._table, self._column = _undecoded(table, image, self.origin), image
        names: list[str] | None = None
        labels: list[str | int | None] = [None] * len(table)
        if label is not None:
            names = getattr(table.features[label], "names", None)  # of a ClassLabel
            labels = [_label(value) for value in _values(table, label)]
        times = None if time is None else _values(table, time)
        found = names if classes is None else classes
        self.arrange(labels, times, classes=found, templates=templates, cut=cut)

    def image(self, row: int) -> Image.Image:
        cell = self._table[row][self._column] or {}
        if cell.get("bytes") is not None:
            return decode_image(cell["bytes"], self.where(row))
        if not cell.get("path"):
            raise ImageError(f"{self.where(row)}: has no image")
        try:
            return read_image(cell["path"])
        except ImageError as error:
            raise ImageError(f"{self.where(row)}: {error}") from error

    def path(self, row: int) -> str:
        return f"{self.origin}/{self.split}/{row}"

    def where(self, row: int) -> str:
        return f"row {row} of split {self.split!r} of {self.origin}"


def _open(root: str, split: str | None, config: str | None) -> tuple[Any, str]:
    """The table of a split, and the split's name."""
    datasets = _package()
    folder = Path(root).expanduser()
    if folder.is_dir():
        try:
            found = datasets.load_from_disk(str(folder))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{folder} cannot be read as a data set ({_line(error)}): save it with "
                "Dataset.save_to_disk."
            ) from error
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", root):
        # Only owner/name: a bare word may mean one of the library's own readers of files.
        try:
            found = datasets.load_dataset(root, config, split=split)
        except (
            Exception
        ) as error:  # the hub, the network, the disk and the reader fail in many ways
            raise ValueError(
                f"{root} cannot be loaded from the hub ({_line(error)}): check the id, config, "
                "split and network, or pass a folder of save_to_disk."
            ) from error
    else:
        raise ValueError(
            f"{root} is neither a folder nor an id like owner/name: pass a folder of save_to_disk "
            "or the id of a data set on the hub."
        )
    if isinstance(found, dict):
        splits = list(found)
        if split is None and len(splits) != 1:
            raise ValueError(f"{root} has the splits {', '.join(splits)}: pass split=NAME.")
        chosen = splits[0] if split is None else split
        if chosen not in found:
            raise ValueError(unknown(f"split of {root}", chosen, splits))
        return found[chosen], chosen
    own = None if found.split is None else str(found.split)
    if folder.is_dir() and split not in (None, own):
        raise ValueError(
            f"{root} is one split, {own or 'without a name'}: leave out split={split!r}."
        )
    return found, split or own or "own"


def _package() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            "'hf-datasets' needs the package datasets, which is not installed: "
            'pip install "bayestta[datasets]".'
        ) from error
    if int(datasets.__version__.split(".")[0]) < 4:
        raise ImportError(
            f"datasets {datasets.__version__} may run code of the hub: install 4.0 or later."
        )
    return datasets


def _undecoded(table: Any, column: str, root: str) -> Any:
    """The table with images as bytes or paths, to be decoded here, where formats are limited."""
    kind = _package().Image
    if not isinstance(table.features[column], kind):
        raise ValueError(
            f"column {column!r} of {root} holds {type(table.features[column]).__name__} and no "
            "images: name another one with image=COLUMN, or cast it to datasets.Image() first."
        )
    return table.with_format(None).select_columns([column]).cast_column(column, kind(decode=False))


def _values(table: Any, column: str) -> list[Any]:
    values: list[Any] = table.with_format(None).select_columns([column])[:][column]
    return values


def _label(value: Any) -> str | int | None:
    if value is None or value == -1 or value == "":  # -1: a ClassLabel that nobody knows
        return None
    if isinstance(value, (str, int)):
        return value
    raise ValueError(
        f"a label is {str(value)[:40]!r}: a label column holds names or whole numbers."
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
