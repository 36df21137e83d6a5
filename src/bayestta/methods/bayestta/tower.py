"""The image tower under statistics that the stream chooses, without labels or gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bayestta.methods.bayestta.pixels import Pixels
from bayestta.methods.bayestta.signature import Looks
from bayestta.methods.bayestta.stream_norms import StreamNorms
from bayestta.methods.bayestta.trials import LEAST, MARGIN, Answers, Verdict, judge
from bayestta.models.base import VLM
from bayestta.state import StatefulPart

WIDE, TRIAL = 16, 32  # images of a trial: those that go through all candidates, and all
RATE, SAVINGS = 0.2, 128.0  # forwards for trials that an image brings, and the most that are kept
AGAIN = (128, 2048)  # images after which a choice is tried again though nothing moved: at first
# soon, as 32 images may not tell, then ever more rarely
KEPT = 64  # earlier answers that count in a trial, where nothing moved


class StreamTower(StatefulPart):
    """Chooses between the source's statistics and the stream's, of the pixels and of BatchNorms.

    Candidates are tried on a few images when brightness, contrast or sharpness of the stream have
    moved, or its grain while one of them is in use, within an account that bounds what trials cost:
    at most `RATE` forwards per image in the long run, next to nothing while nothing moves. The
    batch on which the stream moved is answered by the winner.

    Parameters
    ----------
    text
        Prototypes (K,D), by which candidates are asked for their answers.
    """

    def __init__(self, model: VLM, text: Tensor) -> None:
        self.model, self.text = model, text
        self.norms = StreamNorms(model.visual)
        blends = [(True, True)] if self.norms else []
        self.candidates = [(False, False), (True, False), *blends]  # (pixels, BatchNorms)
        C, K = len(self.candidates), len(text)
        self.add_state("pixels", Pixels(model))
        self.add_state("norms", self.norms)
        self.add_state("active", 0, least=0, most=C - 1)
        self.looks = Looks()
        self.add_state("looks", self.looks)
        self.add_state("lost", False)  # moved, and not yet tried
        self.add_state("tokens", SAVINGS, most=SAVINGS)
        self.add_state("left", TRIAL, least=0)  # images that the trial still wants
        self.add_state("quiet", 0, least=0)  # images since the last trial began
        self.add_state("patience", AGAIN[0], least=AGAIN[0], most=AGAIN[1])
        self.add_state("trials", 0, merge="sum", least=0)
        self.answers = Answers(C, K)
        self.add_state("answers", self.answers)

    pixels: Pixels
    active: int
    lost: bool
    tokens: float
    left: int
    quiet: int
    patience: int
    trials: int

    def merge(self, other: StreamTower, share: float) -> None:
        """Moments mix by their counts; the choice is that of the one with more samples."""
        if share > 0.5:
            self.active, self.norms.rho = other.active, other.norms.rho
        self.merge_state(other, share)

    @property
    def in_use(self) -> dict[str, float]:
        """The shares of the stream's statistics in pixels and BatchNorms; for the spectrum, by how
        many nats the power of a band is changed at the most."""
        pixels, norms = self.candidates[self.active]
        spectrum = float(self.pixels.raised.abs().max()) if pixels else 0.0
        shares = {"pixels": pixels * self.pixels.share, "batch_norms": norms * self.norms.rho}
        return {**shares, "spectrum": spectrum}

    def encode(
        self, x: Tensor, which: int, params: Mapping[str, Tensor] | None, *, learn: bool = False
    ) -> Tensor:
        """Features (B,D) under one of the candidates."""
        pixels, norms = self.candidates[which]
        if pixels:
            x = self.pixels.restored(x)
        tuned = None if which else params  # weights were tuned under the source's statistics
        if not (norms or (pixels and learn and self.left and self.norms)):
            return self.model.encode_image(x, tuned)
        with self.model.lock, self.norms.blended(learn) if norms else self.norms.measured():
            return self.model.encode_image(x, tuned)

    def look(self, x: Tensor) -> float:
        """Take in the pixels of a batch; how far the stream has moved, as `Looks.moved` has it."""
        x = x.to(self.model.device)
        self.quiet += len(x)
        self.tokens = min(self.tokens + RATE * len(x), SAVINGS)
        if moved := self.looks.moved(x, closely=self.active > 0):
            self.lost = True
            self.looks.settle()
            self.pixels.loosen()
            self.norms.loosen()
        self.pixels.look(x)
        if not self.norms and self.pixels.as_they_are:  # all candidates are the source
            if self.left:
                self.looks.settle()
            self.active, self.left, self.lost = 0, 0, False
        elif self.tokens >= self._price and (self.lost or self._due):
            self.trials += 1
            self.patience = AGAIN[0] if self.lost else min(2 * self.patience, AGAIN[1])
            self.answers.keep(0 if self.lost else KEPT)  # of what was before a move
            self.norms.measure_anew()
            self.left, self.quiet, self.lost = TRIAL, 0, False
        elif moved:  # no means to find out: only pixels follow by themselves
            self.active, self.left = min(self.active, 1), 0
        return moved

    def features(self, x: Tensor, params: Mapping[str, Tensor] | None) -> Tensor:
        """Features of the batch just looked at, after a trial if one is due."""
        x = x.to(self.model.device)
        if self.left:
            return self._trial(x, params)
        return self.encode(x, self.active, params, learn=True)

    @property
    def _due(self) -> bool:
        """Whether to ask again though nothing moved: with enough left for a trial if it does."""
        return self.left == 0 and self.quiet >= self.patience and self.tokens >= 2 * self._price

    @property
    def _price(self) -> int:
        return WIDE * (len(self.candidates) - 1) + TRIAL - WIDE

    def _trial(self, x: Tensor, params: Mapping[str, Tensor] | None) -> Tensor:
        """Try candidates on images spread over the batch, decide, and answer by the winner."""
        n, take = len(x), min(self.left, len(x))
        head = torch.zeros(n, dtype=torch.bool, device=x.device)
        head[torch.arange(take, device=x.device) * n // take] = True
        some, known = x[head], {}
        wide = max(0, min(take, WIDE - (TRIAL - self.left)))  # images that all candidates answer
        if self.norms and wide and self.active != 1:  # first of all: the others' share hangs on it
            known[1] = self.encode(some[:wide], 1, None, learn=True)
            self.tokens -= wide
            self.norms.choose()
        z = self.encode(some, self.active, params, learn=True)
        if self.norms and self.active == 1:
            self.norms.choose()
        if self.active or params is None:
            known[self.active] = z
        asked = self._ask(some, wide, known)
        self.left -= take
        self.looks.settle()
        before, (self.active, verdicts) = self.active, self._decide()
        # ahead of the source, but not beyond noise: some more images
        best = max(verdicts[1:], key=lambda verdict: verdict.score)
        undecided = self.active == 0 and LEAST <= best.n < 2 * TRIAL and best.score > MARGIN
        if self.left == 0 and undecided and self.tokens >= TRIAL - WIDE:
            self.left = TRIAL - WIDE
        if self.active != before:
            pristine = self.active or params is None
            z = asked.get(self.active, z[:0]) if pristine else z[:0]
            if len(rest := some[len(z) :]):
                z = torch.cat([z, self.encode(rest, self.active, params, learn=True)])
                self.tokens -= len(rest)
        features = z.new_empty(n, z.shape[1])
        features[head] = z
        if take < n:  # where a trial that is not decided finds more images
            features[~head] = self.features(x[~head], params)
        return features

    def _ask(self, x: Tensor, wide: int, known: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The first images of a trial go through all candidates, the others through two.

        `known` are features that there are already; returned are those that each candidate has now,
        of all images or the first ones, so that a winner need not be asked again. The measure is
        the pristine source: tuned weights, surer by their training, would win against statistics
        that serve better.
        """
        asked: dict[int, Tensor] = {}
        for part in (slice(0, wide), slice(wide, len(x))):
            if not len(x[part]):
                continue
            verdicts = self._verdicts()
            leader = max(range(1, len(verdicts)), key=lambda c: verdicts[c].score)
            rows: dict[int, Tensor] = {}
            for c in range(len(self.candidates)):
                if c in known and len(known[c][part]):
                    features = known[c][part]
                elif part.start < wide or c in (0, leader):
                    features = self.encode(x[part], c, None, learn=True)
                    self.tokens -= len(x[part])
                else:
                    continue
                rows[c] = self.model.logits(features, self.text).softmax(1).cpu()
                asked[c] = torch.cat([asked[c], features]) if c in asked else features
            self.answers.add(rows)
        return asked

    def _verdict(self, c: int, last: int) -> Verdict:
        """What so many answers, the last ones, say of a candidate."""
        candidate, source = (answers[-last:] for answers in self.answers.pair(c))
        mixes = self.candidates[c][1]
        restores = "" if mixes else self.pixels.restores
        return judge(candidate, source, mixes=mixes, restores=restores)

    def _verdicts(self) -> list[Verdict]:
        """On all answers that are kept; but images of several scenes look even, however skewed."""
        every, found = len(self.answers.rows), [Verdict(0.0)]
        for c in range(1, len(self.candidates)):
            found.append(replace(self._verdict(c, every), mends=self._verdict(c, TRIAL).mends))
        return found

    def _decide(self) -> tuple[int, list[Verdict]]:
        """The candidate to go by, and what was found of each."""
        verdicts = self._verdicts()
        if all(verdict.n < LEAST for verdict in verdicts[1:]):
            return self.active, verdicts
        moved = self.patience == AGAIN[0]  # what is in use was chosen for what the stream was
        passed = [
            c
            for c in range(1, len(verdicts))
            if verdicts[c].accepted(in_use=c == self.active, moved=moved)
            and not self._verdict(c, TRIAL).refused
        ]
        return max(passed, key=lambda c: verdicts[c].score, default=0), verdicts
