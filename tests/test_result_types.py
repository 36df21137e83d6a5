"""A result file with a value of another type is refused in a sentence, or can be reported."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayestta.bench import execute
from bayestta.evaluation.result import Result
from bayestta.report import render_table, write_page
from feature_file import feature_file, feature_run

WRONG: list[Any] = ["text", -1, 3.5, True, None, [], {}, [1], {"a": 1}, 1e308]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = feature_file(tmp_path_factory.mktemp("f") / "f.safetensors", images=12)
    run = feature_run(path, "bayestta", settings={"refine": False}, rounds=2, limit=8)
    value: dict[str, Any] = execute(run).to_json()
    return value


def places(value: Any, depth: int = 3) -> Iterator[tuple[Any, ...]]:
    """The ways to every value, of lists only to the first."""
    if depth and isinstance(value, dict):
        for key, inside in value.items():
            yield (key,)
            yield from ((key, *rest) for rest in places(inside, depth - 1))
    elif depth and isinstance(value, list) and value:
        yield (0,)
        yield from ((0, *rest) for rest in places(value[0], depth - 1))


def changed(value: dict[str, Any], place: tuple[Any, ...], new: Any) -> dict[str, Any]:
    found = copy.deepcopy(value)
    target: Any = found
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = new
    return found


def test_every_variant_is_refused_or_reported(whole: dict[str, Any], tmp_path: Path) -> None:
    accepted, sentences = 0, []
    path = tmp_path / "r.json"
    for place in places(whole):
        for new in WRONG:
            path.write_text(json.dumps(changed(whole, place, new)))
            try:
                result = Result.load(path)
            except ValueError as error:
                sentences.append(str(error))
                continue
            accepted += 1
            try:
                render_table([result], "terminal")
                render_table([result], "csv")
            except Exception as error:
                pytest.fail(f"{place} = {new!r}: {type(error).__name__}: {error}")
    assert len(sentences) > 800
    assert all(one.startswith(str(path)) and "\n" not in one for one in sentences)
    assert accepted  # settings, versions and notes may hold anything


def test_pages_of_what_is_accepted(whole: dict[str, Any], tmp_path: Path) -> None:
    """A page reads more of a result than a table does."""
    for place in places(whole, 2):
        for new in (None, "text", [], 3.5):
            try:
                result = Result.from_json(changed(whole, place, new))
            except ValueError:
                continue
            try:
                write_page([result], tmp_path / "p.html")
            except Exception as error:
                pytest.fail(f"{place} = {new!r}: {type(error).__name__}: {error}")


def test_deep_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"schema": 2, "method": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ValueError, match=r"r\.json"):
        Result.load(path)
