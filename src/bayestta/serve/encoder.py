"""One encoder for all: images of many requests in one pass."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch import Tensor

from bayestta.models.base import VLM
from bayestta.serve.limits import Limits
from bayestta.serve.refusals import Refusal

Item = tuple[Tensor, "Future[Tensor]", float]


class Encoder:
    """Gathers images until there are `max_batch` or the first has waited for `max_delay`.

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
        self._queue: queue.Queue[Item | None] = queue.Queue()
        self._waiting, self._lock = 0, threading.Lock()
        self._thread = threading.Thread(target=self._work, name="encoder", daemon=True)
        self._thread.start()

    def submit(self, x: Tensor) -> Future[Tensor]:
        """Features (B,D) of pixels (B,C,H,W), when their pass is done."""
        with self._lock:
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
        future: Future[Tensor] = Future()
        self._queue.put((x, future, time.perf_counter()))
        return future

    def close(self) -> None:
        """Finish what was submitted."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        rest: Item | None = None
        while True:
            first = rest or self._queue.get()
            if first is None:
                return
            batch, rest, last = self._gather(first)
            self._encode(batch)
            if last:
                return

    def _gather(self, first: Item) -> tuple[list[Item], Item | None, bool]:
        """Requests for one pass, one that did not fit, and whether the end was asked for."""
        batch, images = [first], len(first[0])
        deadline = first[2] + self.limits.max_delay
        while images < self.limits.max_batch:
            try:
                patience = deadline - time.perf_counter()
                more = (
                    self._queue.get(timeout=patience) if patience > 0 else self._queue.get_nowait()
                )
            except queue.Empty:
                break
            if more is None:
                return batch, None, True
            if images + len(more[0]) > self.limits.max_batch:
                return batch, more, False
            batch.append(more)
            images += len(more[0])
        return batch, None, False

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
            with self._lock:
                self._waiting -= sum(len(item[0]) for item in batch)
        start = 0
        for pixels, future, _ in batch:
            future.set_result(z[start : start + len(pixels)].clone())
            start += len(pixels)
        waited = [began - item[2] for item in batch]
        self.on_pass(len(z), time.perf_counter() - began, waited)
