"""The stream's share in the BatchNorms of a tower: as much as its images are shifted."""

from __future__ import annotations

from torch import nn

from bayestta.models._stream_statistics import Blended, batch_norm_moments
from bayestta.state import StatefulPart

EARLY = 2 / 3  # of the BatchNorms, by depth, that follow the stream: how sharp or noisy images are
# shows in these, and what they show in the later ones, whose statistics one class alone would spoil
NONE, HALF = 0.02, 0.06  # shift of the early ones, in nats per channel, that is none, and what has
# to be added to it until the stream's share is a half


class StreamNorms(StatefulPart):
    """Running statistics of the stream in the early BatchNorms, and the share that they get.

    The share follows from how far the statistics of the stream are from the source's, layer by
    layer in a pass that blends nothing: little for a change that the pixels have mended, much for
    blur and noise.
    """

    def __init__(self, visual: nn.Module) -> None:
        self.visual = visual
        every = batch_norm_moments(visual)
        early = list(every)[: max(1, round(EARLY * len(every)))]
        self.layers = {name: every[name] for name in early}  # behind blended layers
        self.plain = {name: every[name].fresh() for name in early}  # behind plain ones, in a trial
        for name in early:
            self.add_state(f"layer {name}", self.layers[name])
            self.add_state(f"plain {name}", self.plain[name])
        self.add_state("rho", 0.0, least=0, most=1)

    rho: float

    def __bool__(self) -> bool:
        """Whether the tower has BatchNorms at all."""
        return bool(self.layers)

    def blended(self, learn: bool) -> Blended:
        """A context in which the tower goes by the blend."""
        return Blended(self.visual, self.layers, self.rho, learn=learn)

    def measured(self) -> Blended:
        """A context in which the tower goes by the source, and its inputs are measured."""
        return Blended(self.visual, self.plain, 0.0, learn=True)

    @property
    def shift(self) -> float:
        """Of what was measured, in nats per channel: the mean over layers."""
        return sum(moments.shift for moments in self.plain.values()) / max(1, len(self.plain))

    def choose(self) -> None:
        """The share for what was measured."""
        beyond = max(0.0, self.shift - NONE)
        self.rho = beyond / (beyond + HALF)

    def measure_anew(self) -> None:
        """Forget what was measured; the share stays until something is."""
        for moments in self.plain.values():
            moments.reset()

    def loosen(self) -> None:
        """The stream has moved: what comes next counts more."""
        for moments in self.layers.values():
            moments.loosen()
