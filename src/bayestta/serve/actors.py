"""The actors of Ray that hold the adapters: each is one writer, started again when it dies."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayestta.models.base import load_model
from bayestta.serve.changes import Changes
from bayestta.serve.limits import Limits
from bayestta.serve.refusals import Fenced
from bayestta.serve.shard import Shard
from bayestta.serve.store import Store

THREADS = 16  # per shard, so that one adapter does not keep the others waiting
NAMESPACE = "bayestta"
APP = "bayestta"
Change = tuple[str, dict[str, Any], list[dict[str, Any]]]


def import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ImportError(
            "--ray needs Ray, which is not installed: pip install 'bayestta[ray,serve]'."
        ) from None


class AdapterShard:
    """The adapters of one actor; every answer brings along what has changed."""

    def __init__(self, model: str, store: str, limits: dict[str, Any], **where: Any) -> None:
        torch.set_num_threads(1)
        self.model = load_model(model, **where)
        self.changed: deque[Change] = deque()
        self.store = Store(Path(store), Limits(**limits), shared=True)
        self.shard = Shard(
            self.model, self.store, on_change=lambda *change: self.changed.append(change)
        )
        self.changes = Changes(self.shard)

    def call(self, verb: str, name: str, *args: Any, **options: Any) -> tuple[Any, list[Change]]:
        """A verb of the shard or of its changes, and the changes that were made."""
        owner = self.shard if hasattr(self.shard, verb) else self.changes
        try:
            result = getattr(owner, verb)(name, *args, **options)
        except Fenced:  # was thought dead, and is not: what is on the disk counts
            result = getattr(owner, verb)(name, *args, **options)
        changed = []
        with suppress(IndexError):  # other threads of this actor take some too
            while True:
                changed.append(self.changed.popleft())
        return result, changed

    def infer(self, name: str, x: Any, request_id: str, adapt: bool) -> tuple[Any, list[Change]]:
        x = torch.from_numpy(np.array(x))
        return self.call("infer", name, x, request_id=request_id, adapt=adapt)

    def names(self) -> list[str]:
        return self.store.names()

    def loaded(self) -> int:
        return self.shard.loaded

    def where(self) -> str:
        """The node that this actor runs on."""
        return str(import_ray().get_runtime_context().get_node_id())


def start_shards(model: str, store: Path, limits: Limits, count: int, **where: Any) -> list[Any]:
    """Named actors, made where they are not there yet; Ray starts them again when they die."""
    ray = import_ray()
    lives = {"max_restarts": -1, "max_task_retries": 0, "max_concurrency": THREADS}
    make = ray.remote(num_cpus=0.5, scheduling_strategy="SPREAD", **lives)(AdapterShard)
    return [
        make.options(
            name=f"shard-{i}", namespace=NAMESPACE, lifetime="detached", get_if_exists=True
        ).remote(model, str(store), asdict(limits), **where)
        for i in range(count)
    ]


def stop(actors: Sequence[Any]) -> None:
    """End the service; everything acknowledged is in the store."""
    ray: Any = import_ray()
    serve: Any = importlib.import_module("ray.serve")
    serve.delete(APP)
    for actor in actors:
        ray.kill(actor, no_restart=True)
