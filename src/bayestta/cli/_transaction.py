"""State and answers of `predict` as one transaction: the state file is the commit.

Its header says how many bytes of the table belong to it. Answers are appended and synced before
the state is replaced; whatever a killed process appended after its last commit is cut off by the
next start, so that every image is answered once and learnt once.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayestta.cli._table import Row, Table
from bayestta.files import clear_parts, explained, replacing, sync

if TYPE_CHECKING:
    from bayestta.adapter import Adapter


MARK = {"rows": int, "bytes": int, "sha256": str}  # what a state says of a table


class Journal:
    """Where answers and state go.

    Without a state, the answers are written at the end, whole or not at all. Without a table they
    are printed.
    """

    def __init__(self, table: Table, state: Path | None) -> None:
        self.table, self.state, self.out = table, state, table.path
        self.tables: dict[str, Any] = {}  # of the state's header: table -> rows, bytes, sha256
        self.monitors: Any = None  # of the state's header: what watches the stream
        self.pending: list[Row] = []  # answers that no commit has saved
        self.rows = 0  # answers that were there at the start
        self.size, self.digest, self.linked = 0, hashlib.sha256(), False
        self.printed = False

    @property
    def transactional(self) -> bool:
        return self.state is not None and self.out is not None

    def open(self) -> list[str]:
        """Clean up after a process that was killed; the images that are answered already."""
        from bayestta.state_file import read_state

        if self.out is not None:
            clear_parts(self.out, owned=self.state is not None)
        if self.state is None:
            return []
        clear_parts(self.state, owned=True)
        if self.state.exists():
            header = read_state(self.state)[0]
            found, self.monitors = header.get("tables", {}), header.get("monitors")
            self.tables = dict(found) if isinstance(found, dict) else {}
        if self.out is None or not self.out.exists():
            return []
        data = self.out.read_bytes()
        mark = self.tables.get(self._name())
        if mark is None:
            return self._unknown(data)
        if not isinstance(mark, dict) or {k: type(v) for k, v in mark.items()} != MARK:
            raise ValueError(
                f"{self.state} says nothing sensible of {self.out}: start a new state."
            )
        kept = data[: mark["bytes"]]
        if hashlib.sha256(kept).hexdigest() != mark["sha256"]:
            raise ValueError(
                f"{self.out} is not as {self.state} left it ({mark['rows']} answers in "
                f"{mark['bytes']:,} bytes): restore it, or choose another --out."
            )
        answered = self.table.answered(kept)
        if len(data) > len(kept):
            os.truncate(self.out, len(kept))
            sync(self.out)
        self.rows, self.size, self.linked = len(answered), len(kept), True
        self.digest.update(kept)
        return answered

    def _unknown(self, data: bytes) -> list[str]:
        """A table that the state knows nothing of may be empty, and nothing else."""
        count = len(self.table.answered(data))
        if count:
            raise ValueError(
                f"{self.out} holds {count} answers that {self.state} knows nothing of: choose "
                f"another --out, or move {self.out} away to start a new table."
            )
        return []

    def begin(self, adapter: Adapter) -> None:
        """Tie a new table to the state before the first answer goes into it."""
        if self.transactional and not self.linked and self.out is not None:
            head = self.table.head()
            with replacing(self.out) as part:
                part.write_bytes(head)
            self.size, self.digest, self.linked = len(head), hashlib.sha256(head), True
            self.commit(adapter)

    def add(self, rows: list[Row]) -> None:
        self.pending += rows

    def commit(self, adapter: Adapter) -> None:
        """Save the answers since the last commit, and the state that they belong to."""
        from bayestta.state_file import write_state

        if self.state is None:
            return
        if self.out is None:
            self._print()
        else:
            data = self.table.encode(self.pending)
            if data:
                self._append(data)
            self.size += len(data)
            self.digest.update(data)
            self.rows += len(self.pending)
            mark = {"rows": self.rows, "bytes": self.size, "sha256": self.digest.hexdigest()}
            self.tables[self._name()] = mark
        self.pending = []
        header = {**adapter.header(), **({"tables": self.tables} if self.tables else {})}
        if self.monitors is not None:
            header["monitors"] = self.monitors
        write_state(self.state, header, adapter.state())

    def show(self) -> None:
        """Print the answers so far, where nothing keeps them."""
        if self.state is None and self.out is None:
            self._print()
            self.pending = []

    def close(self, adapter: Adapter) -> None:
        """The last commit; without a state, the whole table at once."""
        if self.state is not None:
            self.commit(adapter)
        elif self.out is None:
            self._print()
        else:
            with replacing(self.out) as part:
                part.write_bytes(self.table.head() + self.table.encode(self.pending))

    def _append(self, data: bytes) -> None:
        assert self.out is not None
        try:
            with explained(self.out, self.out), self.out.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.truncate(self.out, self.size)
            raise

    def _print(self) -> None:
        head = b"" if self.printed else self.table.head()
        self.printed = True
        sys.stdout.flush()
        text = (head + self.table.encode(self.pending)).decode("utf-8", "surrogateescape")
        buffer = getattr(sys.stdout, "buffer", None)
        if buffer is None:
            sys.stdout.write(text)
        else:
            buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()

    def _name(self) -> str:
        """The table, seen from the folder of the state, so that both may move together."""
        assert self.state is not None
        assert self.out is not None
        home = os.path.dirname(os.path.realpath(self.state))
        path = os.path.relpath(os.path.realpath(self.out), home)
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
