"""Expected tail accuracy: how a method does when the order of the stream is unlucky."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bayestta.adapter import Adapter
from bayestta.evaluation.steps import steps


def tail_mean(accuracies: Sequence[float], share: float = 0.1) -> float:
    """The mean of the worst share, at least one, of the given accuracies.

    >>> tail_mean([70.0, 50.0, 60.0, 80.0], share=0.5)
    55.0
    """
    worst = sorted(accuracies)[: max(1, math.ceil(share * len(accuracies)))]
    return sum(worst) / len(worst)


def tail_accuracy(
    make: Callable[[int], Adapter],
    batches: Callable[[int], Iterable[Any]],
    *,
    orders: int = 100,
    share: float = 0.1,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Run a fresh adapter over many orders of one stream and average the worst of them.

    Parameters
    ----------
    make, batches
        Give the adapter and the labelled batches of an order, whose number is its seed.
    orders, share
        How many orders, and the share of them that counts as the tail.
    progress
        Called after each order with its number.
    """
    if orders < 1 or not 0 < share <= 1:
        raise ValueError(f"{orders} orders with a tail of {share}: give 1 or more, and a share.")
    found, sketches = [], []
    for seed in range(orders):
        hits = zero = n = 0
        for step in steps(make(seed), batches(seed)):
            if step.y is None or step.sketch is None:
                raise ValueError("the stream has no labels: tail accuracy needs them.")
            y = step.y.to(step.logits.device)
            hits += int((step.logits.argmax(1) == y).sum())
            zero += int((step.sketch.argmax(1) == y).sum())
            n += step.n
        found.append(100 * hits / n)
        sketches.append(100 * zero / n)
        if progress is not None:
            progress(seed)
    gains = [mine - theirs for mine, theirs in zip(found, sketches, strict=True)]
    return {
        "orders": orders,
        "share": share,
        "mean": sum(found) / orders,
        "tail": tail_mean(found, share),
        "worst": min(found),
        "zero_shot": sum(sketches) / orders,
        "zero_shot_tail": tail_mean(sketches, share),
        "tail_gain": tail_mean(gains, share),
    }
