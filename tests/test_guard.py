"""The guard: each sign against plain counting, and adapters driven into collapse."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from bayestta.methods import make_adapter
from bayestta.methods.bayestta.method import BayesTTA
from bayestta.methods.bayestta.pace import SLOWER
from bayestta.methods.guard import MEMORY, Guard, effective_classes
from bayestta.methods.guarded import Guarded
from bayestta.report.decisions import covariance_sentence
from fake_vlm import names, world

CLASSES = (2, 3, 10)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(model, **settings):
    return BayesTTA(model, names(model), ["{}"], **settings)


def watch(K):
    """A guard that only looks."""
    return Guard(SimpleNamespace(classes=range(K)))


def sure_of(y, K, sure):
    """Probabilities (n,K) that give class y so much, and the others the rest in equal parts."""
    p = torch.full((len(y), K), (1 - sure) / (K - 1), dtype=torch.float64)
    p[torch.arange(len(y)), y] = sure
    return p


def hits(answer, y):
    return float((answer.argmax(1) == y).double().mean())


# --- the signs ---


def test_effective_classes_counts_what_is_used():
    assert effective_classes(torch.full((7,), 1 / 7)) == pytest.approx(7)
    assert effective_classes(torch.tensor([0.0, 1.0, 0.0])) == 1
    assert effective_classes(torch.tensor([0.5, 0.25, 0.25])) == pytest.approx(2**1.5)


def test_the_signs_are_means_that_forget():
    rng = torch.Generator().manual_seed(0)
    guard, batches = watch(5), []
    for n in (30, 7, 20):
        logits = torch.randn(2, n, 5, generator=rng, dtype=torch.float64)
        batches.append((logits[0].softmax(1), logits[1]))
        signs = guard.step(*batches[-1])
    sums = dict.fromkeys(("n", "agree", "mine", "theirs", "given"), 0.0)
    used = [torch.zeros(5, dtype=torch.float64) for _ in range(2)]
    for after, pair in zip((27, 20, 0), batches, strict=True):
        w = 0.5 ** (after / MEMORY)
        for answer, sketch in zip(*pair, strict=True):
            p, said = sketch.softmax(0), int(answer.argmax())
            sums["n"] += w
            sums["agree"] += w * (said == int(sketch.argmax()))
            sums["mine"] += w * float(answer.max())
            sums["theirs"] += w * float(p.max())
            sums["given"] += w * float(p[said])
            used = [used[0] + w * answer, used[1] + w * p]
    n = sums["n"]
    assert signs["agreement"] == pytest.approx(sums["agree"] / n)
    assert signs["confidence"] == pytest.approx(sums["mine"] / n)
    assert signs["sketch_confidence"] == pytest.approx(sums["theirs"] / n)
    assert signs["kinship"] >= sums["given"] / sums["theirs"] - 1e-9
    for key, total in zip(("classes", "sketch_classes"), used, strict=True):
        p = total / n
        assert signs[key] == pytest.approx(math.exp(-float((p * p.log()).sum())))


def bad(kind, K, n):
    """Answers and sketch (n,K) that show one sign of collapse; images in random order."""
    rng = torch.Generator().manual_seed(n)
    y = torch.randint(K, (n,), generator=rng)
    kept = torch.rand(n, generator=rng) < {2: 0.2, 3: 0.3, 10: 0.5}[K]
    zero = torch.zeros_like(y)
    return {
        "gives the answers": (sure_of((y + 1) % K, K, 0.9), sure_of(y, K, 0.95)),
        "answers use": (sure_of(y % max(1, 4 * K // 10), K, 0.999), sure_of(y, K, 0.95)),
        "less sure": (sure_of(y, K, 1 / K + 0.1), sure_of(y, K, 0.95)),
        "spread over": (sure_of(zero, K, 0.72), sure_of(zero, K, 0.95)),
        "surer": (sure_of(torch.where(kept, y, zero), K, 0.99), sure_of(y, K, 0.6)),
    }[kind]


KINDS = ("gives the answers", "answers use", "less sure", "spread over", "surer")


@pytest.mark.parametrize("K", CLASSES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_sign_is_noticed(kind, K):
    answer, sketch = bad(kind, K, 1000)
    assert kind in watch(K).step(answer, sketch.log())["collapse"]


@pytest.mark.parametrize("K", CLASSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 8, 128])
def test_it_speaks_within_512_images_after_a_healthy_past(kind, K, size):
    guard, (answer, sketch) = watch(K), bad(kind, K, 512)
    y = sketch.argmax(1)
    for part in y.split(64):
        guard.step(sure_of(part, K, 0.9), sure_of(part, K, 0.9).log())
    told = [
        guard.step(a, s.log())["collapse"]
        for a, s in zip(answer.split(size), sketch.split(size), strict=True)
    ]
    assert any(told)


@pytest.mark.parametrize("K", CLASSES)
@pytest.mark.parametrize("size", [1, 8, 128])
def test_healthy_answers_are_left_alone(K, size):
    rng = torch.Generator().manual_seed(K)
    y = torch.randint(K, (1024,), generator=rng)
    wrong = torch.rand(1024, generator=rng) < 0.3
    sketch = sure_of(torch.where(wrong, torch.randint(K, (1024,), generator=rng), y), K, 0.85)
    mended = torch.where(torch.rand(1024, generator=rng) < 0.5, y, sketch.argmax(1))
    for answer in (sketch, sure_of(mended, K, 0.85), sure_of(y, K, 0.9)):
        guard = watch(K)
        for a, s in zip(answer.split(size), sketch.split(size), strict=True):
            assert not guard.step(a, s.log())["collapse"]


@pytest.mark.parametrize("K", CLASSES)
def test_a_stream_of_one_class_is_healthy(K):
    p = sure_of(torch.zeros(300, dtype=torch.long), K, 0.9)
    assert not watch(K).step(p, p.log())["collapse"]


def test_answers_that_are_no_numbers_are_a_collapse():
    signs = watch(4).step(torch.full((8, 4), torch.nan), torch.zeros(8, 4))
    assert signs["collapse"] == "answers are not finite"


def test_a_sketch_that_prefers_a_class_may_be_mended():
    """Answers that the sketch gives little but for its preference are kin."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(4, (400,), generator=rng)
    logits = 3 * functional.one_hot(y, 4).double()
    logits[:, 0] += 5
    signs = watch(4).step(sure_of(y, 4, 0.9), logits)
    assert signs["agreement"] < 0.35
    assert signs["kinship"] > 0.25
    assert "gives the answers" not in signs["collapse"]


