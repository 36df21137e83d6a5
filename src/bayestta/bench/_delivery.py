"""State and result of a run as one transaction: the state file is the commit.

The result waits beside its place under a name that holds the checksum of the state to come. Once
that state is in place the result is renamed. Whoever finds a waiting result for the state that is
there knows that its run was complete, and delivers it; any other is of a run that never was.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayestta.evaluation.result import Result, write_atomic
from bayestta.files import clear_parts, replacing, sync

if TYPE_CHECKING:
    from bayestta.adapter import Adapter


def save_both(adapter: Adapter, result: Result, state: Path, out: Path | None) -> None:
    """Save the state, and the result that belongs to it: after a crash both are there or none."""
    from bayestta.state_file import pack

    data = pack({**adapter.header(), **_tables(state)}, adapter.state())
    waiting = None if out is None else _waiting(out, data)
    try:
        if waiting is not None:
            write_atomic(waiting, result.to_text())
        with replacing(state) as part:
            part.write_bytes(data)
    except Exception:
        if waiting is not None:
            waiting.unlink(missing_ok=True)
        raise
    if waiting is not None and out is not None:
        os.replace(waiting, out)
        sync(out.parent)


def deliver(state: Path, out: Path | None) -> Result | None:
    """The result of a run that was killed after its state was saved, now in its place.

    None where nothing waits. What killed runs left is removed.
    """
    clear_parts(state, owned=True)
    if out is None or not out.parent.is_dir():
        return None
    clear_parts(out)
    expected = _waiting(out, state.read_bytes()) if state.exists() else None
    found = None
    for path in out.parent.glob(f"..{_literal(out.name)}.*.waiting.*.part"):
        path.unlink(missing_ok=True)
    for path in out.parent.glob(f".{_literal(out.name)}.*.waiting"):
        if path == expected:
            found = Result.load(path)
            os.replace(path, out)
            sync(out.parent)
        else:
            path.unlink(missing_ok=True)
    return found


def _waiting(out: Path, state: bytes) -> Path:
    return out.with_name(f".{out.name}.{hashlib.sha256(state).hexdigest()[:16]}.waiting")


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _tables(state: Path) -> dict[str, Any]:
    """What an earlier `predict` noted in the state about its answers is kept."""
    from bayestta.state_file import read_state

    header = read_state(state)[0] if state.exists() else {}
    return {"tables": header["tables"]} if "tables" in header else {}
