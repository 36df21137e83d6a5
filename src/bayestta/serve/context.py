"""What the routes share."""

from __future__ import annotations

import asyncio
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

    async def decode(self, value: Any, place: int) -> Image.Image:
        """An image from bytes, base64 or, where its host is allowed, an address."""
        return await asyncio.to_thread(self._decode, value, place)

    def _decode(self, value: Any, place: int) -> Image.Image:
        if inputs.is_url(value):
            value = inputs.fetch(value, self.hosts, self.limits)
        elif not isinstance(value, bytes):
            value = inputs.from_base64(value, place)
        return inputs.to_image(value, place, self.limits)
