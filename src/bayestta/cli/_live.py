"""Sources of `predict` that go on for as long as images come: a folder, a video, a camera."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from bayestta.cli._answers import Photographs, Source, timestamp
from bayestta.data import Batch, ImageError
from bayestta.data._video import frames, is_file
from bayestta.data._watched import arriving
from bayestta.data.folder import ONE_DOMAIN, read_names
from bayestta.images import read_image
from bayestta.models._text import check_names
from bayestta.models._text import templates as template_set

GATHER = 2.0  # seconds of a camera that may pass before its frames are answered


class Live(Source):
    """Images that come one after the other; each batch is answered as soon as it is there."""

    live = True

    def __init__(self, place: str, classes: Any, answered: Collection[str]) -> None:
        self.root, self.answered = place, set(answered)
        self.classes, self.templates = check_names(read_names(classes)), template_set("seven")
        self.domains, self.skipped = [ONE_DOMAIN], []
        self._names: dict[int, tuple[str, str]] = {}  # of the batch under way: name, time
        self._left: list[tuple[str, str]] = []  # path and reason
        self._count = len(self.answered)

    def title(self, i: int) -> str:
        return self._names[i][0]

    def taken(self, i: int) -> str:
        return self._names[i][1]

    def waiting(self) -> int | None:
        return None

    def left_out(self) -> list[tuple[str, str]]:
        return self._left

    def batches(self, model: Any, views: int, options: dict[str, Any]) -> Iterator[Batch]:
        if views > 1:
            raise ValueError(
                f"the method needs {views} views per image, and live images have one: choose "
                "another --method, or use --images."
            )
        for found in self.gather(options["batch_size"], strict=options["strict"]):
            numbers = range(self._count, self._count + len(found))
            self._names = {i: each[:2] for i, each in zip(numbers, found, strict=True)}
            self._count += len(found)
            x = torch.stack([model.preprocess(image) for _, _, image in found])
            yield Batch(x, None, ONE_DOMAIN, torch.tensor(numbers))

    def gather(self, most: int, *, strict: bool) -> Iterator[list[tuple[str, str, Image.Image]]]:
        """Name, time and image of those that are answered together."""
        raise NotImplementedError


class Watched(Live):
    """The files of a folder, those that are there and those that arrive."""

    name = "watched folder"

    def __init__(
        self, folder: Path, classes: Any, answered: Collection[str], patience: float | None
    ) -> None:
        super().__init__(str(folder), classes, answered)
        self.folder, self.patience, self.endless = folder.expanduser(), patience, True

    def gather(self, most: int, *, strict: bool) -> Iterator[list[tuple[str, str, Image.Image]]]:
        done = {str(Path(name).absolute()) for name in self.answered}
        for paths in arriving(self.folder, done=done, batch_size=most, patience=self.patience):
            found = []
            for path in paths:
                try:
                    found.append((str(path), timestamp(path), read_image(path)))
                except (ImageError, FileNotFoundError) as error:
                    if strict:
                        raise ValueError(
                            f"{error}: replace the image, or run without --strict."
                        ) from error
                    self._left.append((str(path), str(error).removeprefix(f"{path}: ")))
            if found:
                yield found


class Video(Live):
    """Frames of a file, an address or a camera."""

    name = "video"

    def __init__(self, source: str, classes: Any, answered: Collection[str], fps: float) -> None:
        super().__init__(source, classes, answered)
        self.source, self.fps, self.endless = source, fps, not is_file(source)

    def gather(self, most: int, *, strict: bool) -> Iterator[list[tuple[str, str, Image.Image]]]:
        found: list[tuple[str, str, Image.Image]] = []
        began = time.monotonic()
        for frame in frames(self.source, fps=self.fps):
            now = datetime.now().isoformat(timespec="milliseconds")
            # a second of the film names a frame of it for ever; a camera has none but the hour
            title = f"{self.source}#{now if self.endless else f'{frame.seconds:.3f}'}"
            if title in self.answered:
                continue
            found.append((title, now, frame.image))
            if len(found) == most or (self.endless and time.monotonic() - began >= GATHER):
                yield found
                found, began = [], time.monotonic()
        if found:
            yield found


@dataclass(frozen=True)
class Origin:
    """Where the images come from: one of the three is given."""

    images: Path | None
    watch: Path | None
    video: str | None
    sort: str
    fps: float
    idle: float | None

    def check(self, out: Path | None, state: Path | None) -> None:
        """Refuse, before anything is loaded, what is no stream or could not be saved."""
        given = [each for each in (self.images, self.watch, self.video) if each is not None]
        if len(given) != 1:
            raise ValueError(f"{len(given)} of --images, --watch and --video are given: give one.")
        if self.fps <= 0:
            raise ValueError(f"--fps is {self.fps}: give a number above 0.")
        if self.images is not None and not self.images.expanduser().exists():
            raise ValueError(f"{self.images} is not there: give --images a folder or an image.")
        if self.watch is not None and not self.watch.expanduser().is_dir():
            raise ValueError(f"{self.watch} is no folder: give one that exists to --watch.")
        endless = self.watch is not None or (self.video is not None and not is_file(self.video))
        if endless and out is not None and state is None:
            raise ValueError(
                "--watch and cameras have no end at which --out could be written: add --state "
                "FILE, or leave --out away to print the answers."
            )

    def open(self, classes: Any, answered: list[str]) -> Source:
        if self.watch is not None:
            return Watched(self.watch, classes, answered, self.idle)
        if self.video is not None:
            return Video(self.video, classes, answered, self.fps)
        assert self.images is not None
        return Photographs(self.images, classes, self.sort, answered)
