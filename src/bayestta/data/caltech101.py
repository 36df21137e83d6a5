"""Caltech101, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("caltech101")
class Caltech101(CoOpData):
    """Caltech101: objects of 100 kinds (its background and second face class are left out).

    Citation: L. Fei-Fei, R. Fergus, P. Perona, Learning Generative Visual Models from Few Training
        Examples, 2004
    Licence: CC BY 4.0
    Get: 101_ObjectCategories.tar.gz, https://data.caltech.edu/records/mzrjq-6wc02 and
        split_zhou_Caltech101.json,
        https://drive.google.com/file/d/1hyarUivQE36mY6jSomru6Fjd-JzwcCzN
    """

    folders, image_folders = ("caltech-101",), ("101_ObjectCategories",)
    files = ("split_zhou_Caltech101.json",)
    class_count, test_images = 100, 2465
