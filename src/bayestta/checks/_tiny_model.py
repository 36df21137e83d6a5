"""Two tiny random CLIPs and a few pictures: all that the checks need, without a download."""

from __future__ import annotations

import copy
import math
import re
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from bayestta.data._base import Data, Dataset
from bayestta.data._views import Recipe, Views, Workers
from bayestta.models._torchvision import import_torchvision
from bayestta.models.base import VLM, place
from bayestta.models.open_clip import OpenCLIP
from bayestta.names import unknown

LENGTH, WORDS = 32, 510  # tokens per prompt, different words
TEXT = {"context_length": LENGTH, "vocab_size": WORDS + 2, "width": 16, "heads": 2, "layers": 1}
TOWERS: dict[str, dict[str, Any]] = {
    "BatchNorm": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 4, "patch_size": None},
    "LayerNorm": {"image_size": 16, "layers": 1, "width": 32, "head_width": 16, "patch_size": 4},
}
PICTURES = 16
VIEWS = 4


def tiny_model(tower: str = "LayerNorm", *, dtype: torch.dtype = torch.float32) -> VLM:
    """A CLIP of open_clip with random weights; each call gives a model of its own.

    Parameters
    ----------
    tower
        `BatchNorm`: a ResNet that takes 64 x 64 pixels; `LayerNorm`: a ViT that takes 16 x 16.
    dtype
        Type of the weights; norms stay in float32.

    >>> model = tiny_model("LayerNorm")
    >>> model.encode_image(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 24])
    """
    if tower not in TOWERS:
        raise ValueError(unknown("tower", tower, TOWERS))
    model = OpenCLIP(f"tiny:{tower}", copy.deepcopy(_clip(tower)), tokenize)
    return place(model, torch.device("cpu"), dtype)


@cache
def _clip(tower: str) -> nn.Module:
    import_torchvision()
    from open_clip import CLIP

    with torch.inference_mode(False), torch.random.fork_rng():
        torch.manual_seed(0)
        clip: nn.Module = CLIP(embed_dim=24, vision_cfg=TOWERS[tower], text_cfg=TEXT)
        with torch.no_grad():
            for name, value in clip.named_parameters():
                if name.endswith("bn3.weight"):
                    value.fill_(1.0)  # open_clip starts it at zero, which stops all gradients
                if name == "logit_scale":
                    value.fill_(math.log(100))
    return clip


def tokenize(prompts: Sequence[str]) -> Tensor:
    """Token ids (P,L): one per word, by its checksum, between a start and an end."""
    start, end = WORDS, WORDS + 1  # CLIP reads the text at its largest id
    tokens = torch.zeros(len(prompts), LENGTH, dtype=torch.int64)
    for row, prompt in zip(tokens, prompts, strict=True):
        words = re.findall(r"\w+|[^\w\s]", prompt.lower())[: LENGTH - 2]
        ids = [start, *(1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words), end]
        row[: len(ids)] = torch.tensor(ids)
    return tokens


def is_pristine(model: VLM, tower: str) -> bool:
    """Whether a tiny model is as `tiny_model` made it."""
    now, start = model.towers()[0], _clip(tower)
    pairs = zip(now.state_dict().values(), start.state_dict().values(), strict=True)
    return (
        all(one.dtype == two.dtype and torch.equal(one, two) for one, two in pairs)
        and not any(module.training for module in now.modules())
        and not any(value.requires_grad or value.grad is not None for value in now.parameters())
    )


class Pictures(Dataset, Data):
    """Smooth random images."""

    name, domains = "pictures", ["all"]

    def __getitem__(self, i: Any) -> Any:
        if i == "all":
            return self
        levels = np.random.default_rng(i).integers(0, 256, (4, 4, 3), np.uint8)
        return Image.fromarray(levels).resize((24, 24), Image.Resampling.BICUBIC), None

    def __len__(self) -> int:
        return PICTURES


def pictures(model: VLM) -> Tensor:
    """The pictures as the model takes them, (16,C,H,W)."""
    return torch.stack([model.preprocess(Pictures()[i][0]) for i in range(PICTURES)])


def views(model: VLM, plain: Tensor, rows: list[int]) -> Views:
    """A lazy batch of views, as the stream makes it."""
    recipe = Recipe(Pictures(), model.preprocess, "crop", VIEWS, 0)
    return Views(plain, rows, "all", Workers(recipe, 0))
