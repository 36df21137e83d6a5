"""Batches with several augmented views per image."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.models.base import VLM

CHUNK = 128  # views per pass of the encoder


def confident(uncertainty: Tensor, share: float) -> Tensor:
    """The positions of the given share, at least one, of the views that are least uncertain.

    >>> confident(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5).tolist()
    [1, 2]
    """
    return uncertainty.argsort(stable=True)[: max(1, int(share * len(uncertainty)))]


def encode_views(model: VLM, x: Tensor) -> Tensor:
    """Features (B,V,D) of (B,V,C,H,W), a few images at a time; V is 1 for plain images."""
    if x.ndim != 5:
        return model.encode_image(x)[:, None]
    V = x.shape[1]
    step = max(1, CHUNK // V)
    z = [model.encode_image(x[i : i + step].flatten(0, 1)) for i in range(0, len(x), step)]
    return torch.cat(z).view(len(x), V, -1)


def each_image(method: Adapter, x: Tensor) -> Iterator[Tensor]:
    """The views (V,C,H,W) of one image after the other, made when they are needed."""
    if x.ndim != 5 or x.shape[1] < 2:
        raise ValueError(
            f"{method.name} works on views, and the batch is {tuple(x.shape)} instead of "
            f"(B,V,C,H,W) with V > 1: make the stream with views={method.views}."
        )
    return (x[i : i + 1][0] for i in range(len(x)))
