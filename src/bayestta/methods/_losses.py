"""Entropies that several methods minimise or sort by."""

from __future__ import annotations

import math

from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Of the softmax over the last dimension.

    >>> import torch
    >>> entropy(torch.zeros(2, 4)).exp().tolist()
    [4.0, 4.0]
    """
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def marginal_entropy(logits: Tensor) -> Tensor:
    """The entropy of the mean over views of the probabilities: (...,V,K) -> (...)."""
    log_mean = logits.log_softmax(-1).logsumexp(-2) - math.log(logits.shape[-2])
    return -(log_mean.exp() * log_mean).sum(-1)
