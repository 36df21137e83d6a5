"""The front door: five scripts of at most eight lines each, as a newcomer would write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from test_transformers import write

SCRIPTS = {
    "open_clip object": """
import bayestta as bt, open_clip, torch
clip, _, preprocess = open_clip.create_model_and_transforms("RN50")
model = bt.wrap(clip, open_clip.get_tokenizer("RN50"), preprocess)
adapter = bt.BayesTTA(model, ["cat", "dog"])
print(adapter.adapt(torch.randn(2, 3, 224, 224)).shape)
""",
    "transformers object": """
import bayestta as bt
from transformers import AutoModel, AutoProcessor
clip, processor = AutoModel.from_pretrained("clip"), AutoProcessor.from_pretrained("clip")
adapter = bt.BayesTTA(bt.wrap(clip, processor), ["cat", "dog"])
print(adapter.adapt(["photo.jpg", "photo.jpg"]).shape)
""",
    "embeddings only": """
import bayestta as bt, torch
text, images = torch.randn(5, 64), torch.randn(40, 64)  # from your own encoders
adapter = bt.BayesTTA(bt.wrap(text=text, scale=100.0), list("abcde"), refine=False)
for z in images.split(20):
    print(adapter.adapt(z).argmax(1).tolist())
""",
    "DataLoader": """
import bayestta as bt, torch
from torch.utils.data import DataLoader, TensorDataset
model = bt.load_model("mini-rn")
x, y = torch.randn(20, 3, 64, 64), torch.randint(2, (20,))
result = bt.evaluate(bt.BayesTTA(model, ["cat", "dog"]), DataLoader(TensorDataset(x, y), 10))
print(result.n, result.accuracy)
""",
    "one PIL image at a time": """
import bayestta as bt
from PIL import Image
adapter = bt.BayesTTA(bt.load_model("mini-rn"), ["cat", "dog", "ship"])
for _ in range(3):
    logits = adapter.adapt(Image.open("photo.jpg"))
    print(adapter.classes[logits.argmax()], adapter.probabilities(logits).max().item())
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the scripts find a photo and a CLIP of transformers."""
    path = tmp_path_factory.mktemp("front")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path / "photo.jpg")
    write("clip", path / "clip")
    parts = [
        transformers.AutoImageProcessor.from_pretrained(path / "clip"),
        transformers.AutoTokenizer.from_pretrained(path / "clip"),
    ]
    transformers.CLIPProcessor(*parts).save_pretrained(path / "clip")
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_eight_lines_is_enough(name, folder, monkeypatch, capsys):
    """Run in this process: test_torchvision.py tests the imports in a fresh one."""
    script = SCRIPTS[name].strip()
    assert len(script.splitlines()) <= 8
    assert script.startswith("import bayestta as bt")
    monkeypatch.chdir(folder)
    with torch.random.fork_rng():
        exec(compile(script, name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out
