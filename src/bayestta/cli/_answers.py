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
from bayestta.data import Batch, Data, ImageError, stream
from bayestta.data.folder import ONE_DOMAIN, Folder, FolderDomain, _taken

if TYPE_CHECKING:
    from bayestta.adapter import Adapter
    from bayestta.evaluation.monitors import DriftAlarm
    from bayestta.evaluation.watch import Watch
    from bayestta.models.base import VLM

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


class Source(Data):
    """One stream of unlabelled images, each with a title and a time."""

    labelled, split, live, endless = False, "own", False, False
    root: Any

    def __getitem__(self, domain: str) -> Any:
        raise NotImplementedError("its images come in batches")

    def batches(self, model: VLM, views: int, options: dict[str, Any]) -> Iterator[Batch]:
        raise NotImplementedError

    def title(self, i: int) -> str:
        """What the table calls image i."""
        raise NotImplementedError

    def taken(self, i: int) -> str:
        """When image i was taken, in local time."""
        raise NotImplementedError

    def waiting(self) -> int | None:
        """How many images have no answer yet; None where nobody knows."""
        raise NotImplementedError

    def left_out(self) -> list[tuple[str, str]]:
        """Path and reason of every image that was skipped."""
        raise NotImplementedError


class Photographs(Source):
    """A folder at any depth, or a single file."""

    name = "folder"

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

    def batches(self, model: VLM, views: int, options: dict[str, Any]) -> Iterator[Batch]:
        return stream(self, model.preprocess, order="given", views=views, **options)

    def title(self, i: int) -> str:
        return str(self.stream.paths[i])

    def taken(self, i: int) -> str:
        return timestamp(self.stream.paths[i])

    def unanswered(self) -> list[Path]:
        """The images that have no answer yet."""
        own = self.stream
        return [path for i, path in enumerate(own.paths) if i not in own.answered]

    def waiting(self) -> int:
        return len(self.unanswered())

    def left_out(self) -> list[tuple[str, str]]:
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
    show: Screen,
    adapter: Adapter,
    data: Source,
    watch: Watch,
    top_k: int,
    options: dict[str, Any],
) -> Iterator[list[Row]]:
    """The rows of each batch, in the order of the stream; an alarm of drift is told at once."""
    from bayestta.evaluation.steps import steps
    from bayestta.methods import make_adapter

    model, classes = adapter.model, adapter.classes
    reference = make_adapter("zero-shot", model, classes, adapter.templates)
    same = torch.equal(adapter.text, reference.text)  # else the sketch is of other prompts
    ours, theirs = tee(data.batches(model, adapter.views, options))
    title = f"{adapter.name} with {model.name} on {data.root}"
    count = data.waiting()
    with Bars(show, title, {} if count is None else {ONE_DOMAIN: count}) as bars:
        progress = bars.follow(adapter.name)
        for step, batch in zip(steps(adapter, theirs), ours, strict=False):
            if watch.add(step):
                tell_drift(show, watch.drift, data.title(int(batch.index[-1])))
            sketch = step.sketch if same else None
            if sketch is None:
                sketch = reference.predict(getattr(batch.x, "plain", batch.x))
            sure, label = step.probabilities.sort(dim=1, descending=True, stable=True)
            progress(step)
            rows = []
            for place, image in enumerate(batch.index.tolist()):
                row: Row = {"path": data.title(image)}
                for rank in range(top_k):
                    best = classes[int(label[place, rank])], round(float(sure[place, rank]), 4)
                    row |= zip(_names(rank), best, strict=True)
                row["zero_shot"] = classes[int(sketch[place].argmax())]
                row["timestamp"] = data.taken(image)
                row["guard"] = _guard(step.record.get("guard"))
                rows.append(row)
            yield rows


def tell_drift(show: Screen, drift: DriftAlarm, where: str) -> None:
    last = drift.events[-1]["sample"]
    show.note(
        f"Drift alarm at image {last} (up to {where}): the images are no longer like the "
        f"{drift.reference} before them."
    )


def timestamp(path: Path) -> str:
    """When the picture was taken, by the camera or else by the file, in local time."""
    return datetime.fromtimestamp(_taken(path)).isoformat(timespec="seconds")


def _guard(signs: dict[str, Any] | None) -> str:
    """Whether the guard let the batch pass, or went back to the last good state; "" without one."""
    if not signs:
        return ""
    return "returned" if signs["collapse"] else "ok"
