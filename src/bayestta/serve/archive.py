"""The files of one adapter: snapshots, journals between them, and an epoch that fences writers."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayestta.files import replacing
from bayestta.serve.forgotten import Forgotten
from bayestta.serve.journal import Journal, Record, read_at, records
from bayestta.serve.limits import Limits
from bayestta.serve.refusals import Fenced, Refusal
from bayestta.state_file import read_state, write_state

LEARNT = ("learn", "seen")  # records of requests: with features to repeat them, or without


@dataclass(frozen=True)
class Place:
    """Where a record lies, and what it is."""

    path: Path
    start: int
    kind: str
    request_id: str


class Archive:
    """History of one adapter. A writer takes it over by raising the epoch.

    `{step}-{epoch}.snapshot` holds the state after a step, `{step}-{epoch}.journal` the records
    after it. A writer checks the epoch after each write and before it acknowledges. A new writer
    raises the epoch, reads, and marks by an empty journal where it goes on: what a former writer
    adds behind that mark was never acknowledged, and is never read.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits, self.name = folder, limits, folder.name
        self.snapshots: dict[int, Path] = {}  # by step
        self.places: dict[int, Place] = {}  # by step
        with self._claimed():
            self._take_over()

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Alone in the folder: of two that take over one is the later, and nothing is pruned."""
        with (self.folder / ".claim").open("w") as claim:
            fcntl.flock(claim, fcntl.LOCK_EX)
            yield

    def _take_over(self) -> None:
        self.epoch = self._stored_epoch() + 1
        with replacing(self.folder / "epoch") as path:
            path.write_text(str(self.epoch), encoding="ascii")
        for left in self.folder.glob(".*.part"):  # by a writer that was killed
            left.unlink(missing_ok=True)
        self.forgotten = Forgotten(self.folder / "forgotten")
        self._scan()
        self.ids = {p.request_id: step for step, p in self.places.items() if p.request_id}
        self.step = max([*self.snapshots, *self.places])
        self.since = self.step - max(self.snapshots)  # records since the last snapshot
        for start, _, path in self._files("journal"):
            if start == self.step and path.stat().st_size == 0:
                path.unlink()  # the new mark does what this one did
        self.journal: Journal | None = self._new_journal()

    @staticmethod
    def snapshot_name(step: int, epoch: int = 0) -> str:
        return f"{step:012d}-{epoch:06d}.snapshot"

    def _new_journal(self) -> Journal:
        return Journal(self.folder / f"{self.step:012d}-{self.epoch:06d}.journal")

    def _stored_epoch(self) -> int:
        try:
            return int((self.folder / "epoch").read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def check_epoch(self) -> None:
        """Refuse where another writer has taken over."""
        try:
            now = self._stored_epoch()
        except ValueError:
            now = -1
        if now != self.epoch:
            raise Fenced(self.name, self.epoch, now)

    def _files(self, kind: str) -> list[tuple[int, int, Path]]:
        """Step, epoch and path, in the order in which they were written."""
        found = []
        for path in self.folder.glob(f"[0-9]*.{kind}"):
            step, epoch = path.stem.split("-")
            found.append((int(step), int(epoch), path))
        return sorted(found, key=lambda item: (item[1], item[0]))

    def _scan(self) -> None:
        """Find snapshots and records; an epoch's first journal voids what others have after it."""
        snapshots, journals = self._files("snapshot"), self._files("journal")
        for epoch in sorted({each[1] for each in (*snapshots, *journals)}):
            own = [(start, path) for start, number, path in journals if number == epoch]
            if own:
                for table in (self.places, self.snapshots):
                    for step in [step for step in table if step > own[0][0]]:
                        del table[step]
            self.snapshots |= {step: path for step, number, path in snapshots if number == epoch}
            for _, path in own:
                for start, _, record in records(path, arrays=False):
                    learnt = str(record.about.get("id", "")) if record.kind in LEARNT else ""
                    self.places[record.step] = Place(path, start, record.kind, learnt)
        known = set(self.snapshots)
        for step in sorted(self.places):
            # a step that cannot be repeated is done when its snapshot is there
            if step - 1 in known and (self.places[step].kind != "seen" or step in known):
                known.add(step)
            else:
                del self.places[step]

    # --- writing ---

    def append(self, record: Record) -> None:
        """Put a record on the disk; acknowledge only after this has returned."""
        if self.journal is None:
            self.journal = self._new_journal()
        start = self.journal.add(record)
        self.check_epoch()
        learnt = str(record.about.get("id", "")) if record.kind in LEARNT else ""
        self.places[record.step] = Place(self.journal.path, start, record.kind, learnt)
        if learnt:
            self.ids[learnt] = record.step
        self.step = record.step
        self.since += 1

    @property
    def full(self) -> bool:
        """Whether it is time for a snapshot."""
        size = self.journal.size if self.journal is not None else 0
        return self.since >= self.limits.snapshot_steps or size >= self.limits.segment_bytes

    def snapshot(self, step: int, header: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Write the state after a step; the journal starts a new file."""
        path = self.folder / self.snapshot_name(step, self.epoch)
        self.check_epoch()
        write_state(path, {**header, "step": step}, state)
        self.check_epoch()
        self.snapshots[step] = path
        self.step = max(self.step, step)
        self.close()
        self.since = 0
        if self.bytes() > self.limits.history_bytes:
            with self._claimed():
                self.check_epoch()
                self._prune()

    def _prune(self) -> None:
        """Drop the oldest snapshots, with the journals up to the next, beyond the budget."""
        total, steps = self.bytes(), sorted(self.snapshots)
        cut = 0
        while total > self.limits.history_bytes and len(steps) > 1:
            first, cut = steps[0], steps[1]
            gone = [self.snapshots.pop(first)]
            gone += [path for start, _, path in self._files("journal") if start < cut]
            self.forgotten.add(key for key, step in self.ids.items() if step <= cut)
            self.ids = {key: step for key, step in self.ids.items() if step > cut}
            self.places = {step: place for step, place in self.places.items() if step > cut}
            for path in gone:
                total -= path.stat().st_size
                path.unlink()
            steps.pop(0)

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    # --- reading ---

    def load(self, step: int | None = None) -> tuple[dict[str, Any], Iterator[Record]]:
        """The last snapshot up to a step, and the records from there to it."""
        wanted = self.step if step is None else step
        known = sorted(each for each in self.snapshots if each <= wanted)
        if not known or (wanted not in self.places and wanted not in known):
            first, last = self.kept
            raise Refusal(
                404,
                "step_unknown",
                f"step {wanted} of adapter {self.name!r} is not kept",
                f"choose one from {first} to {last}",
                first=first,
                last=last,
            )
        _, state = read_state(self.snapshots[known[-1]])
        steps = range(known[-1] + 1, wanted + 1)
        return state, (self.record(each) for each in steps)

    @property
    def kept(self) -> list[int]:
        """The first and the last step of the history."""
        return [min(self.snapshots), self.step]

    def record(self, step: int) -> Record:
        place = self.places[step]
        return read_at(place.path, place.start)

    def learnt(self, request_id: str) -> Record | None:
        """The record of a request that was learnt; refuses one whose answer is no longer kept."""
        step = self.ids.get(request_id)
        if step is not None:
            return self.record(step)
        if request_id in self.forgotten:
            raise Refusal(
                409,
                "answer_gone",
                f"request {request_id!r} was learnt before, and its answer is no longer kept",
                "send new images with a new request id, or start the server with a larger "
                "--history-mb",
                history_bytes=self.limits.history_bytes,
            )
        return None

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())
