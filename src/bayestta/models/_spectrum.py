"""How the power of images is spread over frequencies, and images in which it is spread otherwise.

Blur takes power from high frequencies, noise adds some, a flat light takes from all. Photographs,
whatever they show, have much the same spread: with f in cycles per image and pixels in [0, 1], the
power of a coefficient is about

    ln P(f) = -6.2 - 2 ln f - 0.17 (ln f)^2

on average over images (fitted to photographs of pets at 64 to 224 pixels and CIFAR-10 at 32).
Single images stray from it by 0.5 to 0.8, classes of CIFAR-10 by at most 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

BANDS = 18  # of half an octave each, from one cycle per image on
STRAY = 6.0  # nats of a single image at the most: a black one would outweigh all others


def photographs() -> Tensor:
    """The logarithm of the power of photographs, per band (BANDS,)."""
    log_f = torch.arange(BANDS) / 2 * torch.log(torch.tensor(2.0))
    return -6.2 - 2 * log_f - 0.17 * log_f**2


def expected_power(spectrum: Sequence[float] | None) -> Tensor:
    """The logarithm of the power per band (BANDS,) of the images that a model was trained on.

    `spectrum` has that of the first bands; what it does not have, or None, is of photographs.
    """
    power = photographs()
    if spectrum is not None:
        if len(spectrum) > BANDS:
            raise ValueError(
                f"spectrum has {len(spectrum)} bands, and {BANDS} are measured: leave out the last "
                f"{len(spectrum) - BANDS}."
            )
        power[: len(spectrum)] = torch.tensor(spectrum)
    return power


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # what is made there could not be used elsewhere
def _bands(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of each coefficient (H,W/2+1) the band, BANDS for the mean, and its weight; counts (BANDS,).

    What lies beyond the finest grating along an axis belongs to the last band below it.
    """
    fy, fx = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
    f = (fy**2 + fx**2).sqrt().clamp(max=0.5) * (height * width) ** 0.5
    band = (2 * f.clamp_min(1e-9).log2()).round().long().clamp(0, BANDS - 1)
    band[0, 0] = BANDS
    weight = torch.full(f.shape, 2.0)  # the other half of the plane mirrors this one
    weight[:, 0] = 1.0
    if width % 2 == 0:
        weight[:, -1] = 1.0
    count = torch.zeros(BANDS + 1).index_add_(0, band.flatten(), weight.flatten())[:BANDS]
    return band.to(device), weight.to(device), count.to(device)


def excess(x: Tensor, expected: Tensor) -> Tensor:
    """By how much images (B,C,H,W) have more power than expected (BANDS,), in nats: (B,BANDS).

    Bands that images of this size do not have get 0.
    """
    height, width = x.shape[2:]
    band, weight, count = _bands(height, width, x.device)
    power = torch.fft.rfft2(x.float(), norm="forward").abs().square().mean(1) * weight
    total = power.new_zeros(len(x), BANDS + 1).index_add_(1, band.flatten(), power.flatten(1))
    mean = (total[:, :BANDS] / count.clamp_min(1)).clamp_min(1e-30)
    found = (mean.log() - expected.to(mean)).clamp(-STRAY, STRAY)
    return torch.where(count > 0, found, torch.zeros_like(found))


def equalised(x: Tensor, gain: Tensor) -> Tensor:
    """Images (B,C,H,W) whose coefficients are multiplied by the gain (BANDS,) of their band."""
    height, width = x.shape[2:]
    band = _bands(height, width, x.device)[0]
    factor = torch.cat([gain.to(x.device, torch.float32), x.new_ones(1, dtype=torch.float32)])[band]
    made: Tensor = torch.fft.irfft2(torch.fft.rfft2(x.float()) * factor, s=(height, width))
    return made.to(x.dtype)
