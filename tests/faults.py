"""Faults to order: a disk that is full, and a process that dies."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


class Killed(BaseException):
    """Passes every handler of ours, as the end of a process does."""


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
