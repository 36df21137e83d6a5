"""A folder of camera images that drifts: label it in the order of time, adapting on the way.

The images show the digits of a display, in front of a camera that slowly tilts. The script draws
them itself; put your own folder and labels in their place.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import bayestta as bt

LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEMPLATE = "a photo of the number {}."


def draw(folder: Path, n: int = 500) -> None:
    """Image i shows digit i % 10; the last ones are tilted by 75 degrees."""
    font = ImageFont.load_default(size=24)
    for i in range(n):
        image = Image.new("RGB", (28, 28))
        ImageDraw.Draw(image).text((14, 14), str(i % 10), "white", font, anchor="mm")
        image.rotate(75 * i / n, Image.Resampling.BILINEAR).save(folder / f"{i:05d}.png")


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    draw(folder)
    photos = sorted(folder.glob("*.png"))  # by name, which here is by time

    model = bt.load_model("mini-rn")
    options = {"hypothesis_template": TEMPLATE, "top_k": 1}
    frozen = bt.pipeline(model, LABELS, method="zero-shot", **options)
    pipe = bt.pipeline(model, LABELS, state=folder / "camera.state", **options)
    before, adapted = frozen(photos), pipe(photos)
    pipe.save()  # the next run goes on from the state

for title, answers in (("zero-shot", before), ("adapted", adapted)):
    right = sum(answer[0]["label"] == LABELS[i % 10] for i, answer in enumerate(answers))
    print(f"{title}: {right} of {len(photos)} right")
