"""The whole BayesTTA step against one plain forward: `python benchmarks/step.py`.

Random weights, batches of 16 at 224 pixels, ViT-B/16 and RN50. In one run and interleaved:
`encode_image` under no_grad, the floor (one forward plus a backward to the norms' parameters), and
`adapt` with the default settings and with both presets. Medians of five; the ratios are what
counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bayestta.methods.bayestta.method import BayesTTA
from bayestta.models._norms import norm_parameters
from bayestta.models._torchvision import import_torchvision
from bayestta.models.base import VLM
from bayestta.models.open_clip import OpenCLIP

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
TEMPLATES = ["a photo of a {}."]


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


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(architecture: str, batch: int, repeats: int) -> dict[str, float]:
    model = random_model(architecture)
    x = torch.randn(batch, 3, 224, 224)
    start = {key: value.requires_grad_() for key, value in norm_parameters(model.visual).items()}

    def plain() -> None:
        with torch.no_grad():
            model.encode_image(x)

    def floor() -> None:
        loss = model.encode_image(x, start).sum(1).square().sum()
        torch.autograd.grad(loss, list(start.values()))

    work: dict[str, Callable[[], object]] = {"encode_image": plain, "floor": floor}
    for title, options in {
        "default": {},
        "refine=False": {"refine": False},
        "released": {"preset": "released"},
        "paper": {"preset": "paper"},
    }.items():
        adapter = BayesTTA(model, CLASSES, TEMPLATES, **options)
        work[title] = lambda adapter=adapter: adapter.adapt(x)
    for each in work.values():
        each()  # warm up
    times: dict[str, list[float]] = {title: [] for title in work}
    for _ in range(repeats):  # interleaved, so that a busy moment hits all alike
        for title, each in work.items():
            times[title].append(seconds(each))
    return {title: statistics.median(taken) for title, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    for architecture in ("ViT-B-16", "RN50"):
        medians = measure(architecture, args.batch, args.repeats)
        found[architecture] = medians
        print(
            f"{architecture}, B={args.batch}, {torch.get_num_threads()} threads, "
            f"median of {args.repeats}"
        )
        for title, taken in medians.items():
            ratio = taken / medians["encode_image"]
            print(f"  {title:14s} {taken:7.3f} s  {ratio:5.2f} x encode_image")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
