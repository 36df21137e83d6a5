"""Small worlds for the tests: towers on flat inputs, in any precision, and drifting streams."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from bayestta.models.base import VLM

PIXELS, HIDDEN = 12, 20


class LayerNormTower(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.ln_1 = nn.Linear(PIXELS, HIDDEN), nn.LayerNorm(HIDDEN)
        self.fc2, self.ln_post = nn.Linear(HIDDEN, dim), nn.LayerNorm(dim)

    def forward(self, x):
        return self.ln_post(self.fc2(functional.gelu(self.ln_1(self.fc1(x)))))


class BatchNormTower(nn.Module):
    """With a branch of the kind that the released choice of norms leaves out."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(PIXELS, HIDDEN), nn.BatchNorm1d(HIDDEN)
        self.fc2, self.bn2 = nn.Linear(HIDDEN, dim), nn.BatchNorm1d(dim)
        self.downsample = nn.Sequential(nn.Linear(PIXELS, dim), nn.BatchNorm1d(dim))

    def forward(self, x):
        inner = self.bn2(self.fc2(functional.silu(self.bn1(self.fc1(x)))))
        return inner + self.downsample(x)


TOWERS = {"LayerNorm": LayerNormTower, "BatchNorm": BatchNormTower}


class Fake(VLM):
    """A model whose features keep the precision of its weights; prompts are row numbers."""

    def __init__(self, visual: nn.Module, text: torch.Tensor, scale: float = 100.0) -> None:
        super().__init__("fake", visual, lambda image: image, dim=text.shape[1], scale=scale)
        self.table = functional.normalize(text, dim=1)

    @property
    def device(self):
        return self.table.device

    @property
    def dtype(self):
        return self.table.dtype

    def encode_text(self, prompts):
        return torch.stack([self.table[int(prompt)] for prompt in prompts])

    def encode_image(self, x, params=None, norms="source"):
        return functional.normalize(functional_call(self.visual, dict(params or {}), (x,)), dim=1)


def names(model: Fake) -> list[str]:
    return [str(k) for k in range(len(model.table))]


def tower(kind: str, dim: int, seed: int) -> nn.Module:
    """In evaluation mode, float64, with norms that are neither fresh nor the same everywhere."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = TOWERS[kind](dim).double()
        made.train()(3 * torch.randn(256, PIXELS).double())  # running statistics
        with torch.no_grad():
            for name, value in made.named_parameters():
                if "ln" in name or "bn" in name or name.startswith("downsample.1"):
                    value.add_(0.2 * torch.randn_like(value))
    return made.eval()


def world(
    K: int,
    kind: str = "LayerNorm",
    *,
    dim: int = 24,
    batch: int = 48,
    batches: int = 10,
    seed: int = 0,
    spread: float = 0.0,
    drift: float = 0.1,
    gap: float = 1.0,
    signal: float = 2.0,
    scale: float = 100.0,
):
    """A model, and a stream of (x, y) that drifts away from it.

    `spread` makes the classes differ in size; `gap` lies between image and text features.
    """
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    visual = tower(kind, dim, seed)
    centres, direction, size = (
        signal * normal(K, PIXELS),
        normal(PIXELS),
        1 + spread * torch.arange(K),
    )
    with torch.no_grad():
        features = functional.normalize(visual(centres), dim=1)
    text = features - features.mean(0) + gap * functional.normalize(normal(1, dim), dim=1)
    stream = []
    for t in range(batches):
        y = torch.randint(K, (batch,), generator=rng)
        noise = size[y, None] * normal(batch, PIXELS)
        stream.append((centres[y] + drift * t * direction + noise, y))
    return Fake(visual, text, scale), stream
