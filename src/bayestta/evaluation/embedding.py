"""Embed a data set once, for methods that work on features."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayestta.data._stream import stream
from bayestta.models._feature_file import write_feature_file
from bayestta.models._text import check_templates, prompts

if TYPE_CHECKING:
    from bayestta.data._base import Data
    from bayestta.models.base import VLM


@torch.no_grad()
def write_features(
    path: str | os.PathLike[str],
    model: VLM,
    data: Data,
    *,
    templates: Sequence[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    progress: Callable[[str, int], object] | None = None,
    **options: Any,
) -> int:
    """Embed all images of a data set, and its class names in templates; the number of images.

    Parameters
    ----------
    templates
        More of them than the data set's own, for methods that are to be run with these.
    limit, seed
        Of every domain the first images of the seed's order, as `stream` has it.
    progress
        Called with the domain and the number of images after every batch.
    options
        For `stream`: `strict`, `workers`.
    """
    rows: dict[str, list[Tensor]] = {domain: [] for domain in data.domains}
    labels: list[Tensor] = []
    order = "given" if limit is None else "time"
    for batch in stream(
        data,
        model.preprocess,
        batch_size=batch_size,
        order=order,
        limit=limit,
        seed=seed,
        **options,
    ):
        rows[batch.domain].append(model.encode_image(batch.x).cpu())
        if batch.y is not None:
            labels.append(batch.y)
        if progress is not None:
            progress(batch.domain, len(batch.index))
    given = list(dict.fromkeys([*data.templates, *check_templates(templates or data.templates)]))
    lines = list(dict.fromkeys(line for name in data.classes for line in prompts(name, given)))
    header = {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "scale": model.scale,
        "bias": model.bias,
        "trained_on": sorted(model.trained_on),
        "data": data.name,
        "split": data.split,
        "contains": sorted(data.contains),
        "classes": list(data.classes),
        "templates": list(data.templates),
        "domains": data.domains,
        "sizes": [sum(map(len, found)) for found in rows.values()],
        "limit": limit,
        "prompts": lines,
    }
    images = torch.cat([part for found in rows.values() for part in found])
    tensors = {"images": images, "text": model.encode_text(lines).float().cpu().contiguous()}
    if data.labelled:
        tensors["labels"] = torch.cat(labels)
    write_feature_file(path, tensors, header)
    return len(images)
