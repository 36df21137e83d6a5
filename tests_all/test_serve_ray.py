"""The service on a local cluster of Ray with two nodes: the answers of the single server, and
nothing lost when actors are killed."""

from __future__ import annotations

import io
import random
import threading
import time

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi")
ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")

CLASSES = ["airplane", "bird", "cat", "dog", "ship"]
KILLS, SHARDS, PORT = 10, 4, 18765
URL = f"http://127.0.0.1:{PORT}"


def rows(seed: int, n: int = 6) -> torch.Tensor:
    return torch.randn(n, 128, generator=torch.Generator().manual_seed(seed))


def body(x: torch.Tensor, request_id: str) -> dict:
    tensor = {"name": "features", "datatype": "FP32", "shape": list(x.shape)}
    return {"id": request_id, "inputs": [{**tensor, "data": x.flatten().tolist()}]}


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes with four shards on them; the actors and the store."""
    from ray.cluster_utils import Cluster

    from bayestta.serve.actors import stop
    from bayestta.serve.cluster import serve_on_ray
    from bayestta.serve.limits import Limits
    from bayestta.serve.server import Options

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
    nodes.add_node(num_cpus=4)
    ray.init(address=nodes.address, namespace="bayestta", log_to_driver=False)
    store = tmp_path_factory.mktemp("ray") / "store"
    options = Options(port=PORT, log_level="error", limits=Limits(snapshot_steps=7, keep_images=4))
    serve_on_ray("mini-rn", store, options, classes=CLASSES, shards=SHARDS, block=False)
    actors = [ray.get_actor(f"shard-{i}", namespace="bayestta") for i in range(SHARDS)]
    yield actors, store
    stop(actors)
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def single(tmp_path):
    """The single server, undisturbed."""
    from fastapi.testclient import TestClient

    from bayestta.models.base import load_model
    from bayestta.serve.app import make_app
    from bayestta.serve.backend import Local
    from bayestta.serve.limits import Limits
    from bayestta.serve.store import Store

    limits = Limits()
    backend = Local(load_model("mini-rn"), Store(tmp_path / "store", limits), classes=CLASSES)
    with TestClient(make_app(backend, limits)) as client:
        yield client


def test_ten_kills_in_mid_stream_leave_the_answers_and_states_of_the_single_server(cluster, single):
    from bayestta.serve.ring import Ring

    actors, store = cluster
    assert len(set(ray.get([actor.where.remote() for actor in actors]))) == 2  # both nodes
    names, end = [f"cam-{i}" for i in range(6)], threading.Event()
    assert len({Ring(SHARDS).shard(name) for name in names}) > 2
    answers: dict[str, list[dict]] = {name: [] for name in names}

    def feed(name: str) -> None:
        with httpx.Client(base_url=URL, timeout=180) as http:
            while not end.is_set():
                i = len(answers[name])
                sent = body(rows(1000 * names.index(name) + i), f"{name}-{i}")
                answer = http.post(f"/v2/models/{name}/infer", json=sent)
                assert answer.status_code == 200, answer.text
                answers[name].append(answer.json())

    threads = [threading.Thread(target=feed, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    moments = random.Random(0)
    try:
        for kill in range(KILLS):
            before = {name: len(found) for name, found in answers.items()}
            deadline = time.monotonic() + 180
            while any(len(answers[name]) <= before[name] for name in names):
                assert time.monotonic() < deadline, before
                time.sleep(0.02)
            time.sleep(moments.uniform(0, 0.2))
            ray.kill(actors[kill % SHARDS], no_restart=False)
        time.sleep(1)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    epochs = 0
    with httpx.Client(base_url=URL, timeout=180) as http:
        for name in names:
            found = answers[name]
            # each was learnt in a step of its own, in the order in which they were sent
            assert [int(each["model_version"]) for each in found] == [*range(1, len(found) + 1)]
            for i, answer in enumerate(found):
                sent = body(rows(1000 * names.index(name) + i), f"{name}-{i}")
                expected = single.post(f"/v2/models/{name}/infer", json=sent).json()
                assert answer["outputs"] == expected["outputs"]
            path = f"/v1/adapters/{name}/state"
            assert http.get(path).content == single.get(path).content  # bit for bit
            epochs += int((store / name / "epoch").read_text())
    assert epochs >= len(names) + KILLS  # the kills were felt: adapters were taken over
    print({name: len(found) for name, found in answers.items()}, "epochs", epochs)


def test_a_writer_that_was_thought_dead_is_fenced_off(cluster):
    """Another process takes an adapter over from its actor, and the actor takes it back."""
    from bayestta.models.base import load_model
    from bayestta.serve.limits import Limits
    from bayestta.serve.refusals import Fenced
    from bayestta.serve.shard import Shard
    from bayestta.serve.store import Store

    store = Store(cluster[1], Limits(), shared=True)
    other = Shard(load_model("mini-rn"), store)
    try:
        with httpx.Client(base_url=URL, timeout=180) as http:
            address = "/v2/models/fenced/infer"
            assert http.post(address, json=body(rows(0), "a")).json()["model_version"] == "1"
            taken = other.infer("fenced", rows(1), request_id="b", adapt=True)
            assert taken.step == 2
            # the actor's write is refused by the epoch; it reads what the other learnt, and goes on
            assert http.post(address, json=body(rows(2), "c")).json()["model_version"] == "3"
            with pytest.raises(Fenced):
                other.infer("fenced", rows(3), request_id="d", adapt=True)
            assert http.post(address, json=body(rows(1), "b")).json()["parameters"]["repeated"]
            assert not http.post(address, json=body(rows(3), "d")).json()["parameters"]["repeated"]
            assert http.get("/v1/adapters/fenced").json()["steps"] == 4
    finally:
        store.close()


def test_a_single_server_is_refused_while_the_cluster_has_the_store(cluster):
    from bayestta.serve.limits import Limits
    from bayestta.serve.store import Store

    with pytest.raises(ValueError, match="in use by another server"):
        Store(cluster[1], Limits())


def test_images_life_and_refusals_are_those_of_the_single_server(cluster, single):
    files = [("files", (f"{i}.png", picture(i))) for i in range(8)]
    with httpx.Client(base_url=URL, timeout=180) as http:
        answer = http.post("/v1/adapters/eye/classify", files=files)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-step"] == "1"
        alone = single.post("/v1/adapters/eye/classify", files=files)
        assert [row[0]["label"] for row in answer.json()] == [
            row[0]["label"] for row in alone.json()
        ]
        http.post("/v1/adapters/other/classify", files=files)
        merged = http.post("/v1/adapters/eye/merge", json={"from": "other"}).json()
        assert merged["step"] == 2
        assert http.post("/v1/adapters/eye/rollback", json={"step": 0}).json()["steps"] == 0
        refused = http.post("/v1/adapters/eye/rollback", json={"step": 99})
        assert refused.status_code == 404
        assert "choose one from 0 to 3" in refused.json()["error"]
        made = {"id": "own", "classes": CLASSES, "own_encoder": True}
        assert http.post("/v1/adapters", json=made).status_code == 201
        assert http.post("/v1/adapters/own/classify", files=files).status_code == 200
        refused = http.post("/v2/models/own/infer", json=body(rows(0), "x"))
        assert refused.json()["code"] == "pixels_needed"
        text = http.get("/metrics").text
        assert 'bayestta_images_total{adapter="eye"} 8.0' in text
        assert "bayestta_encode_seconds_count 2.0" in text
        assert http.get("/v1/adapters/eye/images").json()["keep_images"] == 4
        assert http.delete("/v1/adapters/other").status_code == 204
        assert http.get("/v1/adapters/other").status_code == 404
        assert "BayesTTA service" in http.get("/").text
