"""A long life: a million drifting feature samples, and 100,000 images with refinement on.

Features: D=128, K=10, clusters that wander, in batches of 2,048 through the default. Images:
`mini-rn` with `refine=True` over segments of 2,000 images, each a level of one of three streams of
CIFAR-10, chosen at random (abrupt changes), mixed, sorted by class or nine tenths of one class.
Stated are speed, NaN, the size of the state and of memory at a fifth of the way and at the end, and
accuracy beside zero-shot along the way. Pages of the data sets, which are mapped files and come to
memory as they are read, are not counted, nor is what the allocator of glibc holds in reserve.

    python benchmarks/long_life.py [features] [images] [--samples 1000000] [--images 100000]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

import bayestta as bt

SPEED = 90_000  # samples per second, of version 0.1
GROWTH = 32 * 1024**2  # bytes of memory that the last four fifths may add
BUFFERS = 512 * 1024  # bytes of images and answers that a state may hold later than at a fifth
BEHIND, SEGMENT_BEHIND = 1.0, 5.0  # points below zero-shot: all in all, and any segment
LENGTH = 2_000  # images per segment
STREAMS = ("cifar10-light", "cifar10-contrast", "cifar10-blur")
ORDERS = ("time", "time", "sorted", "skewed:0.9")


def own_memory() -> int:
    """Bytes of this process that are in use and are no pages of a mapped file."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library has no such reserve to give back
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = Path("/proc/self/status").read_text("ascii")
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


class Account:
    """What is watched along the way."""

    def __init__(self, adapter: bt.Adapter, total: int) -> None:
        self.adapter, self.total, self.n = adapter, total, 0
        self.right = self.plain = 0
        self.seconds = self.processor = 0.0
        self.early: tuple[int, int] | None = None  # state and memory at a fifth

    def step(self, x: Tensor, y: Tensor, sketch: Tensor) -> tuple[int, int]:
        """Adapt to a batch; right answers, and those of zero-shot."""
        began, spent = time.perf_counter(), time.process_time()
        answer = self.adapter.adapt(x)
        self.seconds += time.perf_counter() - began
        self.processor += time.process_time() - spent
        if not bool(torch.isfinite(answer).all()):
            raise SystemExit(f"NaN after {self.n:,} samples")
        right, plain = (int((found.argmax(1) == y).sum()) for found in (answer, sketch))
        self.right, self.plain, self.n = self.right + right, self.plain + plain, self.n + len(x)
        if self.early is None and self.n >= self.total / 5:
            self.early = self.sizes()
        return right, plain

    def sizes(self) -> tuple[int, int]:
        state = self.adapter.state().values()
        return sum(v.nbytes for v in state if isinstance(v, Tensor)), own_memory()

    def finish(self) -> list[str]:
        """Print what was measured; the bounds that are broken."""
        assert self.early is not None
        (state, memory), (state_now, memory_now) = self.early, self.sizes()
        mine, theirs = 100 * self.right / self.n, 100 * self.plain / self.n
        print(f"  {self.n:,} samples, no NaN; unsound state: {self.adapter.unsound() or 'none'}")
        print(
            f"  {self.n / self.seconds:,.0f} samples per second of the clock, "
            f"{self.n / self.processor:,.0f} of the processor"
        )
        print(
            f"  from a fifth to the end: state {state:,} to {state_now:,} bytes, memory "
            f"{memory / 1e6:,.1f} to {memory_now / 1e6:,.1f} MB"
        )
        print(f"  accuracy {mine:.2f} %, zero-shot {theirs:.2f} %")
        broken = ["memory grows"] * (memory_now - memory > GROWTH)
        broken += ["state grows"] * (state_now > state + BUFFERS)
        broken += ["below zero-shot"] * (mine < theirs - BEHIND)
        return broken + ["unsound state"] * bool(self.adapter.unsound())


