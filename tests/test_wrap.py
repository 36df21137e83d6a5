"""`wrap`: a caller's model answers as the same weights loaded by name, and stays as it is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayestta as bt
from bayestta.models._wrap import alias
from conftest import tiny_clip
from test_transformers import PROMPTS, write

CLASSES = ["cat", "dog", "ship"]
MODES = ["train", "eval"]


def tokenizer():
    from open_clip import SimpleTokenizer

    return SimpleTokenizer(context_length=32)


def account(module: nn.Module) -> dict:
    """All that a wrapped module must keep: tensors, flags, modes, hooks and plain attributes."""
    parts = dict(module.named_modules())
    return {
        "tensors": {key: value.clone() for key, value in module.state_dict().items()},
        "versions": [t._version for t in (*module.parameters(), *module.buffers())],
        "addresses": [t.data_ptr() for t in (*module.parameters(), *module.buffers())],
        "flags": [p.requires_grad for p in module.parameters()],
        "gradients": [p.grad is None for p in module.parameters()],
        "modes": [part.training for part in parts.values()],
        "hooks": [
            (key, name, list(value.values()))
            for key, part in parts.items()
            for name, value in vars(part).items()
            if "_hooks" in name and isinstance(value, dict)
        ],
        "attributes": [sorted(vars(part)) for part in parts.values()],
    }


def same(before: dict, after: dict) -> None:
    assert before.keys() == after.keys()
    for key, value in before.pop("tensors").items():
        assert torch.equal(value, after["tensors"][key]), key
    assert before == {key: value for key, value in after.items() if key != "tensors"}


def batches(size: int, n: int = 3) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    return [torch.randn(6, 3, size, size, generator=rng) for _ in range(n)]


def odd(clip: nn.Module, mode: str) -> list:
    """Flags, a mode and hooks of the caller's own; the list collects what the hook sees."""
    seen: list = []
    clip.train(mode == "train")
    for i, parameter in enumerate(clip.parameters()):
        parameter.requires_grad_(i % 3 > 0)
    clip.visual.register_forward_hook(lambda module, x, y: seen.append(y.shape))
    clip.visual.register_full_backward_hook(lambda *_: seen.append("backward"))
    return seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["mini-rn", "mini-vit"])
def test_an_open_clip_object_answers_as_loaded_and_stays_as_it_is(name, mode, tmp_path):
    from safetensors.torch import save_file

    clip = tiny_clip(name)
    save_file(clip.state_dict(), tmp_path / "clip.safetensors")
    loaded = bt.load_model(tmp_path / "clip.safetensors")
    seen = odd(clip, mode)
    before = account(clip)
    wrapped = bt.wrap(clip, tokenizer())
    assert wrapped.fingerprint == loaded.fingerprint
    assert (wrapped.name, wrapped.scale, wrapped.dim) == ("CLIP", loaded.scale, loaded.dim)
    for method in ("bayestta", "cotta", "rotta"):  # refinement, source and robust statistics
        mine, theirs = (bt.make_adapter(method, m, CLASSES, seed=1) for m in (wrapped, loaded))
        for x in batches(wrapped.preprocess.size):
            assert torch.equal(mine.adapt(x), theirs.adapt(x)), method
        assert torch.equal(mine.predict(x), theirs.predict(x)), method
    same(before, account(clip))
    assert seen
    assert "backward" not in seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_transformers_object_answers_as_loaded_and_stays_as_it_is(kind, mode, tmp_path):
    model = write(kind, tmp_path).train(mode == "train")
    for parameter in list(model.parameters())[::2]:
        parameter.requires_grad_(False)
    before = account(model)
    loaded = bt.load_model(f"hf:{tmp_path}")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    images = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    wrapped = bt.wrap(model, words, images)
    assert wrapped.preprocess == loaded.preprocess
    assert wrapped.fingerprint == loaded.fingerprint
    assert torch.equal(wrapped.encode_text(PROMPTS), loaded.encode_text(PROMPTS))
    for method in ("bayestta", "tpt"):
        mine, theirs = (bt.make_adapter(method, m, ["cat", "dog"]) for m in (wrapped, loaded))
        for x in batches(32):
            x = x.view(3, 2, 3, 32, 32) if method == "tpt" else x  # two views per image
            assert torch.equal(mine.adapt(x), theirs.adapt(x)), method
    same(before, account(model))


