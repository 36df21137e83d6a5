"""BCA: class embeddings and a class prior that follow the posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.adapter import register
from bayestta.methods._sequential import Sequential
from bayestta.models.base import VLM
from bayestta.names import unknown

FOLLOWS = ("class", "embedding")


@register
class BCA(Sequential):
    """Posterior = likelihood of the class embeddings x their prior P(class | embedding).

    Derived from a third-party port and the paper's text; the official code was not read. The
    answer is the logarithm of the posterior.

    Parameters
    ----------
    tau_likelihood, count_likelihood
        Above this posterior the embedding moves towards the feature; it starts with the weight of
        so many samples. The port's 20,000 all but hold it still.
    tau_prior, count_prior
        Above this posterior the prior's row moves towards the posterior; its starting weight.
    follows
        What moves: the row of the most likely `class` (the port), or of the most likely
        `embedding` (the paper's words). They coincide while the prior is near the identity.
    views, selection
        Above 1, a sample is the mean of this share of its views.
    """

    name = "bca"
    title = "BCA"
    citation = (
        "Zhou et al., Bayesian Test-Time Adaptation for Vision-Language Models, CVPR 2025, "
        "arXiv 2503.09248"
    )
    tunes = "class embeddings and the prior of classes given embeddings"
    cost = "1 forward an image"
    fidelity = "derived from a third-party port; the official values a data set are unknown"

    def __init__(
        self,
        model: VLM,
        names: Sequence[str],
        templates: Sequence[str],
        *,
        seed: int = 0,
        tau_likelihood: float = 0.05,
        count_likelihood: float = 20000.0,
        tau_prior: float = 0.65,
        count_prior: float = 1.0,
        follows: str = "class",
        views: int = 1,
        selection: float = 0.1,
    ) -> None:
        if follows not in FOLLOWS:
            raise ValueError(unknown("value of follows", follows, FOLLOWS))
        self.tau_likelihood, self.count_likelihood = tau_likelihood, count_likelihood
        self.tau_prior, self.count_prior, self.follows = tau_prior, count_prior, follows
        self.views, self.selection = views, selection
        super().__init__(model, names, templates, seed=seed)

    def restart(self) -> None:
        super().restart()
        # A step of 1/20,000 is too small to be added up in float32.
        self.mean = self.text.to(torch.float64, copy=True)  # (K,D)
        self.prior = torch.eye(len(self.text), dtype=torch.float64, device=self.text.device)
        self.counts = self.prior.new_tensor([self.count_likelihood, self.count_prior])
        self.counts = self.counts[:, None].repeat(1, len(self.text))  # (2,K)

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        z, logits = self._confident(z.double(), self.mean)
        likelihood = logits.mean(0).softmax(0)
        posterior = likelihood @ self.prior
        if learn:
            moved = posterior if self.follows == "class" else likelihood
            self._learn(z.mean(0), posterior, int(moved.argmax()))
        return posterior.clamp_min(torch.finfo(torch.float64).tiny).log().to(self.text.dtype)

    def _learn(self, feature: Tensor, posterior: Tensor, k: int) -> None:
        sure, count = float(posterior.max()), self.counts[:, k]
        if sure > self.tau_likelihood:
            moved = (count[0] * self.mean[k] + feature) / (count[0] + 1)
            self.mean[k] = functional.normalize(moved, dim=0)
            count[0] += 1
        if sure > self.tau_prior:
            self.prior[k] = (count[1] * self.prior[k] + posterior) / (count[1] + 1)
            count[1] += 1

    def state_dict(self) -> dict[str, Tensor]:
        moved = {"mean": self.mean, "prior": self.prior, "counts": self.counts}
        return {**super().state_dict(), **{key: value.clone() for key, value in moved.items()}}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        for key in ("mean", "prior", "counts"):
            getattr(self, key).copy_(state[key])

    def _merge(self, other: BCA) -> None:
        """Both are means with counts: add the sums, less one copy of the start."""
        start = self.prior.new_tensor([self.count_likelihood, self.count_prior])[:, None]
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
