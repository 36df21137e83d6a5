"""Saved states: safetensors with a JSON header and a checksum; reading one runs no code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from bayestta.files import replacing

SCHEMA = 2
HEADER_BYTES = 16 * 1024**2  # of JSON, more than any honest state has


def pack(header: Mapping[str, Any], state: Mapping[str, Any]) -> bytes:
    """The bytes of a state file: tensors, and a header with the values that are none."""
    tensors = {key: v.contiguous() for key, v in state.items() if isinstance(v, Tensor)}
    values = {key: v for key, v in state.items() if not isinstance(v, Tensor)}
    text = json.dumps({"schema": SCHEMA, **header, "values": values}, sort_keys=True)
    metadata = {"bayestta": text, "sha256": checksum(text, tensors)}
    return _ordered(safetensors.save(tensors, metadata=metadata))


def _ordered(data: bytes) -> bytes:
    """The same file with its header in order: safetensors leaves the order of metadata to chance,
    and equal states are to be equal bytes."""
    size = int.from_bytes(data[:8], "little")
    text = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":"))
    header = text.encode().ljust(-(-len(text) // 8) * 8)  # tensors begin at a multiple of 8
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def unpack(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and state from what `pack` made; ValueError, in one sentence, for anything else."""
    try:
        size = int.from_bytes(data[:8], "little")
        if not 0 < size <= min(HEADER_BYTES, len(data) - 8):
            raise ValueError(f"{len(data):,} bytes are no safetensors file")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        text = metadata["bayestta"]
        header = json.loads(text)
        schema = header["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{name} is no complete BayesTTA state ({shortened(error)}).") from None
    if schema != SCHEMA:
        raise ValueError(
            f"{name} has schema {schema!r}, and this version reads schema {SCHEMA}: states of 0.1 "
            "cannot be carried over, because the method's statistics changed; start a new state."
        )
    try:
        state: dict[str, Any] = dict(safetensors.load(data))
        same = metadata.get("sha256") == checksum(text, state)
        values = dict(header.pop("values"))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} is no complete BayesTTA state ({shortened(error)}).") from None
    if not same:
        raise ValueError(
            f"{name} is damaged: its {len(data):,} bytes do not match their checksum; use a copy, "
            "or start a new state."
        )
    return header, {**state, **values}


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the header and of every tensor with its name, type and shape."""
    digest = hashlib.sha256(text.encode())
    for key in sorted(tensors):
        value = tensors[key].detach().contiguous().cpu()
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():
            digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_state(
    path: str | os.PathLike[str], header: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Write a state file whole or not at all, and through to the disk."""
    with replacing(path) as part:
        part.write_bytes(pack(header, state))


def read_state(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and state of a file that `write_state` wrote."""
    return unpack(Path(path).read_bytes(), str(path))


def shortened(error: Exception) -> str:
    """Somebody else's error on one line, to be quoted in a sentence of ours."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else f"{text[:117]}…"
