"""Data sets of one domain whose test images are listed in a split file of CoOp (Zhou et al., 2022).

The file is `{"train": [[path, label, class name], ...], "val": ..., "test": ...}`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePosixPath
from typing import ClassVar

from bayestta.data._base import Data, Part, missing
from bayestta.data.folder import FolderDomain
from bayestta.files import cache_root
from bayestta.names import unknown

Item = tuple[str, int, str]  # path, label, class name
SPLITS = ("test", "val", "train")
PROBE = 100  # images that are looked for to tell where a folder keeps them


class CoOpData(Data):
    """A folder with a split file and images; one domain, named after the split.

    Parameters
    ----------
    root
        The folder that holds the set's (default: `$BAYESTTA_DATA`, else `~/.cache/bayestta`).
    split
        `test`, as in the paper, `val` or `train`.
    """

    domain_names = ("test",)
    folders: ClassVar[tuple[str, ...]]  # of CoOp's documentation, then of the released code
    image_folders: ClassVar[tuple[str, ...]]  # inside, in the same order
    files: ClassVar[tuple[str, ...]]  # inside, the split file first
    template: ClassVar[str] = ""  # the seven of the paper where there is none
    test_images: ClassVar[int]

    def __init__(
        self, *, root: str | os.PathLike[str] | None = None, split: str | None = None
    ) -> None:
        from bayestta.models._text import templates

        split = split or "test"
        if split not in SPLITS:
            raise ValueError(unknown(f"split of {self.name}", split, SPLITS))
        folder = self._folder(cache_root(root))
        for file in self.files:
            if not (folder / file).is_file():
                raise ValueError(missing(self.name, folder / file))
        items, self.classes = self.read(folder, split)
        images = self._images(folder, items)
        if not any((images / path).is_file() for path, _, _ in items[:PROBE]):
            raise ValueError(missing(self.name, images / items[0][0]))
        self.split, self.skipped, self.domains = split, [], [split]
        self.contains = frozenset({f"{self.name}/{split}"})
        self.templates = [self.template] if self.template else templates("seven")
        self._domain = FolderDomain([images / p for p, _, _ in items], [k for _, k, _ in items])

    def __getitem__(self, domain: str) -> FolderDomain:
        if domain not in self.domains:
            raise ValueError(unknown(f"domain of {self.name}", domain, self.domains))
        return self._domain

    @classmethod
    def read(cls, folder: Path, split: str) -> tuple[list[Item], list[str]]:
        """The images of a split, and the class names in the order of the labels."""
        path = folder / cls.files[0]
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            parts = {
                part: [(str(p), int(k), str(name)) for p, k, name in found[part]]
                for part in SPLITS
                if part in found or part == split
            }
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{path} is not a split file of CoOp ({type(error).__name__}: {error}): "
                "download it again."
            ) from error
        every = [item for items in parts.values() for item in items]
        return check_items(path, parts[split]), class_list(path, every)

    @classmethod
    def check(cls, root: str | os.PathLike[str] | None = None) -> list[Part]:
        """The split file, the folder of images, and how many of them are not there."""
        folder = cls._folder(cache_root(root))
        parts = [Part(str(folder / f), (folder / f).is_file()) for f in cls.files]
        if not all(part.found for part in parts):
            images = folder / cls.image_folders[0]
            others = [str(folder.with_name(name)) for name in cls.folders if name != folder.name]
            note = "" if folder.is_dir() or not others else f"or all in {' or '.join(others)}"
            return [*parts, Part(str(images), images.is_dir(), note)]
        try:
            items, classes = cls.read(folder, "test")
        except ValueError as error:
            return [Part(parts[0].path, False, str(error)), *parts[1:]]
        images = cls._images(folder, items)
        lacking = [images / path for path, _, _ in items if not (images / path).is_file()]
        if lacking:
            note = f"{len(lacking)} of {len(items)} test images are missing, this one first"
            return [*parts, Part(str(lacking[0]), False, note)]
        published = (cls.class_count, cls.test_images)
        note = f"{len(items)} test images of {len(classes)} classes"
        if (len(classes), len(items)) != published:
            note += f", where {published[1]} of {published[0]} are published"
        return [*parts, Part(str(images), True, note)]

    @classmethod
    def _folder(cls, base: Path) -> Path:
        """The set's folder: with the split file, else one that is there, else the documented."""
        choices = [base / name for name in cls.folders]
        whole = [folder for folder in choices if (folder / cls.files[0]).is_file()]
        there = [folder for folder in choices if folder.is_dir()]
        return (whole + there + choices)[0]

    @classmethod
    def _images(cls, folder: Path, items: list[Item]) -> Path:
        """Where the images are; where they are documented to be, if they are nowhere."""
        choices = [folder / name for name in cls.image_folders]
        probe = [path for path, _, _ in items[:PROBE]]
        there = [c for c in choices if any((c / path).is_file() for path in probe)]
        return (there + choices)[0]


def check_items(path: Path, items: list[Item]) -> list[Item]:
    """The images of a split file, none of which may lie outside the folder."""
    outside = [
        name
        for name, _, _ in items
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts
    ]
    if outside or not items:
        shown = f"the image {outside[0]}, outside its folder" if outside else "0 images"
        raise ValueError(f"{path} lists {shown}: download it again.")
    return items


def class_list(path: Path, items: list[Item]) -> list[str]:
    """The class names in the order of the labels 0, 1, 2...

    >>> class_list(Path("s.json"), [("b.jpg", 1, "dog"), ("a.jpg", 0, "cat"), ("c.jpg", 1, "dog")])
    ['cat', 'dog']
    """
    names = sorted({(label, name) for _, label, name in items})
    if [label for label, _ in names] != list(range(len(names))):
        raise ValueError(
            f"{path} has {len(names)} pairs of label and class name, which are not the labels 0 to "
            f"{len(names) - 1} with one name each: download it again."
        )
    return [name for _, name in names]
