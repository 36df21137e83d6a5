"""Stanford Cars, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("cars")
class Cars(CoOpData):
    """Stanford Cars: 196 makes, models and years of cars.

    Citation: J. Krause, M. Stark, J. Deng, L. Fei-Fei, 3D Object Representations for Fine-Grained
        Categorization, 2013
    Licence: none is stated; its authors offer it for research
    Get: cars_test.tgz, http://ai.stanford.edu/~jkrause/car196/cars_test.tgz or a mirror (its folder
        `cars_test` goes into `stanford_cars`) and split_zhou_StanfordCars.json,
        https://drive.google.com/file/d/1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT
    """

    folders, image_folders = ("stanford_cars", "StanfordCars"), ("",)
    files = ("split_zhou_StanfordCars.json",)
    class_count, test_images = 196, 8041
