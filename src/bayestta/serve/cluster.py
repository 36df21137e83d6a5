"""The service on a cluster of Ray: a stateless encoder, and shards that hold the adapters.

An adapter belongs to the shard that a consistent hash names. A shard is a named actor, of which
Ray keeps one alive; the store's epoch fences off one that was thought dead. Requests carry an id
and learn once, so that they are sent again when a shard dies.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayestta.models.base import VLM, load_model
from bayestta.models.features import Features
from bayestta.serve.backend import Inputs, pixels_needed, preprocess
from bayestta.serve.board import Board
from bayestta.serve.changes import Changes
from bayestta.serve.hosted import Answer
from bayestta.serve.limits import Limits, check_id
from bayestta.serve.metrics import Metrics
from bayestta.serve.pictures import Pictures
from bayestta.serve.refusals import Fenced, Refusal
from bayestta.serve.ring import Ring
from bayestta.serve.server import Options
from bayestta.serve.shard import Shard
from bayestta.serve.store import Store
from bayestta.state_file import unpack

PATIENCE = 120.0  # seconds for a shard to come back
NAMESPACE = "bayestta"
APP = "bayestta"


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
        self.changed: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = []
        self.store = Store(Path(store), Limits(**limits), shared=True)
        self.shard = Shard(
            self.model, self.store, on_change=lambda *change: self.changed.append(change)
        )
        self.changes = Changes(self.shard)

    def call(self, verb: str, name: str, *args: Any, **options: Any) -> tuple[Any, list[Any]]:
        """A verb of the shard or of its changes, and the changes that it made."""
        owner = self.shard if hasattr(self.shard, verb) else self.changes
        try:
            result = getattr(owner, verb)(name, *args, **options)
        except Fenced:  # was thought dead, and is not: what is on the disk counts
            result = getattr(owner, verb)(name, *args, **options)
        changed, self.changed = self.changed, []
        return result, changed

    def infer(
        self, name: str, x: Any, request_id: str, adapt: bool, classes: list[str] | None
    ) -> tuple[Any, list[Any]]:
        if classes is not None and name not in self.store:
            self.shard.create(name, {"classes": classes})
        x = torch.from_numpy(np.array(x))
        return self.call("infer", name, x, request_id=request_id, adapt=adapt)

    def names(self) -> list[str]:
        return self.store.names()

    def loaded(self) -> int:
        return self.shard.loaded


class Cluster:
    """The backend of the ingress: asks the encoder and the shards."""

    def __init__(
        self, model: VLM, encoder: Any, shards: Sequence[Any], classes: list[str] | None
    ) -> None:
        self.model, self.encoder, self.shards, self.classes = model, encoder, shards, classes
        self.ring = Ring(len(shards))
        self.board, self.metrics, self.pictures = Board(), Metrics(), Pictures(0)
        self._features = Features(model)
        self._kinds: dict[str, bool] = {}

    def expecting(self) -> AbstractContextManager[None]:
        return nullcontext()  # the encoder of Ray Serve gathers by itself

    async def ask(self, name: str, method: str, *args: Any) -> Any:
        """Ask the shard of an adapter, again where it died: request ids learn once."""
        ray = import_ray()
        actor = self.shards[self.ring.shard(check_id(name))]
        end = time.monotonic() + PATIENCE
        while True:
            try:
                result, changed = await getattr(actor, method).remote(*args)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Refusal) else error from None
            except ray.exceptions.RayActorError:
                if time.monotonic() > end:
                    raise Refusal(
                        503,
                        "shard_gone",
                        f"the shard of adapter {name!r} did not come back in {PATIENCE:.0f} s",
                        "send the request again",
                    ) from None
                await asyncio.sleep(0.2)
                continue
            for change in changed:
                self.board.changed(*change)
                self.metrics.changed(*change)
            return result

    async def infer(
        self, name: str, x: Inputs, *, request_id: str, adapt: bool, repeatable: bool = True
    ) -> Answer:
        if name not in self._kinds and self.classes is None:
            about = await self.call("describe", name)
            self._kinds[name] = "features" in about["inputs"]
        features = self._kinds.get(name, True)
        if isinstance(x, Tensor) and not features:
            raise pixels_needed(name)
        if not isinstance(x, Tensor):
            pixels = await asyncio.to_thread(preprocess, self.model, x)
            x = pixels
            if features:
                x = torch.from_numpy(np.array(await self.encoder.encode.remote(pixels.numpy())))
        began = time.perf_counter()
        given = (name, x.numpy(), request_id, adapt, self.classes)
        answer: Answer = await self.ask(name, "infer", *given)
        if not answer.repeated:
            self.metrics.images.labels(name).inc(len(answer.probabilities))
            if answer.adapted:
                self.metrics.steps.labels(name).inc()
                self.metrics.adapt.labels(name).observe(time.perf_counter() - began)
        return answer

    async def call(self, verb: str, name: str, *args: Any) -> Any:
        if verb == "merge":  # the other adapter may be on another shard
            (other,) = args
            data, _ = await self.ask(other, "call", "read_state", other)
            header, state = unpack(data, other)
            return await self.ask(name, "call", "join", name, other, header, state)
        result = await self.ask(name, "call", verb, name, *args)
        if verb == "delete":
            self._kinds.pop(name, None)
            for keeper in (self.board, self.metrics, self.pictures):
                keeper.removed(name)
        return result

    async def names(self) -> list[str]:
        found: list[str] = await self.shards[0].names.remote()
        return found

    async def loaded(self) -> int:
        return sum(await asyncio.gather(*(shard.loaded.remote() for shard in self.shards)))

    async def close(self) -> None:
        """The shards stay: they belong to the cluster."""


def start_shards(model: str, store: Path, limits: Limits, count: int, **where: Any) -> list[Any]:
    """Named actors, made where they are not there yet; Ray starts them again when they die."""
    ray = import_ray()
    make = ray.remote(max_restarts=-1, max_task_retries=0, num_cpus=0.5)(AdapterShard)
    return [
        make.options(
            name=f"shard-{i}", namespace=NAMESPACE, lifetime="detached", get_if_exists=True
        ).remote(model, str(store), asdict(limits), **where)
        for i in range(count)
    ]


def serve_on_ray(
    model: str,
    store: Path,
    options: Options,
    *,
    classes: list[str] | None = None,
    shards: int = 2,
    device: str = "cpu",
    precision: str = "fp32",
    block: bool = True,
) -> None:
    """Run the service on the cluster of `$RAY_ADDRESS`, or on one of this machine's own."""
    ray = import_ray()
    from bayestta.serve.deployments import deploy

    if not ray.is_initialized():
        ray.init(namespace=NAMESPACE, include_dashboard=False, log_to_driver=False)
    where = {"device": device, "precision": precision}
    actors = start_shards(model, store.absolute(), options.limits, shards, **where)
    ray.get([actor.names.remote() for actor in actors])  # the store is free, the models load
    deploy(model, options, actors, classes, where)
    if block:
        print(f"Serving {model} at http://{options.host}:{options.port} on Ray", flush=True)
        try:
            while True:
                time.sleep(1)
        finally:
            stop(actors)


def stop(actors: Sequence[Any]) -> None:
    """End the service; everything acknowledged is in the store."""
    ray: Any = import_ray()
    serve: Any = importlib.import_module("ray.serve")
    serve.delete(APP)
    for actor in actors:
        ray.kill(actor, no_restart=True)
