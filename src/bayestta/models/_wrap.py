"""`wrap`: a model that the caller made, or embeddings alone, as the adapters see a model."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from bayestta.models._checkpoints import reason
from bayestta.models._preprocess import CLIP_MEAN, CLIP_STD, Preprocess
from bayestta.models._vlm import VLM
from bayestta.models.embeddings import Prototypes

SIDE = 320  # of the image that a caller's preprocessing is tried on


def wrap(
    model: Any = None,
    tokenizer: Any = None,
    preprocess: Callable[[Image.Image], Tensor] | None = None,
    *,
    text: Any = None,
    scale: float | None = None,
    bias: float | None = None,
    name: str | None = None,
) -> VLM:
    """Make a model that you hold usable by adapters; nothing is written into it.

    Its weights are shared, not copied. Its requires_grad flags, train or eval mode, hooks and
    buffers stay as they are: passes run in evaluation mode on a copy of the modules over the same
    tensors. Weights that you train in place are seen; after `.to(...)`, or new hooks, wrap again.

    Parameters
    ----------
    model
        A CLIP of open_clip, or a CLIPModel or SiglipModel of transformers.
    tokenizer
        For open_clip what `get_tokenizer` gave; for transformers the processor, or the tokenizer.
    preprocess
        For open_clip the last result of `create_model_and_transforms`; left out, it follows from
        the model's settings. For transformers the image processor, where no processor is given.
    text, scale, bias
        Instead of a model: text prototypes (K,D), one row per class in the order of the adapter's
        class names, with logits `scale * cosine + bias` (scale 100 for CLIP). Adapters then take
        image features (B,D), of any norm.
    name
        What results and messages call it; by default that of its class.

    >>> model = wrap(text=torch.eye(3), scale=100.0)
    >>> import bayestta as bt
    >>> adapter = bt.BayesTTA(model, ["cat", "dog", "car"], refine=False)
    >>> adapter.adapt(torch.tensor([[0.1, 0.9, 0.0]])).argmax(1).tolist()
    [1]
    """
    if text is not None:
        if model is not None or tokenizer is not None or preprocess is not None:
            raise TypeError("wrap got both a model and text prototypes: give one of them.")
        if scale is None or not scale > 0:
            raise ValueError(
                f"scale is {scale}: give the positive factor of the cosines, 100.0 for CLIP."
            )
        named = {} if name is None else {"name": name}
        return Prototypes(torch.as_tensor(text), scale=float(scale), bias=bias or 0.0, **named)
    if scale is not None or bias is not None:
        raise TypeError("scale and bias go with text=...: a model brings its own.")
    if isinstance(model, str):
        raise TypeError(
            f"wrap takes a model that you hold, and {model!r} is a name: use "
            f"bayestta.load_model({model!r})."
        )
    if isinstance(model, VLM):
        raise TypeError(f"{model.name!r} is a model of bayestta already: give it to an adapter.")
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"wrap got a {type(model).__name__}: give a CLIP of open_clip, a CLIPModel or "
            "SiglipModel of transformers, or text=... and scale=... for embeddings alone."
        )
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    called = name or type(model).__name__
    if hasattr(getattr(model, "config", None), "model_type"):
        return _wrap_transformers(model, tokenizer, preprocess, called)
    return _wrap_open_clip(model, tokenizer, preprocess, called)


def _wrap_open_clip(clip: Any, tokenizer: Any, preprocess: Any, name: str) -> VLM:
    from bayestta.models.open_clip import OpenCLIP

    missing = [k for k in ("visual", "encode_text", "logit_scale") if not hasattr(clip, k)]
    if missing:
        cure = "model.module" if hasattr(clip, "module") else "the whole CLIP, not one of its parts"
        raise TypeError(f"{name} has no {' and no '.join(missing)}, as a CLIP has: give {cure}.")
    _check_tokenizer(tokenizer)
    given = None if preprocess is None else _tried(preprocess)
    own: Any = alias(clip)
    if hasattr(own, "set_grad_checkpointing"):
        own.set_grad_checkpointing(False)  # it would run again without the tensors of an adapter
    model = OpenCLIP(name, own, tokenizer, given)
    size = model.preprocess.size  # type: ignore[attr-defined]
    try:
        with torch.no_grad():
            model.encode_image(torch.zeros(1, 3, size, size))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(
            f"the image tower of {name} does not take the {size} x {size} pixels that preprocess "
            f"makes ({reason(error)}): give the preprocess that belongs to the model."
        ) from error
    return model


def _wrap_transformers(model: Any, tokenizer: Any, image_processor: Any, name: str) -> VLM:
    from bayestta.models.transformers import FAMILIES, Transformers, check_tokenizer, preprocess

    if model.config.model_type not in FAMILIES or not hasattr(model, "vision_model"):
        raise TypeError(
            f"{name} is of the family {model.config.model_type!r}: wrap takes CLIPModel and "
            "SiglipModel of transformers."
        )
    images = getattr(tokenizer, "image_processor", image_processor)
    words = getattr(tokenizer, "tokenizer", tokenizer)
    if not callable(words) or not hasattr(images, "to_json_string"):
        raise TypeError(
            f"{name} needs its tokenizer and image processor: write wrap(model, processor) with "
            "processor = AutoProcessor.from_pretrained(...)."
        )
    check_tokenizer(words, model, name)
    return Transformers(
        name, alias(model), words, preprocess(json.loads(images.to_json_string()), name)
    )


def alias(module: nn.Module) -> nn.Module:
    """A copy of the modules over the same tensors: frozen, in evaluation mode, with equal hooks.

    What is done to the copy (tensors swapped for a pass, hooks, flags) never reaches the original,
    not even for a moment, so that the owner may use it from another thread.

    >>> layer = nn.Linear(2, 2)
    >>> other = alias(layer)
    >>> other.weight.data_ptr() == layer.weight.data_ptr(), other.training, layer.training
    (True, False, True)
    """
    memo: dict[int, Any] = {}  # what deepcopy is to use instead of a copy
    for part in module.modules():
        for key, value in vars(part).items():
            if isinstance(value, dict) and key.endswith(("_hooks", "_hooks_with_kwargs")):
                # our gradients are none of the owner's business
                memo[id(value)] = OrderedDict() if "backward" in key else copy.copy(value)
        for tensor in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(tensor, nn.Parameter):
                memo[id(tensor)] = nn.Parameter(tensor.detach(), requires_grad=False)
            elif isinstance(tensor, Tensor):
                memo[id(tensor)] = tensor.detach()
    try:
        return copy.deepcopy(module, memo).eval().requires_grad_(False)
    except Exception as error:  # whatever the owner keeps in there
        raise TypeError(
            f"the modules of {type(module).__name__} cannot be copied ({reason(error)}): remove "
            "what was attached to them, or save the weights and use load_model."
        ) from error


@dataclass(frozen=True)
class Given:
    """A caller's preprocessing, with the facts about it that views and augmentations need."""

    transform: Callable[[Image.Image], Tensor]
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: Image.Image) -> Tensor:
        return self.transform(image)


