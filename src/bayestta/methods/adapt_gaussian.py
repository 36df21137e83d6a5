"""ADAPT: Gaussian classes around a bank of confident features, sample by sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayestta.methods import register
from bayestta.methods._entropy_cache import Cache
from bayestta.methods._sequential import Sequential, SequentialSettings
from bayestta.methods._stored_gaussian import linear_score, ridged, stored
from bayestta.settings import setting


@dataclass(frozen=True)
class AdaptGaussianSettings(SequentialSettings):
    shots: int = setting(16, "Stored features per class.", least=1)
    alpha: float = setting(
        0.9, "Share of the stored features in a class mean; the rest is text.", least=0, most=1
    )
    scale: float = setting(
        60.0,
        "What the scores are divided by: 10 to 100 in the code, per data set; 60 is the median.",
        above=0,
    )
    form: str = setting(
        "logit",
        "Scores weigh the logits, as in the code, whose argmax is the answer, or the "
        "probabilities (prob), as the paper has it, for calibrated answers.",
        choices=("logit", "prob"),
    )
    fresh_similarity: bool = setting(
        False,
        "A sample that is not stored is compared with the bank (ours) instead of the last one that "
        "was, as in the code.",
    )


@register
class AdaptGaussian(Sequential):
    """Weigh the zero-shot logits by Gaussian classes and by similarity to a bank of features.

    A sample that enters the bank is in its class mean, twice, and in the covariance before it is
    answered. With `form="logit"` a class of negative logit gains where its score is poor, which
    matters only if no logit is positive.
    """

    Settings = AdaptGaussianSettings
    settings: AdaptGaussianSettings
    name = "adapt-gaussian"
    title = "ADAPT"
    about = "Gaussian classes and a bank of sure features."
    citation = (
        "Zhang et al., Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian "
        "Alignment, NeurIPS 2025, arXiv 2508.15568"
    )
    tunes = "a bank of 16 features per class"
    cost = "1 forward per image + a factor of at most D x D per stored sample"
    fidelity = (
        "code, statistics in float64; templates only, without the LLM's sentences; one scale for "
        "all streams (ours), as none is published for drifting ones"
    )
    answer = "after"

    def declare(self) -> None:
        K, D = self.text.shape
        # Of the probabilities of an entry, only that of its own class is ever used.
        bank = Cache(K, self.settings.shots, self.text, feature=D, weight=1)
        self.bank = self.add_state("bank", bank)
        self.mean = self.add_state("mean", self.text.double())  # (K,D)
        self.last = self.add_state("last", self.text.new_zeros(D))  # the sample stored last
        self._solved: tuple[Tensor, Tensor] | None = None  # means, and the precision times them

    def _sample(self, z: Tensor, *, learn: bool) -> Tensor:
        z, logits = self._confident(z, self.text)
        log_p = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
        feature, logits = z.mean(0), logits.mean(0)
        if learn:
            self._store(feature, log_p.exp(), int(logits.argmax()))
        gain = self._gain(feature).to(logits.dtype)
        if self.settings.form == "prob":
            return log_p + gain
        return (logits - self.model.bias) * gain.exp()  # the code's logits are scaled cosines

    def _store(self, feature: Tensor, p: Tensor, k: int) -> None:
        before = list(self.bank.entropy[k])
        entropy = float(torch.special.entr(p).sum())
        self.bank.insert(k, entropy, feature=feature, weight=p[k])
        if self.bank.entropy[k] != before:
            self._move(k, p[k].double() * feature.double(), p[k].double())
            self.last = feature

    def _move(self, k: int, extra: Tensor | float = 0.0, weight: Tensor | float = 0.0) -> None:
        """The mean of class k from its entries, and from what else is given, as sums."""
        own = self.bank["weight"][k].double()  # (S,1), zero where there is no entry
        total = (own * self.bank["feature"][k].double()).sum(0) + extra
        mean, share = self.mean.clone(), self.settings.alpha
        mean[k] = share * total / (own.sum() + weight) + (1 - share) * self.text[k].double()
        self.mean = mean  # a new tensor: what was solved for the old one is out of date

    def _gain(self, feature: Tensor) -> Tensor:
        """What the Gaussians and the bank say of each class, zero for the best: (K,)."""
        n, scale = int(self.bank.filled.sum()), self.settings.scale
        if n == 0:
            return torch.zeros_like(self.mean[:, 0])
        score = linear_score(feature[None], self.mean, self._weights(n))[0].log_softmax(0)
        compared = feature if self.settings.fresh_similarity else self.last
        near = (self.bank["feature"] @ compared) * self.bank["weight"][:, :, 0]  # (K,S)
        score = score + scale / (2 * n) * near.sum(1).double()
        return (score - score.max()) / scale

    def _weights(self, n: int) -> Tensor:
        """The precision times the means: (D,K)."""
        if self._solved is None or self._solved[0] is not self.mean:
            z, k = stored(self.bank)
            weight = ridged(z - self.mean[k], self.mean) if n > 1 else self.mean.T
            self._solved = self.mean, weight
        return self._solved[1]

    def merge_state(self, other: AdaptGaussian, share: float) -> None:
        """Fill the bank from both; a class whose entries changed has their mean, none twice."""
        before = [list(row) for row in self.bank.entropy]
        super().merge_state(other, share)
        for k, entropies in enumerate(before):
            if entropies != self.bank.entropy[k]:
                self._move(k)
