"""An append-only file of records, each with a checksum: what was synced is there after a crash."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayestta.files import sync

HEAD = struct.Struct("<4sIII")  # magic, bytes of JSON, bytes of arrays, CRC-32 of both
MAGIC = b"BTJ1"
Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Record:
    """One change of an adapter: what happened, in which step, and the float32 arrays with it."""

    step: int
    kind: str
    about: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        shapes = {key: list(value.shape) for key, value in self.arrays.items()}
        text = json.dumps(
            {"step": self.step, "kind": self.kind, "about": self.about, "arrays": shapes}
        ).encode()
        data = b"".join(np.ascontiguousarray(v, "<f4").tobytes() for v in self.arrays.values())
        return HEAD.pack(MAGIC, len(text), len(data), zlib.crc32(data, zlib.crc32(text))) + (
            text + data
        )


def read_record(data: bytes, start: int, *, arrays: bool = True) -> tuple[Record, int] | None:
    """The record at an offset and where the next one starts; None where there is no whole one."""
    if start + HEAD.size > len(data):
        return None
    magic, text_size, data_size, crc = HEAD.unpack_from(data, start)
    middle = start + HEAD.size + text_size
    end = middle + data_size
    if magic != MAGIC or end > len(data):
        return None
    body = memoryview(data)[start + HEAD.size : end]
    if zlib.crc32(body) != crc:
        return None
    head = json.loads(bytes(body[:text_size]))
    found: dict[str, NDArray[np.float32]] = {}
    if arrays:
        place = middle
        for key, shape in head["arrays"].items():
            count = int(np.prod(shape))
            found[key] = np.frombuffer(data, "<f4", count, place).reshape(shape).copy()
            place += 4 * count
    return Record(head["step"], head["kind"], head["about"], found), end


def records(path: Path, *, arrays: bool = True) -> Iterator[tuple[int, int, Record]]:
    """Offset, end and content of the records of a file; what a crash tore off is left out.

    ValueError where a damaged record is followed by more data than one torn write can be.
    """
    data, place = path.read_bytes(), 0
    while place < len(data):
        found = read_record(data, place, arrays=arrays)
        if found is None:
            if data.find(MAGIC, place + 1) >= 0 and _whole_after(data, place + 1):
                raise ValueError(
                    f"{path} is damaged at byte {place:,} of {len(data):,}, in front of whole "
                    "records: restore the folder from a backup, or roll back to an earlier step."
                )
            return
        yield place, found[1], found[0]
        place = found[1]


def _whole_after(data: bytes, place: int) -> bool:
    while (place := data.find(MAGIC, place)) >= 0:
        if read_record(data, place, arrays=False) is not None:
            return True
        place += 1
    return False


class Journal:
    """The end of one file, to which records are added; each is on the disk when `add` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        new = not path.exists()
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
        self.size = os.fstat(self._file).st_size
        if new:
            sync(path.parent)

    def add(self, record: Record) -> int:
        """Write and sync a record; its offset."""
        data, start = record.to_bytes(), self.size
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)
        self.size = start + len(data)
        return start

    def close(self) -> None:
        os.close(self._file)


def read_at(path: Path, start: int) -> Record:
    """One record of a file."""
    with path.open("rb") as file:
        file.seek(start)
        head = file.read(HEAD.size)
        _, text_size, data_size, _ = HEAD.unpack(head)
        found = read_record(head + file.read(text_size + data_size), 0)
    if found is None:
        raise ValueError(f"{path} holds no record at byte {start:,}: the file was changed.")
    return found[0]
