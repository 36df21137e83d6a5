"""Data sets of one domain whose test images are listed in a split file of CoOp (Zhou et al., 2022).

The file is `{"train": [[path, label, class name], ...], "val": ..., "test": ...}`.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from bayestta.data._base import REGISTRY, Data, Part, missing
from bayestta.data.folder import FolderDomain
from bayestta.files import cache_root
from bayestta.names import unknown

Item = tuple[str, int, str]  # path, label, class name
Listing = tuple[list[Item], list[str]]  # the images of a split, and the class names
SPLITS = ("test", "val", "train")
PROBE = 100  # images that are looked for to tell where a folder keeps them


def read_split(row: CoOpSet, folder: Path, split: str) -> Listing:
    """The images of a split, and the class names in the order of the labels."""
    file = folder / row.files[0]
    try:
        found = json.loads(file.read_bytes())
        parts = {
            part: [_item(path, label, name) for path, label, name in found[part]]
            for part in SPLITS
            if part in found or part == split
        }
    except (ValueError, LookupError, TypeError, OSError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{file} is not a split file of CoOp ({type(error).__name__}: {reason}): "
            "download it again."
        ) from error
    every = [item for items in parts.values() for item in items]
    return check_items(file, parts[split]), class_list(file, every)


def read_variants(row: CoOpSet, folder: Path, split: str) -> Listing:
    """Lines of `number variant`; the classes are numbered by their line in variants.txt."""
    path = folder / f"images_variant_{split}.txt"
    if not path.is_file():
        raise ValueError(missing(row.name, path))
    names = _lines(folder / "variants.txt")
    number = {name: k for k, name in enumerate(names)}
    items: list[Item] = []
    for line in _lines(path):
        image, _, name = line.partition(" ")
        if name not in number:
            raise ValueError(
                f"{path} has the line {line[:60]!r}, whose variant is not one of the "
                f"{len(names)} of variants.txt: download both again."
            )
        items.append((f"{image}.jpg", number[name], name))
    return check_items(path, items), names


@dataclass(frozen=True)
class CoOpSet:
    """A row of the table of sets: what is known of one before its files are read."""

    name: str
    title: str
    classes: int
    test_images: int
    folders: tuple[str, ...]  # of CoOp's documentation, then of the released code
    image_folders: tuple[str, ...]  # inside, in the same order
    files: tuple[str, ...]  # inside, the split file first
    citation: str
    licence: str
    get: str
    template: str = ""  # the seven of the paper where there is none
    read: Callable[[CoOpSet, Path, str], Listing] = read_split

    @property
    def doc(self) -> str:
        facts = f"Citation: {self.citation}\nLicence: {self.licence}\nGet: {self.get}\n"
        return f"{self.title}\n\n{inspect.getdoc(CoOpData)}\n\n{facts}"


class CoOpData(Data):
    """One domain, named after the split.

    Parameters
    ----------
    root
        The folder that holds the set's (default: `$BAYESTTA_DATA`, else `~/.cache/bayestta`).
    split
        `test`, as in the paper, `val` or `train`.
    """

    domain_names = ("test",)
    row: ClassVar[CoOpSet]

    @classmethod
    def of(cls, row: CoOpSet) -> type[CoOpData]:
        """The class of a set."""
        facts = {"row": row, "class_count": row.classes, "__doc__": row.doc}
        return type(f"CoOpData_{row.name}", (cls,), facts)

    def __init__(
        self, *, root: str | os.PathLike[str] | None = None, split: str | None = None
    ) -> None:
        from bayestta.models._text import templates

        split = split or "test"
        if split not in SPLITS:
            raise ValueError(unknown(f"split of {self.name}", split, SPLITS))
        row, folder = self.row, self._folder(cache_root(root))
        for file in row.files:
            if not (folder / file).is_file():
                raise ValueError(missing(self.name, folder / file))
        items, self.classes = row.read(row, folder, split)
        images = self._images(folder, items)
        if not any(os.path.isfile(images / path) for path, _, _ in items[:PROBE]):
            raise ValueError(missing(self.name, images / items[0][0]))
        self.split, self.skipped, self.domains = split, [], [split]
        self.contains = frozenset({f"{self.name}/{split}"})
        self.templates = [row.template] if row.template else templates("seven")
        self._domain = FolderDomain([images / p for p, _, _ in items], [k for _, k, _ in items])

    def __reduce__(self) -> tuple[Any, ...]:
        """By name: a worker process finds the class in the table, not in a module."""
        return _restore, (self.name, vars(self))

    def __getitem__(self, domain: str) -> FolderDomain:
        if domain not in self.domains:
            raise ValueError(unknown(f"domain of {self.name}", domain, self.domains))
        return self._domain

    @classmethod
    def check(cls, root: str | os.PathLike[str] | None = None) -> list[Part]:
        """The split file, the folder of images, and how many of them are not there."""
        row, folder = cls.row, cls._folder(cache_root(root))
        parts = [Part(str(folder / f), (folder / f).is_file()) for f in row.files]
        if not all(part.found for part in parts):
            images = folder / row.image_folders[0]
            others = [str(folder.with_name(name)) for name in row.folders if name != folder.name]
            note = "" if folder.is_dir() or not others else f"or all in {' or '.join(others)}"
            return [*parts, Part(str(images), images.is_dir(), note)]
        try:
            items, classes = row.read(row, folder, "test")
        except ValueError as error:
            return [Part(parts[0].path, False, str(error)), *parts[1:]]
        images = cls._images(folder, items)
        lacking = [images / path for path, _, _ in items if not os.path.isfile(images / path)]
        if lacking:
            note = f"{len(lacking)} of {len(items)} test images are missing, this one first"
            return [*parts, Part(str(lacking[0]), False, note)]
        note = f"{len(items)} test images of {len(classes)} classes"
        if (len(classes), len(items)) != (row.classes, row.test_images):
            note += f", where {row.test_images} of {row.classes} are published"
        return [*parts, Part(str(images), True, note)]

    @classmethod
    def _folder(cls, base: Path) -> Path:
        """The set's folder: with the split file, else one that is there, else the documented."""
        choices = [base / name for name in cls.row.folders]
        whole = [folder for folder in choices if (folder / cls.row.files[0]).is_file()]
        there = [folder for folder in choices if folder.is_dir()]
        return (whole + there + choices)[0]

    @classmethod
    def _images(cls, folder: Path, items: list[Item]) -> Path:
        """Where the images are; where they are documented to be, if they are nowhere."""
        choices = [folder / name for name in cls.row.image_folders]
        probe = [path for path, _, _ in items[:PROBE]]
        there = [c for c in choices if any(os.path.isfile(c / path) for path in probe)]
        return (there + choices)[0]


def _restore(name: str, state: dict[str, Any]) -> Data:
    data = REGISTRY[name].__new__(REGISTRY[name])
    vars(data).update(state)
    return data


def _item(path: object, label: object, name: object) -> Item:
    """One entry of a split file, as it is: a number that has to be rounded is another file's."""
    if not isinstance(path, str) or type(label) is not int or not isinstance(name, str):
        kinds = ", ".join(type(part).__name__ for part in (path, label, name))
        raise TypeError(f"an entry is ({kinds}), not (str, int, str)")
    (path + name).encode()  # a lone surrogate names no file and no class
    return path, label, name


def check_items(path: Path, items: list[Item]) -> list[Item]:
    """The images of a split file, none of which may lie outside the folder."""
    outside = [
        name
        for name, _, _ in items
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts
    ]
    if outside or not items:
        shown = f"the image {outside[0][:200]}, outside its folder" if outside else "0 images"
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


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text ({error}): download it again.") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
