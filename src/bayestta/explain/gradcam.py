"""Grad-CAM: where in an image a logit comes from, for convolutional towers and for ViT.

Selvaraju et al., Grad-CAM, ICCV 2017. The layer is found by what it computes, not by its name: the
last feature map of a convolutional tower (`layer4` of a ResNet), and of a ViT the input of the last
block, which its attention norm reads: the patch tokens after that attention carry no gradient,
because the answer is read off the class token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bayestta.models.base import VLM

PATCHES = 4  # tokens, from which a sequence can be a grid
SIDE, COLOURS = 112, 64  # of a picture: pixels, and entries of its palette
HEAT = ((20, 30, 110), (0, 150, 200), (240, 220, 60), (210, 30, 20))  # from nothing to the most


@dataclass(frozen=True)
class Layer:
    """Where the activations are read: the output of a module, or the input of a ViT block."""

    module: nn.Module
    name: str
    tokens: bool


@dataclass
class Read:
    """The activations of one pass, cut from what came before them."""

    activation: Tensor | None = field(default=None)


def find_layer(model: VLM, x: Tensor) -> Layer:
    """The last feature map of the tower, found by running one image (1,C,H,W) through it."""
    found: list[Layer] = []
    hooks = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            tokens = _first(args, kwargs)
            if _is_block(module) and tokens is not None and tokens.ndim == 3:
                if tokens.shape[1] >= PATCHES:
                    found.append(Layer(module, name, tokens=True))
            elif (
                isinstance(output, Tensor) and output.ndim == 4 and math.prod(output.shape[2:]) > 1
            ):
                found.append(Layer(module, name, tokens=False))

        return hook

    try:
        for name, module in model.visual.named_modules():
            hooks.append(module.register_forward_hook(look(name), with_kwargs=True))
        with torch.no_grad():
            model.encode_image(x[:1])
    finally:
        for one in hooks:
            one.remove()
    if not found:
        raise ValueError(
            f"the image tower of {model.name!r} has neither a feature map nor a block with two "
            "layer norms, so there is nothing for Grad-CAM to read: leave its pictures out."
        )
    return found[-1]


def grad_cam(
    model: VLM,
    x: Tensor,
    text: Tensor,
    classes: Sequence[int],
    *,
    pick: Sequence[int] | None = None,
    params: Mapping[str, Tensor] | None = None,
    norms: str = "source",
    layer: Layer | None = None,
) -> Tensor:
    """Maps (n,h,w) in 0..1 of the logits of `classes` for the images `pick` of the batch `x`.

    `params` and `norms` are those of `VLM.encode_image`. The model stays as it is. A map is zero
    all over where nothing speaks for the class.
    """
    pick = range(len(x)) if pick is None else pick
    layer = layer or find_layer(model, x)
    frozen = {key: value.detach() for key, value in (params or {}).items()}
    with torch.enable_grad(), _cut(layer) as read:
        logits = model.logits(model.encode_image(x.detach(), frozen, norms), text.detach())
        # Behind the layer images do not meet, so that one backward pass serves them all.
        target = logits[list(pick), list(classes)].sum()
        assert read.activation is not None
        (gradient,) = torch.autograd.grad(target, [read.activation])
    chosen = torch.tensor(list(pick), device=gradient.device)
    activation = _grid(read.activation.detach()[chosen].float(), layer)  # (n,C,h,w)
    weight = _grid(gradient[chosen].float(), layer).mean(dim=(2, 3), keepdim=True)
    cam = (weight * activation).sum(dim=1).relu()  # (n,h,w)
    return cam / cam.amax(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(cam.dtype).tiny)


@contextmanager
def _cut(layer: Layer) -> Iterator[Read]:
    """Make the activations of the layer a leaf, so that gradients stop there."""
    read = Read()

    def cut(tensor: Tensor) -> Tensor:
        read.activation = tensor.detach().requires_grad_()
        return read.activation.clone()  # a leaf itself could not be written to in place

    def before(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if args:
            return (cut(args[0]), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: cut(kwargs[name])}

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return cut(output)

    if layer.tokens:
        hook = layer.module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        hook = layer.module.register_forward_hook(after)
    try:
        yield read
    finally:
        hook.remove()


def _grid(tensor: Tensor, layer: Layer) -> Tensor:
    """Maps as they are; tokens (n,N,C) as (n,C,h,w), without class token and registers."""
    if not layer.tokens:
        return tensor
    side = math.isqrt(tensor.shape[1])
    patches = tensor[:, tensor.shape[1] - side * side :]
    return patches.transpose(1, 2).reshape(len(tensor), -1, side, side)


def _is_block(module: nn.Module) -> bool:
    """A transformer block by its parts: a norm before the attention and one before the MLP."""
    return sum(isinstance(child, nn.LayerNorm) for child in module.children()) >= 2


def _first(args: Any, kwargs: Any) -> Tensor | None:
    given = [*args, *kwargs.values()]
    return given[0] if given and isinstance(given[0], Tensor) else None


def overlay(image: Tensor, cam: Tensor) -> Tensor:
    """A map (h,w) in 0..1 over an image (3,H,W): the stronger, the less of the image is left."""
    size = image.shape[1:]
    heat = cam.detach().float().cpu()[None, None]
    heat = functional.interpolate(heat, size, mode="bilinear", align_corners=False)[0].clamp(0, 1)
    ramp = torch.tensor(HEAT).float().T[None] / 255  # (1,3,colours)
    place = heat[0].flatten() * (ramp.shape[2] - 1)
    low = place.floor().long().clamp(max=ramp.shape[2] - 2)
    share = place - low
    colour = (ramp[0][:, low] * (1 - share) + ramp[0][:, low + 1] * share).view(3, *size)
    strength = 0.25 + 0.45 * heat
    return image * (1 - strength) + colour * strength
