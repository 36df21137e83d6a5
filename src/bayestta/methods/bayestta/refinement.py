"""Refinement of the tower's norms, Eqs. 29 and 30: sharp targets, a pull to the source, a gate."""

from __future__ import annotations

import torch
from torch import Tensor

from bayestta.methods.bayestta.outlook import Outlook
from bayestta.methods.bayestta.places import Places
from bayestta.methods.bayestta.step_trial import ASKED
from bayestta.methods.bayestta.targets import loss
from bayestta.methods.bayestta.weights import Weights
from bayestta.models.base import VLM
from bayestta.state import StatefulPart

Trace = tuple[Tensor, Tensor]  # indices (n,) into a batch, features (n,D) with their graph
GROUP = 32  # images whose gradients make one step, or more where a batch brings them
CROWD = "answers name one class too often for labels that are even"
FULL, MOST = 0.04, 4.0  # doubt at which the rate is `lr`, and the most that it is multiplied by


class Refinement(StatefulPart):
    """Norms of the tower, tuned towards the fused answer where there is something to be won.

    Parameters
    ----------
    lr
        Learning rate of Adam where answer and sketch differ on 4 % of the images. It goes with the
        square of that share, as there is that much to be won.
    share
        Share of the images that go through the tower with a gradient.
    gate
        Share of differing answers below which the tower is left alone, see `Outlook`.
    """

    def __init__(self, model: VLM, text: Tensor, *, lr: float, share: float, gate: float) -> None:
        self.model, self.text = model, text
        self.weights, self.places = Weights(model, text, lr), Places(share)
        self.outlook = Outlook(gate, len(text), model.device)
        for name in ("weights", "places", "outlook"):
            self.add_state(name, getattr(self, name))
        for name in ("steps", "passed"):
            self.add_state(name, 0, merge="sum", least=0)

    steps: int
    passed: int  # images that the gate let pass

    @property
    def rests(self) -> bool:
        """Whether no image gets a gradient, whatever the answers are."""
        return self.outlook.shut or self.weights.rest

    def room(self, most: int) -> int:
        """Images, at the most so many, until weights may move: those before have the same ones."""
        if self.weights.trial.left:
            return min(self.weights.trial.left, most)
        return most if self.rests else self.places.until(GROUP - self.weights.gathered.count, most)

    def features(self, x: Tensor) -> tuple[Tensor, Trace | None]:
        """Features (B,D) of a batch, and a trace of those of images that may get a gradient.

        What was open before is open as a rule; and the forward need not be done again.
        """
        chosen, tensors = self.places.chosen(len(x)), self.weights.tensors
        if self.rests or not bool(chosen.any()):
            return self.model.encode_image(x, tensors), None
        trace = self._trace(x, chosen)
        if bool(chosen.all()):
            return trace[1].detach(), trace
        rest = (~chosen).nonzero().flatten().to(x.device)
        z = torch.cat([trace[1].detach(), self.model.encode_image(x[rest], tensors)])
        return z[torch.cat([trace[0], rest]).argsort()], trace

    @torch.enable_grad()
    def _trace(self, x: Tensor, chosen: Tensor) -> Trace:
        """Where the chosen images are in the batch, and their features with their graph."""
        where = chosen.nonzero().flatten().to(x.device)
        return where, self.model.encode_image(x[where], self.weights.tuned)

    def learn(
        self,
        x: Tensor,
        z: Tensor,
        answer: Tensor,
        sketch: Tensor,
        trace: Trace | None,
        *,
        even: bool,
        crowded: bool = False,
    ) -> str:
        """Learn from images x with features z and logits (B,K); why, where it gave way.

        Only if `even`: skewed labels teach one class, and other statistics have their gain already.
        Where the answers are `crowded` into one class, weights that make them even fade away.
        """
        weights, chosen, due = self.weights, self.places.chosen(len(x)), len(x) * ASKED / GROUP
        weights.pace.go_on(len(x))
        self.places.seen += len(x)
        if self.outlook.update(answer, sketch) and (weights.moved or weights.trial.left):
            weights.leave(slower=False)
            return "the confidence of the sketch has jumped"
        if weights.trial.left:
            return weights.judge_step(x, z, sketch)
        if weights.moved and crowded:
            weights.fade(len(x))
            return weights.watch(x, self.places.share * due) or CROWD
        weights.pace.kept = 1.0
        if self.rests or not even:
            return weights.watch(x, self.places.share * due)
        if take := int(chosen.sum()):
            self.passed += take
            self._gather(x, answer, trace or self._trace(x, chosen))
        if weights.gathered.count >= GROUP:
            weights.step(min(MOST, (self.outlook.doubt / FULL) ** 2))
            self.steps += 1
        return ""

    @torch.enable_grad()
    def _gather(self, x: Tensor, answer: Tensor, trace: Trace) -> None:
        some, features = trace
        logits = self.model.logits(features, self.text)
        self.weights.gather(loss(logits, answer[some], self.outlook.used), len(some))
