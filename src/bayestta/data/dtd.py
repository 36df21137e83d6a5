"""Describable Textures, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("dtd")
class DTD(CoOpData):
    """DTD: 47 kinds of texture, by the word that describes them.

    Citation: M. Cimpoi, S. Maji, I. Kokkinos, S. Mohamed, A. Vedaldi, Describing Textures in the
        Wild, 2014
    Licence: for research only
    Get: dtd-r1.0.1.tar.gz, https://www.robots.ox.ac.uk/~vgg/data/dtd and
        split_zhou_DescribableTextures.json,
        https://drive.google.com/file/d/1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x
    """

    folders, image_folders = ("dtd", "DTD"), ("images",)
    files = ("split_zhou_DescribableTextures.json",)
    template = "{} texture."
    class_count, test_images = 47, 1692
