"""What the answers to the stream were like of late: the reasons to refine, or to look again."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.state import StatefulPart

MEMORY = 128.0  # images over which doubt, confidence and the use of classes are averaged
BLOCK = 24  # images whose mean confidence is compared with that of those before
SURE = 0.6  # mean confidence of the sketch below which it would only be taught to be sure
JUMP = 4.5  # standard errors between the two that are no chance, nor a drift


class Outlook(StatefulPart):
    """Running means over the last images, and whether the confidence of the sketch has jumped.

    Parameters
    ----------
    gate
        Share of images on which answer and sketch differ, below which the gate is shut, as it is
        where the sketch is unsure; 0 leaves it open.
    """

    def __init__(self, gate: float, classes: int, device: torch.device) -> None:
        self.gate = gate
        self.add_state("seen", 0.0, least=0)
        for name in ("doubt", "sure"):
            self.add_state(name, 0.0, least=0, most=1)
        even = torch.full((classes,), 1 / classes, device=device)
        self.add_state("used", even, merge="mean", least=0, most=1)
        for name in ("block", "before"):
            self.add_state(name, even.new_zeros(3, dtype=torch.float64), merge="sum", least=0)

    seen: float  # images in the means
    doubt: float  # share of images on which answer and sketch differ
    sure: float  # mean confidence of the sketch
    used: Tensor  # (K,) mean of the sketch's probabilities
    block: Tensor  # images, sum of their confidences and of the squares: not yet compared
    before: Tensor  # the same of those before

    @property
    def shut(self) -> bool:
        """Whether there is too little to be won, or too little to learn from."""
        return self.gate > 0 and (self.doubt < self.gate or self.sure < SURE)

    def update(self, answer: Tensor, sketch: Tensor) -> bool:
        """Take in answers and sketch (B,K); whether the stream is suddenly another one."""
        n, p = len(sketch), sketch.softmax(1)
        share, self.seen = n / (self.seen + n), min(self.seen + n, MEMORY)
        differ = float((answer.argmax(1) != sketch.argmax(1)).float().mean())
        self.doubt += share * (differ - self.doubt)
        self.sure += share * (float(p.amax(1).mean()) - self.sure)
        self.used = self.used.lerp(p.mean(0).to(self.used), share)
        blocks = p.amax(1).double().tensor_split(list(range(BLOCK, n, BLOCK)))
        jumps = [self._jumped(block) for block in blocks]
        return any(jumps)

    def _jumped(self, sure: Tensor) -> bool:
        self.block = self.block + torch.stack([sure.new_tensor(len(sure)), sure.sum(), sure @ sure])
        if self.block[0] < BLOCK:
            return False
        old, new = (values / values[0].clamp_min(1) for values in (self.before, self.block))
        spread = 0.5 * (old[2] - old[1] ** 2 + new[2] - new[1] ** 2).clamp_min(0)
        error = (spread * (1 / self.before[0].clamp_min(1) + 1 / self.block[0])).sqrt()
        jumped = bool(self.before[0] > 0 and (new[1] - old[1]).abs() > JUMP * error)
        kept = 0.0 if jumped else float((MEMORY / self.before[0].clamp_min(1)).clamp_max(1))
        self.before, self.block = kept * self.before + self.block, torch.zeros_like(self.block)
        return jumped
