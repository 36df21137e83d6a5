"""One file with the embeddings of a data set by a model: images, labels and text.

A safetensors file. `images` (N,D) holds the domains one after the other, each in the data set's own
order, so that a stream over them visits the images that a stream over the pixels would; `labels`
(N,); `text` (P,D) the prompts. The header says what they are of. `load_model("features:FILE")` and
`load_data("features", root=FILE)` read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bayestta.data._stream import stream
from bayestta.files import replacing
from bayestta.models._text import check_templates, prompts

if TYPE_CHECKING:
    from bayestta.data._base import Data
    from bayestta.models.base import VLM

SCHEMA = 1
KEY = "bayestta_features"


@dataclass(frozen=True, eq=False)
class Features:
    """What a file holds."""

    images: Tensor  # (N,D)
    labels: Tensor | None  # (N,)
    text: Tensor  # (P,D)
    header: dict[str, Any]


def read_features(path: str | os.PathLike[str]) -> Features:
    """Read a file of `bayestta features`; ValueError, in one sentence, for any other."""
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[KEY])
            found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        if header["schema"] > SCHEMA:
            raise ValueError(
                f"{path} was written with schema {header['schema']}, and this version reads up to "
                f"{SCHEMA}: install a newer bayestta."
            )
        return Features(found["images"], found.get("labels"), found["text"], header)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is not there: make it with `bayestta features --out {path}`."
        ) from None
    except (SafetensorError, KeyError, json.JSONDecodeError, IsADirectoryError) as error:
        raise ValueError(
            f"{path} is no complete file of `bayestta features` ({error}): make it again."
        ) from None


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
        "schema": SCHEMA,
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
    with replacing(path) as part:
        save_file(tensors, part, metadata={KEY: json.dumps(header)})
    return len(images)
