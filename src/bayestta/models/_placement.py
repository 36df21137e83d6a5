"""Where a model runs, in which precision, and whether a method can work with it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayestta.models._norms import NORMS
from bayestta.models._vlm import VLM

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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


def check_model(model: object, method: str, *, needs_encoder: bool) -> None:
    """Refuse a model that a method cannot work with."""
    if not isinstance(model, VLM):
        raise TypeError(
            f"{method} got a model of type {type(model).__name__}: give what load_model or wrap "
            "returned."
        )
    if model.device.type == "mps":
        raise ValueError(
            "device 'mps' has no float64, in which statistics are kept: load the model with "
            "device='cpu' or on CUDA."
        )
    if needs_encoder and not any(True for _ in model.visual.parameters()):
        raise ValueError(
            f"{method} runs the image tower, which cached features lack: give it a model such as "
            "'lit', or use a method that works on features, such as bayestta, tda or oga."
        )
