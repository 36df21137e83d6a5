"""Run the service with uvicorn: answers what it accepted, then saves, then ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from bayestta.models.base import VLM
from bayestta.serve import logs
from bayestta.serve.app import make_app
from bayestta.serve.backend import Local
from bayestta.serve.limits import Limits
from bayestta.serve.security import LOOPBACK
from bayestta.serve.store import Store

GRACE = 30  # seconds for requests that were accepted


@dataclass(frozen=True)
class Options:
    """How the service is reached."""

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    url_hosts: tuple[str, ...] = ()
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """Names that a request may call the server by; any where it is open to the network."""
        return LOOPBACK if self.host in LOOPBACK else None


class Server(uvicorn.Server):
    """Tells the application when the end comes, so that live pages let go."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self.on_ready = on_ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.context.closing = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self.on_ready(f"http://{shown}:{port}")


def serve(
    load: Callable[[], VLM],
    store: Path,
    options: Options,
    *,
    classes: Sequence[str] | None = None,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until a signal ends it; the store holds everything that was acknowledged.

    `load` returns the model; it is called when the store is known to be free.
    """
    logs.set_up(options.log_level)
    held = Store(store, options.limits)
    model = load()
    backend = Local(model, held, classes=classes)
    app = make_app(
        backend,
        options.limits,
        key=options.key,
        hosts=options.hosts,
        url_hosts=options.url_hosts,
    )
    about: dict[str, Any] = {"host": options.host, "port": options.port, "store": str(store)}
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE,
        server_header=False,
    )
    logs.say("starting", model=model.name, **about)
    Server(config, on_ready).run()
