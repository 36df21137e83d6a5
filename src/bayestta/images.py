"""Read an image file of any common kind as RGB, within a budget of pixels."""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile

# Only formats whose decoders compute and nothing else: Pillow hands EPS to an interpreter. TGA is
# last, as its files begin with nothing that tells them from others.
FORMATS = "AVIF BMP DIB GIF JPEG JPEG2000 MPO PNG PPM TIFF WEBP TGA".split()  # noqa: SIM905
EXTENSIONS = frozenset(  # HEIC too, to say that it cannot be read
    ".avif .bmp .dib .gif .heic .heif .jfif .jp2 .jpe .jpeg .jpg .mpo".split()  # noqa: SIM905
    + ".pbm .pgm .png .pnm .ppm .tga .tif .tiff .webp".split()  # noqa: SIM905
)
MEGA = 10**6
DECODED = 64 * MEGA  # pixels that are held at once: 0.6 GB with all copies, as measured
LARGEST = 1024 * MEGA  # pixels of a file whose format can be decoded at a fraction of its size
STRIP = 4 * MEGA  # pixels that are converted at once where a conversion needs copies


class ImageError(ValueError):
    """An image that cannot be decoded; the message is the path and the reason."""


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """An image file as RGB: turned upright, transparency on white, 16 bits scaled to 8.

    At most 64 million pixels are decoded. A larger JPEG (up to 1,024 million pixels, unless it is
    progressive) or JPEG 2000 is decoded at a half, a quarter or an eighth of its size; other
    formats are refused above 64 million.

    Raises `ImageError`, with path and reason, for whatever cannot be decoded.
    """
    try:
        with open(path, "rb") as file:
            return _read(file, path)
    except (OSError, ValueError) as error:
        if isinstance(error, ImageError):
            raise
        reason = getattr(error, "strerror", None) or str(error)  # without the path once more
        raise ImageError(f"{os.fspath(path)}: {reason}") from error


def decode_image(data: bytes, where: str | os.PathLike[str]) -> Image.Image:
    """The same for the bytes of a file that lies inside another one; `where` is for messages."""
    return _read(BytesIO(data), where)


def open_image(file: IO[bytes]) -> ImageFile:
    """The header of an image, of one of our formats and of any size; nothing is decoded.

    `Image.open` would warn or raise at a size of its own, and its limit and Python's warning
    filters are shared by all threads.
    """
    prefix = file.read(16)
    for name in formats():
        factory, accept = Image.OPEN[name]
        try:
            if accept is None or accept(prefix) is True:
                file.seek(0)
                return factory(file, "")
        except (SyntaxError, IndexError, TypeError, struct.error):  # Pillow's for "another format"
            continue
    raise UnidentifiedImageError("not an image")


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode of Pillow -> RGB, without clipping deep images or blackening transparent ones."""
    if image.mode[0] in "IF":  # I, F, I;16 and its byte orders
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        return _on_white(image)
    return image.convert("RGB")


def _read(file: IO[bytes], where: str | os.PathLike[str]) -> Image.Image:
    try:
        with open_image(file) as image:
            _fit(image)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return to_rgb(image)
    except MemoryError as error:
        raise ImageError(f"{where}: needs more memory than there is: make it smaller") from error
    except Exception as error:  # decoders fail on bad bytes in every way there is
        raise ImageError(f"{where}: {_reason(file, where, error)}") from error


def _fit(image: ImageFile) -> None:
    """Have the decoder make at most DECODED pixels, or refuse."""
    width, height = image.size
    pixels = width * height
    if pixels <= DECODED:
        return
    # A progressive JPEG is held whole while it is decoded, at any size of the result.
    reducible = image.format in ("JPEG", "MPO", "JPEG2000") and not image.info.get("progressive")
    if reducible and pixels <= LARGEST:
        for power in (1, 2, 3):
            size = width >> power, height >> power
            if 0 < size[0] * size[1] <= DECODED:
                if image.format == "JPEG2000":
                    image.reduce = power  # type: ignore[method-assign,assignment]
                else:
                    image.draft(None, size)
                return
    limit = LARGEST if reducible else DECODED
    kind = "progressive JPEG" if image.info.get("progressive") else image.format
    raise ValueError(
        f"has {width} x {height} = {pixels / MEGA:.0f} million pixels, and of a {kind} file at "
        f"most {limit // MEGA} million are decoded: make it smaller, or cut it into parts"
    )


def _on_white(image: Image.Image) -> Image.Image:
    """Strip by strip, as blending takes three copies."""
    result = Image.new("RGB", image.size)
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        part = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", part.size, (255, 255, 255, 255))
        result.paste(Image.alpha_composite(white, part).convert("RGB"), (0, top))
    return result


def _to_bytes(levels: NDArray[Any]) -> NDArray[np.uint8]:
    """Deep grey levels -> uint8: 0..65535 by 257, floats also from 0..1, 0..255, else stretched."""
    low, high = float(levels.min()), float(levels.max())
    if not np.isfinite([low, high]).all():  # a NaN anywhere is the least and the greatest
        raise ValueError("holds values that are not finite")
    result = np.empty(levels.shape, np.uint8)
    rows = max(1, STRIP // levels.shape[1])
    for top in range(0, len(levels), rows):
        part = levels[top : top + rows]
        if low < 0 or high > 65535:
            scaled = (part.astype(np.float64) - low) * (255 / (high - low))
        elif levels.dtype.kind == "f" and high <= 255:
            scaled = part * (255.0 if high <= 1 else 1.0)
        else:
            scaled = part / 257
        result[top : top + rows] = np.floor(scaled + 0.5)
    return result


@lru_cache
def formats() -> tuple[str, ...]:
    """The formats that this Pillow was built with, of those that we open."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _reason(file: IO[bytes], where: str | os.PathLike[str], error: Exception) -> str:
    if os.fspath(where).lower().endswith((".heic", ".heif")):
        return "HEIC cannot be read: save a copy as JPEG"
    if isinstance(error, UnidentifiedImageError):
        return f"not an image ({file.seek(0, os.SEEK_END)} bytes)"
    return " ".join(str(error).split()) or type(error).__name__
