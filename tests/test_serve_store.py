"""The store and the shard: nothing acknowledged is lost, nothing is learnt twice."""

from __future__ import annotations

import copy
import json
import os
import threading

import pytest
import torch

pytest.importorskip("prometheus_client")

from bayestta.serve.changes import Changes
from bayestta.serve.hosted import Turn
from bayestta.serve.journal import Journal, Record, records
from bayestta.serve.limits import Limits, check_id, check_request_id
from bayestta.serve.refusals import Fenced, Refusal
from bayestta.serve.shard import Shard
from bayestta.serve.store import Store

CLASSES = ["cat", "dog", "ship"]


def batch(seed: int, dim: int = 128, n: int = 4) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def same(one: dict, two: dict) -> bool:
    """Bit for bit."""
    return one.keys() == two.keys() and all(
        torch.equal(v, two[k]) if isinstance(v, torch.Tensor) else v == two[k]
        for k, v in one.items()
    )


def state(shard: Shard, name: str = "cam") -> dict:
    with shard.using(name, reading=True) as (hosted, _):
        return copy.deepcopy(hosted.state())


@pytest.fixture
def world(tmp_path, tiny_rn):
    """Makes shards on one store; the one before loses its lock, as in a crash."""
    held = []

    def start(**limits) -> Shard:
        for store in held:
            store.close()
        held[:] = [Store(tmp_path / "store", Limits(**limits))]
        return Shard(tiny_rn, held[0])

    yield start
    for store in held:
        store.close()


def test_a_crash_at_any_step_leaves_the_state_of_an_undisturbed_server(world):
    """The shard is left as it is, without a word of goodbye, after every third request."""
    calm = world(snapshot_steps=4)
    calm.create("calm", {"classes": CLASSES})
    calm.create("cam", {"classes": CLASSES})
    shaken = calm
    for i in range(14):
        calm.infer("calm", batch(i), request_id=f"r{i}", adapt=True)
    expected = state(calm, "calm")
    for i in range(14):
        if i % 3 == 2:
            shaken = world(snapshot_steps=4)
        shaken.infer("cam", batch(i), request_id=f"r{i}", adapt=True)
    assert same(state(world(snapshot_steps=4)), expected)


def test_a_torn_write_is_no_request(world):
    shard = world()
    shard.create("cam", {"classes": CLASSES})
    for i in range(3):
        shard.infer("cam", batch(i), request_id=f"r{i}", adapt=True)
    before = state(shard)
    (path,) = (shard.store.root / "cam").glob("*.journal")
    whole = path.read_bytes()
    for cut in (1, 7, 16, 40, 500):
        torn = Record(4, "learn", {"id": "r3", "n": 4}, {"features": batch(3).numpy()}).to_bytes()
        path.write_bytes(whole + torn[:cut])
        again = world()
        assert same(state(again), before)
        assert again.repeated("cam", "r3") is None
        for mark in (shard.store.root / "cam").glob("*.journal"):
            if mark != path:
                mark.unlink()
    answer = world().infer("cam", batch(3), request_id="r3", adapt=True)
    assert (answer.step, answer.repeated) == (4, False)


def test_damage_before_whole_records_is_said(tmp_path):
    journal = Journal(tmp_path / "j")
    for i in range(3):
        journal.add(Record(i, "learn", {"id": str(i)}, {"x": batch(i).numpy()}))
    journal.close()
    data = bytearray((tmp_path / "j").read_bytes())
    data[200] ^= 1
    (tmp_path / "j").write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged at byte 0 .* restore"):
        list(records(tmp_path / "j"))


def test_a_request_is_learnt_once_also_after_a_restart_and_from_many_threads(world):
    shard = world()
    shard.create("cam", {"classes": CLASSES})
    answers = []

    def send() -> None:
        answers.append(shard.infer("cam", batch(0), request_id="same", adapt=True))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not answer.repeated for answer in answers) == 1
    assert {answer.step for answer in answers} == {1}
    again = world().infer("cam", batch(9), request_id="same", adapt=True)
    assert again.repeated
    assert (again.probabilities == answers[0].probabilities).all()
    assert (again.sketch == answers[0].sketch).all()