def test_a_processor_is_taken_whole(tmp_path):
    model = write("clip", tmp_path)
    parts = [
        transformers.AutoImageProcessor.from_pretrained(tmp_path),
        transformers.AutoTokenizer.from_pretrained(tmp_path),
    ]
    wrapped = bt.wrap(model, transformers.CLIPProcessor(*parts), name="mine")
    assert wrapped.name == "mine"
    assert torch.equal(
        wrapped.encode_text(PROMPTS), bt.load_model(f"hf:{tmp_path}").encode_text(PROMPTS)
    )
    with pytest.raises(TypeError, match=r"needs its tokenizer and image processor: write wrap\("):
        bt.wrap(model, parts[1])
    text = transformers.BertModel(transformers.BertConfig(hidden_size=12, num_hidden_layers=1))
    with pytest.raises(TypeError, match="of the family 'bert': wrap takes CLIPModel and Siglip"):
        bt.wrap(text, *parts)


def test_weights_that_the_owner_trains_are_seen():
    clip = tiny_clip("mini-vit").train()
    model, x = bt.wrap(clip, tokenizer()), batches(32, 1)[0]
    first, before = bt.BayesTTA(model, CLASSES), model.fingerprint
    optimiser = torch.optim.SGD(clip.parameters(), lr=1.0)
    z = clip.encode_image(x) @ clip.encode_text(tokenizer()(CLASSES)).T
    z.sum().backward()
    optimiser.step()
    assert model.fingerprint != before
    second = bt.BayesTTA(model, CLASSES)  # its prompts are encoded again
    assert not torch.equal(first.text, second.text)
    fresh = bt.wrap(clip, tokenizer())
    assert torch.equal(fresh.encode_image(x), model.encode_image(x))
    assert torch.equal(bt.BayesTTA(fresh, CLASSES).text, second.text)


def test_gradient_checkpointing_of_the_owner_does_not_reach_our_passes():
    clip = tiny_clip("mini-vit")
    plain = bt.BayesTTA(bt.wrap(clip, tokenizer()), CLASSES)
    clip.set_grad_checkpointing(True)
    adapter = bt.BayesTTA(bt.wrap(clip, tokenizer()), CLASSES)
    for x in batches(32):
        assert torch.equal(adapter.adapt(x), plain.adapt(x))
    assert clip.visual.transformer.grad_checkpointing