def _tried(preprocess: Any) -> Given | Preprocess:
    """The preprocessing, after a look at what it makes of an image."""
    if isinstance(preprocess, Preprocess):
        return preprocess
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    cure = "give the last result of open_clip.create_model_and_transforms"
    try:
        one, two = (preprocess(Image.fromarray(pixels)) for _ in range(2))
    except Exception as error:  # it is not ours
        raise TypeError(
            f"preprocess does not take a PIL image ({reason(error)}): {cure}."
        ) from error
    if not isinstance(one, Tensor) or one.ndim != 3 or one.shape[1] != one.shape[2]:
        shape = tuple(one.shape) if isinstance(one, Tensor) else f"a {type(one).__name__}"
        raise ValueError(f"preprocess makes {shape} of an image instead of (3, S, S): {cure}.")
    if not torch.equal(one, two):
        raise ValueError(
            "preprocess makes something else of the same image each time, as the one for training "
            f"does: {cure}."
        )
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    for step in getattr(preprocess, "transforms", ()):
        if hasattr(step, "mean") and hasattr(step, "std"):
            mean, std = (tuple(float(v) for v in values) for values in (step.mean, step.std))
    return Given(preprocess, int(one.shape[1]), mean, std)


def _check_tokenizer(tokenizer: Any) -> None:
    cure = "give what open_clip.get_tokenizer(NAME) returns"
    try:
        tokens = tokenizer(["cat", "dog"])
    except Exception as error:  # it is not ours
        raise TypeError(f"the tokenizer does not take texts ({reason(error)}): {cure}.") from error
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or torch.equal(tokens[0], tokens[1]):
        raise TypeError(f"the tokenizer does not make a tensor (P,L) of ids: {cure}.")
