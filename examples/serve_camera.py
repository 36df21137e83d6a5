"""A simulated camera that gets dark, sent to a service that is running.

bayestta serve --model mini-rn --store ./store
python examples/serve_camera.py http://127.0.0.1:8000 cam-1
"""

from __future__ import annotations

import sys

import bayestta as bt
from bayestta.serve.camera import Camera, to_png

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905
url, name = (*sys.argv[1:], "http://127.0.0.1:8000", "cam-1")[:2]
frames = Camera(seed=1, bright=300, fall=200).frames()
with bt.Client(url) as client:
    camera = client.adapter(name)
    if name not in [row["id"] for row in client.adapters()]:
        camera.create(CLASSES)
    for _ in range(50):
        shown = [next(frames) for _ in range(16)]
        answers = camera.classify([to_png(pixels) for pixels, _ in shown])
        right = sum(a == truth for a, (_, truth) in zip(answers.best(), shown, strict=True))
        alarms = camera.describe()["drift"]["alarms"]
        print(f"step {answers.step}: {right} of 16 right, {alarms} drift alarms")