def test_reading_changes_nothing(world):
    shard = world()
    shard.create("cam", {"classes": CLASSES})
    shard.infer("cam", batch(0), request_id="a", adapt=True)
    before = state(shard)
    answer = shard.infer("cam", batch(1), request_id="b", adapt=False)
    assert not answer.adapted
    assert same(state(shard), before)
    assert shard.repeated("cam", "b") is None


def test_rollback_restores_every_kept_step_bit_for_bit(world):
    shard = world(snapshot_steps=3)
    shard.create("cam", {"classes": CLASSES})
    states = [state(shard)]
    for i in range(8):
        shard.infer("cam", batch(i), request_id=f"r{i}", adapt=True)
        states.append(state(shard))
    changes = Changes(shard)
    for step in (5, 0, 8, 3):
        assert changes.rollback("cam", step)["restored"] == step
        assert same(state(shard), states[step])
        assert same(state(world(snapshot_steps=3)), states[step])
        shard = world(snapshot_steps=3)
        changes = Changes(shard)
    assert changes.read_state("cam")[1] == 12  # rollbacks are steps of their own
    assert shard.infer("cam", batch(0), request_id="r7", adapt=True).repeated
    with pytest.raises(Refusal, match="choose one from 0 to 12"):
        changes.rollback("cam", 99)


def test_history_stays_within_its_budget_and_old_ids_are_not_learnt_again(world):
    shard = world(snapshot_steps=2, history_bytes=600_000)
    shard.create("cam", {"classes": CLASSES})
    for i in range(30):
        shard.infer("cam", batch(i), request_id=f"r{i}", adapt=True)
    with shard.using("cam") as (_, archive):
        assert archive.bytes() < 600_000 + 200_000  # the newest snapshot is always kept
        assert archive.kept[0] > 10
    before = state(shard)
    for each in (shard, world(snapshot_steps=2, history_bytes=600_000)):
        with pytest.raises(Refusal, match="no longer kept"):
            each.infer("cam", batch(0), request_id="r0", adapt=True)
    assert same(state(each), before)
    with pytest.raises(Refusal, match="not kept"):
        Changes(each).rollback("cam", 1)


def test_a_former_writer_is_fenced_off_and_its_late_write_is_never_read(world, tmp_path, tiny_rn):
    one, two = (Shard(tiny_rn, Store(tmp_path / "s", Limits(), shared=True)) for _ in range(2))
    one.create("cam", {"classes": CLASSES})
    one.infer("cam", batch(0), request_id="a", adapt=True)
    two.infer("cam", batch(1), request_id="b", adapt=True)  # takes over
    with pytest.raises(Fenced, match="epoch"):
        one.infer("cam", batch(2), request_id="late", adapt=True)
    two.infer("cam", batch(3), request_id="c", adapt=True)
    expected = state(two)
    third = Shard(tiny_rn, Store(tmp_path / "s", Limits(), shared=True))
    assert same(state(third), expected)
    assert third.repeated("cam", "late") is None
    assert third.repeated("cam", "c") is not None
    # the fenced one comes back by itself, with what the others have learnt
    assert one.infer("cam", batch(2), request_id="late", adapt=True).step == 4


def test_writers_that_take_over_at_the_same_time_have_different_epochs(tmp_path):
    store, epochs = Store(tmp_path / "s", Limits(), shared=True), []
    store.create("cam", {"classes": CLASSES}, {"x": torch.zeros(1)})
    together = threading.Barrier(8)

    def take() -> None:
        together.wait()
        epochs.append(store.open("cam").epoch)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs) == list(range(1, 9))
    store.close()


def test_a_second_server_on_the_store_is_refused(tmp_path):
    first = Store(tmp_path / "s", Limits())
    for shared in (False, True):
        with pytest.raises(ValueError, match=f"in use by another server .process {os.getpid()}"):
            Store(tmp_path / "s", Limits(), shared=shared)
    first.close()
    Store(tmp_path / "s", Limits()).close()


