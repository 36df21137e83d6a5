"""The orders in which a stream visits the images of a domain; (seed, domain) alone decide them."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayestta.data._base import Dataset, generator, permutation
from bayestta.names import unknown

ORDERS = ("time", "shuffled", "correlated", "sorted", "skewed:SHARE", "given")
BY_LABEL = ("correlated", "sorted", "skewed")
CONCENTRATION = 0.1  # of the Dirichlet distribution that makes runs of one class
Indices = NDArray[np.int64]


def parse_order(order: str) -> tuple[str, float]:
    """The kind of an order and, for `skewed`, the share of one class; a ValueError otherwise.

    >>> parse_order("skewed:0.9")
    ('skewed', 0.9)
    """
    kind, colon, text = order.partition(":")
    if kind == "skewed":
        try:
            share = float(text)
        except ValueError:
            share = float("nan")
        if not 0 < share <= 1:
            given = f"the share {text!r}" if colon else "no share"
            raise ValueError(
                f"order {order!r} has {given}: give a number above 0 and at most 1, the part of "
                "each domain that one class makes up, as in skewed:0.9."
            )
        return kind, share
    if order not in ORDERS:
        raise ValueError(unknown("order", order, ORDERS))
    return kind, 1.0


def arrange(
    dataset: Dataset, domain: str, order: str, seed: int, limit: int | None = None
) -> Indices:
    """Positions in a domain, in the order in which a stream visits them."""
    kind, share = parse_order(order)
    if kind == "given":
        return np.arange(len(dataset))[:limit]
    mixed = permutation(len(dataset), seed, domain)
    if kind == "skewed":
        labels = cast(Tensor, dataset.labels(mixed)).numpy()
        count = min(len(mixed), limit or len(mixed))
        chosen = _skewed(mixed, labels, share, count, generator(seed, domain, "skewed"))
        return chosen[permutation(len(chosen), seed, domain, "skewed")]
    chosen = mixed[:limit]
    if kind not in BY_LABEL:
        return chosen
    labels = cast(Tensor, dataset.labels(chosen)).numpy()
    if kind == "sorted":
        return chosen[np.argsort(labels, kind="stable")]
    return _correlated(chosen, labels, generator(seed, domain, "correlated"))


def _skewed(
    mixed: Indices, labels: Indices, share: float, count: int, rng: np.random.Generator
) -> Indices:
    """`count` images, of which one class makes up the share; fewer where images run out.

    Images are drawn without replacement. The share is kept, and the count gives way: of 1,000
    images per class a share of 0.9 allows 1,111 images.
    """
    kinds = np.unique(labels)
    main = labels == kinds[int(rng.integers(len(kinds)))]
    some, others = mixed[main], mixed[~main]
    most = len(some) / share
    if share < 1:
        most = min(most, len(others) / (1 - share))
    count = max(1, min(count, int(most + 1e-9)))
    first = min(len(some), max(1, round(share * count)))
    return np.concatenate([some[:first], others[: count - first]])


def _correlated(chosen: Indices, labels: Indices, rng: np.random.Generator) -> Indices:
    """Each class is dealt over as many stretches as there are classes, by Dirichlet(0.1) shares."""
    kinds = np.unique(labels)
    stretches: list[list[Indices]] = [[] for _ in kinds]
    for kind in kinds:
        members = chosen[labels == kind]
        share = rng.dirichlet([CONCENTRATION] * len(kinds))
        cuts = np.round(np.cumsum(share)[:-1] * len(members)).astype(int)
        for stretch, part in zip(stretches, np.split(members, cuts), strict=True):
            stretch.append(part)
    runs = [stretch[k] for stretch in stretches for k in rng.permutation(len(stretch))]
    return np.concatenate(runs)
