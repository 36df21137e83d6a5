"""Refinement of the tower's norms, Eqs. 29 and 30: sharp targets, a pull to the source, a gate.

Every step is judged before the next answer: undone if it moved answers too far at once, and all
undone if the witnesses of the trials speak for the pristine tensors, then or later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bayestta.methods._tuned import Averaged, Tuned
from bayestta.methods.bayestta.trials import Pairs, clearly_less
from bayestta.models._norms import norm_parameters
from bayestta.models.base import VLM
from bayestta.state import StatefulPart

Sketch = Callable[[Tensor, Mapping[str, Tensor] | None], Tensor]  # images, tensors -> logits
GROUP = 32  # images whose gradients make one step
SHARP = 4.0  # targets are the softmax of so many times the answer
PULL = 0.01  # towards the source weights, after each step
PROBE = 6  # images that judge a step
LEAP = 0.3  # total variation between answers before and after one step, from which it is undone
KEEP, ENOUGH = 72, 24  # judged images that are kept, and from which on they are heard
AGAINST = (3.0, 2.0)  # standard errors at which a witness is, at first and after a return
FULL, MOST = 0.05, 4.0  # doubt at which the rate is `lr`, and the most that it is multiplied by
SLOWER, RETURNS = 0.03, 3  # the rate after each return; returns after which it is over for good
LEAVES = 4  # moves of the stream that slow refinement down as much as one return
PARDON = 2048  # images without a move after which one is forgotten
SURE = 0.6  # mean confidence of the sketch below which it would only be taught to be sure
MEMORY = 128.0  # images over which doubt, confidence and the use of classes are averaged


class Refinement(StatefulPart):
    """Norms of the tower, tuned towards the fused answer where there is something to be won.

    Parameters
    ----------
    lr
        Learning rate of Adam where answer and sketch differ on 5 % of the images. It goes with the
        square of that share, as there is that much to be won; a thirtieth of it after each return.
    share
        Share of the images that go through the tower with a gradient.
    gate
        Share of images on which answer and sketch differ, below which the tower is left alone, as
        it is where the sketch is unsure; 0 leaves it alone in neither case.
    """

    def __init__(
        self,
        model: VLM,
        generator: torch.Generator,
        *,
        lr: float,
        share: float,
        gate: float,
        classes: int,
    ) -> None:
        self.generator, self.lr, self.share, self.gate = generator, lr, share, gate
        self.add_state("returns", 0, merge="max", least=0)
        self.add_state("leaves", 0, merge="max", least=0)
        self.add_state("stayed", 0, least=0)
        self.tuned = Tuned(norm_parameters(model.visual), self._optimiser)
        start = self.tuned.start
        self.gradient = Averaged(lambda: {key: torch.zeros_like(v) for key, v in start.items()})
        kind = torch.promote_types(model.dtype, torch.float32)
        image = torch.zeros(model.input_shape or 0, dtype=kind, device=model.device)
        self.probe = Pairs(PROBE, image, classes)
        self.judged = Pairs(KEEP, torch.zeros(classes), classes)
        for name in ("tuned", "gradient", "probe", "judged"):
            self.add_state(name, getattr(self, name))
        for name in ("count", "steps", "passed"):
            self.add_state(name, 0, merge="sum", least=0)
        for name in ("owed", "unjudged", "seen"):
            self.add_state(name, 0.0, least=0)
        for name in ("doubt", "sure"):
            self.add_state(name, 0.0, least=0, most=1)
        even = torch.full((classes,), 1 / classes, device=model.device)
        self.add_state("used", even, merge="mean", least=0, most=1)
        self.add_state("moved", False, merge=lambda mine, theirs, share: mine or theirs)

    returns: int
    leaves: int  # how often, of late, what the weights were tuned for was no more
    stayed: int  # images since then
    count: int  # images in the gradient
    owed: float  # images that a gradient is due for
    unjudged: float  # images that are due to be judged, between steps
    doubt: float  # share of images on which answer and sketch differ
    seen: float  # images in `doubt`, `sure` and `used`
    sure: float  # mean confidence of the sketch
    used: Tensor  # (K,) mean of the sketch's probabilities
    moved: bool
    steps: int
    passed: int  # images that the gate let pass

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(tensors, lr=self._rate)

    @property
    def _rate(self) -> float:
        return self.lr * math.pow(SLOWER, self.returns + self.leaves / LEAVES)

    def reset(self) -> None:
        self.reset_state()
        self.tuned.reset(optimiser_only=True)  # at the first rate again

    def merge(self, other: Refinement, share: float) -> None:
        """Tensors are averaged, gradients added; the rate is that of the more cautious one."""
        both = {key: self.gradient[key] + other.gradient[key] for key in self.gradient}
        self.merge_state(other, share)
        self.gradient.tensors = both
        self.probe.reset()  # answers of tensors that are no more

    @property
    def tensors(self) -> Mapping[str, Tensor] | None:
        """What the tower goes by; None while it is pristine."""
        return {key: v.detach() for key, v in self.tuned.items()} if self.moved else None

    def learn(
        self, x: Tensor, answer: Tensor, sketch: Tensor, encode: Sketch, *, even: bool
    ) -> str:
        """Learn from some images x of a batch with their answer (B,K); why, where it gave way.

        Only if `even`: skewed labels teach one class, and other statistics have their gain already.
        """
        n = len(x)
        self.stayed += n
        if self.stayed >= PARDON:
            self.leaves, self.stayed = max(0, self.leaves - 1), 0
        share, self.seen = n / (self.seen + n), min(self.seen + n, MEMORY)
        differ = float((answer.argmax(1) != sketch.argmax(1)).float().mean())
        self.doubt += share * (differ - self.doubt)
        p = sketch.softmax(1)
        self.sure += share * (float(p.amax(1).mean()) - self.sure)
        self.used = self.used.lerp(p.mean(0).to(self.used), share)
        shut = self.gate > 0 and (self.doubt < self.gate or self.sure < SURE)
        if shut or not even or self.returns >= RETURNS:
            return self._watch(x, encode) if self.moved else ""
        self.owed += self.share * n
        take, self.owed = min(int(self.owed), n), self.owed % 1
        if not take:
            return ""
        self.passed += take
        chosen = torch.randperm(n, generator=self.generator)[:take].to(x.device)
        logits = self._backward(x[chosen], answer[chosen], encode)
        self.probe.add(x[chosen], logits.softmax(1))
        self.count += take
        return self._step(encode) if self.count >= GROUP else ""

    @torch.enable_grad()
    def _backward(self, x: Tensor, answer: Tensor, encode: Sketch) -> Tensor:
        """Add the gradient of Eq. 29, with sharp targets, and of minus the entropy of classes' use.

        Sharp targets alone teach the tower to prefer the classes that it prefers.
        """
        logits = encode(x, self.tuned)
        target = (SHARP * answer).softmax(1).to(logits.dtype)
        used = self.used.clamp_min(1e-6).log().to(logits)
        loss = (logits.softmax(1) @ used).sum() - (target * logits.log_softmax(1)).sum()
        tensors = list(self.tuned.values())
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
        for key, gradient in zip(self.tuned, gradients, strict=True):
            if gradient is not None:
                self.gradient.tensors[key] = self.gradient.tensors[key] + gradient
        return logits.detach()

    @torch.no_grad()
    def _step(self, encode: Sketch) -> str:
        """Eq. 30: one step of Adam and a little back; judged, and undone if it is not good."""
        before = self.tuned.snapshot()
        for group in self.tuned.optimiser.param_groups:
            group["lr"] = self._rate * min(MOST, (self.doubt / FULL) ** 2)
        for key, tensor in self.tuned.items():
            tensor.grad = self.gradient[key] / self.count
        self.tuned.optimiser.step()
        self.tuned.optimiser.zero_grad()
        for key, tensor in self.tuned.items():
            tensor.lerp_(self.tuned.start[key], PULL)
        self.steps += 1
        x, earlier = self.probe.first, self.probe.second
        self._clear()
        after = encode(x, self.tuned).softmax(1)
        leap = float((after.cpu() - earlier).abs().sum(1).mean() / 2)
        if not leap <= LEAP:  # so that NaN is too far
            self.tuned.assign(before)
            return self._give_way(f"one step moved the answers by {leap:.2f}")
        self.moved = True
        return self._judge(after, encode(x, None).softmax(1))

    @torch.no_grad()
    def _watch(self, x: Tensor, encode: Sketch) -> str:
        """Go on judging tensors that rest, on as many images as steps would be judged on."""
        n = len(x)
        self.unjudged += self.share * n * PROBE / GROUP
        take, self.unjudged = min(int(self.unjudged), n), self.unjudged % 1
        if not take:
            return ""
        some = x[torch.arange(take, device=x.device) * n // take]
        return self._judge(encode(some, self.tuned).softmax(1), encode(some, None).softmax(1))

    def _judge(self, mine: Tensor, source: Tensor) -> str:
        """Back to the start where answers (n,K) are clearly worse than the source's."""
        self.judged.add(mine.cpu(), source)
        mine, source = self.judged.first, self.judged.second
        old = len(source) - ENOUGH
        if old < 0:
            return ""
        was_good = old >= ENOUGH and not clearly_less(mine[:old], source[:old], 0.0)
        if was_good and clearly_less(mine[old:], source[old:], AGAINST[0]) == "sure":
            self.leave()  # so suddenly: what the tensors were tuned for is no more
            return "answers are suddenly less sure than the source's"
        if less := clearly_less(mine, source, AGAINST[self.returns > 0]):
            self._restore()
            return self._give_way(f"answers became less {less} than the source's")
        return ""

    def leave(self) -> None:
        """Back to the source where weights were moved: what they were tuned for is no more.

        It counts as a part of a return: a stream that moves away once may do so again.
        """
        if self.moved:
            self._restore()
            self.leaves, self.stayed = self.leaves + 1, 0
            self.tuned.reset(optimiser_only=True)

    def _restore(self) -> None:
        """The pristine tensors, and nothing to hold against them."""
        self.tuned.assign(self.tuned.start)
        self._clear()
        self.judged.reset()
        self.moved = False

    def _clear(self) -> None:
        self.gradient.reset()
        self.probe.reset()
        self.count = 0

    def _give_way(self, reason: str) -> str:
        self.slow_down(self.returns + 1)
        return reason

    def slow_down(self, returns: int) -> None:
        """Go on as after so many returns."""
        self.returns = returns
        self.tuned.reset(optimiser_only=True)  # no moments, and a lower rate
