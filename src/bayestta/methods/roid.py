"""ROID: weighted self-training of the norms, pulled back to the source, with a prior at the end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.methods import register
from bayestta.methods._augment import augment
from bayestta.methods._norm_tuner import NormTuner
from bayestta.settings import Settings, setting


@dataclass(frozen=True)
class ROIDSettings(Settings):
    """The official ImageNet values."""

    lr: float = setting(2.5e-4, "Learning rate; the CIFAR value for adam is 0.001.", least=0)
    optimiser: str = setting(
        "sgd", "Optimiser; sgd has Nesterov momentum 0.9.", choices=("sgd", "adam")
    )
    temperature: float = setting(
        1 / 3, "Sharpness of the weights of images: they range from 1 to exp(1/t).", above=0
    )
    clip: float = setting(
        0.99, "Probability above which the likelihood ratio has no gradient.", above=0, most=0.9999
    )
    memory: float = setting(
        0.9, "Share of the old mean probabilities that a batch keeps.", least=0, most=1
    )
    source: float = setting(
        0.01, "Share of the source weights that a step puts back.", least=0, most=1
    )
    divisor: int | None = setting(
        None,
        "Images that the loss is divided by; by default those of the batch. The code takes its "
        "configured batch size, which differs for a short last batch.",
        least=1,
    )
    prior: str = setting(
        "logit",
        "The smoothed class frequencies of the batch multiply the logits, as in the code, or the "
        "probabilities (prob, ours); off: neither.",
        choices=("logit", "prob", "off"),
    )
    norms: str = setting(
        "batch",
        "BatchNorms go by the batch, as in the code, or by their stored statistics (source); "
        "LayerNorms do not know the difference.",
        choices=("batch", "source"),
    )


@register
class ROID(NormTuner):
    """Sharpen images that are sure and unlike the stream so far, and put back some of the source.

    The answer is of the weights before the step, corrected by the class frequencies of the batch.
    Where outputs do not differ, such as for a single image, the weights of images are not defined,
    and there is no step (ours).
    """

    Settings = ROIDSettings
    settings: ROIDSettings
    name = "roid"
    title = "ROID"
    about = "Weighted self-training, pulled to the source."
    citation = (
        "Marsden et al., Universal Test-time Adaptation through Weight Ensembling, Diversity "
        "Weighting, and Prior Correction, WACV 2024, arXiv 2306.00650"
    )
    cost = (
        "2 forwards + 2 backwards to the norms per image at most; the second are for those that "
        "are unlike the stream, about half"
    )
    fidelity = (
        "code, in float32; its values for ImageNet, as none are published for CLIP; that one draw "
        "augments the whole batch is inferred; no step where weights of images would be 0/0 (ours)"
    )

    def declare(self) -> None:
        super().declare()
        K = len(self.classes)
        start = torch.full((K,), 1 / K, dtype=torch.float64, device=self.text.device)
        self.mean_probability = self.add_state(  # (K,) of the stream so far
            "mean_probability", start, merge="mean", least=0, most=1
        )

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        if self.settings.optimiser == "adam":
            return torch.optim.Adam(tensors, lr=self.settings.lr)
        return torch.optim.SGD(tensors, lr=self.settings.lr, momentum=0.9, nesterov=True)

    def _logits(self, x: Tensor) -> Tensor:
        return super()._predict(x)

    def _predict(self, x: Tensor) -> Tensor:
        return self._corrected(self._logits(x))

    def _adapt(self, x: Tensor) -> Tensor:
        own, logits = self.settings, self._logits(x)
        p = logits.detach().double().softmax(1)
        weight = image_weights(p, self.mean_probability, own.temperature)
        keep = own.memory
        self.mean_probability = keep * self.mean_probability + (1 - keep) * p.mean(0)
        if weight is not None:
            kept = weight.nonzero().flatten()
            seen = self._logits(augment(self.model, x[kept], self.generator, clean=True))
            loss = likelihood_ratio(logits[kept], own.clip) + consistency(logits[kept], seen)
            self.tuned.step((weight[kept].to(loss) * loss).sum() / (own.divisor or len(x)))
            with torch.no_grad():
                for key, value in self.tuned.items():
                    value.lerp_(self.tuned.start[key], own.source)
        return self._corrected(logits.detach())

    def _corrected(self, logits: Tensor) -> Tensor:
        if self.settings.prior == "off":
            return logits
        prior = smoothed_prior(logits.double().softmax(1)).to(logits.dtype)
        if self.settings.prior == "prob":
            return logits + prior.log()
        return (logits - self.model.bias) * prior  # the code's logits are scaled cosines

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of answers at their old scale (ours): a prior has the mean 1/K, and shrinks logits so."""
        shrunk = self.settings.prior == "logit"
        return super().probabilities(logits * len(self.classes) if shrunk else logits)


def image_weights(p: Tensor, mean: Tensor, temperature: float) -> Tensor | None:
    """exp(diversity * certainty / t) of images (B,K) that are unlike the mean, 0 of others: (B,).

    None where all are as diverse, or as certain.
    """
    diversity = unit_range(1 - functional.cosine_similarity(p, mean[None], dim=1))
    certainty = unit_range(-torch.special.entr(p).sum(1))
    if diversity is None or certainty is None:
        return None
    weight = torch.exp(diversity * certainty / temperature)
    return torch.where(diversity < diversity.mean(), 0.0, weight)


def unit_range(values: Tensor) -> Tensor | None:
    """Shifted and scaled to [0,1]; None where they do not differ.

    >>> unit_range(torch.tensor([2.0, 4.0, 3.0])).tolist(), unit_range(torch.ones(2))
    ([0.0, 1.0, 0.5], None)
    """
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else None


def likelihood_ratio(logits: Tensor, clip: float) -> Tensor:
    """Soft likelihood ratio: minus the mean log odds of the clipped probabilities, (B,)."""
    p = logits.softmax(1).clamp_max(clip)
    return -(p * (p / (1 - p) + 1e-5).log()).sum(1)


def consistency(one: Tensor, two: Tensor) -> Tensor:
    """Symmetric cross-entropy of two sets of logits, with gradients through both: (B,)."""
    forward = (one.softmax(1) * two.log_softmax(1)).sum(1)
    backward = (two.softmax(1) * one.log_softmax(1)).sum(1)
    return -0.5 * forward - 0.5 * backward


def smoothed_prior(p: Tensor) -> Tensor:
    """Class frequencies of a batch (B,K), more even the smaller it is and the larger its mode."""
    (B, K), prior = p.shape, p.mean(0)
    smooth = max(1 / B, 1 / K) / prior.max()
    return (prior + smooth) / (1 + smooth * K)
