"""`load_model`: one registry of names and prefixes, each with the function that loads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from bayestta.models._placement import PRECISIONS
from bayestta.models._placement import find_device as find_device
from bayestta.models._placement import place as place
from bayestta.models._preprocess import Preprocess as Preprocess
from bayestta.models._vlm import VLM as VLM
from bayestta.names import unknown
from bayestta.registry import Registry

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
SHORT = {  # the two backbones of the paper, with OpenAI's weights
    "clip-rn50": "RN50-quickgelu/openai",
    "clip-vit-b16": "ViT-B-16-quickgelu/openai",
}


class Entry(NamedTuple):
    """A name that `load_model` takes, or a pattern such as `hf:ID`."""

    load: Callable[[str, str], VLM]  # what follows the colon, and what the model is called
    about: str


# Each imports its file when it is called: that of one family does not need the others' packages.


def _lit(target: str, name: str) -> VLM:
    from bayestta.models.lit import load_lit

    return load_lit()


def _mini(target: str, name: str) -> VLM:
    from bayestta.models.mini import load_mini

    return load_mini(target)


def _open_clip(target: str, name: str) -> VLM:
    from bayestta.models.open_clip import load_open_clip

    return load_open_clip(SHORT.get(target, target), name)


def _transformers(target: str, name: str) -> VLM:
    from bayestta.models.transformers import load_transformers

    return load_transformers(target, name)


def _features(target: str, name: str) -> VLM:
    from bayestta.models.embeddings import load_features

    return load_features(target)


def _checkpoint(target: str, name: str) -> VLM:
    from bayestta.models.open_clip import load_checkpoint

    return load_checkpoint(Path(target))


MODELS: Registry[Entry] = Registry("model")
for _name, _loader, _about in (
    ("lit", _lit, "EfficientNet-Lite0 and MiniLM, aligned in closed form; any class names"),
    ("mini-rn", _mini, "small CLIP with BatchNorm, trained on CIFAR-10 and MNIST; embedded"),
    ("mini-vit", _mini, "small CLIP with LayerNorm, trained on CIFAR-10 and MNIST; embedded"),
    ("clip-rn50", _open_clip, "OpenAI CLIP ResNet-50, downloaded by open_clip"),
    ("clip-vit-b16", _open_clip, "OpenAI CLIP ViT-B/16, downloaded by open_clip"),
    ("open_clip:NAME/TAG", _open_clip, "any open_clip architecture with a tag or weight file"),
    ("hf:ID", _transformers, "CLIP or SigLIP of transformers: hub id or folder (extra `hf`)"),
    ("features:FILE", _features, "cached embeddings that `bayestta features` wrote"),
    ("PATH", _checkpoint, "weight file, or folder with open_clip_config.json"),
):
    MODELS.add(_name, Entry(_loader, _about))


def list_models() -> list[dict[str, str]]:
    """What `load_model` takes, each with a line on where it comes from: names, then patterns.

    >>> [model["name"] for model in list_models()][:3]
    ['clip-rn50', 'clip-vit-b16', 'lit']
    """
    names = sorted(MODELS, key=lambda name: (not name.islower(), name))
    return [{"name": name, "about": MODELS[name].about} for name in names]


def load_model(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    precision: str = "fp32",
) -> VLM:
    """Load a model by name: an embedded one, `open_clip:NAME/TAG`, `hf:ID` or a local path.

    Parameters
    ----------
    name
        One of `list_models()`. A model that you hold already goes through `wrap`.
    device
        Where it runs.
    precision
        `fp32`, `bf16` or `fp16` weights; norms stay in float32, and so do the features.

    >>> load_model("mini-rn").dim
    128
    >>> load_model("mini-rm")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown model 'mini-rm': did you mean 'mini-rn' or ...
    """
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(
            f"load_model takes a name or path, and got a {type(name).__name__}: give a model that "
            "you hold to bayestta.wrap."
        )
    if precision not in PRECISIONS:
        raise ValueError(unknown("precision", precision, PRECISIONS))
    where = find_device(device)  # before the work of loading
    return place(_load(os.fspath(name)), where, PRECISIONS[precision])


def _load(name: str) -> VLM:
    prefix, colon, target = name.partition(":")
    for known in MODELS:
        if (known == name and name.islower()) or (colon and known.startswith(f"{prefix}:")):
            return MODELS[known].load(target if colon else name, name)
    if name and Path(name).exists():
        return MODELS["PATH"].load(name, name)
    if "/" in name or Path(name).suffix in SUFFIXES:
        raise FileNotFoundError(
            f"no checkpoint at {name}: check the path, or write open_clip:NAME/TAG or hf:ID."
        )
    raise ValueError(unknown("model", name, MODELS))
