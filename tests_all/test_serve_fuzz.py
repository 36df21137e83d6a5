"""The service against its own OpenAPI document: whatever is sent, it never fails (no 5xx)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

pytest.importorskip("fastapi")
schemathesis = pytest.importorskip("schemathesis")

EXAMPLES = 25
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    from bayestta.models.base import load_model
    from bayestta.serve.app import make_app
    from bayestta.serve.backend import Local
    from bayestta.serve.limits import Limits
    from bayestta.serve.store import Store

    limits = Limits(max_stored=50, max_adapters=5)
    store = Store(tmp_path_factory.mktemp("fuzz") / "store", limits)
    backend = Local(load_model("mini-rn"), store)
    backend.shard.create("cam-1", {"classes": ["cat", "dog", "ship"]})
    return make_app(backend, limits)


def test_nothing_makes_it_fail(app):
    """Every operation, with bodies and parameters that the document allows and that it forbids."""
    document = schemathesis.openapi.from_asgi("/openapi.json", app)
    statuses: dict[str, set[int]] = {}
    for found in document.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events"):
            continue  # a stream without an end, which a fuzzer would wait for
        seen = statuses.setdefault(operation.label, set())
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            try:
                attack(operation.as_strategy(generation_mode=mode), seen)
            except Exception as error:
                # a request without parameters cannot be made wrong
                if type(error).__name__ not in ("Unsatisfiable", "SkipTest", "Skipped"):
                    raise
    assert len(statuses) >= 15
    assert sum(bool(seen & {200, 201, 204}) for seen in statuses.values()) >= 8
    print(statuses)


def attack(strategy, seen: set[int]) -> None:
    @given(case=strategy)
    @settings(max_examples=EXAMPLES, phases=[Phase.generate], **QUIET)
    def send(case) -> None:
        names = case.path_parameters or {}
        if "name" in names and len(str(names["name"])) % 2 and case.method != "DELETE":
            case.path_parameters["name"] = "cam-1"  # half of the time one that exists
        answer = case.call()
        seen.add(answer.status_code)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert {"error", "fact", "cure", "numbers"} <= set(answer.json())

    send()