def test_adapters_beyond_the_budget_are_evicted_and_come_back(world):
    shard = world(max_adapters=2)
    names = [f"cam-{i}" for i in range(5)]
    for name in names:
        shard.create(name, {"classes": CLASSES})
    for turn in range(3):
        for name in names:
            shard.infer(name, batch(turn), request_id=f"{turn}", adapt=True)
    assert shard.loaded == 2
    states = [state(shard, name) for name in names]
    assert all(same(each, states[0]) for each in states)
    assert states[0]["adapter/steps"] == 3


def test_a_write_that_fails_is_not_learnt(world, monkeypatch):
    shard = world()
    shard.create("cam", {"classes": CLASSES})
    shard.infer("cam", batch(0), request_id="a", adapt=True)
    before = state(shard)

    def full(self, record):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", full)
        with pytest.raises(OSError, match="No space"):
            shard.infer("cam", batch(1), request_id="b", adapt=True)
    assert same(state(shard), before)
    assert not shard.infer("cam", batch(1), request_id="b", adapt=True).repeated


@pytest.mark.parametrize("spec", [{"settings": {"refine": True}}, {"own_encoder": True}])
def test_an_adapter_with_its_own_encoder_is_saved_with_every_step(world, tiny_rn, spec):
    shard = world()
    shard.create("cam", {"classes": CLASSES, **spec})
    assert not shard.takes_features("cam")
    x = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    first = shard.infer("cam", x, request_id="a", adapt=True)
    second = shard.infer("cam", 1 - x, request_id="b", adapt=True)
    before = state(shard)
    again = world()
    assert same(state(again), before)
    assert again.infer("cam", x, request_id="a", adapt=True).repeated
    assert (again.repeated("cam", "b").probabilities == second.probabilities).all()
    assert first.step == 1
    # a crash between the record and its snapshot: the step was not done
    newest = max((again.store.root / "cam").glob("*.snapshot"))
    newest.unlink()
    assert world().repeated("cam", "b") is None


def test_labels_return_a_harmful_adapter_to_the_sketch_for_good(world):
    shard = world()
    changes, told = Changes(shard), []
    shard.on_change = lambda name, summary, events: told.extend(events)
    shard.create("cam", {"classes": CLASSES})
    labels, asked, i = [], 0, 0
    while not shard_returned(shard) and i < 200:
        x = batch(i, n=16)
        answer = shard.infer("cam", x, request_id=f"r{i}", adapt=True)
        ours, plain = answer.probabilities.argmax(1), answer.sketch.argmax(1)
        for k in (ours != plain).nonzero()[0].tolist():
            label = CLASSES[plain[k]]  # the sketch is always right
            labels.append(changes.feedback("cam", f"r{i}", k, label)["harm"]["labels"])
            asked += 1
            if shard_returned(shard):
                break
        i += 1
    assert asked == 7
    assert [event["kind"] for event in told if event["kind"] == "harm"] == ["harm"]
    again = world()
    answer = again.infer("cam", batch(500), request_id="after", adapt=True)
    assert (answer.probabilities == answer.sketch).all()
    assert state(again)["adapter/steps"] == 0
    Changes(again).reset("cam")
    assert not shard_returned(again)


def shard_returned(shard: Shard) -> bool:
    return bool(state(shard)["returned"])


def test_feedback_is_checked_and_counts_once(world):
    shard = world()
    changes = Changes(shard)
    shard.create("cam", {"classes": CLASSES})
    shard.infer("cam", batch(0), request_id="a", adapt=True)
    assert changes.feedback("cam", "a", 0, "cat")["counted"]
    assert not changes.feedback("cam", "a", 0, "cat")["counted"]
    for args, match in (
        (("a", 0, "dog"), "labelled 'cat' before"),
        (("a", 4, "dog"), "outside the 4 images"),
        (("a", 1, "whale"), "unknown label 'whale'"),
        (("b", 0, "dog"), "no request 'b'"),
    ):
        with pytest.raises(Refusal, match=match):
            changes.feedback("cam", *args)
    assert not Changes(world()).feedback("cam", "a", 0, "cat")["counted"]


