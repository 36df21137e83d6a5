"""`bayestta predict` on a folder of CIFAR-10 test images sorted by class, against zero-shot.

    python bench/sorted_folder.py --model mini-rn

The folder is written to a temporary place and holds no labels: 00000.png and so on, 300 images of
the first class, then 300 of the next. The command sorts by name and sees one class after the other.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bayestta.data import load_data

LEVEL = "1.00"  # of cifar10-light: the images as they are


def write_folder(folder: Path, n: int) -> tuple[list[str], list[str]]:
    """n images, as many of each class; their true names in order, and the classes."""
    data = load_data("cifar10-light", split="test")
    images = data[LEVEL]
    labels = images.labels(range(len(images)))
    each = n // len(data.classes)
    truth = []
    for k, title in enumerate(data.classes):
        for i in np.flatnonzero(labels.numpy() == k)[:each]:
            images[int(i)][0].save(folder / f"{len(truth):05d}.png")
            truth.append(title)
    return truth, data.classes


def accuracy(folder: Path, classes: list[str], truth: list[str], model: str, method: str) -> float:
    """Percent of the answers that `bayestta predict` writes."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "answers.csv"
        command = [sys.executable, "-m", "bayestta", "predict", "--images", str(folder)]
        command += ["--classes", ",".join(classes), "--model", model, "--method", method]
        told = subprocess.DEVNULL  # where the answers were written, a place that is gone soon
        subprocess.run([*command, "--out", str(out), "--quiet"], check=True, stdout=told)
        with out.open(newline="") as file:
            answers = {Path(row["path"]).stem: row["label"] for row in csv.DictReader(file)}
    hits = sum(answers[f"{i:05d}"] == name for i, name in enumerate(truth))
    return 100 * hits / len(truth)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mini-rn")
    parser.add_argument("--images", type=int, default=3000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        truth, classes = write_folder(Path(place), args.images)
        found = {
            method: accuracy(Path(place), classes, truth, args.model, method)
            for method in ("zero-shot", "bayestta")
        }
    zero, ours = found["zero-shot"], found["bayestta"]
    print(
        f"{len(truth):,} images sorted by class, {args.model}: zero-shot {zero:.2f} %, "
        f"bayestta {ours:.2f} % ({ours - zero:+.2f})"
    )


if __name__ == "__main__":
    main()
