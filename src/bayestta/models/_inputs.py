"""What people hand to an adapter, as the batch that the image tower takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

if TYPE_CHECKING:
    from bayestta.models.base import VLM

TAKES = "give a float tensor from model.preprocess, PIL images, uint8 arrays (H,W,C) or paths"


def to_batch(model: VLM, images: Any) -> Any:
    """A checked batch: tensors as they are, images and paths through `model.preprocess`.

    Lazy views of a stream pass through with their plain view checked.
    """
    if hasattr(images, "plain"):
        check_batch(model, images.plain)
        return images
    if isinstance(images, Tensor):
        check_batch(model, images)
        return images.clone() if images.is_inference() else images
    if isinstance(images, np.ndarray) and images.ndim == 4:
        images = list(images)
    one = isinstance(images, (str, os.PathLike, Image.Image, np.ndarray))
    if not one and not isinstance(images, Sequence):
        raise TypeError(f"images are a {type(images).__name__}: {TAKES}.")
    listed = [images] if one else list(images)
    if not listed:
        raise ValueError("the batch is empty: give at least 1 image.")
    x = torch.stack([model.preprocess(to_image(item, i)) for i, item in enumerate(listed)])
    check_batch(model, x)
    return x


def to_image(item: Any, place: int = 0) -> Image.Image:
    """One PIL image, array (H,W,C) of uint8 or path, as a PIL image."""
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, (str, os.PathLike)):
        from bayestta.images import read_image

        return read_image(Path(os.fspath(item)))
    if isinstance(item, np.ndarray):
        if item.dtype != np.uint8 or item.ndim not in (2, 3) or item.shape[2:] not in ((), (3,)):
            raise ValueError(
                f"image {place} is an array of {item.dtype} with shape {item.shape}: give uint8 "
                "with shape (H,W,3) or (H,W)."
            )
        return Image.fromarray(item).convert("RGB")
    raise TypeError(f"image {place} is a {type(item).__name__}: {TAKES}.")


def check_batch(model: VLM, x: Tensor) -> None:
    """Refuse a batch that the tower does not take, or that would poison the state."""
    if not x.is_floating_point():
        raise ValueError(f"the batch is a tensor of {x.dtype}, not of normalised pixels: {TAKES}.")
    if x.ndim and len(x) == 0:
        raise ValueError("the batch is empty: give at least 1 image.")
    expected = model.input_shape
    shape = tuple(x.shape)
    views = 1 if expected is not None and len(expected) == 3 and x.ndim == 5 else 0
    if expected is not None and (x.ndim < 2 or shape[1 + views :] != expected):
        hint = "write x[None] for one image" if shape == expected else "use model.preprocess"
        raise ValueError(
            f"the batch has shape {shape}, and {model.name!r} takes (B, "
            f"{', '.join(map(str, expected))}): {hint}."
        )
    if torch.isfinite(x.sum()):  # one pass for the usual case
        return
    bad = ~torch.isfinite(x.flatten(1)).all(1)
    if bad.any():
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"{int(bad.sum())} of {len(x)} images of the batch hold NaN or infinite pixels "
            f"(first: {first}): remove them; the state is unchanged."
        )
