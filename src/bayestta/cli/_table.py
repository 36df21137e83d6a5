"""The answers of `predict` as a file: CSV, or JSON with one object per line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayestta.names import unknown

Row = dict[str, Any]
JSON = (".json", ".jsonl", ".ndjson")
SUFFIXES = (".csv", *JSON)
# A spreadsheet would compute such a cell; an apostrophe in front makes it text.
FORMULA = re.compile(r"'*[=+\-@\t\r]")
SPECIAL = re.compile(r'[",\r\n]|^\s|\s$')


class Table:
    """How rows become bytes, and how to find the answered images in them again.

    File names that are not UTF-8 are written as they are: bytes in CSV, escapes in JSON.
    """

    def __init__(self, path: Path | None, columns: Sequence[str]) -> None:
        suffix = ".csv" if path is None else path.suffix.lower()
        if suffix not in SUFFIXES:
            raise ValueError(unknown("ending of a table of answers", suffix or str(path), SUFFIXES))
        self.path, self.columns, self.as_json = path, list(columns), suffix in JSON

    def head(self) -> bytes:
        return b"" if self.as_json else _line(self.columns)

    def encode(self, rows: Iterable[Mapping[str, Any]]) -> bytes:
        if self.as_json:
            return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        return b"".join(_line([row[key] for key in self.columns]) for row in rows)

    def answered(self, data: bytes) -> list[str]:
        """The paths in the bytes of a table; ValueError for a table of something else."""
        text = data.decode("utf-8", "surrogateescape")
        if self.as_json:
            return self._from_json(text)
        reader = csv.reader(io.StringIO(text, newline=""))
        names = next(reader, self.columns)
        if names != self.columns:
            raise ValueError(self._foreign(f"its columns: {', '.join(names)[:120]}"))
        place = self.columns.index("path")
        return [unescaped(row[place]) for row in reader if len(row) == len(names)]

    def _from_json(self, text: str) -> list[str]:
        try:
            rows = [json.loads(line) for line in text.splitlines()]
            if not all(list(row) == self.columns for row in rows):
                raise ValueError("other keys")
            return [str(row["path"]) for row in rows]
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(self._foreign(str(error)[:120])) from None

    def _foreign(self, why: str) -> str:
        return (
            f"{self.path} is no table of `bayestta predict` with these options ({why}): choose "
            "another --out."
        )


def _line(cells: Iterable[Any]) -> bytes:
    return (",".join(map(_cell, cells)) + "\n").encode("utf-8", "surrogateescape")


def _cell(value: Any) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else escaped(str(value))
    return '"' + text.replace('"', '""') + '"' if SPECIAL.search(text) else text


def escaped(text: str) -> str:
    """A cell that no spreadsheet takes for a formula.

    >>> escaped("=1+1"), unescaped(escaped("=1+1")), escaped("cat")
    ("'=1+1", '=1+1', 'cat')
    """
    return f"'{text}" if FORMULA.match(text) else text


def unescaped(cell: str) -> str:
    """The text that `escaped` was given."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def skipped_file(out: Path) -> Path:
    """Where the images that could not be read are listed, beside the answers."""
    return out.with_name(f"{out.stem}.skipped.csv")


def write_skipped(out: Path, skipped: Sequence[tuple[str, str]]) -> None:
    """List path and reason of every image that was left out; no file where there is none."""
    from bayestta.files import replacing

    target = skipped_file(out)
    if not skipped:
        if target.exists() and target.read_bytes().startswith(_line(("path", "reason"))):
            target.unlink()  # of an earlier run; the images have been mended or removed
        return
    with replacing(target) as part:
        part.write_bytes(b"".join(map(_line, [("path", "reason"), *skipped])))


def read_skipped(out: Path) -> tuple[set[str], float]:
    """The paths that an earlier run could not read, and when it said so."""
    target = skipped_file(out)
    if not target.exists():
        return set(), 0.0
    table = Table(target, ("path", "reason"))
    try:
        return set(table.answered(target.read_bytes())), target.stat().st_mtime
    except ValueError:
        return set(), 0.0
