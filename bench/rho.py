"""Zero-shot accuracy and mean confidence under statistics of the stream, on held-out images.

    python bench/rho.py

BatchNorms go by (1-rho) source + rho stream; pixels get (1-rho) of the stream's mean and deviation
and rho of the source's, per channel. Running statistics, fresh in each domain, as the method keeps
them; every rho is tried on every image. Each cell is accuracy (confidence, evenness): the two
witnesses without labels by which the method chooses. Evenness is the entropy of the mean answer, in
nats, averaged over domains. With --levels, each domain by itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from _tables import markdown_table
from torch import Tensor

import bayestta as bt
from bayestta.data import stream
from bayestta.models._preprocess import CLIP_MEAN, CLIP_STD
from bayestta.models._stream_statistics import (
    Blended,
    Moments,
    batch_norm_moments,
    channel_moments,
    restored_pixels,
)
from bayestta.models._text import classifier
from bayestta.models.base import VLM

STREAMS = ("cifar10-light", "cifar10-blur", "cifar10-contrast", "rmnist", "mnist-shear")
NORMS, PIXELS = (0.0, 0.1, 0.2, 0.4), (0.0, 0.5, 1.0)
Counts = tuple[float, float, float]  # accuracy, confidence, evenness


def source_of(model: VLM) -> tuple[Tensor, Tensor]:
    """Mean and deviation of photographs, in the model's units."""
    mean, std = torch.tensor(model.mean), torch.tensor(model.std)
    return (torch.tensor(CLIP_MEAN) - mean) / std, torch.tensor(CLIP_STD) / std


def answers(model: VLM, text: Tensor, batches: Iterable[Tensor], what: str, rho: float) -> Tensor:
    """Probabilities (n,K) of one domain."""
    layers, source = batch_norm_moments(model.visual), source_of(model)
    pixels, found = Moments(source[0], source[1] ** 2), []
    for x in batches:
        context: AbstractContextManager[object] = nullcontext()
        if what == "norms" and rho:
            context = Blended(model.visual, layers, rho, learn=True)
        if what == "pixels" and rho:
            pixels.add(*channel_moments(x), len(x))
            x = restored_pixels(x, pixels, source, rho * pixels.trust)
        with torch.no_grad(), context:
            found.append(model.logits(model.encode_image(x), text).softmax(1))
    return torch.cat(found)


def counts(p: Tensor, y: Tensor) -> Counts:
    accuracy = 100 * float((p.argmax(1) == y).double().mean())
    evenness = float(torch.special.entr(p.mean(0)).sum())
    return accuracy, 100 * float(p.amax(1).mean()), evenness


def measured(
    model: VLM, name: str, limit: int, seed: int
) -> Iterator[tuple[str, str, float, Counts]]:
    """Domain, what is blended, rho and what came of it."""
    data = bt.load_data(name, split="held-out")
    text = classifier(model, data.classes, data.templates)
    for domain in data.domains:
        found = list(stream(data, model.preprocess, limit=limit, seed=seed, domains=[domain]))
        x, y = [batch.x for batch in found], torch.cat([batch.y for batch in found])
        for what, values in (("norms", NORMS), ("pixels", PIXELS)):
            if what == "norms" and not batch_norm_moments(model.visual):
                continue
            for rho in values:
                yield domain, what, rho, counts(answers(model, text, x, what, rho), y)


def table(model: VLM, names: Iterable[str], limit: int, seed: int, *, levels: bool) -> str:
    header, columns = ["statistics"], []
    for name in names:
        found: dict[str, dict[str, list[Counts]]] = {}
        for domain, what, rho, made in measured(model, name, limit, seed):
            place = f"{name} {domain}" if levels else name
            found.setdefault(place, {}).setdefault(f"{what}, rho {rho:g}", []).append(made)
        header += list(found)
        columns += list(found.values())

    def cell(all_: list[Counts]) -> str:
        right, sure, even = (sum(each) / len(all_) for each in zip(*all_, strict=True))
        return f"{right:.1f} ({sure:.1f}, {even:.3f})"

    rows = [[row, *(cell(column[row]) for column in columns)] for row in columns[0]]
    return markdown_table([model.name, *header[1:]], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["mini-rn", "mini-vit"])
    parser.add_argument("--data", nargs="+", default=list(STREAMS))
    parser.add_argument("--limit", type=int, default=256, help="images per domain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--levels", action="store_true", help="each domain by itself")
    args = parser.parse_args()
    for name in args.models:
        model = bt.load_model(name)
        print(table(model, args.data, args.limit, args.seed, levels=args.levels), "\n", flush=True)


if __name__ == "__main__":
    main()