# --- in the adapter ---


def poisoned(batches=16, **settings):
    """An adapter that was well for ten batches and then took each class for its neighbour."""
    model, stream = world(5, batch=64, batches=batches, signal=1.0, drift=0.0)
    adapter = make(model, refine=False, doubt=0.0, **settings)
    for x, _ in stream[:10]:
        adapter.adapt(x)
    state = adapter.state()
    state["stats/mean"] = state["stats/mean"].roll(1, 0)  # every answer is now the next class
    adapter.load_state(state)
    return adapter, stream[10:]


def test_the_answer_of_the_bad_step_is_the_sketch_and_the_last_good_state_is_back():
    adapter, rest = poisoned()
    for x, _ in rest:
        good = {key: value for key, value in adapter.guard.good.items() if key.startswith("stats/")}
        assert float(good["stats/count"].sum()) > 0  # proven by now
        answer = adapter.adapt(x)
        if adapter.caution:
            break
    assert adapter.record["guard"]["collapse"] == adapter.guard.events[0]["reason"]
    torch.testing.assert_close(adapter.probabilities(answer), adapter.sketch.softmax(1))
    state = adapter.state({"stats"})
    for key, value in good.items():
        same = torch.equal(value, state[key]) if isinstance(value, torch.Tensor) else True
        assert same, key
    told = adapter.summary()["guard"]
    assert (told["on"], told["returns"]) == (True, 1)
    x, y = rest[-1]
    sketch = adapter.model.logits(adapter.model.encode_image(x), adapter.text)
    assert hits(adapter.adapt(x), y) > hits(sketch, y) - 0.05


def test_returns_survive_a_file(tmp_path):
    adapter, rest = poisoned()
    while not adapter.caution:
        adapter.adapt(rest[0][0])
    adapter.save(tmp_path / "state")
    other = make(adapter.model, refine=False, doubt=0.0)
    other.load(tmp_path / "state")
    assert other.summary() == adapter.summary()
    for x, _ in rest[1:4]:
        assert torch.equal(other.adapt(x), adapter.adapt(x))
    adapter.reset()
    assert (adapter.caution, adapter.guard.events, adapter.guard.good) == (0, [], {})


def test_without_the_guard_nothing_is_noticed():
    adapter, rest = poisoned(guard=False)
    for x, _ in rest:
        answer = adapter.adapt(x)
    assert adapter.caution == 0
    assert "guard" not in adapter.record
    assert not adapter.summary()["guard"]["on"]
    assert answer.isfinite().all()


def test_the_first_return_is_to_the_start():
    model, stream = world(5, batch=64, batches=4, signal=1.0)
    adapter = make(model, refine=False)
    adapter.adapt(stream[0][0])
    assert not adapter.guard.good
    _, was_bad = adapter.guard.review(torch.full((8, 5), torch.nan), torch.zeros(8, 5))
    assert was_bad
    assert float(adapter.stats.seen.sum()) == 0
    assert (adapter.samples, adapter.steps, adapter.caution) == (64, 1, 1)


