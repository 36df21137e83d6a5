"""One file per method; `make_adapter` builds one by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from bayestta.adapter import Adapter
from bayestta.models.base import VLM
from bayestta.registry import Registry

A = TypeVar("A", bound=type[Adapter])
METHODS: Registry[type[Adapter]] = Registry("method", "bayestta.methods")


def register(cls: A) -> A:
    """Class decorator: make a method known by its `name`."""
    if not cls.name:
        raise ValueError(f"{cls.__name__} has no name: set the class attribute `name`.")
    METHODS.add(cls.name, cls)
    return cls


def methods() -> dict[str, type[Adapter]]:
    """All methods by name; those of the package are found by walking `bayestta.methods`."""
    return {name: METHODS[name] for name in METHODS}


def settings_of(adapter: Adapter) -> dict[str, Any]:
    """All settings in force: `make_adapter(adapter.name, model, classes, **settings_of(adapter))`
    gives the same adapter."""
    return dict(**adapter.settings)


def make_adapter(
    name: str,
    model: VLM,
    classes: Sequence[str],
    templates: Sequence[str] | None = None,
    *,
    seed: int = 0,
    **settings: Any,
) -> Adapter:
    """Build a method by name; an unknown setting is refused with the valid ones."""
    return METHODS.find(name)(model, classes, templates, seed=seed, **settings)
