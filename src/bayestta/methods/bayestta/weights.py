"""The norms of the tower that answers go by: a step on trial, and the way back to the source.

Every step is judged before it answers: dropped if it moves answers too far at once. And all steps
are undone if the witnesses of the trials speak for the pristine tensors, then or later.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayestta.methods._tuned import Tuned
from bayestta.methods.bayestta.gathered import Gathered
from bayestta.methods.bayestta.judged import LESS, MOVED, SUDDENLY, Judged
from bayestta.methods.bayestta.pace import Pace
from bayestta.methods.bayestta.signature import ABRUPT
from bayestta.methods.bayestta.step_trial import StepTrial
from bayestta.models._norms import norm_parameters
from bayestta.models.base import VLM
from bayestta.state import StatefulPart

PULL = 0.01  # towards the source weights, after each step
LEAP, FAR = 0.3, 0.6  # total variation by one step, from which it is dropped, and is a return too
REASONS = {
    MOVED: "the stream has moved",
    SUDDENLY: "answers are suddenly less sure than the source's",
}


class Weights(StatefulPart):
    """Norms of a tower, tuned step by step.

    Parameters
    ----------
    text
        Prototypes (K,D), by which the tower is asked for its answers.
    lr
        Learning rate of Adam; a thirtieth of it after each return.
    """

    def __init__(self, model: VLM, text: Tensor, lr: float) -> None:
        self.model, self.text, self.lr, self.pace = model, text, lr, Pace()
        self.tuned = Tuned(norm_parameters(model.visual), self._optimiser)
        self.gathered, self.trial = Gathered(self.tuned.start), StepTrial(self.tuned.start, text)
        self.judged = Judged(len(text))
        for name in ("pace", "tuned", "gathered", "trial", "judged"):
            self.add_state(name, getattr(self, name))
        still = torch.zeros_like(text[0], dtype=torch.promote_types(model.dtype, torch.float32))
        self.add_state("drift", still, merge="mean", least=-2, most=2)  # features have length 1
        self.add_state("unjudged", 0.0, least=0)
        self.add_state("moved", False, merge=lambda mine, theirs, share: mine or theirs)

    drift: Tensor  # (D,) by how much the tensors have moved the features of images, on average
    unjudged: float  # images that are due to be judged, between steps
    moved: bool

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(tensors, lr=self.rate)

    @property
    def rate(self) -> float:
        return self.lr * self.pace.factor

    def reset(self) -> None:
        self.reset_state()
        self.tuned.reset(optimiser_only=True)  # at the first rate again

    @property
    def tensors(self) -> Mapping[str, Tensor] | None:
        """What the tower goes by; None while it is pristine."""
        return {key: v.detach() for key, v in self.tuned.items()} if self.moved else None

    @property
    def rest(self) -> bool:
        """Whether they must not move: after too many returns, or under suspicion."""
        return self.pace.over or self.judged.sign > 0

    def gather(self, loss: Tensor, n: int) -> None:
        """Take in the gradient of the loss of n images."""
        tensors = list(self.tuned.values())
        gradient = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
        self.gathered.add(gradient, n)

    def step(self, factor: float) -> None:
        """Eq. 30: one step of Adam, at a multiple of the rate, and a little back: on trial."""
        before = self.tuned.snapshot()
        for group in self.tuned.optimiser.param_groups:
            group["lr"] = self.rate * factor
        self.tuned.descend(self.gathered.mean)
        self.tuned.pull(PULL)
        self.trial.begin(self.tuned)
        self.tuned.assign(before)
        self.gathered.reset()

    @torch.no_grad()
    def judge_step(self, x: Tensor, z: Tensor, sketch: Tensor) -> str:
        """Ask the step on trial about images x, beside their features z and logits; once it was
        asked enough, go by it, or say why not."""
        n = min(self.trial.left, len(x))
        features, new = self._asked(x[:n], self.trial.tensors)
        old = sketch[:n].softmax(1)
        source = self._asked(x[:n], None)[1] if self.moved else old
        self.trial.add(features - z[:n], new, old, source)
        if self.trial.left:
            return ""
        tensors, leap, shift = self.trial.tensors.tensors, self.trial.leap, self.trial.shift
        new, source = self.trial.answers.first, self.trial.answers.second
        self.trial.reset()
        if not leap <= LEAP:  # so that NaN is too far
            return self._give_way(f"one step moved the answers by {leap:.2f}", far=not leap <= FAR)
        self.tuned.assign(tensors)
        self.moved, self.drift = True, self.drift + shift.to(self.drift)
        return self._judge(new, source)

    @torch.no_grad()
    def watch(self, x: Tensor, due: float) -> str:
        """Go on judging tensors that rest, on so many of images x; why they were given up."""
        self.unjudged += self.moved * due
        wanted = max(int(self.unjudged), self.judged.wanted)
        if not self.moved or not (take := min(wanted, len(x))):
            return ""
        self.unjudged = max(0.0, self.unjudged - take)
        some = x[torch.arange(take, device=x.device) * len(x) // take]
        return self._judge(self._asked(some, self.tuned)[1], self._asked(some, None)[1])

    def _asked(self, x: Tensor, tensors: Mapping[str, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Features (B,D) and probabilities (B,K) that some tensors give."""
        features = self.model.encode_image(x, tensors)
        return features, self.model.logits(features, self.text).softmax(1)

    def _judge(self, mine: Tensor, source: Tensor) -> str:
        """Back to the start where answers (n,K) are clearly worse than the source's."""
        self.judged.add(mine.cpu(), source)
        sign, less = self.judged.decide(again=self.pace.returns > 0)
        if sign == LESS:
            self._restore()
            return self._give_way(f"answers became less {less} than the source's")
        if sign:
            self.leave()  # what the tensors were tuned for is no more
            return REASONS[sign]
        return ""

    def follow(self, far: float) -> None:
        """What to do where the stream has moved so far: leave, or ask whether the weights serve."""
        if far >= ABRUPT[1]:
            self.leave()
        elif far and self.moved:
            self.judged.suspect(MOVED)

    def fade(self, n: int) -> None:
        """Part of the way back to the source, for n images; from some point on all of it."""
        self.tuned.pull(part := self.pace.fade(n))
        self.drift = (1 - part) * self.drift
        if part == 1:
            self.leave(slower=False)

    def leave(self, *, slower: bool = True) -> None:
        """Back to the source where weights were moved: what they were tuned for is no more.

        It may count as a part of a return: a stream that moves away once may do so again.
        """
        if self.moved or self.trial.left:
            if self.moved and slower:
                self.pace.move()
            self._restore()
            self.tuned.reset(optimiser_only=True)

    def _restore(self) -> None:
        """The pristine tensors, and nothing to hold against them."""
        self.tuned.assign(self.tuned.start)
        for part in (self.gathered, self.trial, self.judged):
            part.reset()
        self.moved, self.drift = False, torch.zeros_like(self.drift)

    def _give_way(self, reason: str, *, far: bool = True) -> str:
        self.pace.moves += not far
        self.slow_down(self.pace.returns + far)
        return reason

    def slow_down(self, returns: int) -> None:
        """Go on as after so many returns."""
        self.pace.returns = returns
        self.tuned.reset(optimiser_only=True)  # no moments, and a lower rate
