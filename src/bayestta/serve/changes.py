"""Changes beside learning: labels, reset, rollback, merge and a state from outside."""

from __future__ import annotations

from typing import Any

from bayestta.adapter import differing
from bayestta.serve.archive import Archive
from bayestta.serve.hosted import Hosted
from bayestta.serve.journal import Record
from bayestta.serve.making import make
from bayestta.serve.refusals import Refusal, from_value_error
from bayestta.serve.shard import Shard
from bayestta.state_file import pack, unpack


class Changes:
    """The rare verbs of a shard; each is durable when it returns."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def feedback(self, name: str, request_id: str, index: int, label: str) -> dict[str, Any]:
        """Take in the true label of an image that was answered."""
        with self.shard.using(name) as (hosted, archive):
            record = archive.learnt(request_id)
            if record is None:
                raise Refusal(
                    404,
                    "request_unknown",
                    f"adapter {name!r} has learnt no request {request_id!r}",
                    "give the id of a request that was sent with adapt=true",
                )
            about = _labelled(hosted, record, index, label)
            known = hosted.labelled.get(f"{request_id}/{index}")
            if known is not None and known != about["label"]:
                raise Refusal(
                    409,
                    "labelled",
                    f"image {index} of request {request_id!r} was labelled "
                    f"{hosted.adapter.classes[known]!r} before",
                    "a label counts once; label another image",
                )
            spoken = False
            if known is None:
                archive.append(Record(archive.step + 1, "feedback", about))
                spoken = hosted.feedback(about)
                if not hosted.takes_features or archive.full:
                    archive.snapshot(archive.step, hosted.adapter.header(), hosted.state())
            events = []
            if spoken:
                events.append({"kind": "harm", "adapter": name, **hosted.harm.summary()})
            summary = {"step": archive.step, **hosted.summary()}
            self.shard.on_change(name, summary, events)
            return {"counted": known is None, **summary}

    def reset(self, name: str) -> dict[str, Any]:
        with self.shard.using(name) as (hosted, archive):
            hosted.reset()
            return self._saved(name, hosted, archive, [])

    def rollback(self, name: str, step: int) -> dict[str, Any]:
        """Go back to the state after an earlier step; the history stays, this is a new step."""
        with self.shard.using(name) as (hosted, archive):
            archive.load(step)  # refuses, before anything changes
            self.shard.restore(hosted, archive, step)
            event = {"kind": "rollback", "adapter": name, "to": step}
            return {**self._saved(name, hosted, archive, [event]), "restored": step}

    def merge(self, name: str, other: str) -> dict[str, Any]:
        """Take in what another adapter has learnt."""
        with self.shard.using(other, reading=True) as (source, _):
            header, state = source.adapter.header(), source.adapter.state()
        return self.join(name, other, header, state)

    def join(
        self, name: str, other: str, header: dict[str, Any], state: dict[str, Any]
    ) -> dict[str, Any]:
        """Merge a state of another adapter, which may come from another process."""
        if name == other:
            raise Refusal(
                400, "merge", f"adapter {name!r} cannot take in itself", "name another adapter"
            )
        who, spec = f"adapter {other!r}", self.shard.store.spec(name)
        with self.shard.using(name) as (hosted, archive):
            try:
                differing(hosted.adapter.header(), header, who, "merge only what is alike")
                copy = make(spec, self.shard.model, self.shard.features)
                copy.load_state(state)
                hosted.adapter.merge(copy)
            except (ValueError, NotImplementedError) as error:
                raise from_value_error(ValueError(str(error))) from None
            return self._saved(name, hosted, archive, [])

    def read_state(self, name: str) -> tuple[bytes, int]:
        """The state as a file that `Adapter.load` reads, and its step."""
        with self.shard.using(name, reading=True) as (hosted, archive):
            return pack(hosted.adapter.header(), hosted.adapter.state()), archive.step

    def write_state(self, name: str, data: bytes, expected: int | None) -> dict[str, Any]:
        """Replace what was learnt; `expected` guards against changes in between."""
        try:
            header, state = unpack(data, "the body")
        except ValueError as error:
            raise from_value_error(error) from None
        with self.shard.using(name) as (hosted, archive):
            if expected is not None and expected != archive.step:
                raise Refusal(
                    412,
                    "step_changed",
                    f"adapter {name!r} is at step {archive.step}, and If-Match names {expected}",
                    "get the state again, and send it with its new ETag",
                    step=archive.step,
                    expected=expected,
                )
            try:
                differing(hosted.adapter.header(), header, "the body", "make the adapter as it was")
                hosted.adapter.load_state(state)
            except ValueError as error:
                raise from_value_error(error) from None
            return self._saved(name, hosted, archive, [])

    def _saved(
        self, name: str, hosted: Hosted, archive: Archive, events: list[dict[str, Any]]
    ) -> dict[str, Any]:
        archive.snapshot(archive.step + 1, hosted.adapter.header(), hosted.state())
        summary = {"step": archive.step, **hosted.summary()}
        self.shard.on_change(name, summary, events)
        return summary


def _labelled(hosted: Hosted, record: Record, index: int, label: str) -> dict[str, Any]:
    n, classes = record.about["n"], hosted.adapter.classes
    if not 0 <= index < n:
        raise Refusal(
            400,
            "index",
            f"index {index} is outside the {n} images of that request",
            f"give 0 to {n - 1}",
            images=n,
        )
    if label not in classes:
        from bayestta.names import unknown

        raise from_value_error(ValueError(unknown("label", label, classes)))
    marks = {key: int(record.arrays[name][index].argmax()) for key, name in ANSWERS.items()}
    about = {"id": record.about["id"], "index": index, "label": classes.index(label)}
    return {**about, **marks}


ANSWERS = {"answer": "probabilities", "sketch": "sketch"}
