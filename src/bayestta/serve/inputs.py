"""Images and features as they come over HTTP, checked against the limits."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import torch
from PIL import Image
from torch import Tensor

from bayestta.images import ImageError, decode_image, formats
from bayestta.serve.limits import Limits
from bayestta.serve.refusals import Refusal


def check_count(n: int, most: int, what: str, option: str) -> None:
    """Refuse none at all, and too many."""
    if n == 0:
        raise Refusal(400, "empty", f"the request holds 0 {what}", "send at least 1")
    if n > most:
        raise Refusal(
            413,
            "too_many",
            f"the request holds {n:,} {what}, and the server takes {most:,}",
            f"send fewer per request, or start the server with a larger {option}",
            count=n,
            most=most,
        )


def to_image(data: bytes, place: int, limits: Limits) -> Image.Image:
    """The bytes of an image file, decoded; its pixels are counted before they are decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=formats()) as image:
            pixels = image.width * image.height
    except Exception:  # decode_image says why
        pixels = 0
    if pixels > limits.max_pixels:
        raise Refusal(
            413,
            "too_many_pixels",
            f"image {place} has {pixels:,} pixels, and the server takes {limits.max_pixels:,}",
            "send a smaller copy, or start the server with a larger --max-pixels",
            pixels=pixels,
            most=limits.max_pixels,
        )
    try:
        return decode_image(data, f"image {place}")
    except ImageError as error:
        raise Refusal(
            400, "not_an_image", str(error), "send JPEG, PNG, WebP or another common format"
        ) from None


def from_base64(text: Any, place: int) -> bytes:
    """The bytes of an image that JSON carries."""
    if not isinstance(text, str):
        raise Refusal(
            400,
            "not_base64",
            f"image {place} is of type {type(text).__name__}",
            "send the bytes of the file as a base64 string",
        )
    if text.startswith("data:") and "," in text:
        text = text.split(",", 1)[1]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(
            400,
            "not_base64",
            f"image {place} is a string of {len(text):,} characters that is not base64",
            "send the bytes of the file as base64, or files as multipart",
            length=len(text),
        ) from None


def is_url(text: Any) -> bool:
    return isinstance(text, str) and text[:8].lower().startswith(("http://", "https://"))


def fetch(url: str, hosts: Sequence[str], limits: Limits) -> bytes:
    """The bytes at an address whose host the operator has named; redirects are not followed."""
    import httpx

    try:
        host = (urlsplit(url).hostname or "").lower()
    except ValueError:
        host = ""
    if host not in hosts:
        raise Refusal(
            403,
            "url_refused",
            f"the server fetches no images from host {host[:80]!r} ({len(hosts)} hosts allowed)",
            "send the image itself, or start the server with --allow-urls and that host",
            hosts=len(hosts),
        )
    data = b""
    try:
        with httpx.stream("GET", url, timeout=10, follow_redirects=False) as answer:
            if answer.status_code != 200:
                raise Refusal(
                    400,
                    "url_failed",
                    f"{host} answered with status {answer.status_code}",
                    "check the address",
                    answered=answer.status_code,
                )
            for part in answer.iter_bytes():
                data += part
                if len(data) > limits.max_body:
                    raise Refusal(
                        413,
                        "too_large",
                        f"the file at {host} has more than {limits.max_body:,} bytes",
                        "send a smaller copy",
                        most=limits.max_body,
                    )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Refusal(
            400,
            "url_failed",
            f"{host} cannot be read ({type(error).__name__})",
            "check the address, or send the image itself",
        ) from None
    return data


def to_features(data: Any, shape: Any, dim: int, limits: Limits) -> Tensor:
    """A checked tensor (B,D) from the JSON of the Open Inference Protocol, flat or nested."""
    good = isinstance(shape, list) and len(shape) == 2 and all(type(n) is int for n in shape)
    if not good or shape[1] != dim or shape[0] < 0:
        raise Refusal(
            400,
            "features_shape",
            f"features have shape {str(shape)[:80]}, and the model makes (B, {dim})",
            f"send rows of {dim} numbers each",
            dim=dim,
        )
    check_count(shape[0], limits.max_rows, "rows of features", "--max-rows")
    try:
        values = torch.tensor(data, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        values = torch.empty(0)
    if values.numel() != math.prod(shape):
        raise Refusal(
            400,
            "features_data",
            f"features hold {values.numel():,} numbers, and their shape says {math.prod(shape):,}",
            "send shape[0] * shape[1] numbers",
            numbers=values.numel(),
            expected=math.prod(shape),
        )
    values = values.reshape(shape)
    if not bool(torch.isfinite(values).all()):
        raise Refusal(
            400,
            "features_data",
            "features hold NaN, infinite or too large numbers",
            "send finite numbers",
        )
    return values
