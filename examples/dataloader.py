"""Evaluate on a DataLoader of your own: any iterable of (x, y) is a stream.

`evaluate` keeps the labels to itself: the adapter never sees them.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch.utils.data import DataLoader, Dataset

import bayestta as bt

CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class Digits(Dataset):
    """Digits that are drawn darker and darker, with noise; stands for your own data set."""

    def __init__(self, transform, n: int = 200) -> None:
        self.transform, self.n = transform, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = Image.new("L", (28, 28))
        font = ImageFont.load_default(size=24)
        ImageDraw.Draw(image).text((14, 14), str(i % 10), 255, font, anchor="mm")
        noise = np.random.default_rng(i).normal(0, 20, (28, 28))
        pixels = np.asarray(image) * (1 - 0.7 * i / self.n) + noise
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB")
        return self.transform(image), i % 10


model = bt.load_model("mini-rn")
loader = DataLoader(Digits(model.preprocess), batch_size=20)  # in the order of time: no shuffling
adapter = bt.BayesTTA(model, CLASSES, ["a photo of the number {}."])
result = bt.evaluate(adapter, loader)
print(f"zero-shot {result.sketch['accuracy']:.1f} %, adapted {result.accuracy:.1f} %")
result.save("result.json")  # for `bayestta report result.json`
