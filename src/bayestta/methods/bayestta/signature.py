"""What a stream looks like, in a few numbers, and whether that has changed."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.methods.bayestta.fusion import ramp
from bayestta.state import StatefulPart

MOVED = 0.5  # what counts as a move, in deviations of single images
CHANCE = 3.0  # standard errors of what few images may differ by
ABRUPT = (0.5, 1.0)  # the same, from which on a move is no drift: not at all, and wholly
FEW, ERRORS = (8, 16, 32), 6.0  # last images that tell a jump, by so many standard errors
SETTLED = (128, 256)  # images since the stream moved: nothing is learned of it below, or all
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
        self.add_state("still", 0.0, least=0)  # the same, where a small move counts in part
        self.add_state("last", torch.zeros(0, 4), grows=True)  # signatures (n,4) of single images
        self.add_state("anchor", torch.zeros(2, 4))
        self.add_state("anchored", 0, least=0)  # images in `anchor`; none before the first choice

    recent: Tensor
    weight: float
    since: int
    still: float
    last: Tensor
    anchor: Tensor
    anchored: int

    @property
    def settled(self) -> float:
        """How far, from 0 to 1, the stream has stayed what it is for long enough to learn of it."""
        return ramp(self.still, *SETTLED)

    def moved(self, x: Tensor, *, closely: bool) -> float:
        """Take in images; how far the stream has moved since the last choice, 0 where it has not.

        In deviations of single images. Looked at `closely`, the grain counts too, and so does a
        jump of the last few images: other statistics than the source's may be wrong at once.
        """
        n, now = len(x), signature(x).cpu()
        mean, var = now.mean(0), now.var(0, correction=0)
        if not self.weight:
            self.recent, self.weight = torch.stack([mean, var + 0.01]), FRESH + n
        self.recent = mixed_in(self.recent, mean, var, n / (self.weight + n))
        self.weight = min(self.weight + n, WINDOW)
        last = torch.cat([self.last, now])
        self.last = last[-FEW[-1] :].clone()
        self.since, self.still = self.since + n, self.still + n
        if not self.anchored:
            return 0.0
        least = torch.minimum(self.recent[1], self.anchor[1]).sqrt().clamp_min(FLOOR)
        gaps = (self.recent[0] - self.anchor[0]).abs() / least
        far = float((gaps if closely else gaps[:-1]).max())
        chance = CHANCE * (1 / self.weight + 1 / self.anchored) ** 0.5
        jump = self._jump() if closely else 0
        if jump or far > max(MOVED, chance):
            self._start_from(last[-max(n, jump, FEW[0]) :])
            far = max(far, ABRUPT[1]) if jump else far
            self.still *= 1 - ramp(far, *ABRUPT)
            return far
        if self.anchored < FIRM:
            self.anchor = mixed_in(self.anchor, mean, var, n / (self.anchored + n))
            self.anchored += n
        return 0.0

    def _jump(self) -> int:
        """How many of the last images lie farther from the anchor than by chance; 0 if none do."""
        recent, anchor = (var.clamp_min(FLOOR**2) for var in (self.recent[1], self.anchor[1]))
        for n in FEW:
            gap = self.last[-n:].mean(0) - self.anchor[0]
            error = (recent / n + anchor / self.anchored).sqrt()
            if n <= min(len(self.last), self.since) and bool((gap.abs() > ERRORS * error).any()):
                return n
        return 0

    def _start_from(self, last: Tensor) -> None:
        """At once to where the stream is, or the rest of the way would be another move."""
        n, var = len(last), last.var(0, correction=0)
        var = self.anchor[1].lerp(var, n / (FRESH + n))
        self.recent, self.weight = torch.stack([last.mean(0), var]), min(float(n), WINDOW)
        self.last, self.since = last[-FEW[-1] :].clone(), n

    def settle(self) -> None:
        """What comes is to be compared with what the stream looks like now."""
        self.anchor, self.anchored = self.recent.clone(), self.since


def mixed_in(earlier: Tensor, mean: Tensor, var: Tensor, share: float) -> Tensor:
    """Mean and variance (2,4) of an earlier signature, and of others with their share."""
    step = mean - earlier[0]
    spread = earlier[1] + share * (var - earlier[1]) + share * (1 - share) * step**2
    return torch.stack([earlier[0] + share * step, spread])
