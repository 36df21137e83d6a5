"""Oxford-IIIT Pets, a set of the cross-domain benchmark."""

from __future__ import annotations

from bayestta.data._base import register_data
from bayestta.data._coop_split import CoOpData


@register_data("pets")
class Pets(CoOpData):
    """Oxford Pets: 37 breeds of cats and dogs.

    Citation: O. M. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar, Cats and Dogs, 2012
    Licence: CC BY-SA 4.0
    Get: images.tar.gz, https://www.robots.ox.ac.uk/~vgg/data/pets and split_zhou_OxfordPets.json,
        https://drive.google.com/file/d/1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs
    """

    folders, image_folders = ("oxford_pets", "OxfordPets"), ("images",)
    files = ("split_zhou_OxfordPets.json",)
    template = "a photo of a {}, a type of pet."
    class_count, test_images = 37, 3669
