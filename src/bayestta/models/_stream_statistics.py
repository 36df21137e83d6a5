"""Statistics of a stream in the place of the source's: of the pixels, and of BatchNorms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from bayestta.models._norms import OtherBatchNorm
from bayestta.state import matching

MEMORY = 128.0  # images that the running statistics reach back over
PRIOR = 8.0  # images at which they are trusted by half: a handful says little
LOOSE = 4.0  # images that are left of them when the stream has moved
EPS = 1e-5  # added to variances before they divide, as BatchNorms do
PIXELS = 14  # along a side of a feature map that are looked at, about


class Moments:
    """Running mean and variance per channel over about the last `MEMORY` images.

    >>> moments = Moments(torch.zeros(1), torch.ones(1))
    >>> moments.add(torch.tensor([2.0]), torch.tensor([1.0]), 8)
    >>> moments.mean.tolist(), moments.trust
    ([2.0], 0.5)
    """

    def __init__(self, mean: Tensor, var: Tensor) -> None:
        self._start = mean.detach().float().clone(), var.detach().float().clone()
        self.reset()

    def reset(self) -> None:
        self.mean, self.var = (tensor.clone() for tensor in self._start)
        self.n = 0.0

    def add(self, mean: Tensor, var: Tensor, n: int) -> None:
        """Count n images; exact for the mixture of both."""
        share, step = n / (self.n + n), mean - self.mean
        self.var = self.var + share * (var - self.var) + share * (1 - share) * step * step
        self.mean = self.mean + share * step
        self.n = min(self.n + n, MEMORY)

    def loosen(self) -> None:
        """The stream has moved: what comes next counts more."""
        self.n = min(self.n, LOOSE)

    @property
    def trust(self) -> float:
        return self.n / (self.n + PRIOR)

    @property
    def divergence(self) -> float:
        """Of what was seen from the source: Kullback-Leibler of Gaussians, in nats per channel.

        A channel counts one at most.
        """
        mean, var = self._start
        ratio = (self.var + EPS) / (var + EPS)
        nats = 0.5 * (ratio + (self.mean - mean).square() / (var + EPS) - 1 - ratio.log())
        return float(nats.clamp_max(1.0).mean())

    @property
    def shift(self) -> float:
        """The divergence as far as it is trusted."""
        return self.trust * self.divergence

    def fresh(self) -> Moments:
        """Others of the same source, that have seen nothing."""
        return Moments(*self._start)

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean.clone(), "var": self.var.clone(), "n": self.n}

    def load(self, state: Mapping[str, Any]) -> None:
        mean = matching("mean", state.get("mean"), self.mean)
        var = matching("var", state.get("var"), self.var, least=0)
        self.n = matching("n", state.get("n"), 0.0, least=0, most=MEMORY)
        self.mean, self.var = mean, var

    def merge(self, other: Moments, share: float) -> None:
        """The mixture of both, by their counts."""
        if other.n:
            part, step = other.n / (self.n + other.n), other.mean - self.mean
            self.var = self.var + part * (other.var - self.var) + part * (1 - part) * step * step
            self.mean = self.mean + part * step
            self.n = min(self.n + other.n, MEMORY)


def batch_norm_moments(visual: nn.Module) -> dict[str, Moments]:
    """Fresh moments for every BatchNorm with stored statistics, by its name in the tower."""
    return {
        name: Moments(module.running_mean, module.running_var)
        for name, module in visual.named_modules()
        if isinstance(module, _BatchNorm)
        and module.running_mean is not None
        and module.running_var is not None
    }


class Blended(OtherBatchNorm):
    """Inside this context BatchNorms go by (1-rho) source + rho running statistics of the stream.

    The pass updates the moments with the input of each layer before it normalises, if `learn`: no
    other pass is needed, and every layer is measured behind the blended layers before it. Caught in
    `functional.batch_norm`, for this thread and this block only; layers are told apart by where
    their stored mean lies in memory.
    """

    def __init__(
        self, visual: nn.Module, moments: Mapping[str, Moments], rho: float, *, learn: bool
    ) -> None:
        super().__init__()
        self.rho, self.learn = rho, learn
        stored = {name: visual.get_submodule(name).get_buffer("running_mean") for name in moments}
        self._moments = {stored[name].data_ptr(): one for name, one in moments.items()}

    def normalise(
        self, input: Tensor, running_mean: Tensor, running_var: Tensor, **rest: Any
    ) -> Tensor:
        own = self._moments.get(running_mean.data_ptr())
        if own is not None:
            if self.learn:
                own.add(*channel_moments(input), len(input))
            share = self.rho * own.trust
            running_mean = torch.lerp(running_mean, own.mean.to(running_mean), share)
            running_var = torch.lerp(running_var, own.var.to(running_var), share)
        return functional.batch_norm(input, running_mean, running_var, **rest)


def channel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel of (B,C,...), from some of the pixels of large maps."""
    seen = x.detach()
    if seen.ndim == 4 and (step := min(seen.shape[2:]) // PIXELS) > 1:
        seen = seen[:, :, ::step, ::step]
    var, mean = torch.var_mean(seen.float(), [0, *range(2, seen.ndim)], correction=0)
    return mean, var


def channel_gain(own: Moments, source: tuple[Tensor, Tensor], share: float) -> Tensor:
    """What takes deviations (C,) so far on the way from the stream's to the source's."""
    return 1 + share * (source[1] / own.var.clamp_min(1e-6).sqrt() - 1)


def restored_pixels(x: Tensor, own: Moments, source: tuple[Tensor, Tensor], share: float) -> Tensor:
    """Pixels (B,C,H,W) so far on the way from the stream's mean and deviation to the source's."""
    shape = (1, -1, 1, 1)
    gain, middle = channel_gain(own, source, share), own.mean + share * (source[0] - own.mean)
    centred = x - own.mean.to(x).view(shape)
    return centred * gain.to(x).view(shape) + middle.to(x).view(shape)
