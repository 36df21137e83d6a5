"""CoOp: a context from a checkpoint, or learnt from labelled images; then zero-shot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from bayestta.data._base import Data, Dataset
from bayestta.methods import make_adapter
from bayestta.methods.coop import load_context, pick_shots, save_context, train_coop
from test_prompts import literal as encode

NAMES, TEMPLATES = ["cat", "dog", "car"], ["a {}."]


def images(model, n=3):
    random = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, model.preprocess.size, model.preprocess.size, generator=random)


def checkpoint(path, context, **more):
    """As CoOp's framework saves it: the training classes' embeddings ride along."""
    state = {
        "ctx": context,
        "token_prefix": torch.zeros(1000, 1, 96),
        "token_suffix": torch.zeros(1000, 60, 96),
    }
    torch.save({"state_dict": {**state, **more}, "epoch": 50, "optimizer": {"lr": 0.1}}, path)
    return path


@pytest.mark.parametrize("tokens", [4, 16])
def test_a_checkpoint_for_other_classes_gives_zero_shot_with_its_context(
    tiny_vit, tmp_path, tokens
):
    context = torch.randn(tokens, 96, generator=torch.Generator().manual_seed(0))
    path = checkpoint(tmp_path / "model.pth.tar-50", context.half())
    adapter, x = (
        make_adapter("coop", tiny_vit, NAMES, TEMPLATES, checkpoint=str(path)),
        images(tiny_vit),
    )
    text = encode(tiny_vit, NAMES, context.half().float(), " ".join(["x"] * tokens))
    want = tiny_vit.scale * tiny_vit.encode_image(x) @ text.T
    torch.testing.assert_close(adapter.adapt(x), want, atol=1e-4, rtol=0)
    torch.testing.assert_close(adapter.predict(x), want, atol=1e-4, rtol=0)
    assert f"{tokens} learnt tokens" in adapter.templates[0]
    assert "context" not in adapter.record


def test_without_a_checkpoint_every_record_says_so(tiny_vit):
    adapter, x = make_adapter("coop", tiny_vit, NAMES, TEMPLATES), images(tiny_vit)
    lines = [f"a photo of a {name}." for name in NAMES]
    want = tiny_vit.logits(tiny_vit.encode_image(x), tiny_vit.encode_text(lines))
    torch.testing.assert_close(adapter.adapt(x), want, atol=1e-4, rtol=0)
    assert adapter.record["context"].startswith("untrained")


def test_bad_checkpoints_are_refused(tiny_vit, tmp_path):
    with pytest.raises(FileNotFoundError, match="no context at"):
        load_context(tmp_path / "none.pth")
    each = checkpoint(tmp_path / "each.pth", torch.zeros(10, 4, 96))
    with pytest.raises(ValueError, match=r"shape \(10, 4, 96\).*unified context"):
        load_context(each)
    torch.save({"state_dict": {"weight": torch.zeros(3)}}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="and has none"):
        load_context(tmp_path / "other.pth")
    torch.save({"state_dict": Image.new("RGB", (2, 2))}, tmp_path / "code.pth")
    for name in ("code.pth", "cut.pth", "cut.safetensors"):
        if name.startswith("cut"):
            (tmp_path / name).write_bytes(each.read_bytes()[:100])
        with pytest.raises(ValueError, match="cannot be read as a context"):
            load_context(tmp_path / name)
    wide = checkpoint(tmp_path / "wide.pth", torch.zeros(4, 512))
    with pytest.raises(ValueError, match=r"\(4, 512\).*place for \(4, 96\)"):
        make_adapter("coop", tiny_vit, NAMES, TEMPLATES, checkpoint=str(wide))


class Colours(Data):
    """Two classes that a glance tells apart, over two domains."""

    name, classes, templates = "colours", ["red", "blue"], ["a {}."]
    domains, labelled = ["one", "two"], True

    def __getitem__(self, domain):
        return Pictures(domain)


class Pictures(Dataset):
    def __init__(self, domain):
        self.key = len(domain) + ord(domain[0])

    def __len__(self):
        return 6

    def __getitem__(self, i):
        levels = np.random.default_rng([self.key, i]).integers(0, 60, (20, 24, 3), np.uint8)
        levels[..., 2 * (i % 2)] += 190
        return Image.fromarray(levels), i % 2

    def labels(self, index):
        return torch.tensor([i % 2 for i in index])


def test_training_lowers_the_loss_and_repeats_itself(tiny_vit, tmp_path):
    losses = []
    settings = {"shots": 2, "epochs": 6, "lr": 0.05, "batch_size": 4}
    learnt = train_coop(
        tiny_vit, Colours(), **settings, progress=lambda epoch, loss: losses.append(loss)
    )
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.05
    assert torch.equal(learnt, train_coop(tiny_vit, Colours(), **settings))
    assert not learnt.requires_grad
    path = tmp_path / "deep" / "colours.safetensors"
    save_context(learnt, path, shots=2, data="colours")
    assert torch.equal(load_context(path), learnt)
    with safe_open(path, "pt") as file:
        assert '"shots": 2' in file.metadata()["coop"]
    adapter = make_adapter("coop", tiny_vit, ["red", "blue"], TEMPLATES, checkpoint=str(path))
    dataset = Pictures("one")
    x = torch.stack([tiny_vit.preprocess(dataset[i][0]) for i in range(6)])
    assert adapter.adapt(x).argmax(1).tolist() == [0, 1] * 3


def test_a_random_start_and_the_first_epoch_hardly_moves(tiny_vit):
    start = train_coop(tiny_vit, Colours(), shots=1, tokens=7, epochs=1, seed=3)
    assert start.shape == (7, 96)
    assert 0.01 < start.std() < 0.03


def test_shots_are_balanced_and_checked():
    picked = pick_shots(Colours(), 3, seed=1)
    assert [label for _, _, label in picked] == [0] * 3 + [1] * 3
    assert all(i % 2 == label for _, i, label in picked)
    assert len(set(picked)) == 6
    assert picked != pick_shots(Colours(), 3, seed=2)
    with pytest.raises(ValueError, match="class 'red' has 6 images and 7 shots"):
        pick_shots(Colours(), 7, seed=1)
    bare = Colours()
    bare.labelled = False
    with pytest.raises(ValueError, match="has no labels: coop needs them"):
        pick_shots(bare, 1, seed=1)
