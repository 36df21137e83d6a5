"""FGVC Aircraft, a set of the cross-domain benchmark."""

from __future__ import annotations

from pathlib import Path

from bayestta.data._base import missing, register_data
from bayestta.data._coop_split import CoOpData, Item, check_items


@register_data("aircraft")
class Aircraft(CoOpData):
    """FGVC Aircraft: 100 variants of aircraft, listed in its own text files, as CoOp reads them.

    Citation: S. Maji, E. Rahtu, J. Kannala, M. Blaschko, A. Vedaldi, Fine-Grained Visual
        Classification of Aircraft, 2013
    Licence: for non-commercial research only
    Get: fgvc-aircraft-2013b.tar.gz, https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft (its folder
        `data` becomes `fgvc_aircraft`)
    """

    folders, image_folders = ("fgvc_aircraft",), ("images",)
    files = ("variants.txt", "images_variant_test.txt")
    template = "a photo of a {}, a type of aircraft."
    class_count, test_images = 100, 3333

    @classmethod
    def read(cls, folder: Path, split: str) -> tuple[list[Item], list[str]]:
        """Lines of `number variant`; the classes are numbered by their line in variants.txt."""
        path = folder / f"images_variant_{split}.txt"
        if not path.is_file():
            raise ValueError(missing(cls.name, path))
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


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
