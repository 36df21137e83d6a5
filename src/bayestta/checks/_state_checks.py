"""Checks of what a method keeps: starting over, files, loading, size and merging."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.checks._case import BATCHES, Case, CheckFailed, differing, expect, frozen, same


def reset(case: Case) -> None:
    """After `reset` the adapter is as if it had just been made."""
    adapter, fresh = case.make(), case.make()
    case.adapt(adapter, BATCHES[:1])
    adapter.reset()
    one, two = adapter.state(), fresh.state()
    expect(same(one, two), f"reset leaves {differing(one, two)} changed: declare it by add_state")
    expect(same(case.adapt(adapter), case.reference.answers), "answers differ after a reset")
    one, two = adapter.state(), case.reference.states[-1]
    expect(same(one, two), f"{differing(one, two)} goes another way after a reset")


def save_and_load(case: Case) -> None:
    """A saved state, loaded into another adapter, goes on to the bit as if never stopped."""
    run, first, second = case.reference, case.make(), case.make(seed=9)
    case.adapt(first, BATCHES[:2])
    given = first.state()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        first.save(path)
        case.adapt(first, BATCHES[2:])
        fact = "a state that was handed out changes with the adapter: hand out copies"
        expect(same(given, run.states[1]), fact)
        case.adapt(second, BATCHES[2:])  # something to be overwritten
        second.load(path)
    loaded = second.state()
    expect(same(loaded, given), f"{differing(loaded, given)} is not what was saved")
    kept = same(case.adapt(second, BATCHES[2:]), run.answers[2:])
    expect(kept, "answers differ after loading: declare all that moves by add_state")
    last = second.state()
    expect(same(last, run.states[2]), f"{differing(last, run.states[2])} goes another way")
    expect(same(case.predict(second), run.predicted), "predict differs after loading")


def loading(case: Case) -> None:
    """A state that does not fit is refused with a ValueError, and nothing changes."""
    adapter = case.make()
    places = {k: v.device for k, v in adapter.state().items() if isinstance(v, Tensor)}
    case.adapt(adapter, BATCHES[:2])
    before = frozen(adapter)
    for fact, bad in unfit(before):
        try:
            adapter.load_state(bad)
        except ValueError:
            now = adapter.state()
            expect(same(now, before), f"a state with {fact} changed {differing(now, before)}")
            continue
        raise CheckFailed(f"a state with {fact} is loaded instead of refused")
    adapter.load_state({k: v.cpu() if isinstance(v, Tensor) else v for k, v in before.items()})
    for key, device in places.items():
        where = adapter.state()[key].device
        expect(where == device, f"{key} is loaded to {where} instead of {device}")
    kept = same(case.adapt(adapter, BATCHES[2:]), case.reference.answers[2:])
    expect(kept, "answers differ after states that were refused")


def unfit(good: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies of a state with one thing wrong each, and what that is."""
    groups: dict[str, list[str]] = {}
    for key in good:
        groups.setdefault(key.rpartition("/")[0] or key, []).append(key)
    for part, keys in groups.items():
        extra = f"{part}/nonsense" if keys != [part] else f"{part}nonsense"
        yield f"the unknown entry {extra}", {**good, extra: torch.zeros(1)}
        yield f"{keys[-1]} missing", {k: v for k, v in good.items() if k != keys[-1]}
        for fact, value in spoilt(good[keys[0]]):  # every one of them would take long
            yield f"{keys[0]} {fact}", {**good, keys[0]: value}


def spoilt(value: Any) -> Iterator[tuple[str, Any]]:
    """What a piece of state cannot be."""
    if not isinstance(value, Tensor):
        yield "of another type", [value]
        if isinstance(value, float):
            yield "not a number", math.nan
        return
    yield "of another shape", value[None].repeat(3, *[1] * value.ndim)
    if value.ndim > 1:
        yield "of another width", torch.cat([value, value], -1)
    floating = value.is_floating_point()
    yield "of another type", value.to(torch.float16 if floating else torch.float32)
    if floating and value.numel():
        yield "not a number", torch.full_like(value, math.nan)


def bounded_memory(case: Case) -> None:
    """The state does not grow with every image of the stream."""
    adapter = case.make()
    case.adapt(adapter, [[0, 1, 2], [3, 4, 5]] * 3)
    before = size(adapter)
    case.adapt(adapter, [[0, 1, 2], [3, 4, 5]])
    first = growth = size(adapter) - before
    seen, enough = 24, 400
    while growth >= 4 * 6 and seen < enough:  # a number per image: perhaps a memory that fills
        before = size(adapter)
        case.adapt(adapter, [list(range(16)), list(range(16))])
        growth, seen = size(adapter) - before, seen + 32
    expect(growth < 4 * 6, f"after {seen} images the state still grows, by {first} bytes per 6")


def size(adapter: Adapter) -> int:
    """Bytes of the state."""
    values = adapter.state().values()
    return sum(v.nbytes if isinstance(v, Tensor) else len(json.dumps(v)) for v in values)


def merge(case: Case) -> None:
    """Merging adds evidence: an untouched copy adds none, the other adapter stays as it is."""
    run, adapter, other = case.reference, case.make(), case.make(seed=3)
    if adapter.no_merge:
        return _says_why(adapter, other)
    adapter.load_state(run.states[-1])
    adapter.merge(other)
    now = adapter.state()
    expect(same(now, run.states[-1]), f"an untouched copy changes {differing(now, run.states[-1])}")
    expect(same(case.predict(adapter), run.predicted), "an untouched copy changes the answers")
    other.merge(adapter)
    close = torch.allclose(case.predict(other), run.predicted, rtol=1e-4, atol=1e-4)
    expect(close, "an untouched adapter does not answer like the one that it took in")
    worker = case.make(seed=4)
    case.adapt(worker, [rows[::-1] for rows in BATCHES[:2]])
    before = frozen(worker)
    adapter.merge(worker)
    after = worker.state()
    expect(same(after, before), f"merging changes {differing(after, before)} of the other adapter")
    total = sum(map(len, BATCHES)) + sum(map(len, BATCHES[:2]))
    expect(adapter.samples == total, f"samples are {adapter.samples} instead of {total}")
    expect(bool(torch.isfinite(case.predict(adapter)).all()), "merged answers hold NaN")
    return None


def _says_why(adapter: Adapter, other: Adapter) -> None:
    try:
        adapter.merge(other)
    except NotImplementedError as error:
        expect(adapter.no_merge in str(error), "the refusal to merge does not say why")
        return
    raise CheckFailed("no_merge gives a reason, but merging is done")
