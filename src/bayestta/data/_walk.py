"""Image files below a folder, through links too, every folder and every file once."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bayestta.images import EXTENSIONS

Found = dict[str, list[tuple[Path, str]]]  # domain -> images, each with its class name or ""


class Place(NamedTuple):
    """A folder to look for images in, and what they are."""

    domain: str
    label: str
    folder: Path
    deep: bool = True  # also in the folders inside


def collect(places: Iterable[Place], read: Iterable[Path] = ()) -> tuple[Found, list[str]]:
    """The images of some places, and "path: reason" of what was left out.

    What is met at its own place goes before the links to it. A link to a folder that is read
    already, or that is among `read`, leads to nothing new: a loop ends there.
    """
    found: Found = {}
    notes: list[str] = []
    folders = {os.path.realpath(folder) for folder in read}
    files: dict[str, Path] = {}
    links: list[tuple[Place, Path]] = []
    own, linked = deque[Place](), deque[Place]()

    def add(place: Place, path: Path, real: str) -> None:
        if files.setdefault(real, path) == path:
            found[place.domain].append((path, place.label))
        else:
            notes.append(f"{path}: is the same file as {files[real]}")

    for place in places:
        found.setdefault(place.domain, [])
        (linked if is_linked(place.folder) else own).append(place)
    while own or linked:
        place = own.popleft() if own else linked.popleft()
        real = os.path.realpath(place.folder)
        if real in folders:
            if not contains(real, place.folder):
                notes.append(f"{place.folder}: is a link to {real}, which is read already")
            continue
        folders.add(real)
        try:
            entries = sorted(os.scandir(place.folder), key=lambda entry: entry.name)
        except OSError as error:
            notes.append(f"{place.folder}: cannot be read ({error.strerror})")
            continue
        for entry in entries:
            path = place.folder / entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if place.deep:
                    (linked if entry.is_symlink() else own).append(place._replace(folder=path))
            elif path.suffix.lower() in EXTENSIONS and entry.is_file():
                if entry.is_symlink():
                    links.append((place, path))
                else:
                    add(place, path, os.path.join(real, entry.name))
    for place, path in links:
        add(place, path, os.path.realpath(path))
    return found, notes


def folders(root: Path) -> list[Path]:
    """The folders inside, in natural order."""
    inside = (p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    return sorted(inside, key=natural)


def images(folder: Path) -> list[Path]:
    """The image files right inside, by name; those that begin with a dot are left by systems."""
    inside = (p for p in folder.iterdir() if not p.name.startswith("."))
    return sorted(p for p in inside if p.suffix.lower() in EXTENSIONS and p.is_file())


def is_linked(folder: Path) -> bool:
    """Whether a folder, or the one that holds it, is a link."""
    return folder.is_symlink() or folder.parent.is_symlink()


def contains(real: str, path: Path) -> bool:
    """Whether a path lies below a real folder, as it is written or in truth."""
    places = os.path.realpath(path.parent), os.path.abspath(path.parent)
    return any(os.path.join(place, "").startswith(os.path.join(real, "")) for place in places)


def natural(path: Path | str) -> list[tuple[int, int, str]]:
    """A key that sorts numbers inside names by value.

    >>> sorted(["day10", "day2", "Day1", "day02b"], key=natural)
    ['Day1', 'day2', 'day02b', 'day10']
    """
    parts = re.split(r"([0-9]+)", str(path).lower())
    numbers = [part.lstrip("0") for part in parts[1::2]]
    keys: list[tuple[int, int, str]] = [(1, 0, part) for part in parts]
    keys[1::2] = [(0, len(number), number) for number in numbers]  # by length first, as by value
    return [*keys, (2, 0, str(path))]
