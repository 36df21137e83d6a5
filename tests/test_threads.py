"""One model, many threads and adapters: the answers and the weights are those of one thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import pytest
import torch

import bayestta as bt
from bayestta.adapter import TEMPLATES
from bayestta.models._norms import norm_parameters
from conftest import tiny_vlm

CLASSES = ["cat", "dog", "ship"]


def stream(size: int, seed: int) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, size, size, generator=rng) for _ in range(6)]


@pytest.mark.parametrize("name", ["mini-rn", "mini-vit"])
def test_two_threads_with_refinement_give_the_answers_of_one(name):
    model = tiny_vlm(name)
    size, before = model.preprocess.size, {k: v.clone() for k, v in model.clip.state_dict().items()}
    versions = [p._version for p in model.clip.parameters()]
    barrier = Barrier(2)

    def work(seed: int, *, together: bool) -> list[torch.Tensor]:
        settings = {"refine": True, "gate": 0.0, "share": 1.0}  # every image gets a gradient
        adapter = bt.make_adapter("bayestta", model, CLASSES, seed=seed, **settings)
        if together:
            barrier.wait()
        return [adapter.adapt(x) for x in stream(size, seed)]

    alone = [work(seed, together=False) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, seed, together=True) for seed in (1, 2)]
        threaded = [future.result() for future in futures]
    for one, other in zip(alone, threaded, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    after = model.clip.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert versions == [p._version for p in model.clip.parameters()]


@pytest.mark.parametrize("method", ["tent-continual", "cotta", "rotta", "bayestta"])
def test_what_is_made_during_the_pass_of_another_thread_starts_from_the_source(method):
    """While it lasts, the tower holds the tensors of the other adapter."""
    model, settings = tiny_vlm("mini-rn"), {"refine": True} if method == "bayestta" else {}
    moved = {key: value + 1 for key, value in norm_parameters(model.visual).items()}
    text = model.prototypes(CLASSES, TEMPLATES)
    model.prototypes = lambda *_: text.clone()  # making them would wait for the end of the pass
    want = bt.make_adapter(method, model, CLASSES, **settings).state()
    made, early = [], []

    def meanwhile(*_):
        thread = Thread(
            target=lambda: made.append(bt.make_adapter(method, model, CLASSES, **settings))
        )
        thread.start()
        thread.join(0.3)
        early.append(not thread.is_alive())
        threads.append(thread)

    threads: list[Thread] = []
    hook = model.visual.register_forward_pre_hook(meanwhile)
    model.encode_image(stream(model.preprocess.size, 0)[0], moved, "batch")
    hook.remove()
    threads[0].join()
    assert early == [False]  # it waits for the end of the pass
    got = made[0].state()
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert (
            torch.equal(value, got[key]) if isinstance(value, torch.Tensor) else got[key] == value
        )


def test_a_stream_s_statistics_are_no_matter_of_another_thread_s_pass():
    """BatchNorms are told apart by their stored statistics, which another's pass takes away."""
    model = tiny_vlm("mini-rn")
    tower = bt.BayesTTA(model, CLASSES).tower
    blended = next(i for i, (_, share) in enumerate(tower.candidates) if share)
    x, threads, features = stream(model.preprocess.size, 0)[0], [], []

    def meanwhile(*_):
        if not threads:
            encode = lambda: features.append(tower.encode(x, blended, None))  # noqa: E731
            threads.append(Thread(target=encode))
            threads[0].start()
            threads[0].join(0.3)

    hook = model.visual.register_forward_pre_hook(meanwhile)
    model.encode_image(x, None, "batch")
    hook.remove()
    threads[0].join()
    assert torch.equal(features[0], tower.encode(x, blended, None))


def test_prompts_that_are_tuned_do_not_meet_in_the_text_tower(tmp_path):
    """transformers' text tower takes embeddings by a hook, which two threads must not share."""
    from test_transformers import write

    write("clip", tmp_path)
    model = bt.load_model(f"hf:{tmp_path}")
    embedded, tokens = model.embed(["a cat", "a dog"])
    plain = model.encode_text(["a cat", "a dog"])
    moved = [embedded + i for i in (1, 2)]
    want = [model.encode_embeddings(each, tokens) for each in moved]
    barrier = Barrier(3)

    def tune(i: int) -> bool:
        barrier.wait()
        return all(
            torch.equal(model.encode_embeddings(moved[i], tokens), want[i]) for _ in range(30)
        )

    def encode() -> bool:
        barrier.wait()
        return all(torch.equal(model.encode_text(["a cat", "a dog"]), plain) for _ in range(30))

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(tune, 0), pool.submit(tune, 1), pool.submit(encode)]
        assert all(future.result() for future in futures)


def test_apples_gpu_is_refused_with_the_reason(tiny_vit, monkeypatch):
    monkeypatch.setattr(type(tiny_vit), "device", torch.device("mps"))
    with pytest.raises(ValueError, match="'mps' has no float64, in which statistics are kept"):
        bt.BayesTTA(tiny_vit, CLASSES)


def test_only_the_runner_waits_for_a_gpu(tiny_vit, monkeypatch):
    def synchronize(*_):
        raise AssertionError("somebody waits for the device")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    adapter = bt.BayesTTA(tiny_vit, CLASSES)
    for x in stream(32, 0)[:2]:
        adapter.adapt(x)
        adapter.predict(x)
    assert not hasattr(tiny_vit, "encode_seconds")
