"""The attacks of tests/test_fuzz_readers.py for seconds each, with other damage in every run; and
the state of every method, every kind of entry."""

from __future__ import annotations

import time
from secrets import randbits

import numpy as np
import pytest
import torch
from torch import Tensor

from bayestta.checks import Case
from bayestta.checks._case import BATCHES, same
from bayestta.methods import methods
from faults import ODD, spoilt
from test_contract import SMALL
from test_fuzz_readers import KINDS, Attack, all_attacks

SECONDS = 10.0  # per kind of file, and per method and tower
PER_GROUP = 6  # entries of a group of like ones, such as the weights of a tower


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attack]:
    return all_attacks(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_get_a_sentence(attacks: dict[str, Attack], kind: str) -> None:
    seed, count, end = randbits(32), 0, time.monotonic() + SECONDS
    rng = np.random.default_rng(seed)
    while time.monotonic() < end:
        try:
            attacks[kind](rng)
        except Exception as error:
            raise AssertionError(f"attack {count} of seed {seed} on {kind}") from error
        count += 1
    print(f"{kind}: {count} attacks, seed {seed}")


@pytest.mark.parametrize("tower", ["BatchNorm", "LayerNorm"])
@pytest.mark.parametrize("method", methods())
def test_a_wrong_state_is_refused_whole_or_serves(method: str, tower: str) -> None:
    case = Case(methods()[method], tower, {**SMALL.get(method, {}), **REFINED.get(method, {})})
    adapter = case.make()
    case.adapt(adapter)
    case.adapt(adapter)
    good, seed = adapter.state(), randbits(32)
    rng, count, end = np.random.default_rng(seed), 0, time.monotonic() + SECONDS
    keys = chosen(good, rng)
    while time.monotonic() < end:
        key = keys[count % len(keys)]
        value = good[key]
        odd = ODD[rng.integers(len(ODD))]
        wrong = spoilt(value, rng) if isinstance(value, Tensor) and rng.random() < 0.9 else odd
        about = f"{key} = {wrong!r} (attack {count} of seed {seed})"
        count += 1
        try:
            adapter.load_state({**good, key: wrong})
        except ValueError:
            assert same(adapter.state(), good), f"half loaded: {about}"
            continue
        except Exception as error:
            raise AssertionError(about) from error
        try:
            answers = [*case.adapt(adapter, BATCHES[:1]), case.predict(adapter)]
        except Exception as error:
            raise AssertionError(f"loaded, but of no use: {about}") from error
        assert all(bool(torch.isfinite(answer).all()) for answer in answers), about
        adapter.reset()
        adapter.load_state(good)
    print(f"{method} on {tower}: {count} states, seed {seed}")


REFINED = {"bayestta": {"refine": True, "gate": 0.0}}


def chosen(state: dict[str, object], rng: np.random.Generator) -> list[str]:
    """The names to be spoilt: of large groups some."""
    groups: dict[str, list[str]] = {}
    for key in state:
        groups.setdefault(key.rpartition("/")[0], []).append(key)
    return [
        str(key)
        for group in groups.values()
        for key in (group if len(group) <= PER_GROUP else rng.choice(group, PER_GROUP, False))
    ]
