"""The images that `predict` has to answer, and the rows that it answers them with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from bayestta.cli._screen import Bars, Screen
from bayestta.cli._table import Row
from bayestta.data import Data, ImageError
from bayestta.data.folder import ONE_DOMAIN, Folder, FolderDomain, _taken

if TYPE_CHECKING:
    from bayestta.adapter import Adapter

ANSWERED = "answered by an earlier start"


class Unanswered(FolderDomain):
    """The images of a folder without those that are answered.

    These keep their numbers, which decide the views of an image: a restart makes the same ones.
    """

    def __init__(self, paths: list[Path], answered: frozenset[int]) -> None:
        super().__init__(paths, None)
        self.answered = answered

    def __getitem__(self, i: int) -> tuple[Image.Image, int | None]:
        if i in self.answered:
            raise ImageError(ANSWERED)
        return super().__getitem__(i)


class Photographs(Data):
    """One stream of unlabelled images: a folder at any depth, or a single file."""

    name, labelled, split = "folder", False, "own"

    def __init__(self, images: Path, classes: Any, sort: str, answered: Iterable[str]) -> None:
        single = images.expanduser().is_file()
        folder = Folder(
            root=images.expanduser().parent if single else images,
            classes=classes,
            sort="name" if single else sort,
            flat=True,
        )
        self.root, self.classes, self.templates = images, folder.classes, folder.templates
        self.domains, self.skipped = [ONE_DOMAIN], [] if single else list(folder.skipped)
        paths = [images.expanduser()] if single else folder[ONE_DOMAIN].paths
        known = {os.path.abspath(path) for path in answered}
        done = frozenset(i for i, path in enumerate(paths) if os.path.abspath(path) in known)
        self.stream = Unanswered(paths, done)

    def __getitem__(self, domain: str) -> Unanswered:
        return self.stream

    def waiting(self) -> list[Path]:
        """The images that have no answer yet."""
        own = self.stream
        return [path for i, path in enumerate(own.paths) if i not in own.answered]

    def left_out(self) -> list[tuple[str, str]]:
        """Path and reason of every image that was skipped."""
        known = {str(path) for path in self.stream.paths}
        return [_split(line, known) for line in self.skipped if line != ANSWERED]


def _split(line: str, known: set[str]) -> tuple[str, str]:
    """`path: reason`, where the path may hold a colon of its own."""
    place = line.find(": ")
    first = place
    while place >= 0:
        if line[:place] in known:
            return line[:place], line[place + 2 :]
        place = line.find(": ", place + 1)
    return (line[:first], line[first + 2 :]) if first >= 0 else (line, "")


def columns(top_k: int) -> list[str]:
    """The columns of the table.

    >>> columns(3)[:4], columns(3)[5:7]
    (['path', 'label', 'confidence', 'runner_up'], ['label_3', 'confidence_3'])
    """
    names = [name for rank in range(top_k) for name in _names(rank)]
    return ["path", *names, "zero_shot", "timestamp", "guard"]


def _names(rank: int) -> tuple[str, str]:
    usual = (("label", "confidence"), ("runner_up", "runner_up_confidence"))
    return usual[rank] if rank < 2 else (f"label_{rank + 1}", f"confidence_{rank + 1}")


def answers(
    show: Screen, adapter: Adapter, data: Photographs, top_k: int, options: dict[str, Any]
) -> Iterator[list[Row]]:
    """The rows of each batch, in the order of the stream."""
    from bayestta.data import stream
    from bayestta.evaluation.steps import steps
    from bayestta.methods import make_adapter

    model, classes = adapter.model, adapter.classes
    reference = make_adapter("zero-shot", model, classes, adapter.templates)
    same = torch.equal(adapter.text, reference.text)  # else the sketch is of other prompts
    batches = stream(data, model.preprocess, order="given", views=adapter.views, **options)
    ours, theirs = tee(batches)
    title = f"{adapter.name} with {model.name} on {data.root}"
    with Bars(show, title, {ONE_DOMAIN: len(data.waiting())}) as bars:
        progress = bars.follow(adapter.name)
        for step, batch in zip(steps(adapter, theirs), ours, strict=False):
            sketch = step.sketch if same else None
            if sketch is None:
                sketch = reference.predict(getattr(batch.x, "plain", batch.x))
            sure, label = step.probabilities.sort(dim=1, descending=True, stable=True)
            progress(step)
            rows = []
            for place, image in enumerate(batch.index.tolist()):
                path = data.stream.paths[image]
                row: Row = {"path": str(path)}
                for rank in range(top_k):
                    best = classes[int(label[place, rank])], round(float(sure[place, rank]), 4)
                    row |= zip(_names(rank), best, strict=True)
                row["zero_shot"] = classes[int(sketch[place].argmax())]
                row["timestamp"] = _timestamp(path)
                row["guard"] = _guard(step.record.get("guard"))
                rows.append(row)
            yield rows


def _timestamp(path: Path) -> str:
    """When the picture was taken, by the camera or else by the file, in local time."""
    return datetime.fromtimestamp(_taken(path)).isoformat(timespec="seconds")


def _guard(signs: dict[str, Any] | None) -> str:
    """Whether the guard let the batch pass, or went back to the last good state; "" without one."""
    if not signs:
        return ""
    return "returned" if signs["collapse"] else "ok"
