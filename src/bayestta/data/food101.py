"""Food-101, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("food101")
class Food101(CoOpData):
    """Food-101: photographs of 101 dishes.

    Citation: L. Bossard, M. Guillaumin, L. Van Gool, Food-101, Mining Discriminative Components
        with Random Forests, 2014
    Licence: the pictures belong to their owners; for research
    Get: food-101.tar.gz, https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101 and
        split_zhou_Food101.json, https://drive.google.com/file/d/1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl
    """

    folders, image_folders = ("food-101", "Food101"), ("images",)
    files = ("split_zhou_Food101.json",)
    template = "a photo of {}, a type of food."
    class_count, test_images = 101, 30300
