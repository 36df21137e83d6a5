"""Running sums over a labelled stream: accuracy, NLL, Brier score and calibration error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.evaluation.result import confusion

BINS = 15
DENSE = 100  # classes, up to which the confusion matrix is written out whole


class Score:
    """Sums over the samples seen, from which every metric follows; scores add.

    `confusion` counts (truth, answer). `bins` holds, for `BINS` intervals of confidence of equal
    width, closed on the right: the samples, their summed confidence, and their hits.

    >>> score = Score(classes=2)
    >>> score.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    >>> score.n, score.hits, score.accuracy
    (2, 1, 50.0)
    >>> (score + score).n
    4
    """

    def __init__(self, classes: int) -> None:
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64)  # (K,K)
        self.bins = torch.zeros(3, BINS, dtype=torch.float64)
        self.nll_sum = 0.0
        self.brier_sum = 0.0

    def update(self, probabilities: Tensor, y: Tensor) -> None:
        """Count a batch: `probabilities` (B,K), and the true classes `y` (B,)."""
        tiny = torch.finfo(probabilities.dtype).tiny
        p, y = probabilities.detach().cpu().double(), y.detach().cpu().long()
        self._check(p, y)
        confidence, answer = p.max(dim=1)
        one = torch.ones_like(y)
        self.confusion.index_put_((y, answer), one, accumulate=True)
        position = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
        sums = torch.stack([one.double(), confidence, (answer == y).double()])  # (3,B)
        self.bins.index_add_(1, position, sums)
        truth = p.gather(1, y[:, None])[:, 0]
        # A one-hot softmax gives a wrong answer's class exactly zero: its loss is the largest that
        # the number format can express, not infinity.
        self.nll_sum -= float(truth.clamp(min=tiny).log().sum())
        self.brier_sum += float(p.square().sum() - 2 * truth.sum() + len(y))  # |p - onehot(y)|^2

    def _check(self, p: Tensor, y: Tensor) -> None:
        classes = len(self.confusion)
        if p.ndim != 2 or p.shape[1] != classes or y.shape != p.shape[:1]:
            raise ValueError(
                f"Score of {classes} classes got probabilities {tuple(p.shape)} and labels "
                f"{tuple(y.shape)}: pass (B, {classes}) and (B,)."
            )
        if y.numel() and (int(y.min()) < 0 or int(y.max()) >= classes):
            raise ValueError(
                f"labels reach from {int(y.min())} to {int(y.max())}, but there are {classes} "
                f"classes: labels must lie in 0..{classes - 1}."
            )
        wrong = ((p.sum(dim=1) - 1).abs() <= 1e-2).logical_and((p >= 0).all(dim=1)).logical_not()
        if wrong.any():
            raise ValueError(
                f"{int(wrong.sum())} of {len(p)} rows are not probabilities (finite, non-negative, "
                "summing to one): pass the softmax of the logits."
            )

    def __add__(self, other: Score) -> Score:
        if len(self.confusion) != len(other.confusion):
            raise ValueError(
                f"scores of {len(self.confusion)} and {len(other.confusion)} classes do not add: "
                "merge scores of one data set."
            )
        total = Score(len(self.confusion))
        total.confusion = self.confusion + other.confusion
        total.bins = self.bins + other.bins
        total.nll_sum = self.nll_sum + other.nll_sum
        total.brier_sum = self.brier_sum + other.brier_sum
        return total

    @property
    def n(self) -> int:
        return int(self.confusion.sum())

    @property
    def hits(self) -> int:
        return int(self.confusion.diagonal().sum())

    @property
    def accuracy(self) -> float:
        """Percent; NaN, like every mean here, before the first sample."""
        return 100 * self._mean(self.hits)

    @property
    def confidence(self) -> float:
        """Mean confidence in percent: an estimate of the accuracy that needs no label."""
        return 100 * self._mean(float(self.bins[1].sum()))

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood of the true class, in nats."""
        return self._mean(self.nll_sum)

    @property
    def brier(self) -> float:
        """Mean squared distance of the probabilities from the one-hot truth, 0 to 2."""
        return self._mean(self.brier_sum)

    @property
    def ece(self) -> float:
        """Expected calibration error, a fraction, 0 to 1 (Naeini et al. 2015, Guo et al. 2017)."""
        return self._mean(float((self.bins[1] - self.bins[2]).abs().sum()))

    def _mean(self, total: float) -> float:
        n = self.n
        return total / n if n else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; the confusion as K rows of K counts, true class by row.

        Above `DENSE` classes it is what is not zero, as [truth, answer, count].
        """
        return {
            "n": self.n,
            "hits": self.hits,
            "accuracy": self.accuracy,
            "ece": self.ece,
            "nll": self.nll,
            "brier": self.brier,
            "classes": len(self.confusion),
            "bins": [
                [int(n), confidence, int(hits)] for n, confidence, hits in self.bins.T.tolist()
            ],
            "confusion": self._cells() if len(self.confusion) > DENSE else self.confusion.tolist(),
        }

    def _cells(self) -> list[list[int]]:
        cells = self.confusion.nonzero()  # (cells,2)
        counts = self.confusion[cells[:, 0], cells[:, 1]]
        listed: list[list[int]] = torch.cat([cells, counts[:, None]], dim=1).tolist()
        return listed

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Score:
        """The score that `to_json` wrote, so that saved shards can be merged."""
        score = cls(value["classes"])
        score.confusion = torch.tensor(confusion(value), dtype=torch.int64).view_as(score.confusion)
        if score.n != value["n"] or len(value["bins"]) != BINS:
            raise ValueError(
                f"a score of {value['n']} samples and {len(value['bins'])} bins holds {score.n} "
                f"samples in its confusion matrix and should have {BINS} bins: the file was edited."
            )
        score.bins = torch.tensor(value["bins"], dtype=torch.float64).T.contiguous()
        if score.n:
            score.nll_sum, score.brier_sum = value["nll"] * score.n, value["brier"] * score.n
        return score
