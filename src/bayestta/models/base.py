"""A vision-language model as the adapters see it, and `load_model`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from bayestta.models._norms import NORMS, batch_statistics
from bayestta.models._preprocess import CLIP_MEAN, CLIP_STD
from bayestta.models._preprocess import Preprocess as Preprocess
from bayestta.names import unknown

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class VLM:
    """What a backend provides: one image tower, a text encoder and the scale between them.

    The towers are frozen, in evaluation mode, and never written to: an adapter passes the tensors
    that it tunes to `encode_image`. Features leave as float32 at unit norm, whatever the precision
    of the weights.
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
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.name, self.preprocess = name, preprocess
        self.visual = visual.eval().requires_grad_(False)
        self.dim, self.scale, self.bias, self.mean, self.std = dim, scale, bias, mean, std
        self.trained_on = trained_on
        self.layout = layout  # channels_last: up to 2.8 times as fast for small convolutions
        if layout != torch.contiguous_format:
            visual.to(memory_format=layout)  # type: ignore[call-overload]
        # functional_call swaps tensors in place while it runs: one pass at a time
        self.lock = threading.RLock()

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """(C,H,W) of an image as the tower takes it; None where that is not known."""
        size = getattr(self.preprocess, "size", None)
        return (len(self.mean), size, size) if isinstance(size, int) else None

    @property
    def device(self) -> torch.device:
        return next(self.visual.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the largest weight: norms stay in float32."""
        return max(self.visual.parameters(), key=lambda parameter: parameter.numel()).dtype

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all weights and the scale, by which saved states know their model."""
        digest = hashlib.sha256(f"{self.dim} {self.scale:.6g} {self.bias:.6g}".encode())
        for tower in self.towers():
            for key, value in sorted(tower.state_dict().items()):
                digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
                digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()[:16]

    def encode_image(
        self, x: Tensor, params: Mapping[str, Tensor] | None = None, norms: str = "source"
    ) -> Tensor:
        """Pixels (B,C,H,W) -> features (B,D) at unit norm.

        Parameters
        ----------
        params
            Tensors to use instead of the tower's own, by their names in it; the result is
            differentiable in them, and the tower stays as it is.
        norms
            `source`: BatchNorms use their stored statistics; `batch`: those of the batch.
        """
        if norms not in ("source", "batch"):
            raise ValueError(unknown("norm statistics", norms, ["source", "batch"]))
        swap: dict[str, Any] = dict(batch_statistics(self.visual)) if norms == "batch" else {}
        for key, value in (params or {}).items():
            if key not in self._types:
                raise ValueError(
                    f"the image tower of {self.name!r} has no tensor {key!r} among its "
                    f"{len(self._types)}: take the names from norm_parameters(model.visual)."
                )
            swap[key] = value.to(self.device, self._types[key])
        x = x.to(self.device, self.dtype).contiguous(memory_format=self.layout)
        with self.lock:
            z = functional_call(self.visual, swap, (x,)) if swap else self.visual(x)
        return functional.normalize(z.float(), dim=-1)

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
        """Token embeddings (P,L,W) -> (P,D) at unit norm, differentiable.

        The ids travel along, because they tell where the text ends.
        """
        raise NotImplementedError(self._no_prompts())

    def _no_prompts(self) -> str:
        return (
            f"model {self.name!r} has no gradient path through its text tower: for prompt tuning "
            "use mini-rn, mini-vit, clip-rn50, clip-vit-b16, open_clip:NAME/TAG or hf:ID."
        )


SHORT = {  # the two backbones of the paper, with OpenAI's weights
    "clip-rn50": "open_clip:RN50-quickgelu/openai",
    "clip-vit-b16": "open_clip:ViT-B-16-quickgelu/openai",
}
EMBEDDED = ("lit", "mini-rn", "mini-vit")
ABOUT = {
    "lit": "EfficientNet-Lite0 and MiniLM aligned in closed form; any class names; the default",
    "mini-rn": "small CLIP with BatchNorm, trained on CIFAR-10 and MNIST; ships with the package",
    "mini-vit": "small CLIP with LayerNorm, trained on CIFAR-10 and MNIST; ships with the package",
    "clip-rn50": f"OpenAI CLIP ResNet-50, downloaded by open_clip ({SHORT['clip-rn50']})",
    "clip-vit-b16": f"OpenAI CLIP ViT-B/16, downloaded by open_clip ({SHORT['clip-vit-b16']})",
    "open_clip:NAME/TAG": "any open_clip architecture and pretrained tag or weight file",
    "hf:ID": "a CLIP or SigLIP of transformers, by hub id or local folder (extra `hf`)",
    "features:FILE": "cached embeddings of a data set, which `bayestta features` wrote",
    "PATH": "a checkpoint: .safetensors, a state dict, or a folder with open_clip_config.json",
}


def list_models() -> list[dict[str, str]]:
    """What `load_model` takes, each with a line on where it comes from."""
    return [{"name": name, "about": line} for name, line in ABOUT.items()]


def load_model(name: str, *, device: str | torch.device = "cpu", precision: str = "fp32") -> VLM:
    """Load a model by name: an embedded one, `open_clip:NAME/TAG`, `hf:ID` or a local path.

    Parameters
    ----------
    name
        One of `list_models()`.
    device
        Where it runs.
    precision
        `fp32`, `bf16` or `fp16` weights; norms stay in float32, and so do the features.

    >>> load_model("mini-rm")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown model 'mini-rm': did you mean 'mini-rn' or ...
    """
    if precision not in PRECISIONS:
        raise ValueError(unknown("precision", precision, PRECISIONS))
    where = find_device(device)  # before the work of loading
    return place(_load(name), where, PRECISIONS[precision])


def _load(name: str) -> VLM:
    target = SHORT.get(name, name)
    if target == "lit":
        from bayestta.models.lit import load_lit

        return load_lit()
    if target in EMBEDDED:
        from bayestta.models.mini import load_mini

        return load_mini(target)
    if target.startswith("open_clip:"):
        from bayestta.models.open_clip import load_open_clip

        return load_open_clip(target.removeprefix("open_clip:"), name)
    if target.startswith("hf:"):
        from bayestta.models.transformers import load_transformers

        return load_transformers(target.removeprefix("hf:"), name)
    if target.startswith("features:"):
        from bayestta.models.features import load_features

        return load_features(target.removeprefix("features:"))
    if target and Path(target).exists():
        from bayestta.models.open_clip import load_checkpoint

        return load_checkpoint(Path(target))
    if "/" in target or Path(target).suffix in (".safetensors", ".pt", ".pth", ".bin"):
        raise FileNotFoundError(
            f"no checkpoint at {target}: check the path, or write open_clip:NAME/TAG or hf:ID."
        )
    raise ValueError(unknown("model", name, ABOUT))


def find_device(device: str | torch.device) -> torch.device:
    """The device, or a ValueError where this machine or this torch has none of that kind."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"unknown device {device!r}: use cpu, cuda, cuda:N or mps.") from None
    count = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= count:
        raise ValueError(
            f"device {str(device)!r} does not exist, torch sees {count} CUDA device(s): use 'cpu', "
            "or install a torch build for your GPU."
        )
    return found


def place(model: VLM, device: torch.device, dtype: torch.dtype) -> VLM:
    """Move a model and set the type of its weights; norms keep float32, and compute in it."""
    for tower in model.towers():
        tower.to(device)
        if dtype == torch.float32:
            continue
        for module in tower.modules():
            if isinstance(module, NORMS):
                # A norm takes float32 in, and hands its neighbours the type that they expect.
                module.register_forward_pre_hook(_to_float)
                module.register_forward_hook(partial(_from_float, dtype))
                continue
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(dtype)
    return model


def _to_float(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0].float(), *inputs[1:])


def _from_float(dtype: torch.dtype, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.to(dtype)
