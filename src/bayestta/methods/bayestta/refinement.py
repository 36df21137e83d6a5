"""Refinement of the tower's norms, Eqs. 29 and 30: sharp targets, a pull to the source, a gate.

Every step is judged before the next answer: undone if it moved answers too far at once, and all
undone if the witnesses of the trials speak for the pristine tensors, then or later.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayestta.methods._tuned import Averaged, Tuned
from bayestta.methods.bayestta.judged import Judged
from bayestta.methods.bayestta.outlook import Outlook
from bayestta.methods.bayestta.pace import Pace
from bayestta.methods.bayestta.places import Places
from bayestta.methods.bayestta.targets import loss
from bayestta.methods.bayestta.trials import Pairs
from bayestta.models._norms import norm_parameters
from bayestta.models.base import VLM
from bayestta.state import StatefulPart

Trace = tuple[Tensor, Tensor]  # indices (n,) into a batch, features (n,D) with their graph
GROUP = 32  # images whose gradients make one step, or more where a batch brings them
PULL = 0.01  # towards the source weights, after each step
PROBE = 6  # images that judge a step
LEAP, FAR = 0.3, 0.6  # total variation by one step, from which it is undone, and is a return too
CROWD = "answers name one class too often for labels that are even"
FULL, MOST = 0.04, 4.0  # doubt at which the rate is `lr`, and the most that it is multiplied by


class Refinement(StatefulPart):
    """Norms of the tower, tuned towards the fused answer where there is something to be won.

    Parameters
    ----------
    lr
        Learning rate of Adam where answer and sketch differ on 4 % of the images. It goes with the
        square of that share, as there is that much to be won; a thirtieth of it after each return.
    share
        Share of the images that go through the tower with a gradient.
    gate
        Share of differing answers below which the tower is left alone, see `Outlook`.
    """

    def __init__(self, model: VLM, text: Tensor, *, lr: float, share: float, gate: float) -> None:
        self.model, self.text = model, text
        self.lr, classes = lr, len(text)
        self.pace, self.places = Pace(), Places(share)
        self.tuned = Tuned(norm_parameters(model.visual), self._optimiser)
        start = self.tuned.start
        self.gradient = Averaged(lambda: {key: torch.zeros_like(v) for key, v in start.items()})
        kind = torch.promote_types(model.dtype, torch.float32)
        image = torch.zeros(model.input_shape or 0, dtype=kind, device=model.device)
        self.probe = Pairs(PROBE, image, text.shape[1])
        self.judged = Judged(classes)
        self.outlook = Outlook(gate, classes, model.device)
        for name in ("pace", "places", "tuned", "gradient", "probe", "judged", "outlook"):
            self.add_state(name, getattr(self, name))
        for name in ("count", "steps", "passed"):
            self.add_state(name, 0, merge="sum", least=0)
        still = torch.zeros_like(text[0], dtype=kind)
        self.add_state("drift", still, merge="mean", least=-2, most=2)  # features have length 1
        self.add_state("unjudged", 0.0, least=0)
        self.add_state("moved", False, merge=lambda mine, theirs, share: mine or theirs)

    drift: Tensor  # (D,) by how much the tensors have moved the features of images, on average
    count: int  # images in the gradient
    unjudged: float  # images that are due to be judged, between steps
    moved: bool
    steps: int
    passed: int  # images that the gate let pass

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(tensors, lr=self._rate)

    @property
    def _rate(self) -> float:
        return self.lr * self.pace.factor

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

    def room(self, most: int) -> int:
        """Images, at the most so many, until weights may move: those before have the same ones."""
        rests = self.outlook.shut or self.pace.over
        return most if rests else self.places.until(GROUP - self.count, most)

    def features(self, x: Tensor) -> tuple[Tensor, Trace | None]:
        """Features (B,D) of a batch, and a trace of those of images that may get a gradient.

        What was open before is open as a rule; and the forward need not be done again.
        """
        chosen = self.places.chosen(len(x))
        if self.outlook.shut or self.pace.over or not bool(chosen.any()):
            return self.model.encode_image(x, self.tensors), None
        trace = self._trace(x, chosen)
        if bool(chosen.all()):
            return trace[1].detach(), trace
        rest = (~chosen).nonzero().flatten().to(x.device)
        z = torch.cat([trace[1].detach(), self.model.encode_image(x[rest], self.tensors)])
        return z[torch.cat([trace[0], rest]).argsort()], trace

    @torch.enable_grad()
    def _trace(self, x: Tensor, chosen: Tensor) -> Trace:
        """Where the chosen images are in the batch, and their features with their graph."""
        where = chosen.nonzero().flatten().to(x.device)
        return where, self.model.encode_image(x[where], self.tuned)

    def learn(
        self,
        x: Tensor,
        answer: Tensor,
        sketch: Tensor,
        trace: Trace | None,
        *,
        even: bool,
        crowded: bool = False,
    ) -> str:
        """Learn from some images x of a batch with their answer (B,K); why, where it gave way.

        Only if `even`: skewed labels teach one class, and other statistics have their gain already.
        Where the answers are `crowded` into one class, weights that make them even fade away.
        """
        self.pace.go_on(len(x))
        chosen = self.places.chosen(len(x))
        self.places.seen += len(x)
        jumped = self.outlook.update(answer, sketch)
        if self.moved and jumped:
            self.leave(slower=False)
            return "the confidence of the sketch has jumped"
        if self.moved and crowded:
            self.tuned.pull(part := self.pace.fade(len(x)))
            self.drift = (1 - part) * self.drift
            if part == 1:
                self.leave(slower=False)
            return self._watch(x) or CROWD
        self.pace.kept = 1.0
        if self.outlook.shut or not even or self.pace.over:
            return self._watch(x)
        self.passed += (take := int(chosen.sum()))
        return self._learn_from(x, answer, trace or self._trace(x, chosen)) if take else ""

    def _learn_from(self, x: Tensor, answer: Tensor, trace: Trace) -> str:
        some, z = trace
        for key, part in zip(self.tuned, self._gradient(z, answer[some]), strict=True):
            self.gradient.tensors[key] = self.gradient[key] + part
        self.count += len(some)
        self.probe.add(x[some], z)
        return self._step() if self.count >= GROUP else ""

    @torch.enable_grad()
    def _gradient(self, features: Tensor, answer: Tensor) -> tuple[Tensor, ...]:
        value = loss(self.model.logits(features, self.text), answer, self.outlook.used)
        tensors = list(self.tuned.values())
        return torch.autograd.grad(value, tensors, allow_unused=True, materialize_grads=True)

    @torch.no_grad()
    def _step(self) -> str:
        """Eq. 30: one step of Adam and a little back; judged, and undone if it is not good."""
        before = self.tuned.snapshot()
        for group in self.tuned.optimiser.param_groups:
            group["lr"] = self._rate * min(MOST, (self.outlook.doubt / FULL) ** 2)
        self.tuned.descend({key: total / self.count for key, total in self.gradient.items()})
        self.tuned.pull(PULL)
        x, earlier, self.steps = self.probe.first, self.probe.second.to(self.text), self.steps + 1
        self._clear()
        after, answers = self._asked(x, self.tuned)
        leap = float((answers - self._answers(earlier)).abs().sum(1).mean() / 2)
        if not leap <= LEAP:  # so that NaN is too far
            self.tuned.assign(before)
            return self._give_way(f"one step moved the answers by {leap:.2f}", far=not leap <= FAR)
        self.moved, self.drift = True, self.drift + (after - earlier).mean(0).to(self.drift)
        return self._judge(answers, self._asked(x, None)[1])

    @torch.no_grad()
    def _watch(self, x: Tensor) -> str:
        """Go on judging tensors that rest, on as many images as steps would be judged on."""
        self.unjudged += self.moved * self.places.share * len(x) * PROBE / GROUP
        if not self.moved or not (take := min(int(self.unjudged), len(x))):
            return ""
        self.unjudged -= take
        some = x[torch.arange(take, device=x.device) * len(x) // take]
        return self._judge(self._asked(some, self.tuned)[1], self._asked(some, None)[1])

    def _asked(self, x: Tensor, tensors: Mapping[str, Tensor] | None) -> tuple[Tensor, Tensor]:
        features = self.model.encode_image(x, tensors)
        return features, self._answers(features)

    def _answers(self, features: Tensor) -> Tensor:
        return self.model.logits(features, self.text).softmax(1)

    def _judge(self, mine: Tensor, source: Tensor) -> str:
        """Back to the start where answers (n,K) are clearly worse than the source's."""
        self.judged.add(mine.cpu(), source)
        if self.judged.suddenly_less_sure:
            self.leave()  # what the tensors were tuned for is no more
            return "answers are suddenly less sure than the source's"
        if less := self.judged.less(again=self.pace.returns > 0):
            self._restore()
            return self._give_way(f"answers became less {less} than the source's")
        return ""

    def leave(self, *, slower: bool = True) -> None:
        """Back to the source where weights were moved: what they were tuned for is no more.

        It may count as a part of a return: a stream that moves away once may do so again.
        """
        if self.moved:
            self._restore()
            if slower:
                self.pace.move()
            self.tuned.reset(optimiser_only=True)

    def _restore(self) -> None:
        """The pristine tensors, and nothing to hold against them."""
        self.tuned.assign(self.tuned.start)
        self._clear()
        self.judged.reset()
        self.moved, self.drift = False, torch.zeros_like(self.drift)

    def _clear(self) -> None:
        self.gradient.reset()
        self.probe.reset()
        self.count = 0

    def _give_way(self, reason: str, *, far: bool = True) -> str:
        self.pace.moves += not far
        self.slow_down(self.pace.returns + far)
        return reason

    def slow_down(self, returns: int) -> None:
        """Go on as after so many returns."""
        self.pace.returns = returns
        self.tuned.reset(optimiser_only=True)  # no moments, and a lower rate
