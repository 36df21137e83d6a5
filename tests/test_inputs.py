"""What people hand to an adapter: every kind that is taken, and one sentence for the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import bayestta as bt
from bayestta.evaluation._batches import to_step
from bayestta.models._inputs import to_batch

CLASSES = ["cat", "dog", "ship"]


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def path(pixels, tmp_path_factory):
    file = tmp_path_factory.mktemp("a folder") / "a cat#1.png"
    Image.fromarray(pixels).save(file)
    return file


def test_every_kind_of_image_gives_the_same_batch(tiny_vit, pixels, path):
    image = Image.fromarray(pixels)
    want = tiny_vit.preprocess(image)[None]
    for given in (
        want,
        image,
        pixels,
        path,
        str(path),
        path.as_uri(),
        [image],
        (pixels,),
        [want[0]],
    ):
        assert torch.equal(to_batch(tiny_vit, given), want)
    several = [image, pixels, path, path.as_uri()]
    assert torch.equal(to_batch(tiny_vit, several), want.expand(4, -1, -1, -1))
    assert torch.equal(to_batch(tiny_vit, np.stack([pixels] * 2)), want.expand(2, -1, -1, -1))
    grey = pixels[..., 0]
    assert torch.equal(
        to_batch(tiny_vit, grey), to_batch(tiny_vit, np.repeat(grey[..., None], 3, 2))
    )
    clear = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    assert torch.equal(
        to_batch(tiny_vit, clear), to_batch(tiny_vit, Image.new("RGB", (9, 9), "white"))
    )


def test_a_graph_or_inference_mode_of_the_caller_is_left_behind(tiny_vit):
    x = torch.zeros(2, 3, 32, 32, requires_grad=True)
    assert not to_batch(tiny_vit, 2 * x).requires_grad
    with torch.inference_mode():
        inside = torch.zeros(2, 3, 32, 32)
    with torch.inference_mode(False):
        assert not to_batch(tiny_vit, inside).is_inference()


def test_what_cannot_be_taken_gets_one_sentence_and_changes_nothing(tiny_vit, pixels, tmp_path):
    adapter = bt.BayesTTA(tiny_vit, CLASSES)
    x = torch.zeros(2, 3, 32, 32)
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    for given, message in (
        (x.to(torch.uint8), "tensor of torch.uint8, not of normalised pixels: give a float tensor"),
        (x.long(), "tensor of torch.int64"),
        (x[0], r"shape \(3, 32, 32\), .* takes \(B, 3, 32, 32\): write x\[None\] for one"),
        (x[:, :1], r"shape \(2, 1, 32, 32\), .* use model.preprocess"),
        (x[..., :16], r"shape \(2, 3, 32, 16\)"),
        (torch.zeros(()), r"shape \(\)"),
        (x[:0], "the batch is empty: give at least 1 image"),
        ([], "the batch is empty"),
        (np.zeros((0, 8, 8, 3), np.uint8), "the batch is empty"),
        (x / 0, "2 of 2 images of the batch hold pixels that are NaN"),
        (pixels / 255, r"array of float64 with shape \(40, 60, 3\): give uint8 with shape"),
        (pixels.transpose(2, 0, 1), r"shape \(3, 40, 60\): .* a.transpose\(1, 2, 0\)"),
        (np.zeros((8, 8, 4), np.uint8), r"image 0 is an array of uint8 with shape \(8, 8, 4\)"),
        (np.zeros(5), r"images are an array of float64 with shape \(5,\): give uint8 .*B,H,W,3"),
        (np.zeros((0, 4, 3), np.uint8), "image 0 has 0 pixels"),
        ([Image.new("RGB", (4, 4)), x[0]], "1 of 2 images are tensors and the others are not"),
        ([x[0], x[0, :, :8]], r"tensors of different shapes \(\(3, 8, 32\) and \(3, 32, 32\)\)"),
        ([x], r"an image is a tensor of shape \(2, 3, 32, 32\) instead of \(C,H,W\): give a batch"),
        ([pixels, [pixels]], "image 1 is of type list: give"),
        ([pixels, None], "image 1 is of type NoneType"),
        (x[:, None], r"shape \(2, 1, 3, 32, 32\), and .* takes \(B, 3, 32, 32\)"),
        ({"image": x}, "images are of type dict: give"),
        (b"bytes", "images are of type bytes"),
        (iter([x]), "images are of type list_iterator"),
        (3, "images are of type int"),
        (None, "images are of type NoneType"),
        (bad, r"bad.jpg: not an image \(8 bytes\)"),
        ("missing.jpg", "missing.jpg: .*No such file"),
        ("https://example.org/cat.jpg", "cat.jpg is not a local file, and nothing is downloaded"),
        ("file://server/share/cat.jpg", "is not a local file"),
        ("data:image/png;base64,AAAA", "is not a local file"),
    ):
        with pytest.raises((ValueError, TypeError), match=message) as error:
            adapter.adapt(given)
        assert "\n" not in str(error.value)
    assert adapter.samples == adapter.steps == 0


@pytest.mark.parametrize("scale", [1e18, 1e30])
@pytest.mark.parametrize("kind", ["pixels", "features"])
def test_a_huge_image_is_refused_and_the_stream_goes_on(tiny_vit, kind, scale):
    """In 0.1 one such image of 64 made the state infinite, and every later call failed."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(3, 16, generator=rng), dim=1)
    shape, model = (64, 16), bt.wrap(text=rows, scale=20.0)
    if kind == "pixels":
        shape, model = (64, 3, 32, 32), tiny_vit
    batches = [torch.randn(shape, generator=rng) for _ in range(3)]
    adapter, undisturbed = (bt.BayesTTA(model, CLASSES) for _ in range(2))
    spoilt = batches[1].clone()
    spoilt[7] *= scale
    for i, x in enumerate(batches):
        if i == 1:
            fact = rf"1 of 64 images of the batch hold {kind} that are beyond 1,000,000 .*first: 7"
            with pytest.raises(ValueError, match=fact):
                adapter.adapt(spoilt)
            with pytest.raises(ValueError, match=fact):
                adapter.predict(spoilt)
        assert torch.equal(adapter.adapt(x), undisturbed.adapt(x))


