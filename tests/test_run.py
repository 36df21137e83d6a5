"""The runner: what it hands to adapters, how it counts, and the file that it writes."""

from __future__ import annotations

import json
import math
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor

from bayestta.data import Batch
from bayestta.evaluation import environment
from bayestta.evaluation.result import SCHEMA, Result, plain, write_atomic
from bayestta.evaluation.steps import evaluate, steps
from bayestta.evaluation.totals import thin

K = 3


class Clock:
    """Time that passes only when somebody says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Model:
    name, fingerprint, dtype, device = "fake", "f00d", torch.float32, torch.device("cpu")
    dim, input_shape = K, (K,)

    def __init__(self) -> None:
        self.visual = torch.nn.Identity()  # the tower, whose passes the runner times

    def encode_image(self, x: Tensor) -> Tensor:
        return x

    def logits(self, z: Tensor, text: Tensor) -> Tensor:
        return z @ text.T


class Fake:
    """Answers with its input, and counts."""

    name, reset_every, views, seed = "fake-method", "never", 1, 4
    classes, templates = ["cat", "dog", "eel"], ["a {}."]
    answer, moves_tower = "before", False
    text = 2 * torch.eye(K)
    settings: ClassVar[dict[str, Any]] = {"alpha": 1.0, "rate": math.inf, "shape": (1, 2)}

    def __init__(self, clock: Clock | None = None) -> None:
        self.model, self.clock = Model(), clock
        self.sketch: Tensor | None = None
        self.record: dict[str, Any] = {}
        self.seen: list[Any] = []
        self.resets: list[int] = []
        if clock:
            self.model.visual.register_forward_hook(lambda *_: setattr(clock, "now", clock.now + 2))

    def adapt(self, x: Tensor) -> Tensor:
        assert type(x) is Tensor
        self.seen.append(x)
        if self.clock:
            self.clock.now += 1
            self.model.visual(x)  # which takes 2 more
        self.sketch = x.flip(1)
        self.record = {"F": math.nan, "step": len(self.seen)}
        return x

    def reset(self) -> None:
        self.resets.append(len(self.seen))
        if self.clock:
            self.clock.now += 1

    def probabilities(self, logits: Tensor) -> Tensor:
        return (logits / 2).softmax(dim=1)

    def summary(self) -> dict[str, Any]:
        return {"covariance": {"F": 1.5, "usable": True}, "guard": {"returns": 0}}


SIZES = {"dusk": [4, 4, 2], "night": [4, 1]}


def batches(clock: Clock | None = None, seed: int = 2) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    for domain, sizes in SIZES.items():
        for n in sizes:
            if clock:
                clock.now += 0.5
            x = 3 * torch.randn(n, K, generator=generator)
            y = torch.randint(K, (n,), generator=generator)
            yield Batch(x, y, domain, torch.arange(n))


def result() -> Result:
    return evaluate(Fake(), batches(), meta={"data": "sky", "limit": 10})


def test_steps_hold_the_answer_and_the_adapter_gets_pixels_only() -> None:
    adapter = Fake()
    taken = list(steps(adapter, batches()))
    assert [(s.index, s.domain, s.n) for s in taken] == [
        *((0, "dusk", 4), (1, "dusk", 4), (2, "dusk", 2)),
        *((3, "night", 4), (4, "night", 1)),
    ]
    for step, batch, seen in zip(taken, batches(), adapter.seen, strict=True):
        assert torch.equal(seen, batch.x)
        assert torch.equal(step.logits, batch.x)
        assert torch.equal(step.probabilities, (batch.x / 2).softmax(1))
        assert step.sketch is not None
        assert torch.equal(step.sketch, batch.x.flip(1))
        assert step.y is not None
        assert batch.y is not None
        assert torch.equal(step.y, batch.y)
    assert [s.record["step"] for s in taken] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("default", "reset_every", "resets"),
    [
        ("never", None, []),
        ("domain", None, [0, 3]),
        ("never", "domain", [0, 3]),
        ("domain", "never", []),
        ("never", "batch", [0, 1, 2, 3, 4]),
    ],
)
def test_reset(default: str, reset_every: str | None, resets: list[int]) -> None:
    adapter = Fake()
    adapter.reset_every = default
    found = evaluate(adapter, batches(), reset_every=reset_every)
    assert adapter.resets == resets
    assert found.reset_every == (reset_every or default)


def test_unknown_reset_is_refused_before_the_first_batch() -> None:
    with pytest.raises(ValueError, match=r"'domains'.*did you mean 'domain'"):
        steps(Fake(), batches(), reset_every="domains")


def test_run_is_lazy() -> None:
    adapter = Fake()
    next(steps(adapter, batches()))
    assert len(adapter.seen) == 1


def test_seconds_are_split_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in ("steps", "_stopwatch"):
        monkeypatch.setattr(sys.modules[f"bayestta.evaluation.{module}"], "time", clock)
    adapter = Fake(clock)

    def dawdle(_: object) -> None:
        clock.now += 100  # the caller's time is nobody's

    found = evaluate(adapter, batches(clock), reset_every="batch", progress=dawdle)
    assert found.seconds == {"data": 2.5, "encode": 10.0, "adapt": 10.0, "total": 22.5}


def test_result_equals_scikit_learn_on_everything_at_once() -> None:
    found = result()
    everything = list(batches())
    x = torch.cat([b.x for b in everything]).double()
    y = torch.cat([b.y for b in everything if b.y is not None])
    assert found.n == 15
    assert found.steps == 5
    assert found.accuracy == pytest.approx(100 * accuracy_score(y, x.argmax(1)))
    assert found.nll == pytest.approx(log_loss(y, (x / 2).softmax(1), labels=range(K)), rel=1e-5)
    assert found.sketch is not None
    assert found.sketch["accuracy"] == pytest.approx(100 * accuracy_score(y, x.flip(1).argmax(1)))
    assert found.sketch["nll"] == pytest.approx(log_loss(y, x.flip(1).softmax(1), labels=range(K)))
    assert [(d["name"], d["n"]) for d in found.domains] == [("dusk", 10), ("night", 5)]
    dusk, night = (d["accuracy"] for d in found.domains)
    assert dusk == pytest.approx(100 * accuracy_score(y[:10], x[:10].argmax(1)))
    assert found.accuracy == pytest.approx((10 * dusk + 5 * night) / 15)
    assert found.accuracy_unweighted == pytest.approx((dusk + night) / 2)
    assert dusk != night  # or the two averages could not differ
    assert sum(e["hits"] for e in found.trace) == sum(d["hits"] for d in found.domains)
    assert [e["n"] for e in found.trace] == [4, 4, 2, 4, 1]
    assert sum(e["sketch_hits"] for e in found.trace) == found.sketch["hits"]


def test_a_method_without_sketch_and_record() -> None:
    """The pristine model is asked for the sketch."""
    adapter = Fake()
    adapter.adapt = lambda x: x
    found = evaluate(adapter, batches())
    assert set(found.trace[0]) == {"domain", "steps", "n", "hits", "sketch_hits"}
    assert found.sketch is not None
    assert found.sketch["accuracy"] == found.accuracy  # answers are its own logits, halved
    for step, batch in zip(steps(adapter, batches()), batches(), strict=True):
        assert step.sketch is not None
        assert torch.equal(step.sketch, 2 * batch.x)


def test_a_method_that_moves_the_tower_is_compared_with_the_pristine_model() -> None:
    adapter = Fake()
    adapter.moves_tower = True
    for step, batch in zip(steps(adapter, batches()), batches(), strict=True):
        assert adapter.sketch is not None
        assert step.sketch is not None
        assert torch.equal(step.sketch, 2 * batch.x)


def test_result_file_has_what_was_promised_and_reads_back(tmp_path: Path) -> None:
    found = result()
    path = tmp_path / "deep" / "er" / "r.json"
    found.save(path)
    value = json.loads(path.read_text(), parse_constant=lambda c: pytest.fail(f"{c} in the file"))
    promised = "schema method model data seed accuracy domains seconds peak_memory_bytes settings"
    for key in [*promised.split(), "covariance", "guard", "versions", "commit", "trace"]:
        assert key in value
    assert value["schema"] == SCHEMA
    assert (value["method"], value["model"], value["data"]) == ("fake-method", "fake", "sky")
    assert (value["seed"], value["limit"], value["answer"]) == (4, 10, "before")
    assert {"name", "n", "accuracy", "ece", "nll", "brier", "hits", "bins"} <= set(
        value["domains"][0]
    )
    assert set(value["seconds"]) == {"data", "encode", "adapt", "total"}
    assert value["settings"] == {"alpha": 1.0, "rate": None, "shape": [1, 2]}
    assert value["trace"][0]["record"] == {"F": None, "step": 1}
    assert value["versions"]["torch"] == torch.__version__
    assert value["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    again = Result.load(path)
    assert again.path == path
    assert again.to_json() == found.to_json() == value
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]


def test_meta_is_checked_before_the_run() -> None:
    adapter = Fake()
    with pytest.raises(ValueError, match=r"'batchsize'.*'batch_size'"):
        evaluate(adapter, batches(), meta={"batchsize": 3})
    with pytest.raises(ValueError, match="accuracy"):
        evaluate(adapter, batches(), meta={"accuracy": 100.0})
    assert not adapter.seen


def test_unlabelled_and_empty_streams_are_refused() -> None:
    one = Batch(torch.randn(2, K), None, "mine", torch.arange(2))
    with pytest.raises(ValueError, match=r"'mine' has no labels.*predict"):
        evaluate(Fake(), [one])
    assert next(steps(Fake(), [one])).y is None
    with pytest.raises(ValueError, match="no batch"):
        evaluate(Fake(), [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not a complete JSON file"),
        (lambda _: "", "not a complete JSON file"),
        (lambda _: "[1, 2]", "not a result of bayestta"),
        (lambda _: '{"name": "package"}', "not a result of bayestta"),
        (lambda _: '{"schema": 1, "name": "package"}', "lacks method, model"),
        (lambda text: text.replace(f'"schema": {SCHEMA}', '"schema": 99'), "schema 99"),
        (lambda text: text.replace('"split"', '"spilt"'), "unknown spilt"),
        (lambda text: text.replace('"name"', '"nam"'), "domains without name"),
    ],
)
def test_files_that_are_no_results_get_one_sentence(
    tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "r.json"
    result().save(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as error:
        Result.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ValueError, match="not a complete JSON file"):
        Result.load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    write_atomic(path, "old")

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        result().save(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_atomic(path, "old")
    with path.open() as reader:
        write_atomic(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_plain_values() -> None:
    value = {"t": torch.tensor([1.0, math.nan]), "d": torch.float32, "s": {"b", "a"}, "n": None}
    assert plain(value) == {"t": [1.0, None], "d": "torch.float32", "s": ["a", "b"], "n": None}
    assert plain(torch.tensor(3)) == 3
    assert plain(True) is True


def test_the_trace_of_a_long_stream_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = result()
    monkeypatch.setattr(sys.modules["bayestta.evaluation.totals"], "TRACE", 3)
    short = result()
    assert len(short.trace) <= 3 < len(whole.trace)
    for key in ("n", "hits", "sketch_hits", "steps"):
        for domain in SIZES:
            sums = [sum(e[key] for e in r.trace if e["domain"] == domain) for r in (whole, short)]
            assert sums[0] == sums[1]


def test_thinning_never_mixes_domains() -> None:
    trace = [{"domain": d, "n": 1, "record": {"i": i}} for i, d in enumerate("aaabb")]
    assert thin(trace) == [
        {"domain": "a", "n": 2, "record": {"i": 1}},
        {"domain": "a", "n": 1, "record": {"i": 2}},
        {"domain": "b", "n": 2, "record": {"i": 4}},
    ]


def test_peak_memory_is_that_of_the_run() -> None:
    class Greedy(Fake):
        def adapt(self, x: Tensor) -> Tensor:
            with mmap.mmap(-1, 100 * 2**20) as fresh:  # an allocator may have as much to spare
                fresh.write(b"1" * len(fresh))
            return super().adapt(x)

    first = evaluate(Greedy(), batches()).peak_memory_bytes
    second = evaluate(Fake(), batches()).peak_memory_bytes
    assert first is not None
    assert second is not None
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system does not let a process reset its peak")
    assert first - second > 80 * 2**20


def test_commit_is_of_the_checkout_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = environment.commit()
    assert found is None or len(found) >= 7

    def broken(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("git", 10)

    monkeypatch.setattr(subprocess, "run", broken)
    assert environment.commit() is None


def test_results_are_read_without_torch() -> None:
    code = "import sys, bayestta.evaluation.result; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
