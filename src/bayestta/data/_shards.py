"""Tar files in the layout of WebDataset: which there are, and where in them each sample lies.

Members are read as bytes at their offsets; nothing is ever extracted.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayestta.data._walk import natural
from bayestta.images import EXTENSIONS

LARGEST = 1 << 20  # bytes of a .cls or .json: labels are small, and all are read at the start
LARGEST_IMAGE = 1 << 29  # bytes: an image is read as a whole
BLOCK = 512  # bytes, of which tar files are made
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass
class Sample:
    """The members of one sample: images as (offset, size), labels as bytes, by extension."""

    shard: int
    key: str
    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    wrong: str | None = None

    def label(self, name: str) -> tuple[Any, dict[str, Any]]:
        """The content of .cls (else of `name` in .json) and all of .json; ValueError if broken."""
        table: Any = {}
        if "json" in self.texts:
            try:
                table = json.loads(self.texts["json"])
            except (ValueError, RecursionError) as error:
                raise ValueError(f"its .json is not JSON ({error})") from error
            if not isinstance(table, dict):
                raise ValueError(f"its .json is a {type(table).__name__}, not an object")
        label = table.get(name)
        if "cls" in self.texts:
            try:
                label = self.texts["cls"].decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise ValueError("its .cls is not text") from error
            label = int(label) if re.fullmatch(r"[0-9]{1,9}", label) else label
        label = (label.strip() or None) if isinstance(label, str) else label
        if label is not None and (isinstance(label, bool) or not isinstance(label, (str, int))):
            kind = type(label).__name__  # showing it may take as many levels as it has
            raise ValueError(f"its label is a {kind}, neither a name nor a whole number")
        return label, table


def find_shards(root: Path | None, patterns: str | Sequence[str] | None) -> list[Path]:
    """Paths of tar files: braces first ({000..009}, {a,b}), then wildcards; a folder's all."""
    base = "" if root is None else str(root.expanduser())
    if patterns is None:
        given = [os.path.join(glob.escape(base), "*.tar") if os.path.isdir(base) else base]
    else:
        listed = [patterns] if isinstance(patterns, str) else [str(item) for item in patterns]
        given = [os.path.join(glob.escape(base), os.path.expanduser(item)) for item in listed]
    found: list[Path] = []
    for item in itertools.chain.from_iterable(map(expand, given)):
        here = [item] if os.path.isfile(item) else sorted(glob.glob(item), key=natural)
        if not here:
            raise ValueError(f"no tar file is found as {item}: check the path or the pattern.")
        found.extend(Path(path) for path in here)
    return list(dict.fromkeys(found))


def expand(pattern: str) -> Iterator[str]:
    """Braces as a shell reads them: a range of numbers, padded as written, or a list.

    >>> list(expand("{a,b}-{08..10}.tar"))[:4]
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar']
    """
    brace = _BRACES.search(pattern)
    if brace is None:
        yield pattern
        return
    ends = _RANGE.fullmatch(brace[1])
    choices: Iterable[str] = brace[1].split(",")
    if ends:
        first, last = int(ends[1]), int(ends[2])
        step = 1 if first <= last else -1
        choices = (str(n).zfill(len(ends[1])) for n in range(first, last + step, step))
    for choice in choices:
        yield from expand(pattern[: brace.start()] + choice + pattern[brace.end() :])


def index_shard(path: Path, number: int) -> list[Sample]:
    """The samples of one tar file, in its order: neighbours with one name up to the first dot."""
    found: list[Sample] = []
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                if member.size < 0:  # forged: the next member would be looked for further back
                    raise tarfile.ReadError(f"a member of {member.size} bytes")
                if not member.isreg() or member.issparse():
                    continue
                folder, name = os.path.split(member.name)
                stem, _, extension = name.partition(".")
                kind = extension.lower()
                if not stem or not kind:
                    continue
                key = os.path.join(folder, stem)
                if not found or found[-1].key != key:
                    found.append(Sample(number, key))
                sample = found[-1]
                if kind in sample.images or kind in sample.texts:
                    sample.wrong = f"has two members .{kind}"
                elif f".{kind.rpartition('.')[2]}" in EXTENSIONS:
                    if member.size > LARGEST_IMAGE:
                        limit = f"{LARGEST_IMAGE} at most"
                        sample.wrong = f"its .{kind} has {member.size} bytes, {limit}"
                        continue
                    sample.images[kind] = member.offset_data, member.size
                elif kind in ("cls", "json"):
                    if member.size > LARGEST:
                        sample.wrong = f"its .{kind} has {member.size} bytes, {LARGEST} at most"
                        continue
                    content = shard.extractfile(member)
                    sample.texts[kind] = b"" if content is None else content.read()
            end = shard.offset
        _check_end(path, end)
    except (tarfile.TarError, OSError, ValueError, ArithmeticError) as error:
        raise ValueError(
            f"{path} cannot be read as a plain tar file ({error}): decompress it, or get it again."
        ) from error
    return found


def _check_end(path: Path, end: int) -> None:
    """Raise where a tar file does not end in zeros from `end` on, as every whole one does.

    `tarfile` takes a damaged header for the end, and so it does a file that was cut between two
    members, or a second archive that was appended: samples would be lost without a word.
    """
    with open(path, "rb") as file:
        file.seek(end)
        block = file.read(BLOCK)
        if block.strip(b"\0"):
            raise tarfile.ReadError(f"damaged at byte {end}")
        if len(block) < BLOCK:
            raise tarfile.ReadError(f"cut at byte {end + len(block)}, before its end mark")
        while block := file.read(LARGEST):
            if block.strip(b"\0"):
                raise tarfile.ReadError(
                    f"it goes on after its end mark at byte {end}, as where archives are joined"
                )
