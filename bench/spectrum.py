"""What it is worth to restore the pixels of a stream, by domain, on held-out images.

    python bench/spectrum.py

Zero-shot accuracy in % (mean confidence in %, classes that the answers use) of the images as they
are, with mean and deviation restored, and with the spectrum restored too. Running statistics, fresh
in each domain, and no trial: every domain is restored, also where the method would refuse. The last
column is what it does to images that look like photographs: sharpen or smooth them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from _tables import markdown_table
from torch import Tensor

import bayestta as bt
from bayestta.methods.bayestta.pixels import Pixels
from bayestta.methods.guard import effective_classes
from bayestta.models._stream_statistics import restored_pixels
from bayestta.models._text import classifier
from bayestta.models.base import VLM

STREAMS = ("cifar10-light", "cifar10-contrast", "cifar10-blur", "cifar10-corruptions", "rmnist")
SIZE = 32


def forms(pixels: Pixels, x: Tensor) -> tuple[Tensor, ...]:
    """The images as they are, with mean and deviation restored, and with the spectrum too."""
    pixels.look(x)
    return x, restored_pixels(x, pixels.moments, pixels.source, pixels.share), pixels.restored(x)


def cell(answers: Sequence[Tensor], y: Tensor) -> str:
    p = torch.cat(list(answers))
    right = 100 * float((p.argmax(1) == y).double().mean())
    return f"{right:.1f} ({100 * float(p.amax(1).mean()):.0f}, {effective_classes(p.mean(0)):.1f})"


def rows(model: VLM, name: str, order: str, limit: int, seed: int) -> Iterator[list[str]]:
    """One per domain of a data set."""
    data = bt.load_data(name, split="held-out")
    text = classifier(model, data.classes, data.templates)
    for domain in data.domains:
        pixels, said, labels = Pixels(model), [], []
        for batch in bt.stream(
            data,
            model.preprocess,
            batch_size=SIZE,
            limit=limit,
            seed=seed,
            order=order,
            domains=[domain],
        ):
            labels.append(batch.y)
            with torch.no_grad():
                made = [model.encode_image(x) for x in forms(pixels, batch.x)]
            said.append([model.logits(z, text).softmax(1) for z in made])
        y = torch.cat(labels)
        cells = [cell(answers, y) for answers in zip(*said, strict=True)]
        yield [f"{name} {domain}, {order}", *cells, pixels.restores or "–"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["mini-rn", "mini-vit"])
    parser.add_argument("--data", nargs="+", default=list(STREAMS))
    parser.add_argument("--orders", nargs="+", default=["time", "skewed:0.9"])
    parser.add_argument("--limit", type=int, default=200, help="images per domain")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for model_name in args.models:
        model = bt.load_model(model_name)
        found = [
            row
            for order, name in product(args.orders, args.data)
            for row in rows(model, name, order, args.limit, args.seed)
        ]
        header = [model_name, "as they are", "mean, deviation", "and spectrum", "restores"]
        print(markdown_table(header, found), "\n", flush=True)


if __name__ == "__main__":
    main()
