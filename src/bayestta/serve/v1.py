"""The simple call, and the life of adapters."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from pydantic import ValidationError

from bayestta.serve import inputs, multipart
from bayestta.serve.context import Context
from bayestta.serve.hosted import Answer
from bayestta.serve.limits import check_request_id
from bayestta.serve.refusals import Refusal
from bayestta.serve.schemas import (
    Classify,
    Error,
    Feedback,
    Label,
    Merge,
    NewAdapter,
    Parameters,
    Rollback,
)

CLASSIFY_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Classify"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "files": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "Image files.",
                        },
                        "adapt": {"type": "boolean", "description": "As in JSON."},
                        "top_k": {"type": "integer", "description": "As in JSON."},
                        "request_id": {"type": "string", "description": "As in JSON."},
                    },
                }
            },
        },
    }
}
STATE = {"type": "string", "format": "binary", "description": "A file that GET gave."}
STATE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": STATE}},
    }
}
IfMatch = Annotated[str | None, Header(description="The ETag that GET gave; 412 if it changed.")]


def routes(context: Context) -> APIRouter:
    """The routes below /v1."""
    refused = {code: {"model": Error} for code in ("4XX", "5XX")}
    router = APIRouter(prefix="/v1", responses=refused)  # type: ignore[arg-type]
    backend, limits = context.backend, context.limits

    @router.get("/adapters", tags=["adapters"])
    async def list_adapters() -> dict[str, Any]:
        """All adapters, with the numbers of those that were used since the start."""
        names = await backend.names()
        number = backend.board.number  # from which /v1/events?after= goes on
        rows = [backend.board.summary(name) or {"id": name} for name in names]
        return {"adapters": rows, "events": backend.board.events(), "number": number}

    @router.post("/adapters", status_code=201, tags=["adapters"])
    async def create(body: NewAdapter) -> dict[str, Any]:
        """Make an adapter."""
        inputs.check_count(len(body.classes), limits.max_classes, "classes", "--max-classes")
        if body.templates is not None:
            most = limits.max_templates
            inputs.check_count(len(body.templates), most, "templates", "--max-templates")
        made: dict[str, Any] = await backend.call(
            "create", body.id, body.model_dump(exclude={"id"})
        )
        return made

    @router.get("/adapters/{name}", tags=["adapters"])
    async def describe(name: str) -> dict[str, Any]:
        """How an adapter was made, what it has learnt, and its trail."""
        found: dict[str, Any] = await backend.call("describe", name)
        return {**found, "events": backend.board.events(name)}

    @router.delete("/adapters/{name}", status_code=204, tags=["adapters"])
    async def delete(name: str) -> Response:
        """Remove an adapter with its history."""
        await backend.call("delete", name)
        context.forget(name)
        return Response(status_code=204)

    @router.post(
        "/adapters/{name}/classify",
        openapi_extra=CLASSIFY_BODY,
        response_model=list[Label] | list[list[Label]],
        tags=["answers"],
    )
    async def classify(name: str, request: Request) -> Any:
        """Label images, and learn from them.

        The header X-Ask lists the images whose label would help most: those where the answer and
        the zero-shot answer differ.
        """
        with backend.expecting():
            images, parameters, single = await _read(context, request)
        own = bool(parameters.request_id) or request.state.own_id
        request_id = parameters.request_id or request.state.request_id
        answer = await backend.infer(
            name, images, request_id=request_id, adapt=parameters.adapt, repeatable=own
        )
        rows = labels(answer, await context.classes(name), parameters.top_k)
        differ = (answer.probabilities.argmax(1) != answer.sketch.argmax(1)).nonzero()[0]
        headers = {
            "x-request-id": answer.request_id,
            "x-step": str(answer.step),
            "x-repeated": str(answer.repeated).lower(),
            "x-ask": ",".join(map(str, differ.tolist())),
        }
        body = json.dumps(rows[0] if single else rows)
        return Response(body, headers=headers, media_type="application/json")

    @router.get("/adapters/{name}/state", tags=["state"])
    async def read_state(name: str) -> Response:
        """What was learnt, as a safetensors file; the ETag is the step."""
        data, step = await backend.call("read_state", name)
        return Response(data, media_type="application/octet-stream", headers={"etag": f'"{step}"'})

    @router.put("/adapters/{name}/state", openapi_extra=STATE_BODY, tags=["state"])
    async def write_state(name: str, request: Request, if_match: IfMatch = None) -> dict[str, Any]:
        """Replace what was learnt; If-Match guards against changes in between."""
        expected = _expected(if_match)
        data = await request.body()
        saved: dict[str, Any] = await backend.call("write_state", name, data, expected)
        return saved

    @router.post("/adapters/{name}/reset", tags=["state"])
    async def reset(name: str) -> dict[str, Any]:
        """Go back to a fresh start, also after the harm test has spoken."""
        done: dict[str, Any] = await backend.call("reset", name)
        return done

    @router.post("/adapters/{name}/rollback", tags=["state"])
    async def rollback(name: str, body: Rollback) -> dict[str, Any]:
        """Restore the state after an earlier step."""
        done: dict[str, Any] = await backend.call("rollback", name, body.step)
        return done

    @router.post("/adapters/{name}/merge", tags=["state"])
    async def merge(name: str, body: Merge) -> dict[str, Any]:
        """Take in what another adapter has learnt."""
        done: dict[str, Any] = await backend.call("merge", name, body.source)
        return done

    @router.post("/adapters/{name}/feedback", tags=["answers"])
    async def feedback(name: str, body: Feedback) -> dict[str, Any]:
        """Tell the true label of an image; enough evidence of harm returns to zero-shot answers."""
        given = (body.request_id, body.index, body.label)
        done: dict[str, Any] = await backend.call("feedback", name, *given)
        return done

    return router


async def _read(context: Context, request: Request) -> tuple[list[Any], Parameters, bool]:
    """The images of a request, what is wanted, and whether a single one came as such."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        files, fields = multipart.parse(await request.body(), request.headers["content-type"])
        parameters, single = _parameters(fields), False
        data: list[Any] = list(files)
    elif kind == "application/json":
        body = _json(await request.body())
        parameters, single = body.parameters, isinstance(body.inputs, str)
        data = [body.inputs] if isinstance(body.inputs, str) else list(body.inputs)
    else:
        raise Refusal(
            415,
            "content_type",
            f"the content type is {kind[:60]!r}",
            "send application/json or multipart/form-data",
        )
    if parameters.request_id is not None:
        check_request_id(parameters.request_id)
    inputs.check_count(len(data), context.limits.max_images, "images", "--max-images")
    return await context.decode(data), parameters, single