def wandering(text: Tensor, samples: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Clusters around the text, all of which wander on a circle, once in 100,000 samples."""
    rng = torch.Generator().manual_seed(1)
    K, D = text.shape
    circle = normalize(torch.randn(2, D, generator=rng), dim=1)
    own = normalize(torch.randn(2, K, D, generator=rng), dim=2)
    for start in range(0, samples, batch):
        n = min(batch, samples - start)
        turn = torch.tensor(start * 2 * torch.pi / 100_000)
        wave = torch.stack([turn.sin(), turn.cos()])
        centre = text + 0.5 * wave @ circle + 0.4 * torch.einsum("i,ikd->kd", wave, own)
        y = torch.randint(K, (n,), generator=rng)
        yield normalize(centre[y] + 0.3 * torch.randn(n, D, generator=rng), dim=1), y


def features(samples: int, batch: int) -> list[str]:
    D, K = 128, 10
    text = normalize(torch.randn(K, D, generator=torch.Generator().manual_seed(0)), dim=1)
    adapter = bt.BayesTTA(bt.wrap(text=text, scale=100.0), [f"class {k}" for k in range(K)])
    account = Account(adapter, samples)
    for x, y in wandering(text, samples, batch):
        account.step(x, y, x @ text.T)
    print(f"features: D={D}, K={K}, batches of {batch}, {torch.get_num_threads()} thread(s)")
    broken = account.finish()
    speed = samples / account.processor
    print(f"  of version 0.1: {SPEED:,} samples per second; now {speed / SPEED:.2f} of it")
    return broken + ["slower than 0.1"] * (samples > 10**5 and speed < SPEED)


def images(total: int, batch: int) -> list[str]:
    model, rng = bt.load_model("mini-rn"), random.Random(0)
    sets = [bt.load_data(name) for name in STREAMS]
    classes, templates = sets[0].classes, sets[0].templates
    adapter = bt.BayesTTA(model, classes, templates, refine=True)
    account, gains = Account(adapter, total), list[float]()
    while account.n < total:
        data, order, seed = rng.choice(sets), rng.choice(ORDERS), rng.randrange(10**6)
        domain, hits, sketch_hits, n = rng.choice(data.domains), 0, 0, 0
        for part in bt.stream(
            *(data, model.preprocess),
            domains=[domain],
            order=order,
            seed=seed,
            limit=min(LENGTH, total - account.n),
            batch_size=batch,
        ):
            with torch.no_grad():
                sketch = model.logits(model.encode_image(part.x), adapter.text)
            right, plain = account.step(part.x, part.y, sketch)
            hits, sketch_hits, n = hits + right, sketch_hits + plain, n + len(part.x)
        gains.append(100 * (hits - sketch_hits) / n)
        print(
            f"  {account.n:7,d} {data.name} {domain}, {order}: {100 * hits / n:.1f} %, "
            f"{gains[-1]:+.1f} against zero-shot",
            flush=True,
        )
    told = adapter.summary()
    print(f"images: mini-rn, refine=True, batches of {batch}, {len(gains)} segments")
    print(f"  guard: {told['guard']['returns']} returns; refinement: {told['refinement']}")
    fifth = max(1, len(gains) // 5)
    print(
        f"  gain per segment: mean {statistics.mean(gains):+.2f}, worst {min(gains):+.2f}, "
        f"first fifth {statistics.mean(gains[:fifth]):+.2f}, "
        f"last fifth {statistics.mean(gains[-fifth:]):+.2f} points"
    )
    return account.finish() + ["a segment collapses"] * (min(gains) < -SEGMENT_BEHIND)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["features", "images"])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--batch", type=int, help="2,048 for features, 128 for images")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is broken")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    broken = features(args.samples, args.batch or 2_048) if "features" in args.parts else []
    broken += images(args.images, args.batch or 128) if "images" in args.parts else []
    print(f"broken bounds: {', '.join(broken) or 'none'}")
    if args.check and broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
