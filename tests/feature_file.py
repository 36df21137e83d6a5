"""A file of cached features made of random clusters: the quickest thing that a run can run on."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import normalize

from bayestta.bench import Run
from bayestta.models._feature_file import write_feature_file

NAMES, TEMPLATE = ["cat", "dog", "eel", "fox"], "a photo of a {}."


def feature_file(path: Path, *, images: int = 40, dim: int = 16, domains: int = 3) -> Path:
    """`images` per domain; every domain is further away from the text than the one before."""
    generator = torch.Generator().manual_seed(0)
    text = normalize(torch.randn(len(NAMES), dim, generator=generator), dim=1)
    drift = torch.randn(dim, generator=generator)
    labels = torch.randint(len(NAMES), (images * domains,), generator=generator)
    step = torch.arange(domains).repeat_interleave(images)[:, None]
    noise = 0.3 * torch.randn(len(labels), dim, generator=generator)
    header = {
        "model": "clusters",
        "fingerprint": "c1u57e25",
        "scale": 20.0,
        "bias": 0.0,
        "trained_on": [],
        "data": "points",
        "split": "test",
        "contains": [],
        "classes": NAMES,
        "templates": [TEMPLATE],
        "domains": [f"day {day}" for day in range(domains)],
        "sizes": [images] * domains,
        "limit": None,
        "prompts": [TEMPLATE.format(name) for name in NAMES],
    }
    images_ = normalize(text[labels] + noise + 0.1 * step * drift, dim=1)
    tensors = {"images": images_, "labels": labels, "text": text}
    write_feature_file(path, tensors, header)
    return path


def feature_run(path: Path, method: str = "zero-shot", **fields: object) -> Run:
    """A run over the file."""
    return Run("features", f"features:{path}", method, root=str(path), **fields)  # type: ignore[arg-type]
