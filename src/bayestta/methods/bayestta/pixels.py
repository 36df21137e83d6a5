"""Pixels of a stream on their way to the statistics of the source: brightness, contrast, spectrum.

A class has colours, contrast and detail of its own, so that small differences are left alone:
a stream that shows one thing for an hour is not a stream whose light has changed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayestta.models._preprocess import CLIP_MEAN, CLIP_STD
from bayestta.models._spectrum import BANDS, equalised, excess, expected_power
from bayestta.models._stream_statistics import (
    Moments,
    channel_gain,
    channel_moments,
    restored_pixels,
)
from bayestta.models.base import VLM
from bayestta.state import StatefulPart

OWN = 0.06  # shift of mean and deviation, in nats per channel, that one class may have of its own
LEVEL = (0.5, 1.0)  # the same for the power of all bands together, in nats
SHAPE = (0.3, 0.6)  # and for that of a band beyond it; both beyond their standard error
EMPTY = (4.0, 5.0)  # nats below what is expected at which a band holds nothing that could be raised
USUAL = 0.2  # of the way that mean and deviation go, up to which images look like photographs
COARSE = 4  # bands, up to three cycles per image, that neither blur nor noise reaches
SAMPLE = 32  # images of a batch whose spectrum is measured


class Pixels(StatefulPart):
    """Running statistics of a stream's pixels, and images restored by them.

    Mean and deviation per channel go part of the way to those of photographs. Then each band of
    frequencies is raised or lowered to the power that photographs have in it, or the images that
    the model was trained on: blurred images become sharper, noisy ones smoother.
    """

    def __init__(self, model: VLM) -> None:
        where = model.device
        mean, std = (torch.tensor(v, device=where) for v in (model.mean, model.std))
        photo = [torch.tensor(v, device=where) for v in (CLIP_MEAN, CLIP_STD)]
        # of photographs, in the units of x: a model's normalisation may be no statistic of images
        self.source = (photo[0] - mean) / std, photo[1] / std
        expected = expected_power(model.spectrum).to(where)
        self.expected = expected + std.pow(-2).mean().log()  # (BANDS,) in units of x
        self.add_state("moments", Moments(self.source[0], self.source[1] ** 2))
        start = torch.zeros(BANDS, device=where)
        self.add_state("bands", Moments(start, torch.ones_like(start)))  # nats beyond expected

    moments: Moments
    bands: Moments

    def look(self, x: Tensor) -> None:
        """Take in the pixels of images (B,C,H,W)."""
        self.moments.add(*channel_moments(x), len(x))
        some = x[:: max(1, len(x) // SAMPLE)]
        var, mean = torch.var_mean(excess(some, self.expected), 0, correction=0)
        self.bands.add(mean, var, len(x))

    def loosen(self) -> None:
        """The stream has moved: what comes next counts more."""
        self.moments.loosen()
        self.bands.loosen()

    @property
    def share(self) -> float:
        """How far mean and deviation go on their way: until what is left may be a class's own.

        What is left of the divergence goes with the square of what is left of the way.
        """
        return self.moments.trust * (1 - math.sqrt(OWN / max(OWN, self.moments.divergence)))

    @property
    def raised(self) -> Tensor:
        """By how much the power of each band is raised (BANDS,), in nats."""
        own, error = self.bands.mean, (self.bands.var / max(1.0, self.bands.n)).sqrt()
        coarse = own[:COARSE].mean()
        level = coarse + 2 * channel_gain(self.moments, self.source, self.share).log().mean()
        shape = own - coarse
        kept = shape * _ramp(shape.abs() - error, *SHAPE) * (1 - _ramp(-shape, *EMPTY))
        raised = level * _ramp(level.abs() - error[:COARSE].mean(), *LEVEL) + kept
        raised = torch.where(self.bands.var > 0, raised, torch.zeros_like(raised))  # or not there
        return -self.bands.trust * raised

    @property
    def as_they_are(self) -> bool:
        """Whether restored images are the images."""
        return not self.share and not bool(self.raised.any())

    @property
    def restores(self) -> str:
        """What happens to photographs whose brightness and contrast are as usual, if anything."""
        if self.share > USUAL or self.as_they_are:
            return ""
        return "sharpens" if float(self.raised[COARSE:].sum()) > 0 else "smooths"

    def restored(self, x: Tensor) -> Tensor:
        """Images (B,C,H,W) with the statistics of the source, as far as they are to have them."""
        if share := self.share:
            x = restored_pixels(x, self.moments, self.source, share)
        raised = self.raised
        return equalised(x, (raised / 2).exp()) if bool(raised.any()) else x


def _ramp(value: Tensor, low: float, high: float) -> Tensor:
    """From 0 at `low` to 1 at `high`, element by element."""
    return ((value - low) / (high - low)).clamp(0, 1)
