"""A simulated camera whose light changes, for demonstrations, tests and benchmarks."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class Camera:
    """Shows images of CIFAR-10's test split, in an order of its own.

    Parameters
    ----------
    seed
        Of the order of its images.
    bright
        Images before the light begins to go.
    fall
        Images that it takes to get dark.
    dark
        Brightness at the end.
    """

    def __init__(
        self, seed: int = 0, *, bright: int = 300, fall: int = 200, dark: float = 0.15
    ) -> None:
        self.seed, self.bright, self.fall, self.dark = seed, bright, fall, dark

    def brightness(self, image: int) -> float:
        """Of the image with that number.

        >>> camera = Camera(bright=10, fall=10, dark=0.5)
        >>> [camera.brightness(i) for i in (0, 15, 99)]
        [1.0, 0.75, 0.5]
        """
        gone = min(1.0, max(0.0, (image - self.bright) / self.fall))
        return 1.0 - (1.0 - self.dark) * gone

    def frames(self) -> Iterator[tuple[NDArray[np.uint8], str]]:
        """Pixels (H,W,3) and the true class, for ever."""
        from bayestta.data import load_data

        data = load_data("cifar10-light")
        domain = data["1.00"]
        generator, count = np.random.default_rng(self.seed), 0
        while True:
            for i in generator.permutation(len(domain)).tolist():
                image, label = domain[i]
                pixels = np.asarray(image) * self.brightness(count)
                yield pixels.astype(np.uint8), data.classes[label or 0]
                count += 1


def to_png(pixels: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()
