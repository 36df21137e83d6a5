"""The strong augmentation of CoTTA (Wang et al., CVPR 2022), on batches of pixels; RoTTA's too.

ROID's (Marsden et al., WACV 2024) is the same without blur and noise, with reflected borders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.models._torchvision import import_torchvision

if TYPE_CHECKING:
    from bayestta.models.base import VLM


def augment(
    model: VLM,
    x: Tensor,
    generator: torch.Generator,
    *,
    compat_unnormalised: bool = False,
    clean: bool = False,
) -> Tensor:
    """Augment a normalised batch (B,C,H,W): back to pixels, `distort`, normalise.

    `compat_unnormalised` leaves the way back out, as a port of the code for raw pixels would: what
    lies outside [0,1] after normalisation, more than half of most images, is then clipped away.
    """
    if compat_unnormalised:
        return distort(x, generator, clean=clean)
    mean = torch.tensor(model.mean, device=x.device, dtype=x.dtype).view(-1, 1, 1)
    std = torch.tensor(model.std, device=x.device, dtype=x.dtype).view(-1, 1, 1)
    return (distort(x * std + mean, generator, clean=clean) - mean) / std


@torch.no_grad()
def distort(x: Tensor, generator: torch.Generator, *, clean: bool = False) -> Tensor:
    """Colour, geometry, blur and noise of one random draw for the whole batch of pixels in [0,1].

    `clean` is ROID's: no blur, no noise, and borders that are reflected instead of repeated.

    >>> x = torch.full((2, 3, 8, 8), 0.5)
    >>> y = distort(x, torch.Generator().manual_seed(0))
    >>> y.shape, bool(y.min() >= 0), bool(y.max() <= 1)
    (torch.Size([2, 3, 8, 8]), True, True)
    """
    import_torchvision()
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as images

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    size = x.shape[-1]
    brightness, contrast, saturation = uniform(0.6, 1.4), uniform(0.7, 1.3), uniform(0.5, 1.5)
    hue, gamma = uniform(-0.06, 0.06), uniform(0.7, 1.3)
    colours: list[Callable[[Tensor], Tensor]] = [
        lambda x: images.adjust_brightness(x, brightness),
        lambda x: images.adjust_contrast(x, contrast),
        lambda x: images.adjust_saturation(x, saturation),
        lambda x: images.adjust_hue(x, hue),
        lambda x: images.adjust_gamma(x.clamp_min(1e-8), gamma),
    ]
    x = x.clamp(0, 1)
    for i in torch.randperm(len(colours), generator=generator).tolist():
        x = colours[i](x)
    x = functional.pad(x, [size // 2] * 4, mode="reflect" if clean else "replicate")
    shift = x.shape[-1] / 16  # of the padded image
    x = images.affine(
        x,
        angle=uniform(-15, 15),
        translate=[round(uniform(-shift, shift)), round(uniform(-shift, shift))],
        scale=uniform(0.9, 1.1),
        shear=[0.0, 0.0],
        interpolation=InterpolationMode.BILINEAR,
    )
    if not clean:
        sigma = uniform(0.001, 0.5)
        x = images.gaussian_blur(x, [5, 5], [sigma, sigma])
    x = images.center_crop(x, [size, size])
    if uniform(0, 1) < 0.5:
        x = x.flip(-1)
    if clean:
        return x.clamp(0, 1)
    noise = torch.randn(x.shape, generator=generator)
    return (x + 0.005 * noise.to(x)).clamp(0, 1)
