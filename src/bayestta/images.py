"""Read an image file of any common kind as RGB."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

# Only formats whose decoders compute and nothing else: Pillow hands EPS to an interpreter.
FORMATS = "AVIF BMP DIB GIF JPEG JPEG2000 MPO PNG PPM TGA TIFF WEBP".split()  # noqa: SIM905
EXTENSIONS = frozenset(  # HEIC too, to say that it cannot be read
    ".avif .bmp .dib .gif .heic .heif .jfif .jp2 .jpe .jpeg .jpg .mpo".split()  # noqa: SIM905
    + ".pbm .pgm .png .pnm .ppm .tga .tif .tiff .webp".split()  # noqa: SIM905
)


class ImageError(ValueError):
    """An image that cannot be decoded; the message is the path and the reason."""


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """An image file as RGB: turned upright, transparency on white, 16 bits scaled to 8.

    Raises `ImageError`, with path and reason, for whatever cannot be decoded.
    """
    return _read(path, path, lambda: Path(path).stat().st_size)


def decode_image(data: bytes, where: str | os.PathLike[str]) -> Image.Image:
    """The same for the bytes of a file that lies inside another one; `where` is for messages."""
    return _read(BytesIO(data), where, lambda: len(data))


def _read(
    source: str | os.PathLike[str] | BytesIO,
    where: str | os.PathLike[str],
    size: Callable[[], int],
) -> Image.Image:
    try:
        with warnings.catch_warnings():
            # A warning at 89 million pixels would refuse the photographs of some telephones;
            # twice as many is an error of Pillow's, and ours.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(source, formats=formats()) as image:
                image.load()
                return to_rgb(ImageOps.exif_transpose(image))
    except Exception as error:  # decoders fail on bad bytes in every way there is
        raise ImageError(f"{where}: {_reason(Path(where), error, size)}") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode of Pillow -> RGB, without clipping deep images or blackening transparent ones."""
    if image.mode[0] in "IF":  # I, F, I;16 and its byte orders
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _to_bytes(levels: NDArray[Any]) -> NDArray[np.uint8]:
    """Deep grey levels -> uint8: 0..65535 by 257, floats also from 0..1, 0..255, else stretched."""
    if not np.isfinite(levels).all():
        raise ValueError("holds values that are not finite")
    low, high = float(levels.min()), float(levels.max())
    if low < 0 or high > 65535:
        scaled = (levels.astype(np.float64) - low) * (255 / (high - low))
    elif levels.dtype.kind == "f" and high <= 255:
        scaled = levels * (255.0 if high <= 1 else 1.0)
    else:
        scaled = levels / 257
    return np.floor(scaled + 0.5).astype(np.uint8)


@lru_cache
def formats() -> tuple[str, ...]:
    """The formats that this Pillow was built with, of those that we open."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _reason(path: Path, error: Exception, size: Callable[[], int]) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return f"too large to decode safely ({error})"
    if path.suffix.lower() in (".heic", ".heif"):
        return "HEIC cannot be read: save a copy as JPEG"
    if isinstance(error, UnidentifiedImageError):
        return f"not an image ({size()} bytes)"
    return str(error) or type(error).__name__
