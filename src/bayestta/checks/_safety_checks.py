"""Checks of what an embedding program relies on: grad modes, failures, threads, bad images."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.checks._case import BATCHES, Case, CheckFailed, differing, expect, frozen, same
from bayestta.checks._tiny_model import views

VERBS = ("encode_image", "logits", "encode_embeddings")  # of the model, during a step


def grad_mode(case: Case) -> None:
    """Inside `no_grad` and `inference_mode`, all verbs work and answers are the same."""
    run = case.reference
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            adapter = case.make()
            kept = same(case.adapt(adapter), run.answers)
            expect(kept, f"answers differ inside {mode.__name__}")
            kept = same(case.predict(adapter), run.predicted)
            expect(kept, f"predict differs inside {mode.__name__}")
            adapter.load_state(run.states[0])
        kept = same(case.adapt(adapter, BATCHES[1:2]), run.answers[1:2])
        expect(kept, f"answers differ after {mode.__name__}")
        adapter.load_state(run.states[0])
        with mode():
            adapter.reset()
        kept = same(case.adapt(adapter, BATCHES[:1]), run.answers[:1])
        expect(kept, f"answers differ after a reset inside {mode.__name__}")


class InjectedError(Exception):
    """What the checks raise inside a step."""


@contextmanager
def counted(case: Case, verb: str, act: Callable[[int, Tensor], Tensor]) -> Iterator[list[int]]:
    """Every call of a verb of the model counts, and `act` changes what it returns."""
    count, original = [0], getattr(case.model, verb)

    def call(*args: Any, **keywords: Any) -> Tensor:
        count[0] += 1
        return act(count[0], original(*args, **keywords))

    setattr(case.model, verb, call)
    try:
        yield count
    finally:
        delattr(case.model, verb)


def failed_step(case: Case) -> None:
    """Whatever raises inside `adapt`, and an answer that is not finite, leaves all as it was."""
    run, adapter = case.reference, case.make()
    with ExitStack() as stack:
        counts = {verb: stack.enter_context(counted(case, verb, _pass)) for verb in VERBS}
        case.adapt(adapter, BATCHES[:1])
    for verb, (count,) in counts.items():
        for place in sorted({1, count}) if count else []:
            with counted(case, verb, partial(_interrupt, place)):
                _fails(case, adapter, InjectedError, f"an error in call {place} of model.{verb}")
    with counted(case, "logits", lambda n, y: y * math.nan):
        _fails(case, adapter, Exception, "an answer of NaN")
    kept = same(case.adapt(adapter, BATCHES[1:]), run.answers[1:])
    expect(kept, "answers differ after steps that failed")
    now = adapter.state()
    expect(same(now, run.states[-1]), f"{differing(now, run.states[-1])} goes another way")


def _pass(n: int, y: Tensor) -> Tensor:
    return y


def _interrupt(place: int, n: int, y: Tensor) -> Tensor:
    if n == place:
        raise InjectedError
    return y


def _fails(case: Case, adapter: Adapter, kind: type[Exception], what: str) -> None:
    try:
        case.adapt(adapter, BATCHES[1:2])
    except kind:
        now, before = adapter.state(), case.reference.states[0]
        expect(same(now, before), f"{what} left {differing(now, before)} changed")
        return
    raise CheckFailed(f"{what} is not passed on")


def threads(case: Case) -> None:
    """Two adapters on one model in two threads answer as they do one after the other."""
    orders = [BATCHES[:2], [rows[::-1] for rows in BATCHES[1:]]]
    alone = [case.adapt(case.make(seed=seed), order) for seed, order in enumerate(orders)]
    before = {key: value.clone() for key, value in case.model.visual.state_dict().items()}
    adapters = [case.make(seed=seed) for seed in range(2)]
    work = [[case.batch(a, rows) for rows in o] for a, o in zip(adapters, orders, strict=True)]
    together: list[list[Tensor]] = [[], []]
    errors: list[BaseException] = []
    gate = threading.Barrier(2)

    def go(i: int) -> None:
        try:
            gate.wait(60)
            together[i] = [adapters[i].adapt(x) for x in work[i]]
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that threads meet even in short steps
    try:
        both = [threading.Thread(target=go, args=(i,)) for i in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for error in errors:
        raise CheckFailed(f"{type(error).__name__} in a thread: {error}") from error
    for mine, theirs in zip(together, alone, strict=True):
        for one, two in zip(mine, theirs, strict=True):
            close = torch.allclose(one, two, rtol=1e-4, atol=1e-3)
            expect(close, "answers in two threads differ from those in one")
    now = dict(case.model.visual.state_dict())
    expect(same(now, before), f"{differing(now, before)} of the image tower changed")


def bad_images(case: Case) -> None:
    """NaN and huge pixels and empty batches are refused with a ValueError; nothing changes."""
    adapter = case.make()
    case.adapt(adapter, BATCHES[:1])
    before = frozen(adapter)
    given: dict[str, Any] = {"an empty batch": case.batch(adapter, [])}
    for what, factor in (("NaN pixels", math.nan), ("pixels times 1e18", 1e18), ("1e30", 1e30)):
        plain = case.pictures[:3].clone()
        plain[1] *= factor
        given[what] = plain if adapter.views == 1 else views(case.model, plain, [0, 1, 2])
    for verb in (adapter.adapt, adapter.predict):
        for what, x in given.items():
            try:
                verb(x)
            except ValueError:
                continue
            raise CheckFailed(f"{what} passed {verb.__name__}")
    now = adapter.state()
    expect(same(now, before), f"bad images changed {differing(now, before)}")
