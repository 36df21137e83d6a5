"""The service over HTTP: its three surfaces, its limits, its metrics and its client."""

from __future__ import annotations

import base64
import io
import json
import logging

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from fastapi.testclient import TestClient

from bayestta.methods import make_adapter
from bayestta.models.embeddings import Features
from bayestta.serve.app import make_app
from bayestta.serve.backend import Local
from bayestta.serve.client import Client, ServiceError
from bayestta.serve.encoder import Encoder
from bayestta.serve.limits import Limits
from bayestta.serve.logs import Lines
from bayestta.serve.page import PAGE, SCRIPT
from bayestta.serve.refusals import Fenced, Refusal
from bayestta.serve.security import LOOPBACK
from bayestta.serve.store import Store

CLASSES = ["cat", "dog", "ship"]
FORM, BOUND = "multipart/form-data", "multipart/form-data; boundary=a"


def png(seed: int = 0, side: int = 32) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def open_service(tmp_path, tiny_rn):
    """Starts services in this process, each with a store of its own."""
    running = []

    def start(*, key=None, classes=None, url_hosts=(), **limits) -> TestClient:
        budget = Limits(**limits)
        store = Store(tmp_path / f"store-{len(running)}", budget)
        backend = Local(tiny_rn, store, classes=classes)
        app = make_app(backend, budget, key=key, hosts=LOOPBACK, url_hosts=url_hosts)
        client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        client.__enter__()
        running.append(client)
        return client

    yield start
    for client in running:
        client.__exit__(None, None, None)


@pytest.fixture
def service(open_service):
    client = open_service()
    answer = client.post("/v1/adapters", json={"id": "cam", "classes": CLASSES})
    assert answer.status_code == 201
    return client


def features(rows: torch.Tensor, **more) -> dict:
    data = {"name": "features", "datatype": "FP32", "shape": list(rows.shape)}
    return {"inputs": [{**data, "data": rows.flatten().tolist()}], **more}


def images(files: list[bytes], *, shape: list[int] | None = None) -> dict:
    tensor = {"name": "image", "datatype": "BYTES", "shape": shape or [len(files)]}
    return {"inputs": [{**tensor, "data": [base64.b64encode(each).decode() for each in files]}]}


