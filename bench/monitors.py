"""How often the drift alarm and the harm test cry wolf, and how soon they speak when they should.

    python bench/monitors.py

False alarms: 1,000 streams in which nothing drifts, of simulated scores and of the zero-shot
entropies of real images in random orders; and 1,000 streams of labels in which answers are as good
as zero-shot ones. Delays: `cifar10-light` on mini-rn, in time order and sorted by class, seeds 1 to
3; and TENT at a hundred times its rate, which does harm. About five minutes of one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import numpy as np
from _tables import markdown_table
from numpy.typing import NDArray

import bayestta as bt
from bayestta.evaluation.monitors import DriftAlarm, HarmTest, entropies

STREAMS = 1000
SAMPLES, LABELS = 1000, 300  # of each stream
MODEL, DATA = "mini-rn", "cifar10-light"
CASES: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("BayesTTA", "bayestta", {}),
    ("TENT, rate x 100", "tent-continual", {"lr": 0.1}),
)


def scores(
    order: str, seed: int, limit: int, domains: list[str] | None = None
) -> dict[str, NDArray[np.float64]]:
    """Zero-shot entropies of the images of each domain, in the order of the stream."""
    model, data = bt.load_model(MODEL), bt.load_data(DATA)
    adapter = bt.make_adapter("zero-shot", model, data.classes, data.templates)
    found: dict[str, list[NDArray[np.float64]]] = {}
    for batch in bt.stream(
        data, model.preprocess, limit=limit, seed=seed, order=order, domains=domains
    ):
        found.setdefault(batch.domain, []).append(entropies(adapter.predict(batch.x)).numpy())
    return {domain: np.concatenate(parts) for domain, parts in found.items()}


def drift_alarms(streams: Iterable[NDArray[np.float64]]) -> float:
    """The share of streams with an alarm."""
    return float(np.mean([DriftAlarm(seed=i).add(s) > 0 for i, s in enumerate(streams)]))


def harm_alarms(rng: np.random.Generator) -> float:
    """The share of alarms where either of answer and sketch is right as often, or neither is."""
    spoke = []
    for _ in range(STREAMS):
        test = HarmTest()
        for label in rng.integers(0, 3, LABELS).tolist():
            test.add(answer=1, sketch=0, label=label)
        spoke.append(test.alarm)
    return float(np.mean(spoke))


def harm(
    method: str, seed: int, order: str, limit: int, settings: dict[str, float]
) -> tuple[float, str]:
    """The gain over zero-shot, and the labels after which the harm test spoke."""
    model, data = bt.load_model(MODEL), bt.load_data(DATA)
    adapter = bt.make_adapter(method, model, data.classes, data.templates, seed=seed, **settings)
    stream = bt.stream(data, model.preprocess, limit=limit, seed=seed, order=order)
    result = bt.evaluate(adapter, stream)
    assert result.harm is not None
    assert result.sketch is not None
    gain = result.accuracy - result.sketch["accuracy"]
    return gain, str(result.harm["alarm_at"]) if result.harm["alarm"] else "silent"


def delays(stream: dict[str, NDArray[np.float64]]) -> tuple[str, int]:
    """Images from the start of each domain to the first alarm in it, and the number of alarms."""
    alarm, cells = DriftAlarm(), []
    for domain in stream.values():
        spoke = [i for i, score in enumerate(domain, 1) if alarm.add([score])]
        cells.append(str(spoke[0]) if spoke else "–")
    return ", ".join(cells), alarm.alarms


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--limit", type=int, default=1000, help="images per domain (1000)")
    args = parser.parse_args()
    rng, real = np.random.default_rng(0), scores("time", 0, 10_000, ["1.00"])["1.00"]
    null = {
        "drift, simulated scores": (0.01, drift_alarms(rng.gamma(2, size=(STREAMS, SAMPLES)))),
        "drift, real images of one domain, shuffled": (
            0.01,
            drift_alarms(rng.permutation(real)[:SAMPLES] for _ in range(STREAMS)),
        ),
        "harm, answers as good as zero-shot": (0.05, harm_alarms(rng)),
    }
    rows = [[name, f"{alpha:.2f}", f"{share:.3f}"] for name, (alpha, share) in null.items()]
    print(markdown_table(["1,000 streams without a change", "level", "alarms"], rows))

    names, rows = "", []
    for order in ("time", "sorted"):
        for seed in args.seeds:
            stream = scores(order, seed, args.limit)
            names, (images, alarms) = ", ".join(stream), delays(stream)
            rows.append([f"{order}, seed {seed}", images, str(alarms)])
    print(f"\nImages of a level of light until the drift alarm speaks ({names}):\n")
    print(markdown_table(["order", "images", "alarms"], rows))

    rows = []
    for name, method, settings in CASES:
        for order in ("time", "sorted"):
            for seed in args.seeds:
                gain, spoke = harm(method, seed, order, args.limit, settings)
                rows.append([f"{name}, {order}, seed {seed}", f"{gain:+.1f}", spoke])
    print("\nLabels, where answer and zero-shot differ, until the harm test speaks:\n")
    print(markdown_table(["stream", "gain", "labels"], rows))


if __name__ == "__main__":
    main()
