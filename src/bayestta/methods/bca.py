"""BCA: class embeddings and a class prior that follow the posterior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.methods import register
from bayestta.methods._sequential import Sequential, SequentialSettings
from bayestta.settings import setting


@dataclass(frozen=True)
class BCASettings(SequentialSettings):
    tau_likelihood: float = setting(
        0.05, "Posterior above which an embedding moves.", least=0, most=1
    )
    count_likelihood: float = setting(
        20000.0,
        "Samples that an embedding is worth at the start; the port's value all but holds it still.",
        above=0,
    )
    tau_prior: float = setting(
        0.65, "Posterior above which a row of the prior moves.", least=0, most=1
    )
    count_prior: float = setting(
        1.0, "Samples that a row of the prior is worth at the start.", above=0
    )
    follows: str = setting(
        "class",
        "What moves: the row of the most likely class (the port) or of the most likely embedding "
        "(the paper's words); they coincide while the prior is near the identity.",
        choices=("class", "embedding"),
    )


@register
class BCA(Sequential):
    """Posterior = likelihood of the class embeddings x their prior P(class | embedding).

    Derived from a third-party port and the paper's text; the official code was not read. The
    answer is the logarithm of the posterior.

    """

    Settings = BCASettings
    settings: BCASettings
    name = "bca"
    title = "BCA"
    about = "Embeddings and a prior follow the posterior."
    citation = (
        "Zhou et al., Bayesian Test-Time Adaptation for Vision-Language Models, CVPR 2025, "
        "arXiv 2503.09248"
    )
    tunes = "class embeddings and the prior of classes given embeddings"
    cost = "1 forward per image"
    fidelity = "derived from a third-party port; the official values per data set are unknown"

    def declare(self) -> None:
        K, own = len(self.text), self.settings
        # A step of 1/20,000 is too small to be added up in float32.
        self.mean = self.add_state("mean", self.text.double())  # (K,D)
        eye = torch.eye(K, dtype=torch.float64, device=self.text.device)
        self.prior = self.add_state("prior", eye)  # (K,K)
        start = self.text.new_tensor([own.count_likelihood, own.count_prior], dtype=torch.float64)
        self.counts = self.add_state("counts", start[:, None].repeat(1, K), least=0)  # of both

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        z, logits = self._confident(z.double(), self.mean)
        likelihood = logits.mean(0).softmax(0)
        posterior = likelihood @ self.prior
        if learn:
            moved = posterior if self.settings.follows == "class" else likelihood
            self._learn(z.mean(0), posterior, int(moved.argmax()))
        return posterior.clamp_min(torch.finfo(torch.float64).tiny).log().to(self.text.dtype)

    def _learn(self, feature: Tensor, posterior: Tensor, k: int) -> None:
        sure, count = float(posterior.max()), self.counts[:, k]
        if sure > self.settings.tau_likelihood:
            moved = (count[0] * self.mean[k] + feature) / (count[0] + 1)
            self.mean[k] = functional.normalize(moved, dim=0)
            count[0] += 1
        if sure > self.settings.tau_prior:
            self.prior[k] = (count[1] * self.prior[k] + posterior) / (count[1] + 1)
            count[1] += 1

    def merge_state(self, other: BCA, share: float) -> None:
        """Both are means with counts: add the sums, less one copy of the start."""
        super().merge_state(other, share)
        own = self.settings
        start = self.prior.new_tensor([own.count_likelihood, own.count_prior])[:, None]
        total = self.counts + other.counts - start
        eye = torch.eye(len(self.prior)).to(self.prior)
        sums = []
        for i, (mine, theirs, first) in enumerate(
            ((self.mean, other.mean, self.text.double()), (self.prior, other.prior, eye))
        ):
            a, b = self.counts[i, :, None], other.counts[i, :, None]
            mixed = (a * mine + b * theirs - start[i] * first) / total[i, :, None]
            sums.append(torch.where(b > start[i], mixed, mine))  # untouched rows to the bit
        moved = other.counts[0, :, None] > start[0]
        self.mean = torch.where(moved, functional.normalize(sums[0], dim=1), self.mean)
        self.prior, self.counts = sums[1], total