def test_merge_and_state_from_outside(world):
    shard = world()
    changes = Changes(shard)
    for name in ("one", "two"):
        shard.create(name, {"classes": CLASSES})
    shard.create("other", {"classes": ["a", "b"]})
    shard.infer("one", batch(0), request_id="a", adapt=True)
    data, step = changes.read_state("one")
    assert changes.merge("two", "one")["samples"] == 0  # the trail is each stream's own
    assert state(shard, "two")["adapter/samples"] == 4
    with pytest.raises(Refusal, match="another classes"):
        changes.merge("other", "one")
    with pytest.raises(Refusal, match="cannot take in itself"):
        changes.merge("one", "one")
    with pytest.raises(Refusal, match="is at step 1, and If-Match names 7"):
        changes.write_state("one", data, 7)
    with pytest.raises(Refusal, match="no complete BayesTTA state"):
        changes.write_state("one", b"junk", None)
    assert changes.write_state("one", data, step)["step"] == 2
    assert state(world(), "two")["adapter/samples"] == 4


def test_what_cannot_be_made_is_refused(world):
    shard = world(max_stored=1)
    for spec, match in (
        ({"classes": ["a", "a"]}, "more than once"),
        ({"classes": CLASSES, "method": "bayestto"}, "unknown method"),
        ({"classes": CLASSES, "settings": {"alpa": 1}}, "unknown setting"),
        ({"classes": CLASSES, "method": "tpt"}, "views per image"),
    ):
        with pytest.raises(Refusal, match=match):
            shard.create("cam", spec)
    shard.create("cam", {"classes": CLASSES})
    with pytest.raises(Refusal, match="exists already"):
        shard.create("cam", {"classes": CLASSES})
    with pytest.raises(Refusal, match="holds 1 adapters and takes 1"):
        shard.create("cam-2", {"classes": CLASSES})
    shard.delete("cam")
    assert shard.store.names() == []
    with pytest.raises(Refusal, match="no adapter 'cam'"):
        shard.infer("cam", batch(0), request_id="a", adapt=True)
    shard.create("cam", {"classes": ["a", "b"]})
    assert shard.describe("cam")["classes"] == ["a", "b"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", "a\0b", ".lock", "é", "x" * 65, "-a"])
def test_ids_cannot_leave_the_store(name):
    with pytest.raises(Refusal, match="is not allowed"):
        check_id(name)


def test_request_ids_are_printable():
    assert check_request_id("a" * 128)
    for bad in ("", "a b", "\n", "é", "a" * 129):
        with pytest.raises(Refusal, match="printable"):
            check_request_id(bad)


def test_half_made_folders_are_removed(tmp_path):
    root = tmp_path / "s"
    (root / ".new-cam-1234").mkdir(parents=True)
    (root / ".deleted-cam-1234").mkdir()
    store = Store(root, Limits())
    assert [path.name for path in root.iterdir()] == [".lock"]
    store.create("cam", {"classes": []}, {"x": torch.zeros(1)})
    assert json.loads((root / "cam" / "adapter.json").read_text()) == {"classes": []}
    store.close()


def test_readers_go_before_waiting_writers():
    turn, order = Turn(), []
    turn.enter(reading=False)

    def go(name: str, *, reading: bool) -> None:
        turn.enter(reading=reading)
        order.append(name)
        turn.leave()

    threads = []
    for name, reading in (("writer", False), ("reader", True)):
        threads.append(threading.Thread(target=go, args=(name,), kwargs={"reading": reading}))
        threads[-1].start()
        while not turn._change._waiters or len(turn._change._waiters) < len(threads):
            pass
    turn.leave()
    for thread in threads:
        thread.join()
    assert order == ["reader", "writer"]


def test_limits_are_checked():
    with pytest.raises(ValueError, match="max_batch is 0"):
        Limits(max_batch=0)
