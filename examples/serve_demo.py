"""Play a stream that gets dark from three simulated cameras to a service, and tell what it says.

`make serve-demo` runs it. The service is started here, with mini-rn and a store in a temporary
folder, and ended at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

import bayestta as bt
from bayestta.serve.camera import Camera, to_png

CAMERAS = ("cam-gate", "cam-yard", "cam-hall")
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905


def start(store: str, port: int) -> tuple[subprocess.Popen[str], str]:
    """A server as a process of its own, and its address."""
    command = [sys.executable, "-m", "bayestta", "serve", "--model", "mini-rn", "--store", store]
    command += ["--port", str(port), "--keep-images", "12", "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://\S+", line)
        if found:
            return process, found[0]
    raise RuntimeError(f"the server ended with code {process.wait()}: see the lines above.")


def play(url: str, name: str, camera: Camera, images: int, batch: int) -> None:
    """Send one camera's images, and label some where answer and zero-shot differ."""
    frames = camera.frames()
    with bt.Client(url) as client:
        adapter = client.adapter(name)
        adapter.create(CLASSES)
        for _ in range(images // batch):
            shown = [next(frames) for _ in range(batch)]
            answers = adapter.classify([to_png(pixels) for pixels, _ in shown])
            for index in answers.ask[:1]:
                adapter.feedback(answers.request_id, index, shown[index][1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=640, help="per camera")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stay", type=float, default=0, help="seconds to leave the page open")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as store:
        process, url = start(store, options.port)
        print(f"The page is at {url} (until the demonstration ends).", flush=True)
        try:
            cameras = [Camera(seed, bright=320, fall=160) for seed in range(len(CAMERAS))]
            sizes = (options.images, options.batch)
            threads = [
                threading.Thread(target=play, args=(url, name, camera, *sizes))
                for name, camera in zip(CAMERAS, cameras, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            alarms = tell(url)
            time.sleep(options.stay)
        finally:
            process.terminate()
            process.wait(60)
    return 0 if alarms == len(CAMERAS) else 1


def tell(url: str) -> int:
    """A line per camera; the number of cameras with an alarm."""
    alarms = 0
    with bt.Client(url) as client:
        for name in CAMERAS:
            about = client.adapter(name).describe()
            drift, harm = about["drift"], about["harm"]
            first = drift["events"][0]["sample"] if drift["events"] else None
            said = f"drift alarm at image {first}" if first else "no drift alarm"
            alarms += first is not None
            print(
                f"{name}: {about['samples']} images, {said}; {harm['labels']} labels, "
                f"{harm['mended']} mended, {harm['broken']} broken; "
                f"accuracy estimated at {100 * about['accuracy']:.0f} %"
            )
    print("The light begins to go at image 320.")
    return alarms


if __name__ == "__main__":
    sys.exit(main())
