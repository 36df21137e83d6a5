"""The adapters of one process: one writer each, in memory within a budget, durable in the store."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from bayestta.methods import methods
from bayestta.models.base import VLM
from bayestta.serve.archive import Archive
from bayestta.serve.hosted import Answer, Hosted, OnChange, Turn
from bayestta.serve.journal import Record
from bayestta.serve.limits import check_id
from bayestta.serve.making import SharedFeatures, complete, make
from bayestta.serve.refusals import Fenced, Refusal, from_value_error
from bayestta.serve.store import Store

CHEAP = 16  # records that are sooner repeated than saved in a snapshot


class Slot:
    """Room for one adapter: whose turn it is, and what is in memory."""

    def __init__(self) -> None:
        self.turn, self.users = Turn(), 0
        self.hosted: Hosted | None = None
        self.archive: Archive | None = None


class Shard:
    """All adapters of a store that this process writes.

    Parameters
    ----------
    on_change
        Called with id, summary and events after every change.
    """

    def __init__(self, model: VLM, store: Store, *, on_change: OnChange | None = None) -> None:
        self.model, self.store, self.limits = model, store, store.limits
        self.features = SharedFeatures(model)
        methods()  # found by importing their files, which threads must not do at once
        self.on_change: OnChange = on_change or (lambda name, summary, events: None)
        self._slots: OrderedDict[str, Slot] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()
        self.kinds: dict[str, bool] = {}  # id -> whether it takes features

    # --- memory ---

    @property
    def loaded(self) -> int:
        with self._lock:
            return sum(slot.hosted is not None for slot in self._slots.values())

    @contextmanager
    def using(self, name: str, *, reading: bool = False) -> Iterator[tuple[Hosted, Archive]]:
        """The adapter, for the caller alone; whatever raises inside drops what is in memory."""
        slot = self._pin(check_id(name))
        slot.turn.enter(reading=reading)
        try:
            if slot.hosted is None or slot.archive is None:
                slot.hosted, slot.archive = self._load(name)
            yield slot.hosted, slot.archive
        except Refusal as refusal:
            if isinstance(refusal, Fenced):
                self._drop(slot)
            raise
        except BaseException:
            self._drop(slot)  # the store holds what was acknowledged
            raise
        finally:
            slot.turn.leave()
            self._unpin(name, slot)
        self._evict()

    def _pin(self, name: str) -> Slot:
        with self._lock:
            slot = self._slots.setdefault(name, Slot())
            self._slots.move_to_end(name)
            slot.users += 1
            return slot

    def _unpin(self, name: str, slot: Slot) -> None:
        with self._lock:
            slot.users -= 1
            if not slot.users and slot.hosted is None and self._slots.get(name) is slot:
                del self._slots[name]

    def _drop(self, slot: Slot) -> None:
        if slot.archive is not None:
            slot.archive.close()
        slot.hosted = slot.archive = None

    def _load(self, name: str) -> tuple[Hosted, Archive]:
        spec, archive = self.store.spec(name), self.store.open(name)
        try:
            hosted = Hosted(make(spec, self.model, self.features))
            self.restore(hosted, archive)
        except BaseException:
            archive.close()
            raise
        self.kinds[name] = hosted.takes_features
        return hosted, archive

    def restore(self, hosted: Hosted, archive: Archive, step: int | None = None) -> None:
        """Bring an adapter to the state after a step: the snapshot before it, and the journal."""
        state, records = archive.load(step)
        hosted.load(state)
        for record in records:
            hosted.repeat(record)

    def _evict(self) -> None:
        """Save and drop those least recently used, beyond the budget."""
        while True:
            with self._lock:
                full = [name for name, slot in self._slots.items() if slot.hosted is not None]
                idle = [name for name in full if not self._slots[name].users]
                if len(full) <= self.limits.max_adapters or not idle:
                    return
                slot = self._slots[idle[0]]
                slot.users += 1
            try:
                self._put_away(slot)
            finally:
                self._unpin(idle[0], slot)

    def _put_away(self, slot: Slot) -> None:
        slot.turn.enter(reading=False)
        try:
            self._save(slot)
        finally:
            self._drop(slot)
            slot.turn.leave()

    def _save(self, slot: Slot) -> None:
        if slot.hosted is not None and slot.archive is not None and slot.archive.since >= CHEAP:
            archive = slot.archive
            archive.snapshot(archive.step, slot.hosted.adapter.header(), slot.hosted.state())

    def close(self) -> None:
        """Save all, for a start without delay; nothing depends on it."""
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            self._put_away(slot)

    # --- the life of an adapter ---

    def create(self, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        check_id(name)
        try:
            whole = complete(spec)
            hosted = Hosted(make(whole, self.model, self.features))
        except (ValueError, NotImplementedError) as error:
            raise from_value_error(ValueError(str(error))) from None
        whole["created"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.store.create(name, whole, hosted.state())
        return self.describe(name)

    def describe(self, name: str) -> dict[str, Any]:
        spec = self.store.spec(name)
        with self.using(name, reading=True) as (hosted, archive):
            about = {"id": name, "step": archive.step, "history": archive.kept, **spec}
            about["inputs"] = "features or images" if hosted.takes_features else "images"
            about["stored_bytes"] = archive.bytes()
            return {**about, **hosted.summary(), "trail": list(hosted.trail.points)}

    def delete(self, name: str) -> None:
        with self.using(name) as (_, archive):
            archive.close()
            self.store.delete(name)
            with self._lock:
                slot = self._slots[name]
            slot.hosted = slot.archive = None
        self.kinds.pop(name, None)

    def takes_features(self, name: str) -> bool:
        if name not in self.kinds:
            with self.using(name, reading=True) as (hosted, _):
                self.kinds[name] = hosted.takes_features
        return self.kinds[name]

    # --- answers ---

    def repeated(self, name: str, request_id: str) -> Answer | None:
        """The first answer to a request that was learnt before."""
        with self.using(name, reading=True) as (_, archive):
            return _repeated(archive, request_id)

    def infer(self, name: str, x: Tensor, *, request_id: str, adapt: bool) -> Answer:
        """Answer a batch and, with `adapt`, learn from it once."""
        if not adapt:
            with self.using(name, reading=True) as (hosted, archive):
                return Answer(request_id, archive.step, False, False, *hosted.answer(x))
        with self.using(name) as (hosted, archive):
            first = _repeated(archive, request_id)
            if first is not None:
                return first
            before = hosted.drift.alarms, hosted.adapter.caution
            try:
                probabilities, sketch = hosted.learn(x)
            except ValueError as error:
                self._forget(name)
                raise from_value_error(error) from None
            self._record(hosted, archive, request_id, x, probabilities, sketch)
            answer = Answer(request_id, archive.step, True, False, probabilities, sketch)
            self._tell(name, hosted, archive, *before)
            return answer

    def _forget(self, name: str) -> None:
        with self._lock:
            self._drop(self._slots[name])

    def _record(
        self, hosted: Hosted, archive: Archive, request_id: str, x: Tensor, *answers: Any
    ) -> None:
        arrays = dict(zip(("probabilities", "sketch"), answers, strict=True))
        step, about = archive.step + 1, {"id": request_id, "n": len(x)}
        if hosted.takes_features:
            features = x.detach().float().cpu().numpy()
            archive.append(Record(step, "learn", about, {"features": features, **arrays}))
            if archive.full:
                archive.snapshot(step, hosted.adapter.header(), hosted.state())
        else:  # norms move: the step cannot be repeated from features
            archive.append(Record(step, "seen", about, arrays))
            archive.snapshot(step, hosted.adapter.header(), hosted.state())

    def _tell(self, name: str, hosted: Hosted, archive: Archive, alarms: int, caution: int) -> None:
        new = hosted.drift.alarms - alarms
        last = hosted.drift.events[-new:] if new else []
        events = [{"kind": "drift", "adapter": name, **event} for event in last]
        if hosted.adapter.caution > caution:
            events.append({"kind": "guard", "adapter": name, "returns": hosted.adapter.caution})
        self.on_change(name, {"step": archive.step, **hosted.summary()}, events)


def _repeated(archive: Archive, request_id: str) -> Answer | None:
    record = archive.learnt(request_id)
    if record is None:
        return None
    values = record.arrays["probabilities"], record.arrays["sketch"]
    return Answer(request_id, record.step, True, True, *(np.array(v) for v in values))
