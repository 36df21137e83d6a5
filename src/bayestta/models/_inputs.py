"""What people hand to an adapter, as the batch that the image tower takes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayestta.images import ImageError, read_image, to_rgb

if TYPE_CHECKING:
    from bayestta.models._vlm import VLM

TAKES = "give a float tensor from model.preprocess, PIL images, uint8 arrays (H,W,3) or paths"
LARGEST = 1e6  # of a pixel or feature: far above honest ones, far below what overflows when squared
SHORTEST = 1e-6  # length of a feature that still has a direction
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://|(data):")


def is_one(images: Any) -> bool:
    """Whether it is one image and not a batch of them; a tensor is always a batch."""
    if isinstance(images, np.ndarray):
        return (images.ndim == 2 and images.dtype == np.uint8) or images.ndim == 3
    return isinstance(images, (str, os.PathLike, Image.Image))


def to_batch(model: VLM, images: Any, *, views: int = 1) -> Any:
    """A checked batch: tensors as they are, images and paths through `model.preprocess`.

    With `views` above 1 a batch may also be (B,V,C,H,W). Lazy views of a stream pass through with
    their plain view checked.

    >>> import bayestta as bt
    >>> to_batch(bt.load_model("mini-rn"), Image.new("RGB", (100, 80))).shape
    torch.Size([1, 3, 64, 64])
    """
    if hasattr(images, "plain"):
        check_batch(model, images.plain)
        return images
    if isinstance(images, np.ndarray) and images.dtype.kind == "f" and takes_features(model):
        images = torch.from_numpy(images)
    x = images if isinstance(images, Tensor) else _stack(model, images)
    check_batch(model, x, views=views)
    x = x.detach()  # nobody's graph is of interest here
    return x.clone() if x.is_inference() else x


def takes_features(model: VLM) -> bool:
    """Whether the model stands for embeddings: its batches are (B,D)."""
    return model.input_shape is not None and len(model.input_shape) == 1


def _stack(model: VLM, images: Any) -> Tensor:
    if isinstance(images, (bytes, bytearray, memoryview)) or not (
        is_one(images) or isinstance(images, (Sequence, np.ndarray))
    ):
        raise TypeError(f"images are of type {type(images).__name__}: {TAKES}.")
    if takes_features(model):
        raise TypeError(
            f"images are of type {type(images).__name__}, and {model.name!r} takes features: give a "
            f"float tensor or array (B, {model.dim})."
        )
    if isinstance(images, np.ndarray) and not is_one(images) and images.ndim != 4:
        raise ValueError(f"images are {_array(images)}: give uint8 with shape (B,H,W,3).")
    listed = [images] if is_one(images) else list(images)
    tensors = sum(isinstance(item, Tensor) for item in listed)
    if not listed:
        raise ValueError("the batch is empty: give at least 1 image.")
    if not tensors:
        return torch.stack([model.preprocess(to_image(item, i)) for i, item in enumerate(listed)])
    if tensors < len(listed):
        raise TypeError(
            f"{tensors} of {len(listed)} images are tensors and the others are not: give all of "
            "them as tensors from model.preprocess, or none."
        )
    shapes = {tuple(item.shape) for item in listed}
    if any(len(shape) != 3 for shape in shapes):
        wrong = next(shape for shape in shapes if len(shape) != 3)
        raise ValueError(
            f"an image is a tensor of shape {wrong} instead of (C,H,W): give a batch without a "
            "list around it."
        )
    if len(shapes) > 1:
        shown = " and ".join(map(str, sorted(shapes)[:2]))
        raise ValueError(f"the images are tensors of different shapes ({shown}): {TAKES}.")
    return torch.stack(listed)


def to_image(item: Any, place: int = 0) -> Image.Image:
    """One PIL image, array (H,W,3) of uint8, path or file:// URL, as an RGB image.

    >>> to_image(np.zeros((4, 6, 3), np.uint8)).size
    (6, 4)
    """
    if isinstance(item, np.ndarray):
        if item.dtype != np.uint8 or item.ndim not in (2, 3) or item.shape[2:] not in ((), (3,)):
            hint = "; write a.transpose(1, 2, 0)" if item.ndim == 3 and len(item) == 3 else ""
            raise ValueError(
                f"image {place} is {_array(item)}: give uint8 with shape (H,W,3) or (H,W){hint}."
            )
        item = Image.fromarray(item) if item.size else Image.new("RGB", (0, 0))
    elif isinstance(item, (str, os.PathLike)):
        try:
            item = read_image(local_path(item))
        except ImageError as error:
            raise ImageError(f"{error}: give the path of a whole image, or leave it out.") from None
    if not isinstance(item, Image.Image):
        raise TypeError(f"image {place} is of type {type(item).__name__}: {TAKES}.")
    if not item.width or not item.height:
        raise ValueError(f"image {place} has 0 pixels: leave it out.")
    return item if item.mode == "RGB" else to_rgb(item)


def local_path(item: str | os.PathLike[str]) -> Path:
    """The path of a file that is named by path or file:// URL; any other URL is refused.

    >>> str(local_path("file:///photos/a%20cat.jpg"))
    '/photos/a cat.jpg'
    """
    given = os.fspath(item)
    found = URL.match(given) if isinstance(item, str) else None
    if found is None:
        return Path(given)
    url, scheme = urlsplit(given), (found[1] or found[2]).lower()
    if scheme != "file" or url.netloc not in ("", "localhost"):
        shown = given if len(given) <= 80 else f"{given[:77]}…"
        raise ValueError(
            f"{shown} is not a local file, and nothing is downloaded: save it to disk and give "
            "its path."
        )
    return Path(unquote(url.path))


def check_batch(model: VLM, x: Tensor, *, views: int = 1) -> None:
    """Refuse a batch that the tower does not take, or that would poison the state."""
    if not x.is_floating_point():
        raise ValueError(f"the batch is a tensor of {x.dtype}, not of normalised pixels: {TAKES}.")
    if x.ndim and len(x) == 0:
        raise ValueError("the batch is empty: give at least 1 image.")
    expected = model.input_shape
    shape = tuple(x.shape)
    start = 2 if views > 1 and x.ndim == 5 else 1
    if expected is not None and (x.ndim < 2 or shape[start:] != expected):
        hint = "write x[None] for one" if shape == expected else "use model.preprocess"
        if len(expected) == 1 and shape != expected:
            hint = "give the features of the model that the text prototypes are of"
        raise ValueError(
            f"the batch has shape {shape}, and {model.name!r} takes (B, "
            f"{', '.join(map(str, expected))}): {hint}."
        )
    _check_numbers(x, features=expected is not None and len(expected) == 1)


def _check_numbers(x: Tensor, *, features: bool) -> None:
    """Refuse numbers that no image has: one of them would spoil its whole batch and the state."""
    kind = "features" if features else "pixels"
    if not bool(x.abs().amax() <= LARGEST):  # NaN is not, either
        rows = x.flatten(1)
        bad, what = ~torch.isfinite(rows).all(1), "NaN or infinite"
        if not bad.any():
            bad, what = rows.abs().amax(1) > LARGEST, f"beyond {LARGEST:,.0f} in size"
        raise ValueError(
            f"{int(bad.sum())} of {len(x)} images of the batch hold {kind} that are {what} (first: "
            f"{int(bad.nonzero()[0])}): remove them; the state is unchanged."
        )
    if features and bool((short := x.norm(dim=-1) < SHORTEST).any()):
        raise ValueError(
            f"{int(short.sum())} of {len(x)} features of the batch are zero (first: "
            f"{int(short.nonzero()[0])}) and have no direction to compare: remove them; the state "
            "is unchanged."
        )


def _array(item: Any) -> str:
    return f"an array of {item.dtype} with shape {item.shape}"
