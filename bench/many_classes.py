"""A thousand classes: the default against zero-shot on synthetic features.

    python bench/many_classes.py

K unit class means in D dimensions; an image is its mean plus Gaussian noise, a text prototype is
the mean plus other noise and an offset that all share (the modality gap of CLIP), all at unit norm.
The stream is an even mixture. Nothing but `accuracy` sees a label.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.nn.functional import normalize

import bayestta as bt

SCALE = 100.0  # of the cosines, as for CLIP
TEXT, IMAGE = 1.8, 2.5  # length of the noise in prototypes and images, beside means of length 1


def make(K: int, D: int, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prototypes (K,D), images (n,D) and their classes (n,)."""
    draw = torch.Generator().manual_seed(seed)

    def noise(*shape: int, size: float) -> Tensor:
        return torch.randn(*shape, generator=draw) * size / D**0.5

    means = normalize(noise(K, D, size=1.0), dim=1)
    gap = normalize(noise(D, size=1.0), dim=0)
    text = normalize(means + noise(K, D, size=TEXT) + gap, dim=1)
    y = torch.randint(K, (n,), generator=draw)
    images = normalize(means[y] + noise(n, D, size=IMAGE) - gap, dim=1)
    return text, images, y


def accuracy(adapter: bt.Adapter, images: Tensor, y: Tensor, batch: int) -> float:
    answers = [adapter.adapt(x).argmax(1) for x in images.split(batch)]
    return 100 * float((torch.cat(answers) == y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    K, D = args.classes, args.dim
    names = [f"class {k}" for k in range(K)]
    for seed in args.seeds:
        text, images, y = make(K, D, args.images, seed)
        model = bt.wrap(text=text, scale=SCALE)
        found = {}
        for method in ("zero-shot", "bayestta"):
            adapter = bt.make_adapter(method, model, names)
            found[method] = accuracy(adapter, images, y, args.batch)
        zero, ours = found["zero-shot"], found["bayestta"]
        returns = adapter.summary()["guard"]["returns"]
        print(
            f"K={K}, D={D}, {args.images:,} images, batches of {args.batch}, seed {seed}: "
            f"zero-shot {zero:.2f} %, bayestta {ours:.2f} % ({ours - zero:+.2f}), "
            f"returns of the guard {returns}"
        )


if __name__ == "__main__":
    main()
