"""The store: one folder per adapter, and a lock so that one server writes."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayestta.files import replacing, sync
from bayestta.serve.archive import Archive
from bayestta.serve.limits import ID, Limits, check_id
from bayestta.serve.refusals import Refusal
from bayestta.state_file import write_state

LOCK = ".lock"


class Store:
    """Folders `root/{id}`: `adapter.json`, snapshots and journals.

    Parameters
    ----------
    shared
        False: this process alone writes, and a second server is refused. True: several workers
        share the store, each adapter belonging to the one with the highest epoch.
    """

    def __init__(self, root: Path, limits: Limits, *, shared: bool = False) -> None:
        self.root, self.limits = root, limits
        root.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(root / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 200, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise ValueError(
                f"the store {root} is in use by another server ({holder or 'unknown process'}): "
                "stop it first, or give this one another --store."
            ) from None
        if not shared:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        self._tidy()

    def _tidy(self) -> None:
        """Remove what a crash left half made or half deleted."""
        for folder in self.root.glob(".*-*"):
            if folder.is_dir() and folder.name.startswith((".new-", ".deleted-")):
                shutil.rmtree(folder, ignore_errors=True)

    def names(self) -> list[str]:
        """The ids of all adapters, sorted."""
        found = (entry.name for entry in os.scandir(self.root) if entry.is_dir())
        return sorted(name for name in found if ID.fullmatch(name))

    def __contains__(self, name: str) -> bool:
        return bool(ID.fullmatch(name)) and (self.root / name / "adapter.json").is_file()

    def spec(self, name: str) -> dict[str, Any]:
        """How an adapter was made."""
        path = self.root / check_id(name) / "adapter.json"
        try:
            spec: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise self.unknown(name) from None
        return spec

    def unknown(self, name: str) -> Refusal:
        return Refusal(
            404,
            "adapter_unknown",
            f"there is no adapter {name!r} among the {len(self.names())} of the store",
            "create it with POST /v1/adapters, or start the server with --classes to have adapters "
            "made on first use",
            adapters=len(self.names()),
        )

    def create(self, name: str, spec: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Make the folder of an adapter, with its first snapshot: whole or not at all."""
        count = len(self.names())
        if name in self:
            raise exists(name)
        if count >= self.limits.max_stored:
            raise Refusal(
                429,
                "too_many_adapters",
                f"the store holds {count} adapters and takes {self.limits.max_stored}",
                "delete some, or start the server with a larger --max-stored",
                adapters=count,
                most=self.limits.max_stored,
            )
        part = self.root / f".new-{name}-{secrets.token_hex(4)}"
        try:
            part.mkdir()
            with replacing(part / "adapter.json") as path:
                path.write_text(json.dumps(spec, indent=1, sort_keys=True), encoding="utf-8")
            write_state(part / Archive.snapshot_name(0), {"step": 0}, state)
            try:
                part.rename(self.root / check_id(name))
            except OSError:
                raise exists(name) from None
            sync(self.root)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def delete(self, name: str) -> None:
        gone = self.root / f".deleted-{check_id(name)}-{secrets.token_hex(4)}"
        try:
            (self.root / name).rename(gone)
        except FileNotFoundError:
            raise self.unknown(name) from None
        sync(self.root)
        shutil.rmtree(gone, ignore_errors=True)

    def open(self, name: str) -> Archive:
        """The files of an adapter, for its one writer."""
        if name not in self:
            raise self.unknown(name)
        return Archive(self.root / name, self.limits)

    def close(self) -> None:
        os.close(self._lock)


def exists(name: str) -> Refusal:
    return Refusal(
        409,
        "adapter_exists",
        f"adapter {name!r} exists already",
        "use it, choose another id, or DELETE it first",
    )
