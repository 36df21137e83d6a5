"""What every request passes first: its size, its origin, its key; refusals are JSON."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from bayestta.serve.limits import Limits, check_request_id
from bayestta.serve.logs import REQUEST, say
from bayestta.serve.refusals import Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/v2/health/live", "/v2/health/ready")  # without a key: no data in them
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Gate:
    """ASGI middleware around the whole application.

    Parameters
    ----------
    key
        The API key, or None.
    hosts
        Names by which this server may be called; None for any. On the loopback address it keeps
        web pages of others from using a browser to get in.
    """

    def __init__(
        self, app: App, limits: Limits, *, key: str | None, hosts: tuple[str, ...] | None
    ) -> None:
        self.app, self.limits, self.hosts = app, limits, hosts
        self.key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        headers = {key.decode("latin-1"): value for key, value in scope["headers"]}
        started = False

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal started, status
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                name = b"x-request-id"
                if all(key != name for key, _ in message["headers"]):
                    message["headers"] = [*message["headers"], (name, request_id.encode())]
            await send(message)

        request_id, token = new_id(), None
        try:
            request_id = self._request_id(headers) or request_id
            scope["state"] = {**scope.get("state", {}), "request_id": request_id}
            scope["state"]["own_id"] = "x-request-id" in headers
            token = REQUEST.set(request_id)
            self._check(scope, headers)
            await self.app(scope, self._counted(receive), sending)
        except Refusal as refusal:
            if started:
                raise
            await answer(sending, refusal, request_id)
        finally:
            milliseconds = round(1000 * (time.perf_counter() - began), 1)
            about = {"method": scope["method"], "path": scope["path"][:200], "status": status}
            level = logging.ERROR if status >= 500 else logging.INFO
            say("request", level=level, **about, milliseconds=milliseconds)
            if token is not None:
                REQUEST.reset(token)

    def _request_id(self, headers: dict[str, bytes]) -> str:
        given = headers.get("x-request-id")
        return "" if given is None else check_request_id(given.decode("latin-1"))

    def _check(self, scope: Scope, headers: dict[str, bytes]) -> None:
        host = _hostname(headers.get("host", b"").decode("latin-1"))
        if self.hosts is not None and host not in self.hosts:
            raise Refusal(
                403,
                "host_refused",
                f"this server is not called {host[:80]!r}",
                f"use {self.hosts[0]}, or start the server with --host",
            )
        origin = headers.get("origin")
        if origin is not None and _hostname(origin.decode("latin-1").split("//")[-1]) != host:
            raise Refusal(
                403, "origin_refused", "the request comes from another web page", "call it directly"
            )
        if self.key is not None and scope["path"] not in OPEN:
            self._check_key(headers)
        try:
            size = int(headers.get("content-length", b"0"))
        except ValueError:
            size = 0
        if size > self.limits.max_body:
            raise self._too_large(size)

    def _check_key(self, headers: dict[str, bytes]) -> None:
        given = headers.get("x-api-key", b"")
        bearer = headers.get("authorization", b"")
        if bearer[:7].lower() == b"bearer ":
            given = bearer[7:].strip()
        assert self.key is not None
        if not hmac.compare_digest(given, self.key):
            fact = "the API key is missing" if not given else "the API key is wrong"
            raise Refusal(401, "key", fact, "send it as header X-API-Key or Authorization: Bearer")

    def _too_large(self, size: int) -> Refusal:
        return Refusal(
            413,
            "too_large",
            f"the body has {size:,} bytes or more, and the server takes {self.limits.max_body:,}",
            "send fewer or smaller images, or start the server with a larger --max-body-mb",
            bytes=size,
            most=self.limits.max_body,
        )

    def _counted(self, receive: Receive) -> Receive:
        """Bodies without a stated size are counted as they come."""
        total = 0

        async def counting() -> MutableMapping[str, Any]:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.limits.max_body:
                raise self._too_large(total)
            return message

        return counting


def new_id() -> str:
    return secrets.token_hex(12)


def _hostname(value: str) -> str:
    """Without the port.

    >>> _hostname("localhost:8000"), _hostname("[::1]:8000")
    ('localhost', '::1')
    """
    if value.startswith("["):
        return value[1:].partition("]")[0].lower()
    return value.partition(":")[0].lower()


async def answer(send: Send, refusal: Refusal, request_id: str) -> None:
    body = json.dumps(refusal.to_json(request_id)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
