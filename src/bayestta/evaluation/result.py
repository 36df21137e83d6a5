"""What one run found, as one JSON file that says where it came from; reading it needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from bayestta.evaluation._schema import complaint
from bayestta.files import replacing

SCHEMA = 2


@dataclass
class Result:
    """One method on one stream; the fields are the keys of the JSON file.

    Accuracies are percentages, `ece` is a fraction, `nll` is in nats, `seconds` add up to `total`.
    """

    method: str
    model: str
    data: str
    seed: int
    n: int  # images
    accuracy: float  # of all images: domains weigh by their size
    accuracy_unweighted: float  # mean over domains
    ece: float
    nll: float
    brier: float
    domains: list[dict[str, Any]]  # in stream order: name, and what Score.to_json says
    seconds: dict[str, float]  # data, encode, adapt, total
    steps: int
    settings: dict[str, Any]
    versions: dict[str, str | None]
    sketch: dict[str, Any] | None = None  # the zero-shot answer on the same batches, as a score
    rounds: list[dict[str, Any]] = field(default_factory=list)  # round, accuracy, n, domains
    forgetting: list[dict[str, Any]] = field(default_factory=list)  # domain, then, now, n
    turned: dict[str, Any] | None = None  # answers that adaptation mended and broke, some shown
    estimate: dict[str, Any] | None = None  # of the accuracy, without labels: mean confidence
    tail: dict[str, Any] | None = None  # accuracy in the worst of many orders: see tail_accuracy
    pictures: dict[str, Any] = field(default_factory=dict)  # tsne, cam: what Explain made
    covariance: dict[str, Any] | None = None  # the homogeneity test: F, critical value, structure
    guard: dict[str, Any] | None = None
    tower: dict[str, Any] | None = None  # statistics in use at the end, and trials of others
    refinement: dict[str, Any] | None = None  # share of images that the gate let pass, returns
    drift: dict[str, Any] | None = None  # the alarm without labels: log_evalue, alarms, events
    harm: dict[str, Any] | None = None  # the test with labels: log_evalue, labels, alarm, alarm_at
    trace: list[dict[str, Any]] = field(default_factory=list)  # per step, for curves
    provenance: dict[str, str] = field(default_factory=dict)  # setting -> where it came from
    classes: list[str] = field(default_factory=list)
    templates: Any = None
    reset_every: str | None = None
    answer: str | None = None  # given before or after the update
    norms: str | None = None
    split: str | None = None
    limit: int | None = None
    order: str | None = None
    batch_size: int | None = None
    device: str | None = None
    precision: str | None = None
    fingerprint: str | None = None  # of the model's weights
    peak_memory_bytes: int | None = None  # of the process
    peak_device_memory_bytes: int | None = None  # of the GPU, if one was used
    commit: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    created: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)  # anything else that the caller wants kept
    key: str | None = None  # the run's name in a bench: data, model, method, seed and a digest
    schema: int = SCHEMA
    path: Path | None = field(
        default=None, compare=False
    )  # where it was read from; not in the file

    def to_json(self) -> dict[str, Any]:
        keys = [
            "schema",
            *(f.name for f in fields(self) if f.name not in ("schema", "path")),
        ]
        return {key: plain(getattr(self, key)) for key in keys}

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all; folders are made."""
        write_atomic(path, self.to_text())

    def to_text(self) -> str:
        """The contents of the file: JSON with one key per line."""
        lines = []
        for key, value in self.to_json().items():
            if key in ("domains", "trace", "rounds", "forgetting") and value:
                rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in value)
                lines.append(f"{json.dumps(key)}: [\n  {rows}\n]")
            else:
                lines.append(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a file that `save` wrote; ValueError, in one sentence, for any other."""
        path = Path(path)
        try:
            value = json.loads(path.read_text("utf-8"), parse_constant=lambda _: None)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a complete JSON file ({error}): run the command that made it again."
            ) from None
        result = cls.from_json(value, name=str(path))
        result.path = path
        return result

    @classmethod
    def from_json(cls, value: object, *, name: str = "the value") -> Result:
        if not isinstance(value, dict) or type(value.get("schema")) is not int:
            raise ValueError(
                f"{name} is JSON, but not a result of bayestta: it has no 'schema' number; "
                "pass a file that `bayestta run --out` wrote."
            )
        if value["schema"] > SCHEMA:
            raise ValueError(
                f"{name} was written with schema {value['schema']}, and this version reads up to "
                f"{SCHEMA}: install a newer bayestta."
            )
        known = {f.name: f for f in fields(cls) if f.name != "path"}
        missing = [
            key
            for key, f in known.items()
            if f.default is MISSING and f.default_factory is MISSING and value.get(key) is None
        ]
        foreign = sorted(value.keys() - known.keys())
        wrong = (
            f"lacks {', '.join(missing)}"
            if missing
            else f"holds the unknown {', '.join(foreign)}"
            if foreign
            else "has domains without name, n and accuracy"
            if not _has_domains(value)
            else complaint(value, _hints())
        )
        if wrong:
            raise ValueError(
                f"{name}: {wrong}, so it is no result of schema {SCHEMA}: pass a file that "
                "`bayestta run --out` wrote, as it wrote it."
            )
        return cls(**value)


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Result)


def _has_domains(value: Mapping[str, Any]) -> bool:
    domains = value["domains"]
    return (
        isinstance(domains, list)
        and bool(domains)
        and all(isinstance(d, dict) and {"name", "n", "accuracy"} <= d.keys() for d in domains)
    )


def confusion(score: Mapping[str, Any]) -> list[list[int]]:
    """The matrix of a score's JSON as K rows of K counts, also where it was written as cells.

    >>> confusion({"classes": 2, "n": 5, "confusion": [[0, 0, 4], [1, 0, 1]]})
    [[4, 0], [1, 0]]
    """
    classes, given, n = score["classes"], score["confusion"], score["n"]
    square = len(given) == classes and all(len(row) == classes for row in given)
    # Three cells [truth, answer, count] of three classes have the shape of a matrix as well.
    cells = classes == 3 and sum(map(sum, given)) != n == sum(row[-1] for row in given)
    if square and not cells:
        return [list(row) for row in given]
    whole = [[0] * classes for _ in range(classes)]
    for truth, answer, count in given:
        whole[truth][answer] = count
    return whole


def plain(value: Any) -> Any:
    """The value as JSON can hold it: null for NaN and infinities, text for what it does not know.

    >>> plain({"rate": float("nan"), "shape": (3, 4), 5: Path("data")})
    {'rate': None, 'shape': [3, 4], '5': 'data'}
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if hasattr(value, "tolist"):  # a tensor or an array, of any size
        return plain(value.tolist())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return str(value)


def write_atomic(path: str | Path, text: str) -> None:
    """Write a text, whole or not at all, and through to the disk."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
