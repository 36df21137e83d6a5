"""The Open Inference Protocol v2, as KServe, Triton and MLServer speak it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from bayestta.serve import inputs
from bayestta.serve.context import Context
from bayestta.serve.limits import check_request_id
from bayestta.serve.refusals import Refusal
from bayestta.serve.schemas import Error, InferRequest, Tensor

OUTPUTS = ("label", "probabilities", "zero_shot")


def routes(context: Context) -> APIRouter:
    """The routes below /v2."""
    refused = {code: {"model": Error} for code in ("4XX", "5XX")}
    router = APIRouter(prefix="/v2", tags=["open inference protocol"], responses=refused)  # type: ignore[arg-type]
    backend = context.backend

    @router.get("")
    async def server() -> dict[str, Any]:
        """What this server is."""
        from bayestta import __version__

        return {"name": "bayestta", "version": __version__, "extensions": []}

    @router.get("/health/live")
    async def live() -> dict[str, bool]:
        """Whether the process lives."""
        return {"live": True}

    @router.get("/health/ready")
    async def ready() -> dict[str, bool]:
        """Whether requests are taken; 503 while the server shuts down."""
        context.check_open()
        return {"ready": True}

    @router.get("/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        """Inputs and outputs of an adapter."""
        about = await backend.call("describe", name)
        dim, K = backend.model.dim, len(about["classes"])
        image = {"name": "image", "datatype": "BYTES", "shape": [-1]}
        features = {"name": "features", "datatype": "FP32", "shape": [-1, dim]}
        takes = [image, features] if "features" in about["inputs"] else [image]
        return {
            "name": name,
            "versions": [str(about["step"])],
            "platform": "bayestta",
            "inputs": takes,
            "outputs": [
                {"name": "label", "datatype": "BYTES", "shape": [-1]},
                {"name": "probabilities", "datatype": "FP32", "shape": [-1, K]},
                {"name": "zero_shot", "datatype": "FP32", "shape": [-1, K]},
            ],
        }

    @router.get("/models/{name}/ready")
    async def model_ready(name: str) -> dict[str, Any]:
        """Whether an adapter can be used: loads it where it is not in memory."""
        context.check_open()
        await backend.call("describe", name)
        return {"name": name, "ready": True}

    @router.post("/models/{name}/infer")
    async def infer(name: str, body: InferRequest, request: Request) -> dict[str, Any]:
        """Answer images or features and, unless parameters.adapt is false, learn from them."""
        own = body.id is not None or request.state.own_id
        request_id = request.state.request_id if body.id is None else check_request_id(body.id)
        tensor, wanted = _the_input(body), _the_outputs(body)
        if tensor.name == "features":
            limits = context.limits
            x: Any = await asyncio.to_thread(
                inputs.to_features, tensor.data, tensor.shape, backend.model.dim, limits
            )
        else:
            most = context.limits.max_images
            inputs.check_count(len(tensor.data), most, "images", "--max-images")
            _check_shape(tensor)
            with backend.expecting():
                x = await context.decode(tensor.data)
        answer = await backend.infer(
            name, x, request_id=request_id, adapt=body.parameters.adapt, repeatable=own
        )
        classes = await context.classes(name)
        B, K = answer.probabilities.shape
        found = {
            "label": ("BYTES", [B], [classes[k] for k in answer.probabilities.argmax(1)]),
            "probabilities": ("FP32", [B, K], answer.probabilities.ravel().tolist()),
            "zero_shot": ("FP32", [B, K], answer.sketch.ravel().tolist()),
        }
        return {
            "model_name": name,
            "model_version": str(answer.step),
            "id": answer.request_id,
            "parameters": {"adapted": answer.adapted, "repeated": answer.repeated},
            "outputs": [
                {
                    "name": each,
                    "datatype": found[each][0],
                    "shape": found[each][1],
                    "data": found[each][2],
                }
                for each in wanted
            ],
        }

    return router


def _the_input(body: InferRequest) -> Tensor:
    if len(body.inputs) != 1:
        raise Refusal(
            400,
            "inputs",
            f"the request has {len(body.inputs)} inputs",
            "send one, named image or features",
            inputs=len(body.inputs),
        )
    tensor = body.inputs[0]
    kinds = {"image": "BYTES", "features": "FP32"}
    if kinds.get(tensor.name) != tensor.datatype:
        raise Refusal(
            400,
            "inputs",
            f"the input is {tensor.name[:60]!r} of type {tensor.datatype[:20]!r}",
            "send image of type BYTES (base64) or features of type FP32",
        )
    return tensor


def _check_shape(images: Tensor) -> None:
    count = len(images.data)
    if images.shape not in ([count], [count, 1]):
        raise Refusal(
            400,
            "image_shape",
            f"image has shape {str(images.shape)[:80]} and {count} strings",
            f"send shape [{count}], one base64 string per image",
            images=count,
        )


def _the_outputs(body: InferRequest) -> list[str]:
    """Checked before anything is learnt."""
    wanted = [str(each.get("name")) for each in body.outputs] or list(OUTPUTS)
    for each in wanted:
        if each not in OUTPUTS:
            raise Refusal(
                400, "output", f"there is no output {each[:60]!r}", f"use {', '.join(OUTPUTS)}"
            )
    return wanted
