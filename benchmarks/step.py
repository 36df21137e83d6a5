"""The whole BayesTTA step against one plain forward: `python benchmarks/step.py`.

Random weights, ViT-B/16 and RN50 at 224 pixels, on two streams of synthetic images: one rests, in
the other the brightness jumps, so that the tower tries other statistics. Interleaved batch by batch
in one run: `encode_image` under no_grad, the floor of refinement (one forward, and a backward to
the parameters of the norms), and `adapt` without refinement (the default), with it, with it and an
open gate, and in both published forms. A repetition is the sum over a stretch of batches, so that
steps that come now and then count as often as they come; the ratio is the median over repetitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bayestta.methods.bayestta.method import BayesTTA
from bayestta.models._norms import norm_parameters
from bayestta.models._torchvision import import_torchvision
from bayestta.models.base import VLM
from bayestta.models.open_clip import OpenCLIP

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
TEMPLATES = ["a photo of a {}."]
LIGHTS = (1.0, 0.3, 1.7, 0.5)  # of the stream that moves
STAY = 128  # images between two jumps
FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "refine=False": {"refine": False},
    "gate open": {"gate": 0.0},
    "released": {"preset": "released"},
    "paper": {"preset": "paper"},
}
Work = Callable[[Tensor], object]


def random_model(architecture: str) -> VLM:
    """The architecture with random weights; zero-initialised BatchNorms are set to one, or no
    gradient would flow."""
    import_torchvision()
    import open_clip

    torch.manual_seed(0)
    clip = open_clip.create_model(architecture, load_weights=False)
    for module in clip.visual.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)
    return OpenCLIP(architecture, clip, open_clip.get_tokenizer(architecture))


def batches(model: VLM, size: int, *, moves: bool) -> Iterator[Tensor]:
    """Smooth random images (B,3,224,224), as the model's preprocessing would hand them over."""
    draw = torch.Generator().manual_seed(1)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (model.mean, model.std))
    seen = 0
    while True:
        light = LIGHTS[seen // STAY % len(LIGHTS)] if moves else 1.0
        coarse = torch.rand(size, 3, 14, 14, generator=draw)
        pixels = (light * functional.interpolate(coarse, 224, mode="bilinear")).clamp(0, 1)
        yield (pixels - mean) / std
        seen += size


def plain(model: VLM) -> dict[str, Work]:
    """What the steps are compared to."""
    start = {key: value.requires_grad_() for key, value in norm_parameters(model.visual).items()}

    def forward(x: Tensor) -> None:
        with torch.no_grad():
            model.encode_image(x)

    def floor(x: Tensor) -> None:
        loss = model.encode_image(x, start).sum(1).square().sum()
        torch.autograd.grad(loss, list(start.values()))

    return {"encode_image": forward, "floor": floor}


def measure(
    model: VLM, forms: list[str], batch: int, stretch: int, repeats: int, warm: int, *, moves: bool
) -> dict[str, dict[str, Any]]:
    """By form: median seconds per stretch and median ratio to encode_image, gate and trials."""
    adapters = {form: BayesTTA(model, CLASSES, TEMPLATES, **FORMS[form]) for form in forms}
    if "gate open" in adapters:  # random weights name one class, which would shut it again
        adapters["gate open"].trust.name = lambda answer: None  # type: ignore[method-assign]
    work = {**plain(model), **{form: adapter.adapt for form, adapter in adapters.items()}}
    stream = batches(model, batch, moves=moves)
    taken: dict[str, list[float]] = {title: [] for title in work}
    for x in islice(stream, warm):  # the start of the stream, with more trials than later
        for adapter in adapters.values():
            adapter.adapt(x)
    for _ in range(repeats):
        spent = dict.fromkeys(work, 0.0)
        for x in islice(stream, stretch):
            for title, each in work.items():  # interleaved, so that a busy moment hits all alike
                began = time.perf_counter()
                each(x)
                spent[title] += time.perf_counter() - began
        for title in work:
            taken[title].append(spent[title])
    found: dict[str, dict[str, Any]] = {}
    for title, times in taken.items():
        ratios = [t / base for t, base in zip(times, taken["encode_image"], strict=True)]
        found[title] = {
            "seconds": statistics.median(times),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
    for form, adapter in adapters.items():
        told = adapter.summary()
        found[form]["passed"] = told.get("refinement", {}).get("passed")
        found[form]["trials"] = told.get("tower", {}).get("trials")
    return found


def line(title: str, made: dict[str, Any]) -> str:
    text = f"  {title:18s} {made['seconds']:8.3f} s  {made['ratio']:5.2f} x encode_image"
    text += f" ({made['lowest']:.2f} to {made['highest']:.2f})"
    if made.get("trials") is not None:
        text += f", {made['trials']} trials"
    if made.get("passed") is not None:
        text += f", the gate let {100 * made['passed']:.0f} % of the images pass"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architectures", nargs="+", default=["ViT-B-16", "RN50"])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--stretch", type=int, default=8, help="batches per repetition")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm", type=int, default=8, help="batches before the first repetition")
    parser.add_argument(
        "--streams", nargs="+", default=["rests", "moves"], choices=["rests", "moves"]
    )
    parser.add_argument("--out", type=Path, help="file for the numbers, as JSON")
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for architecture in args.architectures:
        model = random_model(architecture)
        for stream in args.streams:
            title = f"{architecture}, the stream {stream}"
            sizes = args.batch, args.stretch, args.repeats, args.warm
            made = measure(model, args.forms, *sizes, moves=stream == "moves")
            found[title] = made
            print(
                f"{title}; B={args.batch}, after {args.warm} batches, {args.stretch} per "
                f"repetition, median of {args.repeats}, {torch.get_num_threads()} threads"
            )
            print("\n".join(line(form, each) for form, each in made.items()), flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
