"""Numbers for Prometheus, by the names of the conventions."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bayestta.serve.hosted import Answer

GAUGES = {
    "disagreement": ("disagreement_ratio", "Share of answers that differ from zero-shot."),
    "entropy": ("entropy_nats", "Mean entropy of the answers."),
    "effective_classes": ("effective_classes", "exp of the entropy of the predicted classes."),
    "accuracy": ("estimated_accuracy_ratio", "Accuracy estimated without labels."),
}


class Metrics:
    """The collectors of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        label = ["adapter"]
        self.images = Counter("bayestta_images", "Images answered.", label, **own)
        self.steps = Counter("bayestta_adapt_steps", "Steps learnt.", label, **own)
        self.rollbacks = Counter(
            "bayestta_rollbacks",
            "Returns to an earlier state: guard, harm test, request.",
            label,
            **own,
        )
        # an alarm starts the evidence again at 0, which a scrape would miss
        self.alarms = Counter("bayestta_drift_alarms", "Alarms of drift.", label, **own)
        self.encode = Histogram("bayestta_encode_seconds", "Seconds per pass.", **own)
        self.adapt = Histogram("bayestta_adapt_seconds", "Seconds per step.", label, **own)
        self.queue = Histogram("bayestta_queue_seconds", "Wait for the encoder.", **own)
        self.gauges = {
            key: Gauge(f"bayestta_{name}", text, label, **own)
            for key, (name, text) in GAUGES.items()
        }
        self.drift = Gauge("bayestta_drift_log_evalue", "Evidence of drift.", label, **own)
        self.harm = Gauge("bayestta_harm_log_evalue", "Evidence of harm.", label, **own)
        self.age = Gauge("bayestta_state_age_seconds", "Since the last step.", label, **own)
        self.loaded = Gauge("bayestta_adapters_loaded", "Adapters in memory.", **own)
        self._changed: dict[str, float] = {}

    def encoded(self, images: int, seconds: float, waited: list[float]) -> None:
        self.encode.observe(seconds)
        for each in waited:
            self.queue.observe(each)

    def answered(self, name: str, answer: Answer, seconds: float) -> None:
        """Count what was answered for the first time."""
        if answer.repeated:
            return
        self.images.labels(name).inc(len(answer.probabilities))
        if answer.adapted:
            self.steps.labels(name).inc()
            self.adapt.labels(name).observe(seconds)

    def changed(self, name: str, summary: dict[str, Any], events: list[dict[str, Any]]) -> None:
        """Take in what a shard tells after a change."""
        for key, gauge in self.gauges.items():
            gauge.labels(name).set(summary[key])
        self.drift.labels(name).set(summary["drift"]["peak"])
        self.harm.labels(name).set(summary["harm"]["log_evalue"])
        self._changed[name] = time.time()
        returns = sum(event["kind"] in ("guard", "harm", "rollback") for event in events)
        self.rollbacks.labels(name).inc(returns)
        self.alarms.labels(name).inc(sum(event["kind"] == "drift" for event in events))

    def removed(self, name: str) -> None:
        """An adapter that is gone leaves no series behind."""
        counts = (self.images, self.steps, self.rollbacks, self.alarms)
        rest = (self.adapt, self.drift, self.harm, self.age)
        for collector in (*counts, *rest, *self.gauges.values()):
            collector.remove_by_labels({"adapter": name})
        self._changed.pop(name, None)

    def text(self, loaded: int) -> bytes:
        self.loaded.set(loaded)
        now = time.time()
        for name, changed in list(self._changed.items()):
            self.age.labels(name).set(now - changed)
        return generate_latest(self.registry)
