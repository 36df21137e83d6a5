"""StatA: Gaussian classes of one batch, anchored at the statistics of the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.adapter import Adapter
from bayestta.methods import register
from bayestta.settings import Settings, setting

SMALLEST = torch.finfo(torch.float64).tiny  # keeps 0 / 0 at zero


@dataclass(frozen=True)
class StatASettings(Settings):
    anchor: float = setting(
        1.0, "Samples that the text statistics of a class are worth (alpha).", least=0
    )
    neighbours: int = setting(3, "Nearest images of the batch that an image listens to.", least=0)
    temperature: float = setting(50.0, "What the log-likelihood is divided by.", above=0)
    rounds: int = setting(10, "Updates of the Gaussian classes per batch.", least=0)
    steps_each: int = setting(5, "Updates of the assignments per round.", least=1)
    logdet: bool = setting(
        True,
        "The likelihood has its determinant, as in the code since April 2025; the published tables "
        "are older.",
    )
    soft_beta: bool = setting(
        False, "A class counts its share of all images instead of the images that it wins."
    )


class Classes(NamedTuple):
    """Gaussian classes with diagonal covariances."""

    mean: Tensor  # (K,D)
    variance: Tensor  # (K,D)


@register
class StatA(Adapter):
    """Solve for the classes of one batch by itself, and answer by the assignments of its images.

    Nothing is carried from batch to batch. An answer uses all images of its batch; an image alone
    is answered by zero-shot (ours). The answer is the logarithm of the assignment.
    """

    Settings = StatASettings
    settings: StatASettings
    name = "stata"
    title = "StatA"
    about = "Gaussian classes of each batch by itself."
    citation = (
        "Zanella et al., Realistic Test-Time Adaptation of Vision-Language Models, CVPR 2025, "
        "arXiv 2501.03729"
    )
    tunes = "nothing that outlives a batch"
    cost = "1 forward per image"
    fidelity = (
        "code, in float64 and with squares instead of outer products; the templates of the data "
        "set instead of one; a batch of fewer than 4 images, which the code cannot take, has "
        "fewer neighbours (ours)"
    )
    answer = "after"

    @torch.no_grad()
    def _adapt(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x)
        self.sketch = self.model.logits(z, self.text)
        return self._solve(z, self.sketch)

    def _predict(self, x: Tensor) -> Tensor:
        z = self.model.encode_image(x)
        return self._solve(z, self.model.logits(z, self.text))

    def _solve(self, z: Tensor, logits: Tensor) -> Tensor:
        own, prior = self.settings, logits.double().log_softmax(1)  # (N,K)
        if len(z) == 1:
            return prior.to(logits.dtype)
        x, text = z.double(), self.text.double()
        graph, log_z = neighbour_graph(x, own.neighbours), prior
        first = Classes(text, start_variance(x, log_z.exp(), text).expand_as(text))
        classes = first
        for round_ in range(own.rounds + 1):
            fit = self._log_likelihood(x, classes)
            for _ in range(own.steps_each):
                a = fit + own.temperature * (graph @ log_z.exp())
                log_z = (prior + a / own.temperature).log_softmax(1)
            if round_ < own.rounds:
                classes = self._anchored(x, log_z.exp(), first)
        return log_z.to(logits.dtype)

    def _log_likelihood(self, x: Tensor, classes: Classes) -> Tensor:
        """Of images (N,D), but for the constant: (N,K); squares are multiplied out."""
        mean, variance = classes
        distance = x.square() @ (1 / variance).T - 2 * x @ (mean / variance).T
        distance = distance + (mean.square() / variance).sum(1)
        return -0.5 * (distance + variance.log().sum(1) if self.settings.logdet else distance)

    def _anchored(self, x: Tensor, z: Tensor, first: Classes) -> Classes:
        """Classes of assignments z (N,K), between their own statistics and the text's."""
        text, variance = first
        total = z.sum(0)  # (K,)
        count = total
        if not self.settings.soft_beta:
            count = z.argmax(1).bincount(minlength=len(text)).to(z)
        beta = (count / (self.settings.anchor + count + 1e-12))[:, None]  # (K,1)
        share = (z / total.clamp_min(SMALLEST)).T  # (K,N)
        average = share @ x
        mean = functional.normalize(
            beta * functional.normalize(average, dim=1) + (1 - beta) * text, dim=1
        )
        own = share @ x.square() - 2 * mean * average + share.sum(1, keepdim=True) * mean.square()
        anchor = variance + (text - mean).square()
        return Classes(mean, beta * own.clamp_min(0) + (1 - beta) * anchor)


def neighbour_graph(x: Tensor, neighbours: int) -> Tensor:
    """(W + W') / 2n of the n nearest images of each, W their cosines: (N,N)."""
    n = min(neighbours, len(x) - 1)
    if n == 0:
        return x.new_zeros(len(x), len(x))
    cosine = x @ x.T
    value, place = cosine.topk(n + 1, dim=1)
    graph = torch.zeros_like(cosine).scatter_(1, place[:, 1:], value[:, 1:])  # the first is itself
    return (graph + graph.T) / (2 * n)


def start_variance(x: Tensor, z: Tensor, text: Tensor) -> Tensor:
    """Mean square of the step from an image's likely prototypes to it, the same for all: (D,)."""
    cross = (text * (z.T @ x)).sum(0)
    square: Tensor = x.square().sum(0) - 2 * cross + z.sum(0) @ text.square()
    return (square / len(x)).clamp_min(SMALLEST)
