"""The service against plain encoding, as ratios in one run, with mini-rn.

100 adapters fed by 16 clients, over HTTP, against `encode_image` in batches of 128 plus decoding
of the same files, measured alone in one process before; by images per request, as every request is
one step of its adapter. Also latency, memory per adapter and, with `--features N`, N rows of
features through one adapter: memory and journal stay flat.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import torch

from bayestta.images import decode_image
from bayestta.models.base import load_model
from bayestta.serve.camera import to_png

CLASSES = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
PER_REQUEST = (16, 64)
LEAST = 0.8  # of the speed of plain encoding and decoding, for the largest requests


def start(store: str, *more: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "bayestta", "serve", "--model", "mini-rn", "--store", store]
    command += ["--port", "0", "--log-level", "error", "--classes", CLASSES, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found
    return process, found[0]


def plain_speed(files: list[bytes], seconds: float) -> float:
    """Images per second: decode, preprocess and encode in batches of 128, nothing else."""
    model = load_model("mini-rn")
    done, began = 0, 0.0
    for turn in range(10**6):
        if turn == 1:
            began = time.perf_counter()  # after a warm-up
        elif turn > 1 and time.perf_counter() - began > seconds:
            break
        chosen = [files[(turn * 128 + i) % len(files)] for i in range(128)]
        x = torch.stack([model.preprocess(decode_image(each, "file")) for each in chosen])
        with torch.inference_mode():
            model.encode_image(x)
        done += 128 if turn else 0
    return done / (time.perf_counter() - began)


def feed(url: str, clients: int, adapters: int, seconds: float, images: int) -> None:
    """Clients as threads of this process; prints speed and latencies as JSON."""
    encoded = [
        httpx.Request("POST", url, files=parts(each)) for each in chunks(make_files(), images)
    ]
    bodies = [(each.read(), {"content-type": each.headers["content-type"]}) for each in encoded]
    times: list[float] = []
    began = time.perf_counter()

    def work(client: int) -> None:
        with httpx.Client(base_url=url, timeout=120) as http:
            turn = 0
            while time.perf_counter() - began < seconds:
                name = f"cam-{(turn * clients + client) % adapters}"
                content, headers = bodies[(turn + client) % len(bodies)]
                sent = time.perf_counter()
                answer = http.post(
                    f"/v1/adapters/{name}/classify", content=content, headers=headers
                )
                answer.raise_for_status()
                times.append(time.perf_counter() - sent)
                turn += 1

    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    speed = len(times) * images / (time.perf_counter() - began)
    print(json.dumps({"speed": speed, "times": times}))


def make_files() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [to_png(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(512)]


def chunks(files: list[bytes], n: int) -> list[list[bytes]]:
    return [files[i : i + n] for i in range(0, len(files), n)]


def parts(files: list[bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", ("a.png", each)) for each in files]


def served_speed(url: str, seconds: float, images: int) -> tuple[float, list[float]]:
    """Images per second and latencies of 16 clients, which are a process of their own."""
    command = [sys.executable, __file__, "--feed", url, "--seconds", str(seconds)]
    command += ["--images", str(images)]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    told = json.loads(out.stdout)
    return told["speed"], told["times"]


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def compare(seconds: float) -> float:
    """Print speed and latency by images per request; the ratio of the largest requests."""
    files = make_files()
    plain = plain_speed(files, seconds)
    print(f"  decode + encode_image in batches of 128, alone: {plain:.0f} images per second")
    with tempfile.TemporaryDirectory() as store:
        process, url = start(store, "--max-adapters", "128")
        try:
            before = memory(process.pid)
            names = [f"cam-{i}" for i in range(100)]
            for name in names:
                httpx.post(
                    f"{url}/v1/adapters/{name}/classify", files=parts(files[:16]), timeout=60
                ).raise_for_status()
            each = (memory(process.pid) - before) / len(names)
            for images in PER_REQUEST:
                speed, times = served_speed(url, seconds, images)
                half, most = (1000 * float(np.quantile(times, q)) for q in (0.5, 0.99))
                print(
                    f"  100 adapters, 16 clients, {images} images per request: {speed:.0f} "
                    f"({speed / plain:.2f}); latency p50 {half:.0f} ms, p99 {most:.0f} ms"
                )
        finally:
            process.terminate()
            process.wait(60)
    print(f"  memory per adapter: {each / 1e6:.2f} MB")
    return speed / plain


def feed_features(total: int, rows: int = 2000) -> None:
    """Rows of features through one adapter; memory and store at ten moments."""
    with tempfile.TemporaryDirectory() as store:
        process, url = start(store, "--history-mb", "64")
        try:
            rng, seen, marks = np.random.default_rng(0), 0, []
            with httpx.Client(base_url=url, timeout=120) as http:
                began = time.perf_counter()
                while seen < total:
                    x = rng.normal(size=(rows, 128)).round(4)
                    tensor = {"name": "features", "datatype": "FP32", "shape": [rows, 128]}
                    body = {"inputs": [{**tensor, "data": x.ravel().tolist()}]}
                    http.post(
                        "/v2/models/cam/infer", json={**body, "outputs": [{"name": "label"}]}
                    ).raise_for_status()
                    seen += rows
                    if seen % (total // 10) < rows:
                        size = sum(p.stat().st_size for p in Path(store, "cam").iterdir())
                        marks.append((seen, memory(process.pid) / 1e6, size / 1e6))
                        print(f"  {seen:,} rows: {marks[-1][1]:.0f} MB, store {size / 1e6:.0f} MB")
                spent = time.perf_counter() - began
            print(f"  {total / spent:.0f} rows per second")
            growth = marks[-1][1] / marks[2][1]
            if growth > 1.1 or max(mark[2] for mark in marks) > 64 + 16:
                sys.exit(f"memory grew by {growth:.2f} or the store beyond its budget")
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--features", type=int, default=0)
    parser.add_argument("--feed", metavar="URL", help="be the clients of a server")
    parser.add_argument("--images", type=int, default=16, help="per request, with --feed")
    options = parser.parse_args()
    if options.feed:
        feed(options.feed, 16, 100, options.seconds, options.images)
        return
    if options.features:
        feed_features(options.features)
        return
    ratio = compare(options.seconds)
    if ratio < LEAST:
        sys.exit(f"the service reaches {ratio:.2f} of plain encoding, {LEAST} is the least.")


if __name__ == "__main__":
    main()
