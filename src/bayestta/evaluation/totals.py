"""The sums of a labelled run: by domain, by round and by step."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayestta.evaluation.metrics import Score
from bayestta.evaluation.result import plain
from bayestta.evaluation.turned import Turned

if TYPE_CHECKING:
    from bayestta.evaluation.steps import Step
    from bayestta.models.base import VLM

TRACE = 4096  # entries, after which neighbours are merged: a trace does not grow with the stream


class Totals:
    """The sums of a labelled run, one step after the other."""

    def __init__(self, model: VLM | None = None) -> None:
        self.turned = Turned(model)
        self.answers: dict[str, Score] = {}  # per domain, in stream order
        self.sketches: dict[str, Score] = {}
        self.visits: dict[tuple[int, str], list[int]] = {}  # (round, domain) -> images, hits
        self.trace: list[dict[str, Any]] = []
        self.seconds = {"data": 0.0, "encode": 0.0, "adapt": 0.0}
        self.steps = 0

    def add(self, step: Step) -> None:
        if step.y is None:
            raise ValueError(
                f"domain {step.domain!r} has no labels, so there is nothing to evaluate: use "
                "`steps`, or `bayestta predict`, for unlabelled images."
            )
        entry: dict[str, Any] = {"domain": step.domain, "steps": 1, "n": step.n}
        if step.round > 1:
            entry["round"] = step.round
        entry["hits"] = self.count(step.domain, step.probabilities, step.y)
        seen = self.visits.setdefault((step.round, step.domain), [0, 0])
        seen[0] += step.n
        seen[1] += entry["hits"]
        if step.sketch is not None:
            zero_shot = step.sketch.double().softmax(dim=1)
            entry["sketch_hits"] = _count(self.sketches, step.domain, zero_shot, step.y)
            self.turned.add(step)
        self.trace.append({**entry, "record": plain(step.record)} if step.record else entry)
        if len(self.trace) > TRACE:
            self.trace = thin(self.trace)
        for part, spent in step.seconds.items():
            self.seconds[part] += spent
        self.steps += 1

    def count(self, domain: str, probabilities: Tensor, y: Tensor) -> int:
        """The hits of one batch."""
        return _count(self.answers, domain, probabilities, y)

    def to_json(self) -> dict[str, Any]:
        """What was measured, by the names of `Result`."""
        if not self.answers:
            raise ValueError("the stream held no batch: check its domains and limit.")
        total = reduce(add, self.answers.values())
        domains = []
        for name, score in self.answers.items():
            row = {"name": name, **score.to_json(), "estimate": score.confidence}
            if name in self.sketches:
                zero_shot = self.sketches[name]
                row |= {"sketch_accuracy": zero_shot.accuracy, "sketch_ece": zero_shot.ece}
                row |= self.turned.counts[name]
            domains.append(row)
        return {
            **{key: getattr(total, key) for key in ("n", "accuracy", "ece", "nll", "brier")},
            "accuracy_unweighted": sum(row["accuracy"] for row in domains) / len(domains),
            "domains": domains,
            "sketch": reduce(add, self.sketches.values()).to_json() if self.sketches else None,
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            "steps": self.steps,
            "trace": self.trace,
            "rounds": self.rounds(),
            "turned": self.turned.to_json(),
            "estimate": {
                "accuracy": total.confidence,
                "error": total.confidence - total.accuracy,
                "worst_domain_error": max(
                    (score.confidence - score.accuracy for score in self.answers.values()), key=abs
                ),
            },
        }

    def rounds(self) -> list[dict[str, Any]]:
        """Each walk through the domains by itself; empty where there was one."""
        found: dict[int, list[dict[str, Any]]] = {}
        for (turn, name), (n, hits) in self.visits.items():
            found.setdefault(turn, []).append({"name": name, "accuracy": 100 * hits / n, "n": n})
        if len(found) < 2:
            return []
        rows = []
        for turn, domains in found.items():
            n, hits = (sum(self.visits[turn, d["name"]][k] for d in domains) for k in (0, 1))
            rows.append({"round": turn, "accuracy": 100 * hits / n, "n": n, "domains": domains})
        return rows

    def last(self, domain: str) -> float:
        """The accuracy of a domain when it was last adapted to."""
        n, hits = next(v for (_, name), v in reversed(self.visits.items()) if name == domain)
        return 100 * hits / n


def thin(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbours of one domain two by two: counts add, the later record stays.

    >>> thin([{"domain": "a", "n": 8, "hits": 5}, {"domain": "a", "n": 8, "hits": 6}])
    [{'domain': 'a', 'n': 16, 'hits': 11}]
    """
    merged: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    for entry in trace:
        if last is None or any(last.get(k) != entry.get(k) for k in ("domain", "round")):
            last = dict(entry)
            merged.append(last)
            continue
        told = ("domain", "round", "record")
        counts = {k: last.get(k, 0) + v for k, v in entry.items() if k not in told}
        last.update({**entry, **counts})
        last = None
    return merged


def _count(scores: dict[str, Score], domain: str, probabilities: Tensor, y: Tensor) -> int:
    """Update the domain's score; the hits of this batch."""
    if domain not in scores:
        scores[domain] = Score(probabilities.shape[1])
    before = scores[domain].hits
    scores[domain].update(probabilities, y)
    return scores[domain].hits - before
