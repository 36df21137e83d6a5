"""One method on one tiny tower: what the checks build, feed and compare."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.checks._tiny_model import is_pristine, pictures, tiny_model, views
from bayestta.models.base import VLM

CLASSES = ["cat", "dog", "red car", "tree"]
TEMPLATES = ["a photo of a {}.", "a bad {}."]
BATCHES = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]  # rows of the pictures


class CheckFailed(AssertionError):  # noqa: N818 - reads as what happened
    """A promise that a method did not keep: the name of the check, and a sentence."""


def expect(kept: bool, fact: str) -> None:
    """Fail the check with what was seen instead."""
    if not kept:
        raise CheckFailed(fact)


def same(one: Any, two: Any) -> bool:
    """Whether tensors, numbers, and lists and dicts of them are equal to the bit."""
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    return bool(one == two)


def frozen(adapter: Adapter) -> dict[str, Any]:
    """A state that nothing reaches any more, even where an adapter hands out its own."""
    return copy.deepcopy(adapter.state())


def differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """The names of the entries that are not the same, at most three."""
    keys = sorted({*one, *two})
    found = [key for key in keys if not (key in one and key in two and same(one[key], two[key]))]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


@dataclass
class Run:
    """Answers to the batches, the state after each, and a last answer without learning."""

    answers: list[Tensor]
    states: list[dict[str, Any]]
    predicted: Tensor


@dataclass
class Case:
    """A method on a tower. Every check gets a model of its own.

    Parameters
    ----------
    method
        A subclass of `Adapter`, or a function that takes the same arguments and makes an adapter.
    tower
        `BatchNorm` or `LayerNorm`.
    settings
        Those that make the method small and fast.
    """

    method: Callable[..., Adapter]
    tower: str = "LayerNorm"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = tiny_model(self.tower)

    def renew(self) -> None:
        """Forget what has been done to the model; a copy takes longer than a look."""
        if not is_pristine(self.model, self.tower):
            self.model = tiny_model(self.tower)

    def make(self, *, model: VLM | None = None, seed: int = 0, **changes: Any) -> Adapter:
        # The global generator is pinned here and in `adapt`: one check alone asks about it.
        with torch.random.fork_rng():
            torch.manual_seed(0)
            settings = {**self.settings, **changes}
            model = self.model if model is None else model
            return self.method(model, CLASSES, TEMPLATES, seed=seed, **settings)

    def batch(self, adapter: Adapter, rows: list[int]) -> Any:
        """What a stream would hand to the adapter: images (B,C,H,W), or lazy views of them."""
        plain = self.pictures[rows].clone()
        return plain if adapter.views == 1 else views(self.model, plain, rows)

    def adapt(self, adapter: Adapter, batches: Iterable[list[int]] = BATCHES) -> list[Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return [adapter.adapt(self.batch(adapter, rows)) for rows in batches]

    def predict(self, adapter: Adapter) -> Tensor:
        return adapter.predict(self.batch(adapter, BATCHES[1]))

    @cached_property
    def pictures(self) -> Tensor:
        with torch.inference_mode(False):
            return pictures(tiny_model(self.tower))

    @cached_property
    def reference(self) -> Run:
        """The run that the checks compare with, on a model of its own."""
        case = Case(self.method, self.tower, self.settings)
        adapter, answers, states = case.make(), [], []
        for rows in BATCHES:
            answers += case.adapt(adapter, [rows])
            states.append(frozen(adapter))
        return Run(answers, states, case.predict(adapter))
