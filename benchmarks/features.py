"""BayesTTA without refinement on cached features, against the three operations it cannot avoid.

D=512, K=10, B=128 by default, one thread. In one run, in turns of sixteen batches: a rank-B update
of a D x D matrix, its Cholesky factor and a triangular solve with B right-hand sides, in the
float64 that the statistics are kept in; and the whole `adapt` of the default settings with
refine=False, answers, homogeneity test, guard and record included. The ratio of the medians counts.

    python benchmarks/features.py [--samples 70000]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayestta.methods.bayestta.method import BayesTTA
from bayestta.models.base import VLM

TARGET = 1.5
TURN = 16  # batches, so that each side finds its own matrices in the cache, as in a run of its own


class Random(VLM):
    """A model whose images are features already; its text prototypes are random."""

    def __init__(self, dim: int) -> None:
        super().__init__("random", nn.Identity(), lambda image: image, dim=dim, scale=100.0)
        self.weight = nn.Parameter(torch.zeros(1))

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def encode_text(self, prompts: list[str]) -> Tensor:
        rows = torch.randn(len(prompts), self.dim, generator=torch.Generator().manual_seed(0))
        return nn.functional.normalize(rows, dim=1)


def seconds(work: Callable[[Tensor], object], batch: Tensor) -> float:
    began = time.perf_counter()
    work(batch)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--samples", type=int, default=70_000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    D, K, B = args.dim, args.classes, args.batch
    g = torch.Generator().manual_seed(0)
    adapter = BayesTTA(Random(D), [f"class {k}" for k in range(K)], ["{}"], refine=False)
    text = adapter.text
    z = nn.functional.normalize(
        text[torch.randint(K, (args.samples,), generator=g)]
        + 0.1 * torch.randn(args.samples, D, generator=g),
        dim=1,
    )
    scatter = torch.eye(D, dtype=torch.float64)
    factor = torch.linalg.cholesky(scatter)

    parts: dict[str, Callable[[Tensor], object]] = {
        "rank update": lambda wide: scatter.addmm_(wide.T, wide),
        "Cholesky": lambda wide: torch.linalg.cholesky(scatter),
        "triangular solve": lambda wide: torch.linalg.solve_triangular(factor, wide.T, upper=False),
    }
    times: dict[str, list[float]] = {name: [] for name in (*parts, "adapt")}
    for turn in z.split(TURN * B):
        for x in turn.split(B):
            wide = x.double()
            for name, work in parts.items():
                times[name].append(seconds(work, wide))
        for x in turn.split(B):
            times["adapt"].append(seconds(adapter.adapt, x))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in medians.items():
        print(f"{name:18s}{1e3 * taken:8.2f} ms")
    floor = sum(medians[name] for name in parts)
    print(
        f"adapt takes {medians['adapt'] / floor:.2f} times the three together (aim {TARGET}): "
        f"{args.samples / sum(times['adapt']):,.0f} samples per second, {args.samples:,} in "
        f"{sum(times['adapt']):.1f} s; D={D}, K={K}, B={B}, {args.threads} thread(s)"
    )


if __name__ == "__main__":
    main()
