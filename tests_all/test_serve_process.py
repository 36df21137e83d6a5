"""A real server: killed under load, doubled on one store, ended politely, full of adapters."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch

from bayestta.methods import make_adapter
from bayestta.models.base import load_model
from bayestta.models.embeddings import Features
from bayestta.state_file import unpack

pytest.importorskip("fastapi")

CLASSES = ["airplane", "bird", "cat", "dog", "ship"]
KILLS = int(os.environ.get("BAYESTTA_KILLS", "50"))
SERVE = [sys.executable, "-m", "bayestta", "serve", "--model", "mini-rn"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(store: Path, *more: str) -> tuple[subprocess.Popen[str], str]:
    command = [*SERVE, "--store", str(store), "--port", "0", "--log-level", "error", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, line
    return process, found[0]


def rows(seed: int, n: int = 6) -> torch.Tensor:
    return torch.randn(n, 128, generator=torch.Generator().manual_seed(seed))


def body(x: torch.Tensor, request_id: str) -> dict:
    tensor = {"name": "features", "datatype": "FP32", "shape": list(x.shape)}
    return {"id": request_id, "inputs": [{**tensor, "data": x.flatten().tolist()}]}


def insist(http: httpx.Client, path: str, content: dict, end: threading.Event) -> dict | None:
    """Send until there is an answer, always with the same id, as a camera would."""
    while not end.is_set():
        try:
            answer = http.post(path, json=content)
        except httpx.TransportError:
            time.sleep(0.02)
            continue
        assert answer.status_code == 200, answer.text
        done: dict = answer.json()
        return done
    return None


def test_fifty_kills_under_load_lose_nothing_and_learn_nothing_twice(tmp_path):
    port = free_port()
    url, names = f"http://127.0.0.1:{port}", ["one", "two", "three"]
    script = Path(__file__).with_name("serve_nursery.py")
    command = [sys.executable, str(script), str(tmp_path / "store"), str(port), "7"]
    nursery = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert nursery.stdout is not None
    pid = int(nursery.stdout.readline())
    end, answers = threading.Event(), {name: [] for name in names}
    for name in names:
        made = httpx.post(f"{url}/v1/adapters", json={"id": name, "classes": CLASSES}, timeout=60)
        assert made.status_code == 201

    def feed(name: str) -> None:
        i = 0
        with httpx.Client(base_url=url, timeout=20) as http:
            while not end.is_set():
                seed = 1000 * names.index(name) + i
                sent = body(rows(seed), f"{name}-{i}")
                answer = insist(http, f"/v2/models/{name}/infer", sent, end)
                if answer is not None:
                    answers[name].append(answer)
                    i += 1

    threads = [threading.Thread(target=feed, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    moments = random.Random(0)
    try:
        for _ in range(KILLS):
            before = sum(map(len, answers.values()))
            deadline = time.monotonic() + 60
            while sum(map(len, answers.values())) < before + 3:  # so that every life does work
                assert time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)
            pid = int(nursery.stdout.readline())
        time.sleep(0.5)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    features = Features(load_model("mini-rn"))
    for name in names:
        told = httpx.get(f"{url}/v1/adapters/{name}", timeout=60).json()
        acknowledged = len(answers[name])
        # the last request may have been learnt although its answer found nobody any more
        assert told["steps"] in (acknowledged, acknowledged + 1)
        assert acknowledged >= KILLS // 2
        local = make_adapter("bayestta", features, CLASSES, refine=False)
        for i in range(told["steps"]):
            logits = local.adapt(rows(1000 * names.index(name) + i))
            if i < acknowledged:
                outs = {out["name"]: out["data"] for out in answers[name][i]["outputs"]}
                given = torch.tensor(outs["probabilities"])
                assert torch.equal(given, local.probabilities(logits).float().flatten())
        _, state = unpack(httpx.get(f"{url}/v1/adapters/{name}/state", timeout=60).content, name)
        expected = local.state()
        assert state.keys() == expected.keys()
        for key, value in expected.items():
            same = torch.equal(value, state[key]) if torch.is_tensor(value) else value == state[key]
            assert same, key
    os.kill(pid, signal.SIGTERM)
    nursery.wait(60)
    print({name: len(found) for name, found in answers.items()})


def test_a_second_server_is_refused_and_the_first_ends_politely(tmp_path):
    first, url = start(tmp_path / "store", "--classes", ",".join(CLASSES))
    command = [*SERVE, "--store", str(tmp_path / "store"), "--port", "0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert second.returncode == 2
    assert "is in use by another server" in " ".join(second.stderr.split())
    answers: list[int] = []
    connected = threading.Barrier(9)

    def send(i: int) -> None:
        sent = body(rows(i, 64), f"r{i}")
        with httpx.Client(base_url=url, timeout=60) as client:
            client.get("/v2/health/live")  # so that the server has accepted the connection
            connected.wait()
            answers.append(client.post("/v2/models/cam/infer", json=sent).status_code)

    with httpx.stream("GET", f"{url}/v1/events", timeout=60) as live:  # an open page
        threads = [threading.Thread(target=send, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        connected.wait()
        time.sleep(0.3)
        first.terminate()
        for _ in live.iter_lines():
            pass  # the server lets go of the page
    for thread in threads:
        thread.join()
    first.wait(60)
    assert answers.count(200) == 8
    again, url = start(tmp_path / "store")
    assert httpx.get(f"{url}/v1/adapters/cam", timeout=60).json()["steps"] == 8
    again.terminate()
    again.wait(60)


def test_a_thousand_adapters_with_fifty_in_memory(tmp_path):
    options = ("--classes", ",".join(CLASSES), "--max-adapters", "50")
    process, url = start(tmp_path / "store", *options)
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            for turn in range(2):
                for i in range(1000):
                    sent = body(rows(turn), f"t{turn}")
                    answer = client.post(f"/v2/models/cam-{i}/infer", json=sent)
                    assert answer.status_code == 200, answer.text
            loaded = re.search(r"(?m)^bayestta_adapters_loaded (\S+)", client.get("/metrics").text)
            assert loaded
            assert float(loaded[1]) <= 50
            assert len(client.get("/v1/adapters").json()["adapters"]) == 1000
            local = make_adapter("bayestta", Features(load_model("mini-rn")), CLASSES, refine=False)
            for turn in range(2):
                local.adapt(rows(turn))
            for name in ("cam-0", "cam-500", "cam-999"):
                _, state = unpack(client.get(f"/v1/adapters/{name}/state").content, name)
                assert torch.equal(state["stats/scatter"], local.state()["stats/scatter"])
    finally:
        process.terminate()
        process.wait(60)
