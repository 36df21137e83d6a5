"""The service on a cluster of Ray: a stateless encoder, and shards that hold the adapters.

An adapter belongs to the shard that a consistent hash names. A shard is a named actor, of which
Ray keeps one alive; the store's epoch fences off one that was thought dead. Requests carry an id
and learn once, so that they are sent again when a shard dies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from bayestta.models.base import VLM
from bayestta.serve.actors import NAMESPACE, import_ray, start_shards, stop
from bayestta.serve.backend import Inputs, pixels_needed, preprocess
from bayestta.serve.board import Board
from bayestta.serve.hosted import Answer
from bayestta.serve.limits import Limits, check_id
from bayestta.serve.pictures import Pictures
from bayestta.serve.prometheus import Metrics
from bayestta.serve.refusals import Refusal
from bayestta.serve.ring import Ring
from bayestta.serve.server import Options
from bayestta.state_file import unpack

PATIENCE = 120.0  # seconds for a shard to come back


class Cluster:
    """The backend of the ingress: asks the encoder and the shards."""

    def __init__(
        self,
        model: VLM,
        encoder: Any,
        shards: Sequence[Any],
        limits: Limits,
        classes: list[str] | None,
    ) -> None:
        self.model, self.encoder, self.shards, self.classes = model, encoder, shards, classes
        self.ring = Ring(len(shards))
        self.kinds: dict[str, bool] = {}  # id -> whether it takes features
        self.board, self.metrics = Board(), Metrics()
        self.pictures = Pictures(limits.keep_images)
        self._writers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def expecting(self) -> AbstractContextManager[None]:
        return nullcontext()  # the encoder of Ray Serve gathers by itself

    async def ask(self, name: str, method: str, *args: Any, again: bool = True) -> Any:
        """Ask the shard of an adapter and, with `again`, ask once more where it died."""
        ray = import_ray()
        actor = self.shards[self.ring.shard(check_id(name))]
        end = time.monotonic() + PATIENCE
        while True:
            try:
                result, changed = await getattr(actor, method).remote(*args)
            except ray.exceptions.RayTaskError as error:
                known = isinstance(error.cause, (Refusal, OSError))
                raise error.cause if known else error from None
            except ray.exceptions.RayActorError:
                if not again or time.monotonic() > end:
                    raise Refusal(
                        503,
                        "shard_gone",
                        f"the shard of adapter {name!r} ended during the request",
                        "look at the step of the adapter, then send the request again",
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
        features = await self._takes_features(name)
        if isinstance(x, Tensor) and not features:
            raise pixels_needed(name)
        images = None if isinstance(x, Tensor) else x
        if not isinstance(x, Tensor):
            x = await asyncio.to_thread(preprocess, self.model, x)
            if features:
                x = await self._encode(x)
        given = (name, x.numpy(), request_id, adapt)
        if adapt:
            async with self._writers.setdefault(name, asyncio.Lock()):
                began = time.perf_counter()
                answer: Answer = await self.ask(name, "infer", *given)
        else:
            began = time.perf_counter()
            answer = await self.ask(name, "infer", *given)
        self.metrics.answered(name, answer, time.perf_counter() - began)
        if images is not None and self.pictures.most and not answer.repeated:
            await asyncio.to_thread(self.pictures.keep, name, answer, images)
        return answer

    async def _takes_features(self, name: str) -> bool:
        """Whether one pass of the shared encoder serves the adapter, which is made if need be."""
        if name not in self.kinds:
            try:
                about = await self.call("describe", name)
            except Refusal as refusal:
                if refusal.code != "adapter_unknown" or self.classes is None:
                    raise
                about = await self._make(name)
            self.kinds[name] = "features" in about["inputs"]
        return self.kinds[name]

    async def _make(self, name: str) -> Any:
        try:
            return await self.call("create", name, {"classes": self.classes})
        except Refusal as refusal:
            if refusal.code != "adapter_exists":  # another request was first
                raise
            return await self.call("describe", name)

    async def _encode(self, pixels: Tensor) -> Tensor:
        began = time.perf_counter()
        z, seconds = await self.encoder.encode.remote(pixels.numpy())
        waited = max(0.0, time.perf_counter() - began - seconds)
        self.metrics.encoded(len(pixels), seconds, [waited])
        return torch.from_numpy(np.array(z))

    async def call(self, verb: str, name: str, *args: Any) -> Any:
        if verb == "merge":  # the other adapter may be on another shard
            (other,) = args
            data, _ = await self.ask(other, "call", "read_state", other)
            header, state = unpack(data, other)
            joined = ("join", name, other, header, state)
            return await self.ask(name, "call", *joined, again=False)  # twice would count twice
        result = await self.ask(name, "call", verb, name, *args, again=verb != "create")
        if verb == "delete":
            self.kinds.pop(name, None)
            for keeper in (self.board, self.metrics, self.pictures):
                keeper.removed(name)
        return result

    async def names(self) -> list[str]:
        """Of the whole store, from the first shard that answers."""
        ray = import_ray()
        for actor in self.shards:
            with suppress(ray.exceptions.RayActorError):
                found: list[str] = await actor.names.remote()
                return found
        raise Refusal(503, "shard_gone", "no shard answers", "send the request again")

    async def loaded(self) -> int:
        """In the memory of the shards that answer."""
        asked = (shard.loaded.remote() for shard in self.shards)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return sum(each for each in found if isinstance(each, int))

    async def close(self) -> None:
        """The shards stay: they belong to the cluster."""


def serve_on_ray(
    model: str,
    store: Path,
    options: Options,
    *,
    classes: list[str] | None = None,
    shards: int = 2,
    encoders: int = 4,
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
    deploy(model, options, actors, classes, encoders, where)
    if block:
        print(f"Serving {model} at http://{options.host}:{options.port} on Ray", flush=True)
        try:
            while True:
                time.sleep(1)
        finally:
            stop(actors)
