"""DOTA against itself with an inverse after every sample: `python benchmarks/dota.py`.

K=10, D=512, features around random prototypes, one thread, medians of processor time. Its logits
should be within 1e-4 of those with inverses in float64, and it should be several times as fast.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayestta.methods.dota import DOTA
from bayestta.models.base import VLM

WITHIN, FASTER = 1e-4, 3.0


class Vectors(VLM):
    """A model whose images are features; prompts are the numbers of rows of a table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__("vectors", nn.Identity(), lambda i: i, dim=table.shape[1], scale=100.0)
        self.table = table

    device = property(lambda self: self.table.device)
    dtype = property(lambda self: self.table.dtype)

    def encode_image(self, x: Tensor, params: Any = None, norms: str = "source") -> Tensor:
        return x

    def encode_text(self, prompts: Any) -> Tensor:
        return torch.stack([self.table[int(prompt)] for prompt in prompts])


class Inverting(DOTA):
    """With the inverse of the covariance after every sample, as in the official code."""

    def _score(self, feature: Tensor) -> Tensor:
        mean = self.mean.to(self.covariance.dtype).T  # (D,K)
        solved = torch.linalg.inv(self.covariance) @ mean
        return feature @ solved - 0.5 * (mean * solved).sum(0)


def seconds(adapter: DOTA, x: Tensor) -> float:
    began = time.process_time()
    adapter.adapt(x)
    return (time.process_time() - began) / len(x)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is broken")
    args = parser.parse_args()
    torch.set_num_threads(1)
    K, D, random = args.classes, args.dim, torch.Generator().manual_seed(0)
    text = functional.normalize(torch.randn(K, D, generator=random), dim=1)
    label = torch.randint(K, (args.samples,), generator=random)
    noise = torch.randn(args.samples, D, generator=random) / D**0.5
    x = functional.normalize(text[label] + noise, dim=1)

    def build(kind: type[DOTA], dtype: torch.dtype) -> DOTA:
        return kind(Vectors(text.to(dtype)), [str(k) for k in range(K)], ["{}"])

    exact = build(Inverting, torch.float64).adapt(x.double())
    cases = {kind: build(kind, torch.float32) for kind in (DOTA, Inverting)}
    size = exact.abs().amax(1, keepdim=True)
    off = {kind: float(((a.adapt(x) - exact) / size).abs().max()) for kind, a in cases.items()}
    times: dict[type[DOTA], list[float]] = {kind: [] for kind in cases}
    for _ in range(args.repeats):  # interleaved, so that a busy moment hits both alike
        for kind, adapter in cases.items():
            times[kind].append(seconds(adapter, x[:20]))
    median = {kind: statistics.median(taken) for kind, taken in times.items()}
    gain = median[Inverting] / median[DOTA]
    print(f"K={K}, D={D}, {args.samples} samples, median of {args.repeats}, one thread")
    for kind, title in ((DOTA, "dota"), (Inverting, "with an inverse after every sample")):
        told = (
            f"{1000 * median[kind]:7.2f} ms per sample, off by {off[kind]:.0e} of the largest logit"
        )
        print(f"  {title:34s} {told}")
    print(f"  {gain:.1f} x as fast (at least {FASTER}), within {WITHIN:.0e}: {off[DOTA] < WITHIN}")
    if args.check and (gain < FASTER or off[DOTA] >= WITHIN):
        raise SystemExit("a bound is broken")


if __name__ == "__main__":
    main()