def test_a_return_slows_refinement_that_had_moved():
    model, stream = world(5, batch=64, batches=2, signal=0.7)
    adapter = make(model, refine=True)
    adapter.weights.moved = True
    adapter.temperature.log_t = -3.0
    adapter.guard.step = lambda answer, sketch: {"collapse": "a test"}
    adapter.adapt(stream[0][0])
    assert (adapter.caution, adapter.weights.pace.returns) == (1, 1)
    assert not adapter.weights.moved
    rate = adapter.weights.tuned.optimiser.param_groups[0]["lr"]
    assert rate == pytest.approx(SLOWER * adapter.settings.lr)


@pytest.mark.parametrize("factor", [1, 100, 1000])
def test_no_learning_rate_ends_far_below_zero_shot(factor):
    model, stream = world(10, "BatchNorm", batch=64, batches=24, seed=3, signal=0.7, drift=0.02)
    adapter = make(model, refine=True, lr=factor * 2e-3)
    gain = []
    for x, y in stream:
        answer = adapter.adapt(x)
        sketch = model.logits(model.encode_image(x), adapter.text)
        gain.append(hits(answer, y) - hits(sketch, y))
    late = sum(gain[12:]) / 12
    assert late > (0.03 if factor == 1 else -0.03)
    if factor == 1:
        assert adapter.summary()["guard"] == {"on": True, "returns": 0, "events": []}


@pytest.mark.parametrize("K", [2, 5])
def test_a_forced_covariance_per_class_is_noticed_and_does_little_harm(K):
    model, stream = world(K, batch=32, batches=16, seed=1, signal=0.7, drift=0.05)
    adapter, gain = make(model, test="per-class", refine=False), []
    for x, y in stream:
        answer = adapter.adapt(x)
        gain.append(hits(answer, y) - hits(adapter.sketch, y))
    assert adapter.caution or sum(gain) / len(gain) > -0.05
    said = adapter.summary()["covariance"]
    D = adapter.text.shape[1]
    assert said["waits"]
    assert said["reason"] == (
        f"the structure was forced, but the rarest class has {float(adapter.stats.seen.min()):,.0f}"
        f" of {10 * D:,} samples"
    )
    assert "Use test='box'" in covariance_sentence(said)


@pytest.mark.parametrize("preset", ["released", "paper"])
def test_the_published_forms_have_no_guard(preset):
    model, stream = world(3, batch=16, batches=2)
    adapter = make(model, preset=preset)
    adapter.adapt(stream[0][0])
    assert "guard" not in adapter.record
    assert "guard" not in adapter.summary()


# --- around any adapter ---


def tent(model, **settings):
    return Guarded(make_adapter("tent-continual", model, names(model), ["{}"], **settings))


def test_tent_with_a_guard_is_tent_while_it_is_well():
    model, stream = world(5, "BatchNorm", batch=32, batches=4, signal=1.0)
    plain = make_adapter("tent-continual", model, names(model), ["{}"])
    guarded = tent(model)
    for x, _ in stream:
        assert torch.equal(guarded.adapt(x), plain.adapt(x))
    assert torch.equal(guarded.predict(x), plain.predict(x))
    assert guarded.caution == 0
    assert (guarded.samples, guarded.inner_adapter.samples) == (128, 128)


def test_tent_that_collapses_is_brought_back():
    model, stream = world(5, "BatchNorm", batch=64, batches=30, signal=1.0, drift=0.0)
    plain = make_adapter("tent-continual", model, names(model), ["{}"], lr=0.5)
    guarded = tent(model, lr=0.5)
    ours, theirs, zero = [], [], []
    for x, y in stream:
        ours.append(hits(guarded.adapt(x), y))
        theirs.append(hits(plain.adapt(x), y))
        zero.append(hits(model.logits(model.encode_image(x), guarded.text), y))
    assert sum(theirs) < sum(zero) - 3  # 10 points below
    assert guarded.caution >= 1
    assert guarded.summary()["guard"]["events"]
    assert sum(ours) > sum(theirs)


def test_a_guarded_adapter_goes_on_and_merges(tmp_path):
    model, stream = world(5, "BatchNorm", batch=32, batches=6, signal=1.0)
    one, two, three = (tent(model) for _ in range(3))
    for x, _ in stream[:3]:
        one.adapt(x)
    one.save(tmp_path / "state")
    two.load(tmp_path / "state")
    for x, _ in stream[3:5]:
        assert torch.equal(one.adapt(x), two.adapt(x))
        assert one.record == two.record
    three.adapt(stream[5][0])
    three.merge(one)
    assert (three.samples, three.inner_adapter.samples) == (192, 192)
    assert three.guard.good
    key = "inner/tuned/bn1.weight"
    assert torch.equal(three.guard.good[key], three.state()[key])
    plain = make_adapter("tent-continual", model, names(model), ["{}"])
    with pytest.raises(ValueError, match="another method"):
        plain.load(tmp_path / "state")
    three.reset()
    assert (three.samples, three.inner_adapter.samples) == (0, 0)
