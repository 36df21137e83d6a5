"""What the HTTP surfaces ask: in one process, or spread over a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import torch
from PIL import Image
from torch import Tensor

from bayestta.models._preprocess import Preprocess
from bayestta.models.base import VLM
from bayestta.serve.board import Board
from bayestta.serve.changes import Changes
from bayestta.serve.encoder import Encoder
from bayestta.serve.hosted import Answer
from bayestta.serve.limits import check_id
from bayestta.serve.pictures import Pictures
from bayestta.serve.prometheus import Metrics
from bayestta.serve.refusals import Refusal
from bayestta.serve.shard import Shard
from bayestta.serve.store import Store

T = TypeVar("T")
Inputs = Sequence[Image.Image] | Tensor


class Backend(Protocol):
    """The verbs behind the routes."""

    model: VLM
    board: Board
    metrics: Metrics
    pictures: Pictures

    def expecting(self) -> AbstractContextManager[None]:
        """Around the reading of a request with images: the encoder waits for it a little."""

    async def infer(
        self, name: str, x: Inputs, *, request_id: str, adapt: bool, repeatable: bool = True
    ) -> Answer: ...
    async def call(self, verb: str, name: str, *args: Any) -> Any: ...
    async def names(self) -> list[str]: ...
    async def loaded(self) -> int: ...
    async def close(self) -> None: ...


class Local:
    """Everything in this process: threads for decoding, one for the encoder, some for steps."""

    def __init__(self, model: VLM, store: Store, *, classes: Sequence[str] | None = None) -> None:
        self.model, self.store, self.limits = model, store, store.limits
        self.classes = classes  # of adapters that are made on first use
        self.board, self.metrics = Board(), Metrics()
        self.pictures = Pictures(self.limits.keep_images)
        self.shard = Shard(model, store, on_change=self._changed)
        self.changes = Changes(self.shard)
        self.encoder = Encoder(model, self.limits, self.metrics.encoded)
        self._threads, self._steps = _workers("work"), _workers("steps")
        # one thread per adapter at most: a busy one does not keep the others waiting
        self._writers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _changed(self, name: str, summary: dict[str, Any], events: list[dict[str, Any]]) -> None:
        self.board.changed(name, summary, events)
        self.metrics.changed(name, summary, events)

    def expecting(self) -> AbstractContextManager[None]:
        return self.encoder.expecting()

    async def in_thread(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *args, **options))

    async def infer(
        self, name: str, x: Inputs, *, request_id: str, adapt: bool, repeatable: bool = True
    ) -> Answer:
        check_id(name)
        if self.classes is not None and name not in self.store:
            await self.in_thread(self._make, name)
        features = self.shard.kinds.get(name)
        if features is None:
            features = await self.in_thread(self.shard.takes_features, name)
        if isinstance(x, Tensor) and not features:
            raise pixels_needed(name)
        if adapt and repeatable:
            first = await self.in_thread(self.shard.repeated, name, request_id)
            if first is not None:
                return first
        images = None if isinstance(x, Tensor) else x
        if not isinstance(x, Tensor):
            with self.encoder.expecting():
                x = await self.in_thread(preprocess, self.model, x)
                encoded = self.encoder.submit(x) if features else None
            if encoded is not None:
                x = await asyncio.wrap_future(encoded)
        answer, seconds = await self._step(name, x, request_id, adapt=adapt)
        self.metrics.answered(name, answer, seconds)
        if images is not None and self.pictures.most and not answer.repeated:
            await self.in_thread(self.pictures.keep, name, answer, images)
        return answer

    async def _step(
        self, name: str, x: Tensor, request_id: str, *, adapt: bool
    ) -> tuple[Answer, float]:
        work = partial(self.shard.infer, name, x, request_id=request_id, adapt=adapt)
        began = time.perf_counter()
        if not adapt:
            return await self.in_thread(work), time.perf_counter() - began
        async with self._writers.setdefault(name, asyncio.Lock()):
            began = time.perf_counter()
            answer = await asyncio.get_running_loop().run_in_executor(self._steps, work)
            return answer, time.perf_counter() - began

    def _make(self, name: str) -> None:
        try:
            self.shard.create(name, {"classes": self.classes})
        except Refusal as refusal:
            if refusal.code != "adapter_exists":  # another request was first
                raise

    async def call(self, verb: str, name: str, *args: Any) -> Any:
        """A verb of the life of an adapter, by its name."""
        owner = self.shard if verb in ("create", "describe", "delete") else self.changes
        result = await self.in_thread(getattr(owner, verb), name, *args)
        if verb == "delete":
            for keeper in (self.board, self.metrics, self.pictures):
                keeper.removed(name)
        return result

    async def names(self) -> list[str]:
        return await self.in_thread(self.store.names)

    async def loaded(self) -> int:
        return self.shard.loaded

    async def close(self) -> None:
        await self.in_thread(self.encoder.close)
        await self.in_thread(self.shard.close)
        self._threads.shutdown()
        self._steps.shutdown()
        self.store.close()


def _workers(name: str) -> ThreadPoolExecutor:
    """Threads that leave the other cores to the encoder: their tensors are small."""
    return ThreadPoolExecutor(
        16, thread_name_prefix=name, initializer=torch.set_num_threads, initargs=(1,)
    )


def preprocess(model: VLM, images: Sequence[Image.Image]) -> Tensor:
    """Pixels (B,C,H,W); normalised together where the model's own preprocessing allows it."""
    own = model.preprocess
    if isinstance(own, Preprocess):
        return own.normalise(torch.stack([own.levels(image) for image in images]))
    return torch.stack([own(image) for image in images])


def pixels_needed(name: str) -> Refusal:
    return Refusal(
        400,
        "pixels_needed",
        f"adapter {name!r} tunes the image tower and cannot work on features",
        "send images, or make the adapter with refine=false",
    )
