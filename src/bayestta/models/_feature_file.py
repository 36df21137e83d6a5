"""One file with the embeddings of a data set by a model: images, labels and text.

A safetensors file with a checksum. `images` (N,D) holds the domains one after the other, each in
the data set's own order, so that a stream over them visits the images that a stream over the pixels
would; `labels` (N,); `text` (P,D) the prompts. The header says what they are of.
`load_model("features:FILE")` and `load_data("features", root=FILE)` read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bayestta.files import replacing
from bayestta.matching import is_sound
from bayestta.state_file import checksum, shortened

SCHEMA = 2
KEY = "bayestta_features"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and is_sound(value)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


FITS: dict[str, Callable[[Any], bool]] = {  # what the entries of the header must be
    **dict.fromkeys(("model", "fingerprint", "data"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("scale", "bias"), _is_number),
    **dict.fromkeys(("trained_on", "contains", "classes", "templates"), _are_words),
    **dict.fromkeys(("domains", "prompts"), _are_words),
    "sizes": lambda value: (
        isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
    ),
    "split": lambda value: value is None or isinstance(value, str),
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
            f"{path} is no complete file of `bayestta features` ({shortened(error)}): make it "
            "again."
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
    for key, fits in FITS.items():
        if not fits(found.header[key]):
            raise ValueError(f"{key} is {str(found.header[key])[:60]}")
    for name in ("images", "text"):
        tensor = getattr(found, name)
        if tensor.ndim != 2 or tensor.dtype != torch.float32 or not is_sound(tensor):
            raise ValueError(f"{name} are no table of finite float32")
    (N, D), (P, width) = found.images.shape, found.text.shape
    sizes, lines = found.header["sizes"], found.header["prompts"]
    if sum(sizes) != N or len(sizes) != len(set(found.header["domains"])):
        raise ValueError(f"{N} images do not fill {len(sizes)} domains")
    if width != D or len(lines) != P:
        raise ValueError(f"text of shape {(P, width)} for features of {D} and {len(lines)} prompts")
    if found.labels is not None:
        _check_labels(found.labels, N, len(found.header["classes"]))


def _check_labels(labels: Tensor, N: int, K: int) -> None:
    if labels.shape != (N,) or labels.dtype != torch.int64:
        raise ValueError(f"labels of {labels.dtype} and shape {tuple(labels.shape)} for {N} images")
    if N and not 0 <= int(labels.min()) <= int(labels.max()) < K:
        raise ValueError(f"labels from {labels.min()} to {labels.max()} for {K} classes")


def write_feature_file(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Write a file whole or not at all."""
    text = json.dumps({"schema": SCHEMA, **header})
    with replacing(path) as part:
        save_file(tensors, part, metadata={KEY: text, "sha256": checksum(text, tensors)})
