"""A vision-language model as the adapters see it, and `load_model`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bayestta.names import unknown
from bayestta.norms import batch_statistics

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Preprocess:
    """PIL image -> normalised tensor (C,H,W): bicubic resize of the short side (or of both), centre crop.

    `batch` does the same to uint8 pixels (B,H,W,C) at once, to within a grey level of Pillow.
    """

    size: int
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    squash: bool = False

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if self.squash:
            return self.size, self.size
        short = min(height, width)
        return int(self.size * height / short), int(self.size * width / short)

    def __call__(self, image: Image.Image) -> Tensor:
        height, width = self._resized(image.height, image.width)
        image = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return self._finish(pixels.view(1, height, width, 3).permute(0, 3, 1, 2))[0]

    def batch(self, pixels: Tensor) -> Tensor:
        x = pixels.permute(0, 3, 1, 2)
        size = self._resized(x.shape[2], x.shape[3])
        if size != tuple(x.shape[2:]):
            x = F.interpolate(x.float(), size, mode="bicubic", antialias=True).round_().clamp_(0, 255)
        return self._finish(x)

    def _finish(self, x: Tensor) -> Tensor:
        """Crop, scale and normalise (B,C,H,W) grey levels."""
        top, left = round((x.shape[2] - self.size) / 2), round((x.shape[3] - self.size) / 2)
        x = x[:, :, top : top + self.size, left : left + self.size].float() / 255
        return (x - torch.tensor(self.mean).view(-1, 1, 1)) / torch.tensor(self.std).view(-1, 1, 1)


class VLM:
    """What a backend provides: one image tower, a text encoder and the scale between them.

    The tower is frozen, in evaluation mode, and never written to: an adapter passes the tensors that it tunes to
    `encode_image`. Features leave as float32 at unit norm, whatever the precision of the weights.
    """

    prompt_tuning = False  # whether embed and encode_embeddings work

    def __init__(
        self,
        name: str,
        visual: nn.Module,
        preprocess: Callable[[Image.Image], Tensor],
        *,
        dim: int,
        scale: float,
        bias: float = 0.0,
        mean: tuple[float, ...] = CLIP_MEAN,
        std: tuple[float, ...] = CLIP_STD,
        trained_on: frozenset[str] = frozenset(),
    ) -> None:
        self.name, self.visual, self.preprocess = name, visual.eval().requires_grad_(False), preprocess
        self.dim, self.scale, self.bias, self.mean, self.std = dim, scale, bias, mean, std
        self.trained_on = trained_on
        self.encode_seconds = 0.0  # time in the image tower's forward passes, for the runner's account

    @property
    def device(self) -> torch.device:
        return next(self.visual.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return max(  # the type of most weights: norms may stay in float32
            (p for p in self.visual.parameters()), key=lambda p: p.numel()
        ).dtype

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the image tower and the scale, by which saved states know their model."""
        digest = hashlib.sha256(f"{self.dim} {self.scale:.6g} {self.bias:.6g}".encode())
        for key, value in sorted(self.visual.state_dict().items()):
            digest.update(f"{key} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.ndim else b"")
        return digest.hexdigest()[:16]

    def encode_image(
        self, x: Tensor, params: Mapping[str, Tensor] | None = None, norms: str = "source"
    ) -> Tensor:
        """(B,C,H,W) -> (B,D) at unit norm, differentiable in `params`, the tuned tensors of the tower by name.

        `norms="batch"` makes BatchNorms normalise by the batch instead of by their stored statistics.
        """
        if norms not in ("source", "batch"):
            raise ValueError(unknown("norm statistics", norms, ["source", "batch"]))
        began = time.perf_counter()
        swap: dict[str, Any] = dict(batch_statistics(self.visual)) if norms == "batch" else {}
        for key, value in (params or {}).items():
            swap[key] = value.to(self._types[key])
        x = x.to(self.device, self.dtype)
        z = functional_call(self.visual, swap, (x,)) if swap else self.visual(x)
        z = F.normalize(z.float(), dim=-1)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.encode_seconds += time.perf_counter() - began
        return z

    @cached_property
    def _types(self) -> dict[str, torch.dtype]:
        return {key: value.dtype for key, value in self.visual.state_dict().items()}

    def towers(self) -> list[nn.Module]:
        """The modules that move with the model."""
        return [self.visual]

    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        """Prompts -> (P,D) at unit norm."""
        raise NotImplementedError

    def logits(self, z: Tensor, text: Tensor) -> Tensor:
        """Features (B,D) and prototypes (K,D) -> (B,K)."""
        return self.scale * z @ text.T + self.bias

    def embed(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Prompts -> token embeddings (P,L,W) and token ids (P,L), for prompt tuning."""
        raise NotImplementedError(self._no_prompts())

    def encode_embeddings(self, embeddings: Tensor, tokens: Tensor) -> Tensor:
        """Token embeddings (P,L,W) -> (P,D) at unit norm, differentiable; the ids tell where the text ends."""
        raise NotImplementedError(self._no_prompts())

    def _no_prompts(self) -> str:
        return (
            f"model {self.name!r} has no gradient path through its text tower: for prompt tuning use mini-rn, mini-vit, "
            "clip-rn50, clip-vit-b16, open_clip:NAME/TAG or hf:ID."
        )


SHORT = {  # the two backbones of the paper, with OpenAI's weights
    "clip-rn50": "open_clip:RN50-quickgelu/openai",
    "clip-vit-b16": "open_clip:ViT-B-16-quickgelu/openai",
}
EMBEDDED = ("lit", "mini-rn", "mini-vit")


def list_models() -> list[dict[str, str]]:
    """What `load_model` takes, each with a line on where it comes from."""
    about = {
        "lit": "EfficientNet-Lite0 and MiniLM aligned in closed form; any class names; the default",
        "mini-rn": "small CLIP with BatchNorm, trained on CIFAR-10 and MNIST; ships with the package",
        "mini-vit": "small CLIP with LayerNorm, trained on CIFAR-10 and MNIST; ships with the package",
        "clip-rn50": f"OpenAI CLIP ResNet-50, downloaded by open_clip ({SHORT['clip-rn50']})",
        "clip-vit-b16": f"OpenAI CLIP ViT-B/16, downloaded by open_clip ({SHORT['clip-vit-b16']})",
        "open_clip:NAME/TAG": "any open_clip architecture and pretrained tag or weight file",
        "hf:ID": "a CLIP or SigLIP of transformers, by hub id or local folder (extra `hf`)",
        "PATH": "a local checkpoint: .safetensors, a state dict, or a folder with open_clip_config.json",
    }
    return [{"name": name, "about": line} for name, line in about.items()]


def load_model(name: str, *, device: str | torch.device = "cpu", precision: str = "fp32") -> VLM:
    """Load a model: `lit`, `mini-rn`, `mini-vit`, a short name, `open_clip:NAME/TAG`, `hf:ID` or a local path.

    Parameters
    ----------
    device
        Where it runs.
    precision
        `fp32`, `bf16` or `fp16` weights (norms stay in float32); features are float32 in any case.

    >>> load_model("mini-rm")
    Traceback (most recent call last):
    ...
    ValueError: unknown model 'mini-rm': did you mean 'mini-rn'? Valid: PATH, clip-rn50, clip-vit-b16, hf:ID, lit, \
mini-rn, mini-vit, open_clip:NAME/TAG.
    """
    if precision not in PRECISIONS:
        raise ValueError(unknown("precision", precision, PRECISIONS))
    target = SHORT.get(name, name)
    if target == "lit":
        from bayestta.backends.lit import load_lit

        model: VLM = load_lit()
    elif target in EMBEDDED:
        from bayestta.backends.mini import load_mini

        model = load_mini(target)
    elif target.startswith("open_clip:"):
        from bayestta.backends.open_clip import load_open_clip

        model = load_open_clip(target.removeprefix("open_clip:"), name)
    elif target.startswith("hf:"):
        from bayestta.backends.transformers import load_transformers

        model = load_transformers(target.removeprefix("hf:"), name)
    elif Path(target).exists():
        from bayestta.backends.open_clip import load_checkpoint

        model = load_checkpoint(Path(target))
    elif "/" in target or Path(target).suffix in (".safetensors", ".pt", ".pth", ".bin"):
        raise FileNotFoundError(f"no checkpoint at {target}: check the path, or write open_clip:NAME/TAG or hf:ID.")
    else:
        raise ValueError(unknown("model", name, [m["name"] for m in list_models()]))
    return place(model, torch.device(device), PRECISIONS[precision])


def place(model: VLM, device: torch.device, dtype: torch.dtype) -> VLM:
    """Move a model; norms and anything that is not a floating weight keep their type."""
    from bayestta.norms import NORMS

    for module in (m for tower in model.towers() for m in tower.modules()):
        if dtype != torch.float32 and not isinstance(module, NORMS):
            for key, parameter in module.named_parameters(recurse=False):
                setattr(module, key, nn.Parameter(parameter.to(dtype), requires_grad=False))
    for tower in model.towers():
        tower.to(device)
    return model
