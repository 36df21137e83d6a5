"""What a stream looks like, in a few numbers, and whether that has changed."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.state import StatefulPart

MOVED = 0.5  # what counts as a move, in deviations of single images
FLOOR = 0.05  # of these deviations
WINDOW = 64.0  # images that the recent signature is worth
FRESH = 8.0  # images that an earlier signature is worth, after a move
FIRM = 128  # images that a signature must hold to be compared with: that of a few moves by chance


def signature(x: Tensor) -> Tensor:
    """Brightness, contrast, sharpness and grain of images (B,C,H,W): (B,4).

    Edges count in both directions, so that a turned image is as sharp as an upright one. Grain is
    how much alike they are, which tells one noise from another.
    """
    grey = x.float().mean(1)  # (B,H,W)
    contrast = grey.flatten(1).std(1).clamp_min(1e-3).log()
    steps = torch.cat([grey.diff(dim=dim).flatten(1) for dim in (1, 2)], 1)
    edges = steps.abs().mean(1).clamp_min(1e-4).log()
    grain = edges - steps.square().mean(1).sqrt().clamp_min(1e-4).log()
    return torch.stack([grey.mean((1, 2)), contrast, edges - contrast, grain], 1)


class Looks(StatefulPart):
    """The signature of the stream of late, beside the one that the last choice was made for."""

    def __init__(self) -> None:
        self.add_state("recent", torch.zeros(2, 4))  # mean and variance over images
        self.add_state("weight", 0.0, least=0)  # images in `recent`
        self.add_state("since", 0, least=0)  # images since the stream last moved
        self.add_state("anchor", torch.zeros(2, 4))
        self.add_state("anchored", 0, least=0)  # images in `anchor`; none before the first choice

    recent: Tensor
    weight: float
    since: int
    anchor: Tensor
    anchored: int

    def moved(self, x: Tensor, *, grain: bool) -> bool:
        """Take in images; whether the stream has moved since the last choice, `grain` included."""
        n, now = len(x), signature(x).cpu()
        mean, var = now.mean(0), now.var(0, correction=0)
        if not self.weight:
            self.recent, self.weight = torch.stack([mean, var + 0.01]), FRESH + n
        self._follow(mean, var, n)
        self.since += n
        if not self.anchored:
            return False
        least = torch.minimum(self.recent[1], self.anchor[1]).sqrt().clamp_min(FLOOR)
        far = (self.recent[0] - self.anchor[0]).abs() > MOVED * least
        moved = bool((far if grain else far[:-1]).any())
        if moved:  # at once to where the stream is, or the rest of the way would be another move
            self.weight, self.since = FRESH, n
            self._follow(mean, var, n)
        elif self.anchored < FIRM:
            self.anchor = mixed_in(self.anchor, mean, var, n / (self.anchored + n))
            self.anchored += n
        return moved

    def settle(self) -> None:
        """What comes is to be compared with what the stream looks like now."""
        self.anchor, self.anchored = self.recent.clone(), self.since

    def _follow(self, mean: Tensor, var: Tensor, n: int) -> None:
        self.recent = mixed_in(self.recent, mean, var, n / (self.weight + n))
        self.weight = min(self.weight + n, WINDOW)


def mixed_in(earlier: Tensor, mean: Tensor, var: Tensor, share: float) -> Tensor:
    """Mean and variance (2,4) of an earlier signature, and of others with their share."""
    step = mean - earlier[0]
    spread = earlier[1] + share * (var - earlier[1]) + share * (1 - share) * step**2
    return torch.stack([earlier[0] + share * step, spread])
