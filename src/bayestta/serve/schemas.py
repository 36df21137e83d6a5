"""The JSON that comes in, as OpenAPI shows it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewAdapter(Strict):
    """How to make an adapter."""

    id: str = Field(description="Name of the adapter and of its folder.", examples=["cam-1"])
    classes: list[str] = Field(description="Names to choose from.", examples=[["cat", "dog"]])
    templates: list[str] | None = Field(
        default=None, description="Sentences with {} for the class name."
    )
    method: str | None = Field(
        default=None, description="Name of a method; the default is bayestta."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of the method. refine is false unless it is given: one pass of the "
        "encoder then serves all adapters.",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Seed of the method's draws.")
    own_encoder: bool = Field(
        False,
        description="The adapter runs the image tower itself, so that statistics of its norms may "
        "follow the stream: one more pass, and a snapshot per step.",
    )


class Parameters(Strict):
    adapt: bool = Field(default=True, description="Learn from the images; false only answers.")
    top_k: int = Field(default=5, ge=1, le=1000, description="Labels per image.")
    request_id: str | None = Field(
        default=None, description="Learns once, however often it is sent."
    )


class Classify(Strict):
    """Images as base64, or addresses whose hosts the server allows."""

    inputs: str | list[str] = Field(
        description="An image as base64, an address whose host is allowed, or a list of them."
    )
    parameters: Parameters = Field(default_factory=lambda: Parameters())


class Label(BaseModel):
    label: str
    score: float


class Rollback(Strict):
    step: int = Field(ge=0, description="Step whose state is restored.")


class Merge(Strict):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    source: str = Field(alias="from", description="Adapter whose evidence is taken in.")


class Feedback(Strict):
    request_id: str = Field(description="Id of a request that was learnt.")
    index: int = Field(default=0, ge=0, description="Which of its images.")
    label: str = Field(description="Name of the true class.")


class Tensor(BaseModel):
    """A tensor of the Open Inference Protocol."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]
    parameters: dict[str, Any] = Field(default_factory=dict)


class InferParameters(BaseModel):
    adapt: bool = Field(default=True, description="Learn from the images; false only answers.")


class InferRequest(BaseModel):
    """`image`: BYTES (base64), shape [B]; or `features`: FP32, shape [B, D]."""

    id: str | None = Field(default=None, description="Learns once, however often it is sent.")
    inputs: list[Tensor] = Field(
        description="One tensor: image (BYTES, base64, shape [B]) or features (FP32, shape [B, D])."
    )
    parameters: InferParameters = Field(default_factory=InferParameters)
    outputs: list[dict[str, Any]] = Field(
        default_factory=list, description="Names of label, probabilities, zero_shot; all if empty."
    )


class Error(BaseModel):
    """Every refusal: the sentence, and its parts."""

    error: str
    code: str
    fact: str
    numbers: dict[str, Any]
    cure: str
    request_id: str