# --- the runner ---


def test_a_data_loader_is_a_stream(tiny_vit):
    x, y = torch.randn(10, 3, 32, 32), torch.arange(10) % 3
    adapter = bt.BayesTTA(tiny_vit, CLASSES)
    result = bt.evaluate(adapter, DataLoader(TensorDataset(x, y), batch_size=4))
    assert (result.n, adapter.steps) == (10, 3)
    unlabelled = DataLoader(TensorDataset(x), batch_size=5)
    assert [step.n for step in bt.steps(adapter, unlabelled)] == [5, 5]


def test_pairs_are_told_from_two_images(tiny_vit, pixels, path):
    image = Image.fromarray(pixels)
    x = torch.zeros(2, 3, 32, 32)
    for given, n, labels in (
        ((x, torch.tensor([1, 0])), 2, [1, 0]),
        ([x, np.array([1, 2])], 2, [1, 2]),
        ((x, [0, 1]), 2, [0, 1]),
        ((x, None), 2, None),
        (([image, path], [2, 0]), 2, [2, 0]),
        ((image, 1), 1, [1]),
        ((str(path), torch.tensor(2)), 1, [2]),
        ([image, image], 2, None),
        ([str(path), path], 2, None),
        ([x[0], x[1]], 2, None),
        ([pixels, pixels], 2, None),
        (image, 1, None),
        (x, 2, None),
    ):
        batch = to_step(given)
        assert len(batch.index) == n
        assert (None if batch.y is None else batch.y.tolist()) == labels
        (step,) = bt.steps(bt.make_adapter("zero-shot", tiny_vit, CLASSES), [given])
        assert step.n == n


def test_batches_of_another_kind_get_one_sentence(tiny_vit):
    x, adapter = torch.zeros(2, 3, 32, 32), bt.make_adapter("zero-shot", tiny_vit, CLASSES)
    for given, message in (
        ({"image": x, "label": [0, 1]}, r'is a dict with image, label: write \(\(b\["image"\]'),
        ((x, torch.zeros(2, dtype=torch.long), "meta"), r"tuple of 3 \(Tensor, Tensor, str\)"),
        ((x, torch.zeros(2)), "labels of a batch are torch.float32"),
        ((x, torch.zeros(3, dtype=torch.long)), r"shape \(3,\) for 2 images"),
        ((x, torch.zeros(2, 3)), r"tuple of 2 \(Tensor, Tensor\): give \(x, y\), or x"),
        ((x, torch.tensor([0, 3])), "labels must lie in 0..2"),
        (3, "images are of type int"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            bt.evaluate(adapter, [given])