def _json(data: bytes) -> Classify:
    try:
        return Classify.model_validate_json(data)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_input=False)) from None


def _parameters(fields: dict[str, str]) -> Parameters:
    try:
        return Parameters.model_validate(fields)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_input=False)) from None


def invalid(errors: Any) -> Refusal:
    """What pydantic found wrong, in one sentence."""
    first = errors[0] if errors else {"loc": (), "msg": "the body is wrong"}
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    fact = f"{place or 'the body'} is wrong ({first['msg']})"
    return Refusal(422, "invalid", fact, "see /docs for what it takes", problems=len(errors))


def _expected(header: str | None) -> int | None:
    if header is None or header.strip() == "*":
        return None
    try:
        return int(header.strip().removeprefix("W/").strip('"'))
    except ValueError:
        raise Refusal(
            400, "if_match", f"If-Match is {header[:60]!r}", "send the ETag of GET …/state"
        ) from None


def labels(answer: Answer, classes: list[str], top_k: int) -> list[list[dict[str, Any]]]:
    """The best labels per image, in the schema of Hugging Face's image classification."""
    best = (-answer.probabilities).argsort(1, kind="stable")[:, :top_k].tolist()
    scores = answer.probabilities.tolist()
    return [
        [{"label": classes[k], "score": row[k]} for k in chosen]
        for row, chosen in zip(scores, best, strict=True)
    ]
