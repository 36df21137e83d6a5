"""The attacks of tests/test_fuzz_readers.py for seconds each; and the state of every method, every
kind of entry.

The damage is the same in every run, so that a change is to blame for what it breaks. Another
seed looks for what nobody has found yet: `BAYESTTA_FUZZ_SEED=7 make test-all`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

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

SEED = int(os.environ.get("BAYESTTA_FUZZ_SEED", "1"))
SECONDS, MOST = 10.0, 1000  # per kind of file, and per method and tower: whichever comes first
PER_GROUP = 6  # entries of a group of like ones, such as the weights of a tower


def rounds() -> Iterator[int]:
    end = time.monotonic() + SECONDS
    for count in range(MOST):
        if time.monotonic() > end:
            return
        yield count


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attack]:
    return all_attacks(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_get_a_sentence(attacks: dict[str, Attack], kind: str) -> None:
    rng = np.random.default_rng(SEED)
    for count in rounds():
        try:
            attacks[kind](rng)
        except Exception as error:
            raise AssertionError(f"attack {count} of seed {SEED} on {kind}") from error
    print(f"{kind}: {count + 1} attacks, seed {SEED}")


@pytest.mark.parametrize("tower", ["BatchNorm", "LayerNorm"])
@pytest.mark.parametrize("method", methods())
def test_a_wrong_state_is_refused_whole_or_serves(method: str, tower: str) -> None:
    case = Case(methods()[method], tower, {**SMALL.get(method, {}), **REFINED.get(method, {})})
    adapter = case.make()
    case.adapt(adapter)
    case.adapt(adapter)
    good, rng = adapter.state(), np.random.default_rng(SEED)
    keys = chosen(good, rng)
    for count in rounds():
        key = keys[count % len(keys)]
        value = good[key]
        odd = ODD[rng.integers(len(ODD))]
        wrong = spoilt(value, rng) if isinstance(value, Tensor) and rng.random() < 0.9 else odd
        about = f"{key} = {wrong!r} (attack {count} of seed {SEED})"
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
    print(f"{method} on {tower}: {count + 1} states, seed {SEED}")


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
