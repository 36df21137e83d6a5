"""What the routes share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from PIL import Image

from bayestta.serve import inputs
from bayestta.serve.backend import Backend
from bayestta.serve.limits import Limits
from bayestta.serve.refusals import Refusal


class Context:
    """The backend, the limits, and whether the server still takes requests."""

    def __init__(self, backend: Backend, limits: Limits, *, hosts: tuple[str, ...] = ()) -> None:
        self.backend, self.limits, self.hosts = backend, limits, hosts
        self.closing = False
        self._classes: dict[str, list[str]] = {}

    def check_open(self) -> None:
        if self.closing:
            raise Refusal(503, "closing", "the server shuts down", "send the request again later")

    async def classes(self, name: str) -> list[str]:
        """The class names of an adapter that was just used."""
        if name not in self._classes:
            about = await self.backend.call("describe", name)
            self._classes[name] = list(about["classes"])
        return self._classes[name]

    def forget(self, name: str) -> None:
        self._classes.pop(name, None)

    async def decode(self, values: Sequence[Any]) -> list[Image.Image]:
        """Images from bytes, base64 or, where its host is allowed, an address.

        One thread per request: a hand-over per image would cost as much as decoding a small one.
        """
        return await asyncio.to_thread(self._decode, values)

    def _decode(self, values: Sequence[Any]) -> list[Image.Image]:
        return [inputs.to_image(self._bytes(v, i), i, self.limits) for i, v in enumerate(values)]

    def _bytes(self, value: Any, place: int) -> bytes:
        if isinstance(value, bytes):
            return value
        if inputs.is_url(value):
            return inputs.fetch(value, self.hosts, self.limits)
        return inputs.from_base64(value, place)
