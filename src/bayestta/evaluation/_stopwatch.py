"""How long the image tower takes, measured from outside: a model carries no stopwatch."""

from __future__ import annotations

import time

import torch

from bayestta.models.base import VLM


class Stopwatch:
    """Seconds that the image tower takes while this context lasts, by hooks that go with it."""

    def __init__(self, model: VLM) -> None:
        self.model, self.seconds, self._began = model, 0.0, 0.0

    def __enter__(self) -> Stopwatch:
        device = self.model.device

        def start(*_: object) -> None:
            self._began = clock(device)

        def stop(*_: object) -> None:
            self.seconds += clock(device) - self._began

        tower = self.model.visual
        self._hooks = [tower.register_forward_pre_hook(start), tower.register_forward_hook(stop)]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


def clock(device: torch.device) -> float:
    """The time, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # kernels still queued belong to the time before
    return time.perf_counter()
