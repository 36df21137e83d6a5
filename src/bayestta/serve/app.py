"""The FastAPI application: surfaces, page, metrics and live events."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from bayestta.serve import reference, v1, v2
from bayestta.serve.backend import Backend
from bayestta.serve.context import Context
from bayestta.serve.limits import Limits, check_id
from bayestta.serve.logs import LOG
from bayestta.serve.page import PAGE, POLICY
from bayestta.serve.refusals import Refusal
from bayestta.serve.schemas import Classify
from bayestta.serve.security import Gate

After = Annotated[int, Query(description="The number that GET /v1/adapters gave.")]
BEAT = 0.25  # seconds between looks at the board
DESCRIPTION = """Test-time adaptation as a service: one vision-language model, many adapters.

Every refusal is JSON: `error` is a sentence that states the fact and what to do."""


def make_app(
    backend: Backend,
    limits: Limits,
    *,
    key: str | None = None,
    hosts: tuple[str, ...] | None = None,
    url_hosts: tuple[str, ...] = (),
) -> FastAPI:
    """The application around a backend.

    Parameters
    ----------
    key
        API key that requests must carry; None for none.
    hosts
        Names by which the server may be called; None for any.
    url_hosts
        Hosts from which images may be fetched.
    """
    context = Context(backend, limits, hosts=url_hosts)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        context.closing = True
        await backend.close()

    from bayestta import __version__

    app = FastAPI(
        title="BayesTTA",
        version=__version__,
        description=DESCRIPTION,
        lifespan=life,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.state.context = context
    app.include_router(v1.routes(context))
    app.include_router(v2.routes(context))
    _add_pages(app, context)
    _add_errors(app)
    app.add_middleware(Gate, limits=limits, key=key, hosts=hosts)
    _document(app)
    return app


def _add_pages(app: FastAPI, context: Context) -> None:
    backend = context.backend

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE, headers={"content-security-policy": POLICY})

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        policy = {"content-security-policy": reference.POLICY}
        return HTMLResponse(reference.to_html(app.openapi()), headers=policy)

    @app.get("/metrics", tags=["operations"])
    async def metrics() -> Response:
        """Numbers for Prometheus."""
        text = backend.metrics.text(await backend.loaded())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/events", tags=["operations"], response_class=StreamingResponse)
    async def all_events(request: Request, after: After = 0) -> StreamingResponse:
        """Changes of all adapters as server-sent events, `summary` and `event`."""
        stream = _events(context, request, None, after)
        return StreamingResponse(stream, media_type="text/event-stream")

    @app.get("/v1/adapters/{name}/events", tags=["adapters"], response_class=StreamingResponse)
    async def events(name: str, request: Request) -> StreamingResponse:
        """Changes of one adapter as server-sent events."""
        await backend.call("describe", check_id(name))
        return StreamingResponse(_events(context, request, name, 0), media_type="text/event-stream")

    @app.get("/v1/adapters/{name}/images", tags=["adapters"])
    async def images(name: str) -> dict[str, Any]:
        """The last images whose answer adaptation changed, if the server keeps any."""
        about = await backend.call("describe", name)
        classes = about["classes"]
        rows = []
        for kept in backend.pictures.list(name):
            names = {key: classes[kept[key]] for key in ("answer", "zero_shot")}
            jpeg = base64.b64encode(kept["jpeg"]).decode()
            rows.append({**kept, **names, "jpeg": jpeg})
        return {"keep_images": context.limits.keep_images, "images": rows}


async def _events(
    context: Context, request: Request, name: str | None, number: int
) -> AsyncIterator[str]:
    """What is new, at most every quarter of a second; a beat keeps the connection alive."""
    quiet = 0.0
    yield ": connected\n\n"
    while not context.closing and not await request.is_disconnected():
        number, summaries, events = context.backend.board.since(number, name)
        for kind, rows in (("summary", summaries), ("event", events)):
            for row in rows:
                yield f"event: {kind}\ndata: {json.dumps(row)}\n\n"
        quiet = 0.0 if summaries or events else quiet + BEAT
        if quiet >= 15:
            quiet = 0.0
            yield ": beat\n\n"
        await asyncio.sleep(BEAT)


def _add_errors(app: FastAPI) -> None:
    def reply(request: Request, refusal: Refusal) -> JSONResponse:
        request_id = getattr(request.state, "request_id", "")
        return JSONResponse(refusal.to_json(request_id), refusal.status)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        return reply(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return reply(request, v1.invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        cure = "see /docs for the addresses and methods that there are"
        refusal = Refusal(error.status_code, "http", str(error.detail), cure)
        response = reply(request, refusal)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> JSONResponse:
        LOG.exception("the store failed")
        fact = f"the store failed ({error.strerror or type(error).__name__}); nothing was learnt"
        cure = "check the disk of the server, then send the request again"
        return reply(request, Refusal(507, "store", fact, cure))

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        LOG.exception("a defect")
        fact = f"the server failed ({type(error).__name__})"
        cure = "send the request again; the log of the server has the details"
        return reply(request, Refusal(500, "defect", fact, cure))


def _document(app: FastAPI) -> None:
    """Add to OpenAPI the body that the classify route reads by itself."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        made = plain()
        own = Classify.model_json_schema(ref_template="#/components/schemas/{model}")
        for name, part in {**own.pop("$defs", {}), "Classify": own}.items():
            made["components"]["schemas"].setdefault(name, part)
        return made

    app.openapi = openapi  # type: ignore[method-assign]
