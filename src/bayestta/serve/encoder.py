"""One encoder for all: images of many requests in one pass."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import torch
from torch import Tensor

from bayestta.models.base import VLM
from bayestta.serve.limits import Limits
from bayestta.serve.refusals import Refusal

Item = tuple[Tensor, "Future[Tensor]", float]


class Encoder:
    """Gathers images of many requests for one pass of the tower.

    A pass starts with `max_batch` images, when the first has waited for `max_delay`, or as soon as
    no further request is on its way: one that is alone waits for nobody.

    Parameters
    ----------
    on_pass
        Called after each pass with its images, its seconds, and the seconds that each request
        waited for it.
    """

    def __init__(
        self,
        model: VLM,
        limits: Limits,
        on_pass: Callable[[int, float, list[float]], None] | None = None,
    ) -> None:
        self.model, self.limits = model, limits
        self.on_pass = on_pass or (lambda images, seconds, waited: None)
        self._items: deque[Item] = deque()
        self._waiting = 0  # images that are submitted and not encoded
        self._coming = 0  # requests that are still read and decoded
        self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="encoder", daemon=True)
        self._thread.start()

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Around the reading of a request with images: the next pass waits for it a little."""
        with self._change:
            self._coming += 1
        try:
            yield
        finally:
            with self._change:
                self._coming -= 1
                self._change.notify()

    def submit(self, x: Tensor) -> Future[Tensor]:
        """Features (B,D) of pixels (B,C,H,W), when their pass is done."""
        future: Future[Tensor] = Future()
        with self._change:
            if self._waiting and self._waiting + len(x) > self.limits.max_waiting:
                raise Refusal(
                    429,
                    "busy",
                    f"{self._waiting} images wait for the encoder, {self.limits.max_waiting} at "
                    "most",
                    "send the request again a little later",
                    waiting=self._waiting,
                    most=self.limits.max_waiting,
                )
            self._waiting += len(x)
            self._items.append((x, future, time.perf_counter()))
            self._change.notify()
        return future

    def close(self) -> None:
        """Finish what was submitted."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._gather():
            self._encode(batch)

    def _gather(self) -> list[Item]:
        """The requests of the next pass; none when the end has come."""
        with self._change:
            self._change.wait_for(lambda: self._items or self._closed)
            if not self._items:
                return []
            patience = self._items[0][2] + self.limits.max_delay - time.perf_counter()
            self._change.wait_for(self._complete, max(0.0, patience))
            batch = [self._items.popleft()]
            images = len(batch[0][0])
            while self._items and images + len(self._items[0][0]) <= self.limits.max_batch:
                batch.append(self._items.popleft())
                images += len(batch[-1][0])
            return batch

    def _complete(self) -> bool:
        full = sum(len(item[0]) for item in self._items) >= self.limits.max_batch
        return full or not self._coming or self._closed

    def _encode(self, batch: list[Item]) -> None:
        began = time.perf_counter()
        try:
            x = torch.cat([item[0] for item in batch]) if len(batch) > 1 else batch[0][0]
            with torch.inference_mode():
                # a request beyond max_batch is split, so that memory stays within bounds
                parts = [
                    self.model.encode_image(part) for part in torch.split(x, self.limits.max_batch)
                ]
                z = torch.cat(parts).cpu()
            z = z.clone()  # outside: an ordinary tensor
        except Exception as error:
            for _, future, _ in batch:
                future.set_exception(error)
            return
        finally:
            with self._change:
                self._waiting -= sum(len(item[0]) for item in batch)
        start = 0
        for pixels, future, _ in batch:
            future.set_result(z[start : start + len(pixels)].clone())
            start += len(pixels)
        waited = [began - item[2] for item in batch]
        self.on_pass(len(z), time.perf_counter() - began, waited)
