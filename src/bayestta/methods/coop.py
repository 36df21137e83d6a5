"""CoOp: a context learnt from labelled images, then zero-shot."""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import ImageOps
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from bayestta.data._base import Data, Dataset, generator, permutation
from bayestta.data._views import random_crop
from bayestta.files import replacing
from bayestta.methods import register
from bayestta.methods.zero_shot import ZeroShot
from bayestta.models._prompts import PromptLearner
from bayestta.models.base import VLM
from bayestta.names import unknown
from bayestta.settings import Settings, setting

KEYS = ("ctx", "prompt_learner.ctx")
# Not in the specification, which says SGD and no more: the defaults of Dassl, CoOp's framework.
MOMENTUM, DECAY = 0.9, 5e-4


@dataclass(frozen=True)
class CoOpSettings(Settings):
    checkpoint: str | None = setting(
        None,
        "File of `save_context` or of CoOp's own training; without one the context is untrained, "
        "and every record says so.",
    )


@register
class CoOp(ZeroShot):
    """Zero-shot with a learnt context in the place of "a photo of a"."""

    Settings = CoOpSettings
    settings: CoOpSettings
    name = "coop"
    title = "CoOp"
    about = "Zero-shot with a learnt context of the prompts."
    citation = "Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022"
    tunes = "the context of the prompt, before the stream and with labels"
    fidelity = (
        "code; unified context, class name at the end; momentum and weight decay of the training "
        "are its framework's, as the specification has none; not test-time adaptation"
    )
    needs_encoder = True

    def make_text(self) -> Tensor:
        if self.settings.checkpoint is None:
            self.templates = ["a photo of a {}."]
            learner = PromptLearner(self.model, self.classes)
            return learner(learner.start)
        context = load_context(self.settings.checkpoint)
        learner = PromptLearner(self.model, self.classes, places(len(context)))
        self.templates = [f"[{len(context)} learnt tokens] {{}}."]  # what results are to record
        return learner(context.to(learner.start))

    def _adapt(self, x: Tensor) -> Tensor:
        if self.settings.checkpoint is None:
            self.record = {"context": "untrained, as no checkpoint was given"}
        return super()._adapt(x)


def places(n: int) -> str:
    """Words that keep the place of n tokens."""
    return " ".join(["x"] * n)


def save_context(context: Tensor, path: str | os.PathLike[str], **about: Any) -> None:
    """Write a learnt context (n,W) as safetensors, with `about` as JSON in its header."""
    tensors = {"ctx": context.detach().float().cpu().contiguous()}
    with replacing(path) as part:
        save_file(tensors, part, metadata={"coop": json.dumps(about)})


def load_context(path: str | os.PathLike[str]) -> Tensor:
    """The context (n,W) of a file of `save_context` or CoOp; the classes it came with are dropped.

    CoOp saves the embeddings before and after the context for its training classes too; they would
    be wrong for any other classes, and are made again.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no context at {path}: check the path, or train one.")
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                state: Any = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:150]
        raise ValueError(f"{path} cannot be read as a context ({reason}): use another.") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    found = [state[key] for key in KEYS if isinstance(state.get(key), Tensor)]
    if not found or found[0].ndim != 2:
        what = f"one of shape {tuple(found[0].shape)}" if found else "none"
        raise ValueError(
            f"{path} should hold a context 'ctx' (tokens, width) for all classes, and has {what}: "
            "use a checkpoint with a unified context."
        )
    context: Tensor = found[0].float()
    return context


def pick_shots(
    data: Data, shots: int, seed: int, domains: Sequence[str] = ()
) -> list[tuple[str, int, int]]:
    """(domain, image, label) of as many images of each class, drawn over the domains, or all."""
    for domain in domains:
        if domain not in data.domains:
            raise ValueError(unknown(f"domain of {data.name}", domain, data.domains))
    groups: dict[int, list[tuple[str, int, int]]] = {k: [] for k in range(len(data.classes))}
    for domain in domains or data.domains:
        labels = data[domain].labels(range(len(data[domain]))) if data.labelled else None
        if labels is None:
            raise ValueError(f"domain {domain!r} of {data.name!r} has no labels: coop needs them.")
        for i, label in enumerate(labels.tolist()):
            groups[label].append((domain, i, label))
    picked = []
    for label, group in groups.items():
        if len(group) < shots:
            raise ValueError(
                f"class {data.classes[label]!r} has {len(group)} images and {shots} shots are "
                "asked for: lower shots, or give more images."
            )
        picked += [group[i] for i in permutation(len(group), seed, "shots", label)[:shots]]
    return picked


def default_epochs(shots: int) -> int:
    """How long CoOp trains on that many images per class."""
    return 200 if shots >= 8 else 100 if shots >= 2 else 50


def train_coop(
    model: VLM,
    data: Data,
    *,
    shots: int = 16,
    domains: Sequence[str] = (),
    context: str = "a photo of a",
    tokens: int | None = None,
    epochs: int | None = None,
    lr: float = 0.002,
    batch_size: int = 32,
    seed: int = 1,
    progress: Callable[[int, float], object] | None = None,
) -> Tensor:
    """Learn a context (n,W) on labelled images, by cross-entropy and SGD with a cosine schedule.

    Parameters
    ----------
    shots, domains
        Images a class, drawn from these domains of `data`, or from all.
    context, tokens
        The words to start from, or instead that many random vectors, N(0, 0.02^2).
    epochs
        Default: 200 from 8 shots on, 100 from 2 on, 50 for one. The first runs at a rate of 1e-5.
    progress
        Called with the epoch and its mean loss.
    """
    picked = pick_shots(data, shots, seed, domains)
    sets = {domain: data[domain] for domain in data.domains}
    epochs = epochs or default_epochs(shots)
    learner = PromptLearner(model, data.classes, places(tokens) if tokens else context)
    start = learner.start.clone()
    if tokens:
        random = torch.Generator().manual_seed(seed)
        start = 0.02 * torch.randn(start.shape, generator=random).to(start)
    learnt = start.requires_grad_()
    optimiser = torch.optim.SGD([learnt], lr=lr, momentum=MOMENTUM, weight_decay=DECAY)
    for epoch in range(epochs):
        cosine = 0.5 * lr * (1 + math.cos(math.pi * epoch / epochs))
        optimiser.param_groups[0]["lr"] = 1e-5 if epoch == 0 else cosine
        order, total = permutation(len(picked), seed, "epoch", epoch).tolist(), 0.0
        for first in range(0, len(order), batch_size):
            batch = [picked[j] for j in order[first : first + batch_size]]
            crops = [_crop(model, sets[d], i, generator(seed, d, i, epoch)) for d, i, _ in batch]
            x = torch.stack(crops)
            with torch.no_grad():
                z = model.encode_image(x)
            labels = torch.tensor([label for _, _, label in batch], device=z.device)
            loss = functional.cross_entropy(model.logits(z, learner(learnt)), labels)
            (learnt.grad,) = torch.autograd.grad(loss, [learnt])
            optimiser.step()
            total += float(loss.detach()) * len(batch)
        if progress is not None:
            progress(epoch, total / len(picked))
    return learnt.detach()


def _crop(model: VLM, dataset: Dataset, i: int, rng: np.random.Generator) -> Tensor:
    """A random crop, mirrored half of the time, as the model takes it (C,H,W)."""
    size: int = cast(Any, model.preprocess).size
    image = random_crop(dataset[i][0], size, rng)
    return model.preprocess(ImageOps.mirror(image) if rng.random() < 0.5 else image)