def test_an_alias_shares_tensors_and_nothing_else():
    tied = nn.Linear(3, 3)
    tower = nn.Sequential(tied, nn.BatchNorm1d(3), nn.Dropout(0.5), nn.utils.weight_norm(tied))
    tower.method = tower.forward  # a bound method, as patched models have
    other = alias(tower)
    assert other.method.__self__ is other
    assert other[0] is other[3]
    for mine, theirs in zip(other.state_dict().values(), tower.state_dict().values(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr()
    assert not any(p.requires_grad for p in other.parameters())
    other.register_forward_hook(lambda *_: None)
    assert not tower._forward_hooks
    tower.lock = __import__("threading").Lock()
    with pytest.raises(TypeError, match=r"Sequential cannot be copied \(cannot pickle .* remove"):
        alias(tower)


# --- preprocessing and tokenizer ---


def test_the_preprocessing_of_open_clip_is_used(tmp_path):
    import open_clip
    from PIL import Image

    clip = tiny_clip("mini-vit")
    theirs = open_clip.transform.image_transform(32, is_train=False, mean=(0.5, 0.4, 0.3))
    model = bt.wrap(clip, tokenizer(), theirs)
    assert (model.mean, model.input_shape) == (pytest.approx((0.5, 0.4, 0.3)), (3, 32, 32))
    pixels = np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)
    x = theirs(Image.fromarray(pixels))
    adapter = bt.BayesTTA(model, CLASSES)
    assert torch.equal(adapter.predict(Image.fromarray(pixels)), adapter.predict(x[None]))
    images = [Image.fromarray(pixels)] * 4
    for step in bt.steps(adapter, [images, images]):
        assert step.n == 4
    for given, message in (
        (open_clip.transform.image_transform(32, is_train=True), "as the one for training does"),
        (open_clip.transform.image_transform(40, is_train=False), "does not take the 40 x 40 pix"),
        (lambda image: image, r"preprocess makes a Image of an image instead of \(3, S, S\)"),
        (lambda image: 1 / 0, "preprocess does not take a PIL image"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            bt.wrap(clip, tokenizer(), given)


def test_what_is_no_model_gets_one_sentence(tiny_vit):
    clip = tiny_clip("mini-vit")
    for arguments, message in (
        (("lit",), r"'lit' is a name: use bayestta.load_model\('lit'\)"),
        ((tiny_vit,), "'tiny:mini-vit' is a model of bayestta already: give it to an adapter"),
        ((), "wrap got a NoneType: give a CLIP of open_clip"),
        ((clip.visual, tokenizer()), "VisionTransformer has no visual and no encode_text"),
        ((nn.DataParallel(clip), tokenizer()), "as a CLIP has: give model.module"),
        ((clip,), "the tokenizer does not take texts .* give what open_clip.get_tokenizer"),
        ((clip, str), r"the tokenizer does not make a tensor \(P,L\) of ids"),
    ):
        with pytest.raises(TypeError, match=message):
            bt.wrap(*arguments)
    for wrong in (clip, object(), None, 3):
        with pytest.raises(TypeError, match=r"load_model takes a name or path, and got a .*wrap\."):
            bt.load_model(wrong)


# --- embeddings alone ---


def test_embeddings_alone_answer_as_the_model_that_made_them(tiny_vit):
    text = tiny_vit.prototypes(CLASSES, ["a photo of a {}."])
    model = bt.wrap(text=3 * text, scale=tiny_vit.scale)
    settings = {"refine": False, "guard": True}
    mine, theirs = (bt.BayesTTA(m, CLASSES, **settings) for m in (model, tiny_vit))
    for x in batches(32):
        z = 5 * tiny_vit.encode_image(x)
        torch.testing.assert_close(mine.adapt(z), theirs.adapt(x), atol=1e-4, rtol=0)
    assert torch.equal(mine.predict(z.numpy()), mine.predict(z))  # arrays do as well
    loader = DataLoader(TensorDataset(z, torch.zeros(len(z), dtype=torch.long)), batch_size=4)
    assert bt.evaluate(mine, loader).n == len(z)
    for name in ("zero-shot", "tda", "dota", "bca", "dpe"):
        logits = bt.make_adapter(name, model, CLASSES).adapt(z)
        assert logits.shape == (len(z), 3)


def test_embeddings_that_do_not_fit_get_one_sentence():
    W = torch.eye(4)[:3]
    model = bt.wrap(text=W.numpy(), scale=10)
    for call, message in (
        (lambda: bt.wrap(text=W), "scale is None: give the positive factor"),
        (lambda: bt.wrap(text=W, scale=-1.0), "scale is -1.0"),
        (lambda: bt.wrap(text=W[0], scale=1.0), r"shape \(4,\): give floats \(K,D\)"),
        (lambda: bt.wrap(text=W.long(), scale=1.0), "text is torch.int64"),
        (lambda: bt.wrap(text=0 * W, scale=1.0), r"3 of 3 rows of text are zero or not finite"),
        (lambda: bt.wrap(nn.Identity(), text=W, scale=1.0), "both a model and text prototypes"),
        (lambda: bt.wrap(nn.Identity(), scale=1.0), "scale and bias go with text="),
        (lambda: bt.BayesTTA(model, ["a", "b"], refine=False), "2 class names .* 3 rows of text"),
        (lambda: bt.make_adapter("tent-reset", model, CLASSES), "runs the image tower"),
        (lambda: model.encode_text(["cat"]), "cannot encode prompts"),
        (lambda: zero_shot(model).adapt(W[:, :3]), r"takes \(B, 4\): give the features of the"),
        (lambda: zero_shot(model).adapt(W * 1e-9), r"3 of 3 features of the batch are zero"),
        (lambda: zero_shot(model).adapt(W[0]), r"takes \(B, 4\): write x\[None\] for one"),
        (lambda: zero_shot(model).adapt(["a.jpg"]), "'embeddings' takes features: give a float"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()


def zero_shot(model):
    return bt.make_adapter("zero-shot", model, CLASSES)


# --- SigLIP: softmax by default, sigmoid on request ---


def test_a_siglip_has_both_kinds_of_probabilities(tmp_path):
    model = write("siglip", tmp_path)
    wrapped = bt.wrap(
        model,
        transformers.AutoTokenizer.from_pretrained(tmp_path),
        transformers.AutoImageProcessor.from_pretrained(tmp_path),
    )
    adapter, x = bt.make_adapter("zero-shot", wrapped, ["cat", "dog"]), batches(32, 1)[0]
    logits = adapter.predict(x)
    torch.testing.assert_close(adapter.probabilities(logits), logits.softmax(1))
    lines = [f"a photo of a {name}." for name in ("cat", "dog")]
    tokens = wrapped.tokenizer(lines, padding="max_length", max_length=12, return_tensors="pt")
    with torch.no_grad():
        theirs = model.eval()(input_ids=tokens["input_ids"], pixel_values=x).logits_per_image
    torch.testing.assert_close(wrapped.sigmoid(logits), theirs.sigmoid(), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="no logit bias, so it was trained with a softmax"):
        bt.wrap(text=torch.eye(2), scale=1.0).sigmoid(logits)


def test_a_copy_of_a_wrapped_model_is_a_model(tiny_vit):
    """Nothing in it depends on where it came from."""
    clip = tiny_clip("mini-vit")
    model = bt.wrap(copy.deepcopy(clip), tokenizer())
    x = batches(32, 1)[0]
    assert torch.equal(model.encode_image(x), bt.wrap(clip, tokenizer()).encode_image(x))