def refusal(answer, status: int) -> str:
    """The sentence of a refusal that has all of its parts."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error", "code", "fact", "numbers", "cure", "request_id"}
    assert body["error"] == f"{body['fact']}: {body['cure']}."
    assert body["request_id"] == answer.headers["x-request-id"]
    return body["error"]


def test_answers_are_those_of_the_library(service, tiny_rn):
    """Features through HTTP, and the same through an adapter in this process."""
    local = make_adapter("bayestta", Features(tiny_rn), CLASSES, refine=False)
    for i in range(3):
        rows = torch.randn(4, 128, generator=torch.Generator().manual_seed(i))
        body = service.post("/v2/models/cam/infer", json=features(rows)).json()
        expected = local.probabilities(local.adapt(rows))
        found = {out["name"]: out for out in body["outputs"]}
        assert found["probabilities"]["shape"] == [4, 3]
        given = torch.tensor(found["probabilities"]["data"]).view(4, 3)
        assert torch.equal(given, expected.float())
        assert found["label"]["data"] == [CLASSES[k] for k in expected.argmax(1)]
        sketch = local.sketch.softmax(1)
        assert torch.equal(torch.tensor(found["zero_shot"]["data"]).view(4, 3), sketch)
    assert body["model_version"] == "3"


def test_images_come_as_files_base64_and_tensors(service):
    data = [png(0), png(1)]
    files = [("files", (f"{i}.png", each)) for i, each in enumerate(data)]
    text = [base64.b64encode(each).decode() for each in data]
    address = "/v1/adapters/cam/classify"
    by_files = service.post(address, files=files, data={"adapt": "false", "top_k": "2"}).json()
    ask = {"adapt": False, "top_k": 2}
    by_text = service.post(address, json={"inputs": text, "parameters": ask}).json()
    assert by_files == by_text
    assert [len(row) for row in by_files] == [2, 2]
    assert by_files[0][0]["score"] >= by_files[0][1]["score"]
    one = service.post(address, json={"inputs": text[0], "parameters": ask}).json()
    assert one[0]["label"] == by_files[0][0]["label"]
    assert one[0]["score"] == pytest.approx(by_files[0][0]["score"], abs=1e-5)
    image = {"name": "image", "datatype": "BYTES", "shape": [2], "data": text}
    body = {"inputs": [image], "parameters": {"adapt": False}, "outputs": [{"name": "label"}]}
    (out,) = service.post("/v2/models/cam/infer", json=body).json()["outputs"]
    assert out["data"] == [row[0]["label"] for row in by_files]
    assert service.get("/v1/adapters/cam").json()["step"] == 0


def test_a_request_id_learns_once_on_both_surfaces(service):
    files = [("files", ("a.png", png()))]
    address, ids = "/v1/adapters/cam/classify", {"x-request-id": "one"}
    first = service.post(address, files=files, headers=ids)
    again = service.post(address, files=files, data={"request_id": "one"})
    assert first.json() == again.json()
    assert [r.headers["x-repeated"] for r in (first, again)] == ["false", "true"]
    assert [r.headers["x-step"] for r in (first, again)] == ["1", "1"]
    body = features(torch.ones(1, 128), id="one")
    assert service.post("/v2/models/cam/infer", json=body).json()["parameters"]["repeated"]
    third = service.post("/v2/models/cam/infer", json=images([png()]), headers=ids).json()
    assert (third["id"], third["parameters"]["repeated"]) == ("one", True)
    metrics = service.get("/metrics").text
    assert 'bayestta_adapt_steps_total{adapter="cam"} 1.0' in metrics


def test_the_life_of_an_adapter(service):
    for i in range(3):
        rows = torch.randn(2, 128, generator=torch.Generator().manual_seed(i))
        service.post("/v2/models/cam/infer", json=features(rows, id=f"r{i}"))
    saved = service.get("/v1/adapters/cam/state")
    assert saved.headers["etag"] == '"3"'
    path = "/v1/adapters/cam"
    assert service.post(f"{path}/reset").json()["steps"] == 0
    stale = service.put(f"{path}/state", content=saved.content, headers={"if-match": '"3"'})
    assert "is at step 4" in refusal(stale, 412)
    put = service.put(f"{path}/state", content=saved.content, headers={"if-match": '"4"'})
    assert put.json()["steps"] == 3
    assert service.post(f"{path}/rollback", json={"step": 2}).json()["steps"] == 2
    assert "is not kept" in refusal(service.post(f"{path}/rollback", json={"step": 50}), 404)
    service.post("/v1/adapters", json={"id": "two", "classes": CLASSES})
    assert service.post("/v1/adapters/two/merge", json={"from": "cam"}).json()["steps"] == 2
    given = {"request_id": "r0", "index": 1, "label": "cat"}
    assert service.post(f"{path}/feedback", json=given).json()["counted"]
    events = service.get(path).json()["events"]
    assert [event["kind"] for event in events] == ["rollback"]
    assert service.delete(path).status_code == 204
    assert "no adapter 'cam'" in refusal(service.get(path), 404)
    assert [row["id"] for row in service.get("/v1/adapters").json()["adapters"]] == ["two"]
    assert 'adapter="cam"' not in service.get("/metrics").text


def test_the_open_inference_protocol_describes_itself(service):
    assert service.get("/v2").json()["name"] == "bayestta"
    assert service.get("/v2/health/live").json() == {"live": True}
    assert service.get("/v2/health/ready").json() == {"ready": True}
    about = service.get("/v2/models/cam").json()
    assert [each["name"] for each in about["inputs"]] == ["image", "features"]
    assert [each["shape"] for each in about["outputs"]] == [[-1], [-1, 3], [-1, 3]]
    assert service.get("/v2/models/cam/ready").json()["ready"]
    refusal(service.get("/v2/models/none/ready"), 404)


def test_what_is_wrong_is_refused_with_fact_and_cure(service):
    classify, infer = "/v1/adapters/cam/classify", "/v2/models/cam/infer"
    nan = features(torch.ones(1, 128))
    nan["inputs"][0]["data"][0] = 1e300
    short = features(torch.ones(1, 128))
    short["inputs"][0]["data"].pop()
    cases = [
        (classify, {"json": {"inputs": "???"}}, 400, "not base64"),
        (classify, {"json": {"inputs": ["aGFsbG8="]}}, 400, "not an image"),
        (classify, {"json": {"inputs": []}}, 400, "0 images"),
        (classify, {"json": {"inputs": [5]}}, 422, "inputs"),
        (classify, {"json": {"inputs": "", "parameters": {"adpat": True}}}, 422, "adpat"),
        (classify, {"content": b"{", "headers": {"content-type": "application/json"}}, 422, "JSON"),
        (classify, {"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "text/plain"),
        (classify, {"json": {"inputs": "http://a.b/c.png"}}, 403, "0 hosts allowed"),
        (infer, {"json": features(torch.ones(1, 5))}, 400, r"the model makes (B, 128)"),
        (infer, {"json": nan}, 400, "NaN, infinite"),
        (infer, {"json": short}, 400, "hold 127 numbers, and their shape says 128"),
        (infer, {"json": {"inputs": []}}, 400, "0 inputs"),
        (infer, {"json": images([png()], shape=[5])}, 400, "has shape [5] and 1 strings"),
        (classify, {"content": b"x", "headers": {"content-type": FORM}}, 400, "no boundary"),
        (
            classify,
            {"content": b"x", "headers": {"content-type": BOUND}},
            400,
            "end",
        ),
        (infer, {"json": features(torch.ones(1, 128), id="a b")}, 400, "printable"),
        (infer, {"json": features(torch.ones(1, 128), outputs=[{"name": "x"}])}, 400, "no output"),
        ("/v1/adapters", {"json": {"id": "../x", "classes": CLASSES}}, 400, "is not allowed"),
        ("/v1/adapters", {"json": {"id": "cam", "classes": CLASSES}}, 409, "exists already"),
        ("/v1/adapters", {"json": {"id": "c", "classes": []}}, 400, "0 classes"),
        ("/v1/adapters/..%2F..%2Fetc/reset", {}, 404, "Not Found"),
        ("/v1/adapters/%2e%2e/reset", {}, 400, "is not allowed"),
        ("/v1/adapters/a%00b/reset", {}, 400, "is not allowed"),
        (f"/v1/adapters/{'x' * 300}/reset", {}, 400, "is not allowed"),
    ]
    for path, options, status, words in cases:
        assert words in refusal(service.post(path, **options), status), path
    assert service.get("/v1/adapters/cam").json()["step"] == 0


def test_limits_of_body_images_pixels_and_rows(open_service):
    small = {"max_images": 2, "max_pixels": 900, "max_rows": 3, "max_body": 20_000}
    service = open_service(classes=CLASSES, **small)
    address = "/v1/adapters/cam/classify"
    three = [("files", (f"{i}", png(i, 8))) for i in range(3)]
    assert "holds 3 images, and the server takes 2" in refusal(
        service.post(address, files=three), 413
    )
    big = [("files", ("a", png(0, 32)))]
    assert "1,024 pixels, and the server takes 900" in refusal(
        service.post(address, files=big), 413
    )
    rows = service.post("/v2/models/cam/infer", json=features(torch.ones(4, 128)))
    assert "4 rows of features" in refusal(rows, 413)
    assert "bytes or more" in refusal(service.post(address, content=b"x" * 20_001), 413)

    def parts():
        for _ in range(30):
            yield b"x" * 1000

    kind = {"content-type": "application/json"}
    answer = service.post(address, content=parts(), headers=kind)  # of unknown length
    assert "bytes or more" in refusal(answer, 413)


def test_the_key_guards_everything_but_health_and_the_empty_page(open_service):
    service = open_service(key="a-long-secret")
    for path in ("/v1/adapters", "/metrics", "/docs", "/openapi.json", "/v1/events"):
        assert "missing" in refusal(service.get(path), 401)
        assert "wrong" in refusal(service.get(path, headers={"x-api-key": "no"}), 401)
    for path in ("/", "/v2/health/live", "/v2/health/ready"):
        assert service.get(path).status_code == 200
    for headers in ({"x-api-key": "a-long-secret"}, {"authorization": "Bearer a-long-secret"}):
        assert service.get("/v1/adapters", headers=headers).status_code == 200


def test_pages_of_others_cannot_use_the_browser_to_get_in(service):
    assert "not called" in refusal(service.get("/v1/adapters", headers={"host": "evil.org"}), 403)
    foreign = {"origin": "http://evil.org"}
    assert "another web page" in refusal(service.post("/v1/adapters", headers=foreign), 403)
    own = {"origin": "http://127.0.0.1"}
    assert service.get("/v1/adapters", headers=own).status_code == 200


def test_adapters_are_made_on_first_use_where_classes_were_given(open_service):
    service = open_service(classes=CLASSES)
    files = [("files", ("a.png", png()))]
    assert service.post("/v1/adapters/new/classify", files=files).status_code == 200
    assert service.get("/v1/adapters/new").json()["classes"] == CLASSES


def test_changed_images_are_kept_only_where_asked(open_service):
    for keep in (0, 2):
        service = open_service(classes=CLASSES, keep_images=keep)
        for i in range(6):
            files = [("files", ("a.png", png(10 * i + k))) for k in range(8)]
            service.post("/v1/adapters/cam/classify", files=files)
        found = service.get("/v1/adapters/cam/images").json()
        asked = service.get("/v1/adapters/cam").json()["disagreement"]
        assert len(found["images"]) == (min(keep, 2) if asked else 0)
        for image in found["images"]:
            assert image["answer"] != image["zero_shot"]
            assert base64.b64decode(image["jpeg"])[:2] == b"\xff\xd8"


def test_metrics_have_the_names_of_the_conventions(service):
    service.post("/v2/models/cam/infer", json=features(torch.ones(2, 128)))
    service.post("/v1/adapters/cam/classify", files=[("files", ("a", png()))])
    text = service.get("/metrics").text
    for name in (
        *("images_total", "adapt_steps_total", "encode_seconds", "adapt_seconds", "queue_seconds"),
        *("disagreement_ratio", "entropy_nats", "effective_classes", "drift_log_evalue"),
        *("harm_log_evalue", "estimated_accuracy_ratio", "rollbacks_total", "state_age_seconds"),
        "adapters_loaded",
    ):
        assert f"# TYPE bayestta_{name}" in text
    assert 'bayestta_images_total{adapter="cam"} 3.0' in text


def test_an_alarm_between_two_scrapes_is_counted(service, tiny_rn):
    """The evidence starts again at an alarm: a gauge alone would show nothing of it."""
    rng, text = torch.Generator().manual_seed(0), tiny_rn.encode_text(CLASSES)
    for scale in (0.01, 0.2):
        for _ in range(10):
            x = text[torch.arange(32) % 3] + scale * torch.randn(32, 128, generator=rng)
            service.post("/v2/models/cam/infer", json=features(x))
    told = service.get("/v1/adapters/cam").json()
    assert told["drift"]["alarms"] == 1
    assert max(point["drift"] for point in told["trail"]) >= -np.log(0.01)
    text = service.get("/metrics").text
    assert 'bayestta_drift_alarms_total{adapter="cam"} 1.0' in text


def test_a_disk_that_is_full_is_said_and_nothing_is_learnt(service, monkeypatch):
    from bayestta.serve.journal import Journal

    def full(self, record):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", full)
        answer = service.post("/v2/models/cam/infer", json=features(torch.ones(1, 128), id="a"))
        assert "No space left on device" in refusal(answer, 507)
    assert service.get("/v1/adapters/cam").json()["steps"] == 0
    answer = service.post("/v2/models/cam/infer", json=features(torch.ones(1, 128), id="a"))
    assert not answer.json()["parameters"]["repeated"]


def test_the_client_speaks_to_the_service(service, tmp_path, tiny_rn):
    client = Client("", http=service)
    camera = client.adapter("gate")
    assert camera.create(CLASSES, alpha=4.0)["settings"] == {"alpha": 4.0, "refine": False}
    path = tmp_path / "a.png"
    path.write_bytes(png(3))
    with Image.open(path) as image:
        answers = camera.classify([path, png(4), image], top_k=3)
    assert len(answers) == 3
    assert answers.labels[0][0][0] == answers.best()[0]
    assert not answers.repeated
    assert camera.classify(path, request_id=answers.request_id).repeated
    assert camera.feedback(answers.request_id, 0, "cat")["counted"]
    assert camera.save(tmp_path / "gate.state") == 2
    local = make_adapter("bayestta", Features(tiny_rn), CLASSES, refine=False, alpha=4.0)
    local.load(tmp_path / "gate.state")
    assert local.samples == 3
    assert camera.rollback(0)["steps"] == 0
    client.adapter("twin").create(CLASSES, alpha=4.0)
    assert camera.merge("twin")["step"] == 4
    assert camera.reset()["step"] == 5
    assert {row["id"] for row in client.adapters()} == {"cam", "gate", "twin"}
    camera.delete()
    with pytest.raises(ServiceError, match="no adapter 'gate'") as caught:
        camera.describe()
    assert (caught.value.status, caught.value.code) == (404, "adapter_unknown")


@pytest.mark.parametrize("content", [b"", b"--X", b"\r\n--X\r\n", b"\r\n\r\n", bytes(range(256))])
def test_multipart_gives_back_what_was_sent(content):
    import httpx

    from bayestta.serve.multipart import parse

    files = [("files", (name, content)) for name in ("a.png", 'b "c".png', "\u00e9;name=x")]
    sent = httpx.Request("POST", "http://a", files=files, data={"top_k": "3", "\u00e9": "\u00e9"})
    found, fields = parse(sent.read(), sent.headers["content-type"])
    assert found == [content] * 3
    assert fields["top_k"] == "3"
    assert "\u00e9" in fields.values()


def test_one_alone_waits_for_nobody_and_others_are_waited_for(tiny_rn):
    passes = []
    limits = Limits(max_batch=8, max_delay=30.0)
    encoder = Encoder(tiny_rn, limits, lambda images, *_: passes.append(images))
    x = torch.rand(2, 3, 64, 64)
    encoder.submit(x).result(timeout=10)
    with encoder.expecting():  # a request is being read
        first = encoder.submit(x)
        second = encoder.submit(x)
        assert not first.done()
    assert len(second.result(timeout=10)) == 2
    assert passes == [2, 4]
    encoder.close()


def test_a_merge_whose_answer_was_lost_is_not_sent_again(monkeypatch):
    import httpx

    from bayestta.serve import client as module

    sent = []

    def lose(request):
        sent.append(request.url.path)
        if len(sent) == 1:
            raise httpx.ReadError("the connection ended")
        return httpx.Response(200, json={})

    monkeypatch.setattr(module, "PAUSES", (0.0,))
    http = httpx.Client(base_url="http://a", transport=httpx.MockTransport(lose))
    adapter = Client("", http=http).adapter("cam")
    with pytest.raises(httpx.ReadError):
        adapter.merge("other")
    sent.clear()
    assert adapter.reset() == {}  # twice does no harm
    assert len(sent) == 2


def test_one_pass_serves_many_requests_and_a_full_queue_refuses(tiny_rn):
    passes = []
    limits = Limits(max_batch=8, max_delay=0.2, max_waiting=20)
    encoder = Encoder(tiny_rn, limits, lambda images, *_: passes.append(images))
    x = torch.rand(12, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with encoder.expecting():
        futures = [encoder.submit(x[i : i + 2]) for i in range(0, 8, 2)]
    found = torch.cat([future.result() for future in futures])
    assert passes == [8]
    with torch.no_grad():
        assert torch.allclose(found, tiny_rn.encode_image(x[:8]), atol=1e-5)
    assert len(encoder.submit(x).result()) == 12  # one request beyond max_batch
    taken = encoder.submit(torch.rand(20, 3, 64, 64))
    with pytest.raises(Refusal, match="20 images wait for the encoder, 20 at most"):
        encoder.submit(x)
    assert len(taken.result()) == 20
    broken = encoder.submit(torch.rand(1, 3, 7, 7))
    encoder.close()  # finishes what was submitted
    assert broken.exception() is not None


def test_refusals_travel_between_processes():
    import pickle

    for one in (Refusal(400, "a", "b", "c", n=1), Fenced("cam", 1, 2)):
        two = pickle.loads(pickle.dumps(one))
        assert type(two) is type(one)
        assert two.to_json() == one.to_json()


def test_logs_are_json_with_the_id_of_the_request(service):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(Lines().format(record))
    logger = logging.getLogger("bayestta.serve")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel("INFO")
    try:
        service.get("/v1/adapters/none", headers={"x-request-id": "my-id"})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    line = json.loads(lines[-1])
    assert (line["request_id"], line["status"], line["path"]) == ("my-id", 404, "/v1/adapters/none")


def test_the_page_is_self_contained(service):
    answer = service.get("/")
    assert answer.text == PAGE
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for outside in ("http://", "https://", "//cdn"):
        assert outside not in PAGE.replace("http://www.w3.org/2000/svg", "")
    assert "innerHTML" not in SCRIPT  # names come from outside


def test_openapi_names_every_route(service):
    document = service.get("/openapi.json").json()
    for path in ("/v1/adapters/{name}/classify", "/v2/models/{name}/infer", "/metrics"):
        assert path in document["paths"]
    assert "Classify" in document["components"]["schemas"]
    page = service.get("/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "POST /v1/adapters/{name}/classify" in page.text
    for outside in ("http://", "https://", "<script"):
        assert outside not in page.text


def test_the_page_of_the_documentation_is_that_of_the_api():
    import runpy
    from pathlib import Path

    docs = Path(__file__).parents[1] / "docs"
    made = runpy.run_path(str(docs / "serve_api.py"))["page"]()
    written = (docs / "serve_api.md").read_text(encoding="utf-8")
    assert made == written, "run python docs/serve_api.py"


def test_addresses_are_fetched_from_named_hosts_only(open_service):
    """A small web server: an image, a page that is missing, and a redirect that is not followed."""
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            status = {"/a.png": 200, "/away": 302}.get(self.path, 404)
            self.send_response(status)
            if status == 302:
                self.send_header("location", "/a.png")
            self.end_headers()
            self.wfile.write(png() if status == 200 else b"")

        def log_message(self, *_):
            pass

    web = HTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    service = open_service(classes=CLASSES, url_hosts=("127.0.0.1",))
    address, root = "/v1/adapters/cam/classify", f"http://127.0.0.1:{web.server_port}"
    try:
        assert service.post(address, json={"inputs": f"{root}/a.png"}).status_code == 200
        for path, status in (("none", 404), ("away", 302)):
            answer = service.post(address, json={"inputs": f"{root}/{path}"})
            assert f"answered with status {status}" in refusal(answer, 400)
        answer = service.post(address, json={"inputs": "http://localhost:1/a.png"})
        assert "no images from host 'localhost' (1 hosts allowed)" in refusal(answer, 403)
        answer = service.post(address, json={"inputs": "http://127.0.0.1:1/a.png"})
        assert "cannot be read" in refusal(answer, 400)
    finally:
        web.shutdown()
        web.server_close()


def test_events_go_on_where_the_list_ended():
    """Driven by hand, as the stream itself has no end."""
    import asyncio
    from types import SimpleNamespace

    from bayestta.serve.app import _events
    from bayestta.serve.board import Board

    board = Board()
    context = SimpleNamespace(closing=False, backend=SimpleNamespace(board=board))

    class Request:
        async def is_disconnected(self) -> bool:
            return False

    async def listen(after: int, name: str | None) -> list[str]:
        stream, found = _events(context, Request(), name, after), []
        async for part in stream:
            found.append(part)
            if len(found) > 1 and not context.closing:
                context.closing = True  # the server ends: so does the stream
        context.closing = False
        return found

    board.changed("old", {"step": 1}, [])
    number = board.number
    board.changed("cam", {"step": 7}, [{"kind": "drift", "adapter": "cam", "sample": 9}])
    first, summary, event = asyncio.run(listen(number, None))
    assert first.startswith(":")
    assert summary.startswith("event: summary\ndata: ")
    assert json.loads(summary.split("data: ")[1])["id"] == "cam"
    assert json.loads(event.split("data: ")[1])["kind"] == "drift"
    assert len(asyncio.run(listen(0, None))) == 4
    assert "old" in asyncio.run(listen(0, "old"))[1]
