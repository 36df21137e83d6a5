"""One file with the embeddings of a data set by a model: images, labels and text.

A safetensors file with a checksum. `images` (N,D) holds the domains one after the other, each in
the data set's own order, so that a stream over them visits the images that a stream over the pixels
would; `labels` (N,); `text` (P,D) the prompts. The header says what they are of.
`load_model("features:FILE")` and `load_data("features", root=FILE)` read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bayestta.files import replacing
from bayestta.state_file import checksum

SCHEMA = 2
KEY = "bayestta_features"
TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("model", "fingerprint", "data"), str),
    **dict.fromkeys(("scale", "bias"), (int, float)),
    **dict.fromkeys(("trained_on", "contains", "classes", "templates"), list),
    **dict.fromkeys(("domains", "sizes", "prompts"), list),
}


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
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dict
        header = json.loads(metadata[KEY])
        found = Features(tensors["images"], tensors.get("labels"), tensors["text"], header)
        schema = header["schema"]
        if schema == SCHEMA:
            _check(found)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is not there: make it with `bayestta features --out {path}`."
        ) from None
    except (
        *(SafetensorError, KeyError, ValueError, TypeError, AttributeError),
        *(RecursionError, IsADirectoryError),
    ) as error:
        raise ValueError(
            f"{path} is no complete file of `bayestta features` ({error}): make it again."
        ) from None
    if schema != SCHEMA:
        raise ValueError(
            f"{path} has schema {schema}, and this version reads schema {SCHEMA}: make it again "
            "with `bayestta features`, or install the version that wrote it."
        )
    if metadata.get("sha256") != checksum(metadata[KEY], tensors):
        raise ValueError(f"{path} is damaged, its checksum does not match: make it again.")
    return found


def _check(found: Features) -> None:
    for key, kind in TYPES.items():
        if not isinstance(found.header[key], kind):
            raise ValueError(f"{key} is {found.header[key]!r}")
    (N, D), (P, width) = found.images.shape, found.text.shape
    sizes, lines = found.header["sizes"], found.header["prompts"]
    if sum(sizes) != N or len(sizes) != len(found.header["domains"]):
        raise ValueError(f"{N} images do not fill domains of {sizes}")
    if width != D or len(lines) != P:
        raise ValueError(f"text of shape {(P, width)} for features of {D} and {len(lines)} prompts")
    if found.labels is not None and found.labels.shape != (N,):
        raise ValueError(f"labels of shape {tuple(found.labels.shape)} for {N} images")


def write_feature_file(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Write a file whole or not at all."""
    text = json.dumps({"schema": SCHEMA, **header})
    with replacing(path) as part:
        save_file(tensors, part, metadata={KEY: text, "sha256": checksum(text, tensors)})
