"""Which images of a stream get a gradient: by their place in it, whatever the size of batches."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.state import StatefulPart

RUN = 8  # images in a row


class Places(StatefulPart):
    """Chooses a share of the images of a stream, in runs that are spread evenly.

    >>> places = Places(share=0.25)
    >>> places.chosen(64).nonzero().flatten().tolist()
    [24, 25, 26, 27, 28, 29, 30, 31, 56, 57, 58, 59, 60, 61, 62, 63]
    >>> places.until(3, most=128), places.until(100, most=128)
    (27, 128)
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.add_state("seen", 0, merge="sum", least=0, most=2**53)  # exact as a float

    seen: int  # images of the stream

    def chosen(self, n: int) -> Tensor:
        """Which of the next n images are (n,)."""
        run = torch.div(self.seen + torch.arange(n), RUN, rounding_mode="floor").double()
        return ((run + 1) * self.share).floor() > (run * self.share).floor()

    def until(self, wanted: int, most: int) -> int:
        """How many of the next images there are to the chosen one that is wanted; or the most."""
        return 1 + int((self.chosen(most).cumsum(0) < wanted).sum().clamp_max(most - 1))
