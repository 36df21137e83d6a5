"""Bets against a hypothesis that stay valid however often one looks (Ville's inequality).

A test keeps a capital that starts at 1 and that no strategy can expect to raise while its
hypothesis holds. The chance that it ever reaches 1/alpha is then alpha at most, at every time and
with every rule for stopping. The capital is the e-value; its logarithm adds up the evidence.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# Slopes of the bets on a rank: either direction, from careful to bold.
SLOPES = np.array([-1.8, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 1.8])
_ALL = np.concatenate([[0.0], SLOPES])  # the reserve takes no part
# Stakes of the bets on harm: the mean over them needs no tuning to the size of the harm.
STAKES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
LOG_FACTORS = {gain: np.log(1.0 - STAKES * gain) for gain in (-1, 0, 1)}

Floats = NDArray[np.float64]


def start_capital(*streams: int) -> Floats:
    """Capital (…, 1 + bets) before the first sample: all of it in reserve."""
    capital = np.zeros((*streams, 1 + len(SLOPES)))
    capital[..., 0] = 1.0
    return capital


def bet(capital: Floats, u: float | Floats, t: int) -> Floats:
    """The capital after the rank `u` in 0..1 of sample `t` (from 1).

    It is M_t = prod (1 + eps_t (u_t - 1/2)) of POEM (arXiv 2408.07511, Eq. 5), where eps_t is the
    mean slope of the capital at stake. A share of the reserve is released before each sample, so
    that bets start at every time: after t samples 1/(t+1) is left, and a late change costs log t.

    >>> capital = start_capital()
    >>> for t in range(1, 9):
    ...     capital = bet(capital, 0.95, t)
    >>> bool(capital.sum() > 5)
    True
    """
    edge = u - 0.5 if isinstance(u, float) else (u - 0.5)[..., None]
    reserve = capital[..., :1]
    released = reserve / (t + 1)
    after: Floats = (capital + released / len(SLOPES)) * (1 + _ALL * edge)
    after[..., :1] = reserve - released
    return after


def uniform(seed: int, counter: int) -> float:
    """A number in 0..1 that depends on seed and counter alone (SplitMix64): no state to keep.

    >>> uniform(0, 1) == uniform(0, 1), 0 <= uniform(0, 1) < 1
    (True, True)
    """
    mask = (1 << 64) - 1
    z = (seed * 0xD1342543DE82EF95 + (counter + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def urn_rank(weights: Floats, gap: int, tie: float, total: float) -> float:
    """The rank of a sample that fell into a gap of the sorted reference.

    `weights` (N+1,) are one plus the samples in each gap so far, and `total` is their sum. For
    exchangeable samples the next one falls into a gap with a probability of its weight over the
    total (a Pólya urn), so that ranks are uniform and independent: a fixed reference of N has no
    error that bets could exploit.

    >>> urn_rank(np.array([1.0, 2.0, 1.0]), gap=1, tie=0.5, total=4.0)
    0.5
    """
    below = float(weights[:gap].sum())
    return (below + tie * float(weights[gap])) / total


def log_harm(answer: int, sketch: int, label: int) -> Floats:
    """log(1 - stake * D) for one label: D is 1 where only the answer is right, -1 where only the
    sketch is, and 0 where both are wrong.

    >>> np.exp(log_harm(answer=1, sketch=0, label=0)).round(6).tolist()
    [1.1, 1.3, 1.5, 1.7, 1.9]
    """
    return LOG_FACTORS[int(answer == label) - int(sketch == label)]


def log_mean(logs: Floats) -> float:
    """The logarithm of the mean of numbers that are given by their logarithms.

    >>> round(math.exp(log_mean(np.log([1.0, 3.0]))), 6)
    2.0
    """
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).mean()))
