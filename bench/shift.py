"""How far the BatchNorms of a stream are shifted, and what blending them is worth, held-out.

    python bench/shift.py

One row per domain, zero-shot accuracy in %: of the source, with the pixels restored, and with
BatchNorms that also go by (1-rho) source + rho stream, the early ones or all of them. The shift is
what the method measures, on 32 images, and "rho" the share that it takes from it. Running
statistics, fresh in each domain. With one class at 90 % the later layers are what does harm.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from _tables import markdown_table
from torch import Tensor

import bayestta as bt
from bayestta.data import stream
from bayestta.methods.bayestta.pixels import Pixels
from bayestta.methods.bayestta.stream_norms import StreamNorms
from bayestta.methods.bayestta.tower import TRIAL
from bayestta.models._stream_statistics import Blended, batch_norm_moments
from bayestta.models._text import classifier
from bayestta.models.base import VLM

STREAMS = ("cifar10-light", "cifar10-contrast", "cifar10-blur", "cifar10-corruptions")
SHARES = (0.15, 0.3, 0.6)


def restored(model: VLM, batches: Sequence[Tensor]) -> list[Tensor]:
    """Batches nearer to the statistics of photographs, as the method restores them."""
    pixels, found = Pixels(model), []
    for x in batches:
        pixels.look(x)
        found.append(pixels.restored(x))
    return found


def shifted(model: VLM, batches: Sequence[Tensor]) -> tuple[float, float]:
    """The shift of the first images, and the share of the stream that follows from it."""
    norms = StreamNorms(model.visual)
    with torch.no_grad(), norms.measured():
        model.encode_image(torch.cat(list(batches))[:TRIAL])
    norms.choose()
    return norms.shift, norms.rho


def accuracy(
    model: VLM, text: Tensor, batches: Sequence[Tensor], y: Tensor, names: Sequence[str], rho: float
) -> str:
    """In %, with so much of the stream in the BatchNorms of these names."""
    moments = batch_norm_moments(model.visual)
    own = {name: moments[name] for name in names}
    with torch.no_grad(), Blended(model.visual, own, rho, learn=True):
        said = torch.cat([model.logits(model.encode_image(x), text) for x in batches])
    return f"{100 * float((said.argmax(1) == y).double().mean()):.1f}"


def rows(model: VLM, name: str, order: str, limit: int, seed: int) -> Iterator[list[str]]:
    """One per domain of a data set."""
    data = bt.load_data(name, split="held-out")
    text = classifier(model, data.classes, data.templates)
    reach = list(StreamNorms(model.visual).layers), list(batch_norm_moments(model.visual))
    settings: dict[str, Any] = {"batch_size": 32, "limit": limit, "seed": seed, "order": order}
    for domain in data.domains:
        batches = list(stream(data, model.preprocess, domains=[domain], **settings))
        x, y = [batch.x for batch in batches], torch.cat([batch.y for batch in batches])
        mended = restored(model, x)
        plain = [accuracy(model, text, images, y, [], 0.0) for images in (x, mended)]
        shift, rho = shifted(model, mended)
        blends = [
            accuracy(model, text, mended, y, names, share) for names in reach for share in SHARES
        ]
        yield [f"{name} {domain}, {order}", *plain, f"{shift:.3f}", f"{rho:.2f}", *blends]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mini-rn", help="one with BatchNorms")
    parser.add_argument("--data", nargs="+", default=list(STREAMS))
    parser.add_argument("--orders", nargs="+", default=["time", "skewed:0.9"])
    parser.add_argument("--limit", type=int, default=300, help="images per domain")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    model = bt.load_model(args.model)
    columns = [f"{name} {rho:g}" for name in ("early", "all") for rho in SHARES]
    found = [
        row
        for order, name in product(args.orders, args.data)
        for row in rows(model, name, order, args.limit, args.seed)
    ]
    print(markdown_table([args.model, "source", "pixels", "shift", "rho", *columns], found))


if __name__ == "__main__":
    main()
