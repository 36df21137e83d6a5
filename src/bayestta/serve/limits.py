"""What the service takes at most; every number can be set from the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from bayestta.serve.refusals import Refusal

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
REQUEST_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True)
class Limits:
    """Budgets of a server; sizes are in bytes, times in seconds."""

    max_body: int = 32 * 1024**2
    max_pixels: int = 50_000_000
    max_images: int = 256  # per request
    max_rows: int = 16_384  # of features per request
    max_stored: int = 10_000  # adapters in the store
    max_adapters: int = 64  # adapters in memory
    max_classes: int = 2_000
    max_templates: int = 100
    max_waiting: int = 4_096  # images that wait for the encoder
    max_batch: int = 128  # images per pass of the encoder
    max_delay: float = 0.02  # that an image waits for requests on their way
    snapshot_steps: int = 256  # steps between snapshots
    segment_bytes: int = 8 * 1024**2  # of journal between snapshots
    history_bytes: int = 64 * 1024**2  # per adapter: snapshots and journal
    keep_images: int = 0  # last images per adapter whose answer adaptation changed

    def __post_init__(self) -> None:
        for each in fields(self):
            least = 0 if each.name in ("keep_images", "max_delay") else 1
            if getattr(self, each.name) < least:
                value = getattr(self, each.name)
                raise ValueError(f"{each.name} is {value}: give {least} or more.")


def check_id(name: str) -> str:
    """A name that is a folder of the store and nothing else.

    >>> check_id("../etc")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    bayestta.serve.refusals.Refusal: adapter id '../etc' is not allowed: use 1 to 64 ...
    """
    if not ID.fullmatch(name):
        shown = repr(name if len(name) <= 60 else f"{name[:57]}…")
        raise Refusal(
            400,
            "adapter_id",
            f"adapter id {shown} is not allowed",
            "use 1 to 64 letters, digits, dots, underscores or hyphens, the first a letter or "
            "digit",
            length=len(name),
            most=64,
        )
    return name


def check_request_id(value: str) -> str:
    """A request id that a log line can hold."""
    if not REQUEST_ID.fullmatch(value):
        raise Refusal(
            400,
            "request_id",
            f"the request id has {len(value)} characters or some that cannot be printed",
            "use 1 to 128 printable ASCII characters without spaces",
            length=len(value),
            most=128,
        )
    return value
