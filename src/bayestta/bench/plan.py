"""`Run`, one method on one stream, and the TOML file that lists many."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from bayestta.names import unknown

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

SEED = 1  # where none is given, for every command and bench file
LONGEST = 120  # letters of a model's name in the name of a file; a path may have more


@dataclass(frozen=True)
class Run:
    """One method with one model on one stream."""

    data: str
    model: str
    method: str
    seed: int = SEED
    limit: int | None = None
    batch_size: int = 128
    order: str = "time"
    split: str | None = None
    templates: str = "data"
    reset_every: str | None = None
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    provenance: str = "user"  # of the settings: user, authors or tuned
    rounds: int = 1
    orders: int = 1  # more than one: also the tail accuracy over so many orders of the images
    options: dict[str, Any] = field(default_factory=dict, hash=False)  # further ones of load_data
    label: str | None = None  # what reports call it
    root: str | None = None  # folder of the data
    device: str = "cpu"
    precision: str = "fp32"
    explain: bool = False  # t-SNE and Grad-CAM pictures too
    guard: bool = False  # watch for a collapse of the answers, and return to the last good state

    @property
    def file(self) -> str:
        """The name of its result: only what differs from the defaults counts, so that a new field
        of a later version leaves earlier results where they are found."""
        changes = {k: v for k, v in vars(self).items() if v != getattr(_PLAIN, k)}
        text = json.dumps(changes, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        model = self.model.replace("/", "_").replace(":", "_")[-LONGEST:]
        return f"{self.data}-{model}-{self.method}-{self.seed}-{digest}.json"

    def __str__(self) -> str:
        set_ = " ".join(f"{key}={value}" for key, value in self.settings.items())
        extra = [f"{self.rounds} rounds"] if self.rounds > 1 else []
        extra += [f"{self.orders} orders"] if self.orders > 1 else []
        extra += [f"batches of {self.batch_size}"] if self.batch_size != 128 else []
        extra += [f"order {self.order}"] if self.order != "time" else []
        extra += ["guarded"] if self.guard else []
        words = [self.label or self.method, set_, f"{self.model} on {self.data}", *extra]
        return ", ".join([*filter(None, words), f"seed {self.seed}"])


_PLAIN = Run(data="", model="", method="")

AXES = {  # key of the file -> field; a list is multiplied out
    "data": "data",
    "models": "model",
    "methods": "method",
    "seeds": "seed",
    "batch_size": "batch_size",
    "order": "order",
}
SINGLE = (
    *("limit", "split", "templates", "reset_every", "provenance", "rounds", "options", "label"),
    *("root", "device", "precision", "explain", "guard", "orders"),
)
KEYS = (*AXES, *SINGLE, "set", "grid")
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("seeds", "batch_size", "limit", "rounds", "orders"), (int,)),
    **dict.fromkeys(("set", "grid", "options"), (dict,)),
    **dict.fromkeys(("explain", "guard"), (bool,)),
}


def read_bench(path: str | os.PathLike[str]) -> list[Run]:
    """The runs of a TOML file; an unknown key is refused with the valid ones."""
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML ({error}): correct it.") from None
    for key in tables:
        if key not in ("bench", "runs"):
            raise ValueError(unknown(f"table of {path}", key, ("bench", "runs")))
    shared = tables.get("bench", {})
    runs: dict[str, Run] = {}
    for entry in tables.get("runs", []):
        for run in _multiply({**shared, **entry}):
            runs.setdefault(run.file, run)
    if not runs:
        raise ValueError(
            f"{path} holds no run: add a [[runs]] table with data, models and methods."
        )
    return list(runs.values())


def _multiply(entry: Mapping[str, Any]) -> Iterable[Run]:
    for key, value in entry.items():
        if key not in KEYS:
            raise ValueError(unknown("key of a bench file", key, KEYS))
        for item in _listed(value) if key in AXES else [value]:
            kinds = KINDS.get(key, (str,))
            if not isinstance(item, kinds) or (isinstance(item, bool) and bool not in kinds):
                word = " or ".join(kind.__name__ for kind in kinds)
                raise ValueError(f"{key} of a bench file is {item!r}: give a value of type {word}.")
    missing = [key for key in ("data", "models", "methods") if key not in entry]
    if missing:
        raise ValueError(f"a [[runs]] table lacks {', '.join(missing)}: add them as lists.")
    axes = {name: _listed(entry[key]) for key, name in AXES.items() if key in entry}
    grid = {key: _listed(values) for key, values in entry.get("grid", {}).items()}
    single = {key: entry[key] for key in SINGLE if key in entry}
    for chosen in product(*axes.values()):
        for values in product(*grid.values()):
            settings = {**entry.get("set", {}), **dict(zip(grid, values, strict=True))}
            yield Run(**dict(zip(axes, chosen, strict=True)), settings=settings, **single)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]
