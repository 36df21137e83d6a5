"""Oxford Flowers, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("flowers102")
class Flowers102(CoOpData):
    """Flowers102: 102 kinds of flowers that grow in the United Kingdom.

    Citation: M.-E. Nilsback, A. Zisserman, Automated Flower Classification over a Large Number of
        Classes, 2008
    Licence: none is stated
    Get: 102flowers.tgz, https://www.robots.ox.ac.uk/~vgg/data/flowers/102 and
        split_zhou_OxfordFlowers.json,
        https://drive.google.com/file/d/1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT
    """

    folders, image_folders = ("oxford_flowers", "Flower102"), ("jpg",)
    files = ("split_zhou_OxfordFlowers.json",)
    template = "a photo of a {}, a type of flower."
    class_count, test_images = 102, 2463
