"""A person's own images, labelled by folders or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from bayestta.data._base import Data, Dataset, Index, register_data
from bayestta.data._walk import Found, Place, collect, contains, folders, images, natural
from bayestta.images import EXTENSIONS, open_image, read_image
from bayestta.names import unknown

ONE_DOMAIN = "stream"
SORTS = ("name", "time")
_EXIF_FOLDER, _TAKEN = 0x8769, 0x9003  # DateTimeOriginal


class FolderDomain(Dataset):
    """Image files, and the number of each one's class."""

    def __init__(self, paths: list[Path], labels: list[int] | None) -> None:
        self.paths, self._labels = paths, labels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Image.Image, int | None]:
        return read_image(self.paths[i]), None if self._labels is None else self._labels[i]

    def labels(self, index: Index) -> Tensor | None:
        return None if self._labels is None else torch.tensor([self._labels[i] for i in index])

    def path(self, i: int) -> str:
        return str(self.paths[i])


@register_data("folder")
class Folder(Data):
    """Your own images: DIR/domain/class/image, or unlabelled images and a list of class names.

    Links are followed, and every image is used once, however many links lead to it.

    Parameters
    ----------
    root
        DIR. Domains are its folders, in natural order of their names (2 before 10).
    classes
        The class names, as a list or a text file with one per line, for unlabelled images: the
        folders of DIR are then the domains, at any depth; without folders there is one domain.
    sort
        The order inside a domain, for `stream(order="given")`: by `name`, or by `time` (the date
        when the picture was taken, else the date of the file).
    templates
        Prompts with a place {} for the class name.
    flat
        One domain of all images, whatever their folders, so that `sort` orders the whole.

    Citation: none, the images are yours
    Licence: none, the images are yours
    Get: nothing to get
    """

    split = "own"

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | str | os.PathLike[str] | None = None,
        sort: str = "name",
        templates: Sequence[str] | None = None,
        flat: bool = False,
    ) -> None:
        from bayestta.models._text import check_names, check_templates
        from bayestta.models._text import templates as template_set

        if sort not in SORTS:
            raise ValueError(unknown("sort", sort, SORTS))
        if root is None:
            raise ValueError("the folder is not given: pass root=DIR, the folder of your images.")
        folder = Path(root).expanduser()
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: pass root=DIR, the folder of your images.")
        self.root, self.sort = folder, sort
        self.templates = check_templates(templates or template_set("seven"))
        self.labelled = classes is None
        if classes is None:
            names, found, self.skipped = _labelled(folder)
        else:
            names = read_names(classes)
            found, self.skipped = _unlabelled(folder)
            if not found:
                shown = " ".join(sorted(EXTENSIONS))
                raise ValueError(f"{folder} has no images: give a folder with some ({shown}).")
        if flat:
            found = {ONE_DOMAIN: [pair for pairs in found.values() for pair in pairs]}
        self.classes, self.domains = check_names(names), list(found)
        self._domains = {domain: self._domain(pairs) for domain, pairs in found.items()}

    def _domain(self, pairs: list[tuple[Path, str]]) -> FolderDomain:
        pairs.sort(key=lambda pair: natural(pair[0]))
        if self.sort == "time":
            pairs.sort(key=lambda pair: _taken(pair[0]))  # stable: a burst stays in order of names
        number = {name: k for k, name in enumerate(self.classes)}
        labels = [number[name] for _, name in pairs] if self.labelled else None
        return FolderDomain([path for path, _ in pairs], labels)

    def __getitem__(self, domain: str) -> FolderDomain:
        if domain not in self._domains:
            raise ValueError(unknown(f"domain of {self.root}", domain, self.domains))
        return self._domains[domain]


def _labelled(root: Path) -> tuple[list[str], Found, list[str]]:
    """Class names, images by domain, and what was left out."""
    domains = [f for f in folders(root) if not contains(os.path.realpath(f), f)]  # no loops
    classes = {domain: folders(domain) for domain in domains}
    places = [Place(d.name, c.name, c) for d, inside in classes.items() for c in inside]
    found, notes = collect(places, read=[root, *(d for d in domains if classes[d])])
    for domain in domains:
        if not domain.is_symlink():  # one that repeats another is no domain
            found.setdefault(domain.name, [])
    found = {d.name: found[d.name] for d in domains if found.get(d.name) or not d.is_symlink()}
    if not any(found.values()):
        count = sum(map(len, _unlabelled(root)[0].values()))
        raise ValueError(
            f"{root} has {count} images and none as domain/class/image: arrange them so, or give "
            "classes=NAMES for unlabelled images."
        )
    stray = [path for folder in (root, *domains) for path in images(folder)]
    notes += [f"{path}: lies in no class folder" for path in sorted(stray)]
    names = {inside.name for domain in domains for inside in classes[domain]}
    return sorted(names, key=natural), found, notes


def _unlabelled(root: Path) -> tuple[Found, list[str]]:
    """Images by domain, without folders of other things, and what was left out."""
    places = [Place(ONE_DOMAIN, "", root, deep=False)]
    found, notes = collect([*places, *(Place(f.name, "", f) for f in folders(root))])
    return {domain: inside for domain, inside in found.items() if inside}, notes


def read_names(classes: Sequence[str] | str | os.PathLike[str]) -> list[str]:
    """Class names: a list of them, or a text file with one per line."""
    if not isinstance(classes, (str, os.PathLike)):
        return list(classes)
    path = Path(classes).expanduser()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"class names cannot be read from {path} ({error}): write one name per line, as UTF-8."
        ) from error
    return [line.strip() for line in lines if line.strip()]


def _taken(path: Path) -> float:
    """When a picture was taken: the camera's date, else the file's."""
    try:
        with path.open("rb") as file, open_image(file) as image:
            written = image.getexif().get_ifd(_EXIF_FOLDER).get(_TAKEN)
        return datetime.strptime(str(written).strip("\0 "), "%Y:%m:%d %H:%M:%S").timestamp()
    except (
        Exception
    ):  # no date, or a header that fails in one of many ways: stream() will report it
        return path.stat().st_mtime
