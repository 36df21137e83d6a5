"""fMoW-Time, satellite images of sixteen years: a stream of the paper."""

from __future__ import annotations

import os
from pathlib import Path

from bayestta.data._base import Data, Part, missing, register_data
from bayestta.data._wildtime import SPLITS, Year, read_years, whole_numbers
from bayestta.data.folder import FolderDomain
from bayestta.files import cache_root
from bayestta.names import unknown

FOLDER, FILE = "fmow_v1.1", "fmow.pkl"
FIRST_YEAR, YEARS = 2002, range(16)  # the file counts its years from 0
PREFIX = "aerial view of "

# Of the released code, in the order of the labels; the template repeats what the prefix says.
_NAMES = """
an airport, an airport hangar, an airport terminal, an amusement park, aquaculture facilities,
an archaeological site, a barn, a border checkpoint, a burial site, a car dealership,
a construction site, a crop field, a dam, debris or rubble, an educational institution,
an electric substation, a factory or power plant, a fire station, a flooded road, a fountain,
a gas station, a golf course, a ground transportation station, a helipad, a hospital,
an impoverished settlement, an interchange, a lake or pond, a lighthouse, a military facility,
a multi-unit residential area, a nuclear power plant, an office building, an oil or gas facility,
a park, a parking lot or garage, a place of worship, a police station, a port, a prison,
a race track, a railway bridge, a recreational facility, a road bridge, a runway, a shipyard,
a shopping mall, a single-unit residential area, a smokestack, a solar farm, a space facility,
a stadium, a storage tank, a surface mine, a swimming pool, a toll booth, a tower,
a tunnel opening, a waste disposal site, a water treatment facility, a wind farm, a zoo
"""


@register_data("fmow")
class FMoW(Data):
    """Functional Map of the World: 62 kinds of land use in 16 years, 2002 to 2017, of Wild-Time.

    Parameters
    ----------
    root
        The folder that holds `fmow_v1.1` (default: `$BAYESTTA_DATA`, else `~/.cache/bayestta`);
        `fmow.pkl` lies beside `fmow_v1.1`, as in Wild-Time, or inside it, as in the released code.
    split
        `all` images of a year, as in the paper; or Wild-Time's `train` and `test` parts of them.

    Citation: G. Christie, N. Fendley, J. Wilson, R. Mukherjee, Functional Map of the World, 2018;
        as a stream of domains H. Yao et al., Wild-Time, 2022
    Licence: the Functional Map of the World Challenge Public License
    Get: fmow_v1.1.tar.gz (WILDS), https://worksheets.codalab.org/bundles/0xaec91eb7c9d548ebb15e1b5e60f966ab
        and fmow.pkl (Wild-Time), https://drive.google.com/file/d/1s_xtf2M5EC7vIFhNv_OulxZkNvrVwIm3
    """

    class_names = tuple(PREFIX + " ".join(name.split()) for name in _NAMES.split(","))
    domain_names = tuple(str(FIRST_YEAR + year) for year in YEARS)

    def __init__(
        self, *, root: str | os.PathLike[str] | None = None, split: str | None = None
    ) -> None:
        split = split or "all"
        if split not in SPLITS:
            raise ValueError(unknown("split of fmow", split, SPLITS))
        base = cache_root(root)
        file, self.images = _file(base), base / FOLDER / "images"
        for path, there in ((file, file.is_file()), (self.images, self.images.is_dir())):
            if not there:
                raise ValueError(missing("fmow", path))
        found = _read(file, split, len(self.class_names))
        self.split, self.skipped, self.contains = split, [], frozenset({f"fmow/{split}"})
        self.classes, self.domains = list(self.class_names), list(self.domain_names)
        self.templates = ["a centered satellite photo of {}."]
        self._years = dict(zip(self.domains, found.values(), strict=True))

    def __getitem__(self, domain: str) -> FolderDomain:
        if domain not in self._years:
            raise ValueError(unknown("domain of fmow", domain, self.domains))
        numbers, labels = self._years[domain]
        return FolderDomain([self.images / image(n) for n in numbers.tolist()], labels.tolist())

    @classmethod
    def check(cls, root: str | os.PathLike[str] | None = None) -> list[Part]:
        """The pickle, the folder of images, and how many of them are not there."""
        base = cache_root(root)
        file, images = _file(base), base / FOLDER / "images"
        note = "" if file.is_file() else f"or {base / FOLDER / FILE}"
        parts = [Part(str(file), file.is_file(), note), Part(str(images), images.is_dir())]
        if not all(part.found for part in parts):
            return parts
        try:
            found = _read(file, "all", len(cls.class_names))
        except ValueError as error:
            return [Part(str(file), False, str(error)), parts[1]]
        wanted = {image(n) for numbers, _ in found.values() for n in numbers.tolist()}
        lacking = sorted(wanted - {entry.name for entry in os.scandir(images)})
        if lacking:
            note = f"{len(lacking)} of {len(wanted)} images are missing, this one first"
            return [parts[0], Part(str(images / lacking[0]), False, note)]
        return [parts[0], Part(str(images), True, f"{len(wanted)} images")]


def _read(file: Path, split: str, classes: int) -> dict[int, Year]:
    found = read_years(file, YEARS, "image_idxs", split=split, classes=classes)
    try:
        return {year: (whole_numbers(numbers), labels) for year, (numbers, labels) in found.items()}
    except ValueError as error:
        raise ValueError(
            f"{file} has numbers of images that are {error}: "
            "get the file again from where it is published."
        ) from error


def image(number: int) -> str:
    """The name of an image.

    >>> image(7)
    'rgb_img_7.png'
    """
    return f"rgb_img_{number}.png"


def _file(base: Path) -> Path:
    """Where the pickle is; where it should be, if it is in neither place."""
    inside = base / FOLDER / FILE
    return inside if inside.is_file() else base / FILE
