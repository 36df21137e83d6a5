"""The service on a local cluster of Ray with two nodes: the same answers, and nothing lost."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
import torch

pytest.importorskip("fastapi")
ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")

CLASSES = ["airplane", "bird", "cat", "dog", "ship"]
KILLS = 10


def rows(seed: int, n: int = 6) -> torch.Tensor:
    return torch.randn(n, 128, generator=torch.Generator().manual_seed(seed))


def body(x: torch.Tensor, request_id: str) -> dict:
    tensor = {"name": "features", "datatype": "FP32", "shape": list(x.shape)}
    return {"id": request_id, "inputs": [{**tensor, "data": x.flatten().tolist()}]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes, four shards, and the address of the ingress."""
    from ray.cluster_utils import Cluster

    from bayestta.serve.cluster import serve_on_ray, stop
    from bayestta.serve.server import Options

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
    nodes.add_node(num_cpus=4)
    ray.init(address=nodes.address, namespace="bayestta", log_to_driver=False)
    store = tmp_path_factory.mktemp("ray") / "store"
    options = Options(port=18765, log_level="error")
    serve_on_ray("mini-rn", store, options, classes=CLASSES, shards=4, block=False)
    actors = [ray.get_actor(f"shard-{i}", namespace="bayestta") for i in range(4)]
    yield "http://127.0.0.1:18765", actors, store
    stop(actors)
    ray.shutdown()
    nodes.shutdown()


def test_answers_and_states_are_those_of_the_library_while_actors_are_killed(cluster):
    """Ten kills in mid-stream: every request is learnt once, states are equal bit for bit."""
    from bayestta.methods import make_adapter
    from bayestta.models.base import load_model
    from bayestta.models.embeddings import Features
    from bayestta.serve.ring import Ring
    from bayestta.state_file import unpack

    url, actors, store = cluster
    names, end = [f"cam-{i}" for i in range(6)], threading.Event()
    assert len({Ring(4).shard(name) for name in names}) > 1
    answers: dict[str, list[dict]] = {name: [] for name in names}

    def feed(name: str) -> None:
        with httpx.Client(base_url=url, timeout=180) as http:
            while not end.is_set():
                i = len(answers[name])
                sent = body(rows(1000 * names.index(name) + i), f"{name}-{i}")
                answer = http.post(f"/v2/models/{name}/infer", json=sent)
                assert answer.status_code == 200, answer.text
                answers[name].append(answer.json())

    threads = [threading.Thread(target=feed, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    try:
        for kill in range(KILLS):
            before = {name: len(found) for name, found in answers.items()}
            deadline = time.monotonic() + 180
            while any(len(answers[name]) <= before[name] for name in names):
                assert time.monotonic() < deadline, before
                time.sleep(0.05)
            ray.kill(actors[kill % len(actors)], no_restart=False)
    finally:
        time.sleep(1)
        end.set()
        for thread in threads:
            thread.join()
    features = Features(load_model("mini-rn"))
    with httpx.Client(base_url=url, timeout=180) as http:
        for name in names:
            told = http.get(f"/v1/adapters/{name}").json()
            assert told["steps"] == len(answers[name])
            local = make_adapter("bayestta", features, CLASSES, refine=False)
            for i, answer in enumerate(answers[name]):
                logits = local.adapt(rows(1000 * names.index(name) + i))
                outs = {out["name"]: out["data"] for out in answer["outputs"]}
                expected = local.probabilities(logits).float().flatten()
                assert torch.equal(torch.tensor(outs["probabilities"]), expected)
            _, state = unpack(http.get(f"/v1/adapters/{name}/state").content, name)
            for key, value in local.state().items():
                same = torch.equal(value, state[key]) if torch.is_tensor(value) else True
                assert same, key
            # one writer at a time: every journal of an epoch starts where the one before ended
            assert (store / name / "epoch").read_text() >= "1"


def test_a_single_server_is_refused_while_the_cluster_has_the_store(cluster):
    from bayestta.serve.limits import Limits
    from bayestta.serve.store import Store

    with pytest.raises(ValueError, match="in use by another server"):
        Store(cluster[2], Limits())


def test_images_life_and_refusals_are_those_of_the_single_server(cluster):
    import io

    import numpy as np
    from PIL import Image

    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    with httpx.Client(base_url=cluster[0], timeout=180) as http:
        files = [("files", ("a.png", file.getvalue()))]
        answer = http.post("/v1/adapters/eye/classify", files=files)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-step"] == "1"
        http.post("/v1/adapters/other/classify", files=files)
        merged = http.post("/v1/adapters/eye/merge", json={"from": "other"}).json()
        assert merged["step"] == 2
        assert http.post("/v1/adapters/eye/rollback", json={"step": 0}).json()["steps"] == 0
        refused = http.post("/v1/adapters/eye/rollback", json={"step": 99})
        assert refused.status_code == 404
        assert "choose one from 0 to 3" in refused.json()["error"]
        assert "bayestta_adapters_loaded" in http.get("/metrics").text
        assert http.delete("/v1/adapters/other").status_code == 204
