"""Shards of WebDataset, as a stream in time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from bayestta.data._base import register_data
from bayestta.data._shards import Sample, find_shards, index_shard
from bayestta.data._timed import DOMAINS, TimedData
from bayestta.images import ImageError, decode_image


@register_data("webdataset")
class WebDataset(TimedData):
    """Your own images in tar files: an image with .cls (label) and .json (label, timestamp).

    Headers and labels are read once, at the start; images then at their offsets, in any order.

    Parameters
    ----------
    root
        The tar files: a path, a pattern (`day-{000..009}.tar`, `shards/*.tar`) or a folder.
    shards
        Patterns or paths below `root`, where one is not enough.
    classes
        The class names in the order of the labels' numbers, as a list or a text file with one per
        line; labels that are names need none.
    image
        Which extension holds the image (`jpg`, `left.png`), where a sample has several.
    label, time
        The keys in .json. A .cls goes before the label there. Without labels the images are
        unlabelled; without times samples stay in their order.
    cut
        A number of domains of equal count, or `year`, `month`, `week`, `day` or `hour` (UTC).
    templates
        Prompts with a place {} for the class name.

    Citation: none, the images are yours
    Licence: none, the images are yours
    Get: nothing to get
    """

    kind = "samples"

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        shards: str | Sequence[str] | None = None,
        classes: Sequence[str] | str | os.PathLike[str] | None = None,
        image: str | None = None,
        label: str = "label",
        time: str = "timestamp",
        cut: int | str = DOMAINS,
        templates: Sequence[str] | None = None,
    ) -> None:
        if root is None and shards is None:
            raise ValueError("the tar files are not given: pass root=PATTERN or shards=[...].")
        self._shards = find_shards(None if root is None else Path(root), shards)
        count = len(self._shards)
        self.origin = str(self._shards[0]) + (f" and {count - 1} more" if count > 1 else "")
        self._samples: list[tuple[int, str, int, int]] = []  # shard, key, offset, size
        labels: list[str | int | None] = []
        times: list[Any] = []
        wrong: dict[int, str] = {}
        for number, path in enumerate(self._shards):
            for sample in index_shard(path, number):
                if not sample.images and sample.wrong is None:
                    continue  # a file of its own kind: a note, a description of the shard
                found, place = None, (0, 0)
                table: dict[str, Any] = {}
                try:
                    place = _choose(sample, image)
                    found, table = sample.label(label)
                except ValueError as error:
                    wrong[len(labels)] = str(error)
                self._samples.append((number, sample.key, *place))
                labels.append(found)
                times.append(table.get(time))
        timed = None if all(value is None for value in times) else times
        self.arrange(labels, timed, classes=classes, templates=templates, cut=cut, wrong=wrong)

    def image(self, row: int) -> Image.Image:
        number, _, offset, size = self._samples[row]
        try:
            with open(self._shards[number], "rb") as shard:
                shard.seek(offset)
                content = shard.read(size)
        except OSError as error:
            raise ImageError(f"{self.path(row)}: {error}") from error
        return decode_image(content, self.path(row))

    def path(self, row: int) -> str:
        number, key, _, _ = self._samples[row]
        return f"{self._shards[number]}/{key}"

    def where(self, row: int) -> str:
        return f"sample {row + 1}, {self.path(row)}"


def _choose(sample: Sample, extension: str | None) -> tuple[int, int]:
    if sample.wrong is not None:
        raise ValueError(sample.wrong)
    if extension is not None:
        wanted = extension.lower().lstrip(".")
        if wanted not in sample.images:
            raise ValueError(f"has no image .{wanted}")
        return sample.images[wanted]
    if len(sample.images) > 1:
        raise ValueError(f"has {len(sample.images)} images: say which with image=EXTENSION")
    return next(iter(sample.images.values()))
