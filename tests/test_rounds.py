"""Rounds through the domains, and what is left of the early ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bayestta.adapter import Adapter
from bayestta.bench import Run, execute
from bayestta.data import load_data, stream
from bayestta.evaluation.steps import evaluate, steps
from bayestta.evaluation.totals import thin
from bayestta.methods import make_adapter
from bayestta.models.base import VLM, load_model

LIMIT = 5


@pytest.fixture(scope="module")
def model() -> VLM:
    return load_model("mini-rn")


def adapter(model: VLM, method: str = "bayestta") -> Adapter:
    data = load_data("rmnist")
    return make_adapter(method, model, data.classes, data.templates, seed=1)


def test_every_round_is_the_same_walk(model: VLM) -> None:
    data = load_data("rmnist")
    found = list(stream(data, model.preprocess, batch_size=3, limit=LIMIT, rounds=3, seed=2))
    once = list(stream(data, model.preprocess, batch_size=3, limit=LIMIT, seed=2))
    assert [b.round for b in found] == [1] * len(once) + [2] * len(once) + [3] * len(once)
    for batch, first in zip(found, once * 3, strict=True):
        assert batch.domain == first.domain
        assert torch.equal(batch.x, first.x)
    with pytest.raises(ValueError, match="rounds is 0"):
        stream(data, model.preprocess, rounds=0)


def test_rounds_are_counted_by_themselves(model: VLM) -> None:
    found = execute(Run("rmnist", "mini-rn", "bayestta", limit=LIMIT, rounds=2), model=model)
    method, data = adapter(model), load_data("rmnist")
    hits: dict[tuple[int, str], int] = {}
    for batch in stream(data, model.preprocess, seed=1, limit=LIMIT, rounds=2):
        right = int((method.adapt(batch.x).argmax(1) == batch.y).sum())
        hits[batch.round, batch.domain] = right
    assert found.n == 2 * 9 * LIMIT
    assert [row["round"] for row in found.rounds] == [1, 2]
    for row in found.rounds:
        assert row["n"] == 9 * LIMIT
        of_round = [hits[row["round"], domain["name"]] for domain in row["domains"]]
        assert [d["accuracy"] for d in row["domains"]] == [100 * n / LIMIT for n in of_round]
        assert row["accuracy"] == pytest.approx(100 * sum(of_round) / row["n"])
    both = {d["name"]: d["hits"] for d in found.domains}
    assert both == {d: hits[1, d] + hits[2, d] for d in data.domains}
    # Forgetting, by the letter: all domains but the last, with the state at the end.
    assert [row["domain"] for row in found.forgetting] == data.domains[:-1]
    for row in found.forgetting:
        (batch,) = stream(data, model.preprocess, seed=1, limit=LIMIT, domains=[row["domain"]])
        now = (method.predict(batch.x).argmax(1) == batch.y).float().mean()
        assert row["now"] == pytest.approx(100 * float(now))
        assert row["then"] == 100 * hits[2, row["domain"]] / LIMIT
        assert row["n"] == LIMIT


def test_one_round_has_neither_unless_asked(model: VLM) -> None:
    one = Run("rmnist", "mini-rn", "zero-shot", limit=LIMIT, order="shuffled")
    found = execute(one, model=model)
    assert found.rounds == found.forgetting == []
    asked = execute(one, model=model, forgetting=True)
    assert asked.rounds == []
    names = [domain["name"] for domain in asked.domains]
    assert sorted(names) == sorted(load_data("rmnist").domains) != names
    assert [row["domain"] for row in asked.forgetting] == names[:-1]
    assert all(row["then"] == row["now"] for row in asked.forgetting)  # it has nothing to forget
    assert asked.accuracy == found.accuracy
    assert execute(replace(one, rounds=2), model=model, forgetting=False).forgetting == []


def test_a_domain_that_comes_again_is_a_new_one_for_reset(model: VLM) -> None:
    method, starts = adapter(model, "zero-shot"), []
    reset, data = method.reset, load_data("rmnist")
    method.reset = lambda: (starts.append(1), reset())[1]  # type: ignore[method-assign]
    options = {"batch_size": 2, "limit": 4, "rounds": 3, "domains": ["0"]}
    taken = list(steps(method, stream(data, model.preprocess, **options), reset_every="domain"))
    assert [step.round for step in taken] == [1, 1, 2, 2, 3, 3]
    assert len(starts) == 3
    trace = evaluate(method, stream(data, model.preprocess, **options)).trace
    assert [entry.get("round", 1) for entry in trace] == [1, 1, 2, 2, 3, 3]
    assert [entry.get("round", 1) for entry in thin(trace)] == [1, 2, 3]
    assert [entry["n"] for entry in thin(thin(trace))] == [4, 4, 4]
