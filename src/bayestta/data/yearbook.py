"""Yearbook, portraits of 84 years: a stream of the paper."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayestta.data._arrays import ArrayDomain, Pixels
from bayestta.data._base import Data, Part, missing, register_data
from bayestta.data._wildtime import SPLITS, check_labels, read_years, whole_numbers
from bayestta.data.folder import FolderDomain
from bayestta.files import cache_root
from bayestta.images import EXTENSIONS
from bayestta.names import unknown

YEARS = range(1930, 2014)
# Folder names sort F before M: the number of a class goes by its name, not by its place.
FOLDERS = {"0": 0, "m": 0, "male": 0, "male student": 0}
FOLDERS |= {"1": 1, "f": 1, "female": 1, "female student": 1}
H5PY = "h5py is not installed: run `pip install 'bayestta[hdf5]'`, or use yearbook.pkl."


@register_data("yearbook")
class Yearbook(Data):
    """Portraits of American pupils, 84 years from 1930 to 2013, male or female, of Wild-Time.

    It is read from year folders `yearbook/yearbook-split/1930/2/CLASS/*.png` as in the released
    code, or `yearbook/1930/CLASS/*.png`; from `yearbook.pkl` of Wild-Time; or from `yearbook.hdf5`
    of Wild-Time-Data. CLASS is 0 or M or male, and 1 or F or female.

    Parameters
    ----------
    root
        The folder that holds them (default: `$BAYESTTA_DATA`, else `~/.cache/bayestta`).
    split
        `all` images of a year, as in the paper; or Wild-Time's `train` and `test` parts of them.

    Citation: S. Ginosar, K. Rakelly, S. Sachs, B. Yin, A. A. Efros, A Century of Portraits, 2015;
        as a stream of domains H. Yao et al., Wild-Time, 2022
    Licence: MIT
    Get: yearbook.pkl (Wild-Time), https://drive.google.com/file/d/1mPpxoX2y2oijOvW1ymiHEYd7oMu2vVRb
        or yearbook.hdf5 (wild-time-data, 37 MB),
        https://drive.google.com/file/d/16lPT5DS3tz0XWnBuP8C-8zBnK0bwK7eX
    """

    class_names = ("male student", "female student")
    domain_names = tuple(map(str, YEARS))

    def __init__(
        self, *, root: str | os.PathLike[str] | None = None, split: str | None = None
    ) -> None:
        split = split or "all"
        if split not in SPLITS:
            raise ValueError(unknown("split of yearbook", split, SPLITS))
        place = _place(cache_root(root))
        self.split, self.skipped, self.contains = split, [], frozenset({f"yearbook/{split}"})
        self.classes, self.domains = list(self.class_names), list(self.domain_names)
        self.templates = ["a photo of the {}."]
        self._folders: dict[str, FolderDomain] = {}
        self._arrays: dict[str, tuple[Pixels, NDArray[np.uint8]]] = {}
        if place.is_dir():
            self._folders = {str(year): _folder(place, year, split) for year in YEARS}
        elif place.is_file():
            self._arrays = _read(place, split)
        else:
            raise ValueError(missing("yearbook", place))

    def __getitem__(self, domain: str) -> FolderDomain | ArrayDomain:
        if domain in self._folders:
            return self._folders[domain]
        if domain not in self._arrays:
            raise ValueError(unknown("domain of yearbook", domain, self.domains))
        x, y = self._arrays[domain]
        return ArrayDomain(x, y, np.arange(len(y)), _same)

    @classmethod
    def check(cls, root: str | os.PathLike[str] | None = None) -> list[Part]:
        """The file, or the folders of the years."""
        base = cache_root(root)
        place = _place(base)
        if place.is_dir():
            return [_check_folders(place)]
        if not place.is_file():
            note = "or yearbook.hdf5 there, or year folders in " + str(base / "yearbook")
            return [Part(str(place), False, note)]
        file = Part(str(place), True, f"{place.stat().st_size / 1e6:.0f} MB")
        lacks = place.suffix != ".pkl" and find_spec("h5py") is None
        return [file, Part("h5py", False, H5PY)] if lacks else [file]


def _check_folders(place: Path) -> Part:
    images, lacking = 0, []
    for year in YEARS:
        try:
            images += len(_folder(place, year, "all"))
        except ValueError:
            lacking.append(place / str(year))
    if not lacking:
        return Part(str(place), True, f"{len(YEARS)} years, {images} images")
    note = f"{len(lacking)} of {len(YEARS)} years lack their folders 0 (male) and 1 (female)"
    return Part(str(lacking[0]), False, f"{note}, this one first")


def _same(images: Pixels) -> Pixels:
    return images


def _place(base: Path) -> Path:
    """The year folders or the file that is there; where the file should be, if nothing is."""
    for folder in (base / "yearbook" / "yearbook-split", base / "yearbook"):
        if any((folder / str(year)).is_dir() for year in YEARS):
            return folder
    names = ("yearbook.pkl", "yearbook.hdf5", "yearbook.h5")
    files = [folder / name for name in names for folder in (base, base / "yearbook")]
    return next((file for file in files if file.is_file()), files[0])


def _folder(place: Path, year: int, split: str) -> FolderDomain:
    """The images of a year: `YEAR/2/CLASS`, with the number of the split, or `YEAR/CLASS`."""
    folder = place / str(year)
    numbered = folder / str(SPLITS[split])
    # In a year without splits, 0 and 1 are classes, and hold no folders.
    if numbered.is_dir() and any(path.is_dir() for path in numbered.iterdir()):
        folder = numbered
    elif split != "all":
        raise ValueError(missing("yearbook", numbered))
    if not folder.is_dir():
        raise ValueError(missing("yearbook", folder))
    paths: list[Path] = []
    labels: list[int] = []
    for inside in sorted(path for path in folder.iterdir() if path.is_dir()):
        if inside.name.lower() not in FOLDERS:
            raise ValueError(
                f"{inside} is not the folder of a class: name the folders 0 (male) and 1 (female)."
            )
        found = sorted(path for path in inside.iterdir() if path.suffix.lower() in EXTENSIONS)
        paths += found
        labels += [FOLDERS[inside.name.lower()]] * len(found)
    if not paths:
        raise ValueError(missing("yearbook", folder / "0" / "*.png"))
    return FolderDomain(paths, labels)


def _read(path: Path, split: str) -> dict[str, tuple[Pixels, NDArray[np.uint8]]]:
    if path.suffix == ".pkl":
        found = read_years(path, YEARS, "images", split=split, classes=2)
        years: Iterator[tuple[int, NDArray[Any], NDArray[np.int64]]] = (
            (year, *pair) for year, pair in found.items()
        )
    else:
        years = _hdf5(path, split)
    return {str(year): (_grey(path, year, x), y.astype(np.uint8)) for year, x, y in years}


def _hdf5(path: Path, split: str) -> Iterator[tuple[int, NDArray[Any], NDArray[np.int64]]]:
    """Wild-Time-Data keeps `YEAR/train` and `YEAR/test`, which are together the whole year."""
    if find_spec("h5py") is None:
        raise ImportError(H5PY)
    parts = ("train", "test") if split == "all" else (split,)
    try:
        opened = import_module("h5py").File(path, "r")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read as HDF5 ({error}): get the file again from where it is "
            "published."
        ) from error
    with opened as file:
        for year in YEARS:
            try:
                groups = [file[f"{year}/{part}"] for part in parts]
                x = np.concatenate([group["images"][:] for group in groups])
                y = whole_numbers(np.concatenate([group["labels"][:] for group in groups]))
            except (LookupError, ValueError, TypeError, AttributeError, OSError) as error:
                raise ValueError(
                    f"{path} has no images and labels in {year}/{parts[0]} ({error}): "
                    "get the file again from where it is published."
                ) from error
            yield year, x, check_labels(path, year, len(x), y, 2)


def _grey(path: Path, year: int, images: NDArray[Any]) -> Pixels:
    """(n,H,W) grey levels from (n,H,W,1 or 3), (n,1,H,W) or (n,H,W), bytes or floats in 0..1."""
    if images.ndim == 4 and images.shape[3] in (1, 3):
        images = images[..., 0]  # grey pictures, the same in all channels
    elif images.ndim == 4 and images.shape[1] in (1, 3):
        images = images[:, 0]
    if images.ndim != 3 or images.size == 0 or images.dtype.kind not in "biuf":
        raise ValueError(
            f"{path} has images of shape {images.shape} in {year}, of type {images.dtype}, where "
            "bytes of shape (n,32,32,3) are expected: "
            "get the file again from where it is published."
        )
    if images.dtype.kind == "f":
        if not np.isfinite(images).all() or images.min() < 0 or images.max() > 255:
            raise ValueError(
                f"{path} has pixels outside of 0 to 255 in {year}: get the file again from where "
                "it is published."
            )
        images = np.round(images * 255 if images.max() <= 1 else images)
    return np.ascontiguousarray(images, np.uint8)
