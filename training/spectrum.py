"""Print the spectrum of the photographs that the mini models were trained on, for models/mini.py.

    python training/spectrum.py

The mean over 5,000 train images of CIFAR-10, per band of frequencies, at the size of each tower.
Where it has no such band, the law of photographs is printed.
"""

from __future__ import annotations

import torch

from bayestta import load_data, load_model, stream
from bayestta.models._spectrum import excess, photographs

IMAGES, SIZE = 5000, 500


def main() -> None:
    data = load_data("cifar10-blur", split="train")
    for name in ("mini-rn", "mini-vit"):
        model = load_model(name)
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (model.mean, model.std))
        law = photographs()
        total = law.clone()
        sharp = stream(
            data, model.preprocess, batch_size=SIZE, limit=IMAGES, domains=["0.00"], seed=0
        )
        for batch in sharp:
            total += excess(batch.x * std + mean, law).sum(0) / IMAGES
        print(name, [round(float(value), 2) for value in total])


if __name__ == "__main__":
    main()
