"""What every model promises, and open_clip's own numbers for the paper's two backbones."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

from bayestta import list_models, load_model
from bayestta.models._norms import norm_layers, norm_parameters
from bayestta.models._optional import require
from bayestta.models.base import find_device, place
from bayestta.models.features import Features
from bayestta.models.open_clip import OpenCLIP, build
from conftest import tiny_vlm, wake

PROMPTS = ["a photo of a cat.", "a photo of a dog.", "art"]


def images(model, n=2, seed=0):
    size = model.preprocess.size
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


# --- the paper's two backbones ---


@pytest.fixture(scope="module", params=["clip-rn50", "clip-vit-b16"])
def backbone(request):
    """A short name, loaded as a user would, with random weights in place of the download."""
    import open_clip

    asked = []

    def create_model(name, pretrained=None):
        asked.append((name, pretrained))
        torch.manual_seed(0)
        clip = build(open_clip.get_model_config(name))
        wake(clip.visual)
        return clip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_clip, "create_model", create_model)
        model = load_model(request.param)
    return model, asked


def test_a_backbone_gives_open_clips_own_numbers(backbone):
    model, asked = backbone
    name = {"clip-rn50": "RN50-quickgelu", "clip-vit-b16": "ViT-B-16-quickgelu"}[model.name]
    assert asked == [(name, "openai")]
    x = images(model)
    with torch.no_grad():
        ours, text = model.encode_image(x), model.encode_text(PROMPTS)
        z, t, scale = model.clip(x, model.tokenizer(PROMPTS))
    torch.testing.assert_close(ours, z, atol=1e-6, rtol=0)
    torch.testing.assert_close(text, t, atol=1e-6, rtol=0)
    torch.testing.assert_close(model.logits(ours, text), scale * z @ t.T, atol=1e-4, rtol=0)
    assert (model.dim, model.preprocess.size) == (z.shape[1], 224)
    assert model.scale == pytest.approx(1 / 0.07, rel=1e-6)


def test_gradients_reach_every_norm_of_a_backbone_and_nothing_else(backbone):
    model, _ = backbone
    tuned = {k: v.requires_grad_() for k, v in norm_parameters(model.visual).items()}
    assert len(tuned) == 2 * {"clip-rn50": 55, "clip-vit-b16": 26}[model.name]
    z = model.encode_image(images(model), tuned)
    (z * torch.randn(z.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    still = [key for key, value in tuned.items() if not value.grad.abs().sum() > 0]
    assert still == []
    assert all(p.grad is None and not p.requires_grad for p in model.clip.parameters())


# --- what a model promises ---


def test_features_are_float32_at_unit_norm(tiny):
    z, text = tiny.encode_image(images(tiny, 3)), tiny.encode_text(PROMPTS)
    for found in (z, text):
        assert found.shape == (3, tiny.dim)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(tiny.logits(z, text), tiny.scale * z @ text.T)


def test_params_take_the_place_of_weights_and_the_model_stays_as_it_is(tiny):
    x, before = images(tiny), copy.deepcopy(tiny.clip.state_dict())
    plain = tiny.encode_image(x)
    params = {key: value + 0.5 for key, value in norm_parameters(tiny.visual).items()}
    changed = copy.deepcopy(tiny.visual)
    changed.load_state_dict(params, strict=False)
    want = nn.functional.normalize(changed(x), dim=1)
    torch.testing.assert_close(tiny.encode_image(x, params), want, atol=1e-6, rtol=0)
    assert not torch.allclose(want, plain, atol=1e-3)
    assert torch.equal(tiny.encode_image(x), plain)
    after = tiny.clip.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_gradients_reach_every_norm_and_nothing_else(tiny):
    tuned = {k: v.requires_grad_() for k, v in norm_parameters(tiny.visual).items()}
    z = tiny.encode_image(images(tiny, 3), tuned, norms="batch")
    (z * torch.randn(z.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert all(value.grad.abs().sum() > 0 for value in tuned.values())
    assert all(p.grad is None for p in tiny.clip.parameters())


def test_encode_image_refuses_what_it_does_not_know(tiny_vit):
    x = images(tiny_vit)
    with pytest.raises(ValueError, match="'bach': did you mean 'batch'"):
        tiny_vit.encode_image(x, norms="bach")
    with pytest.raises(ValueError, match=r"no tensor 'ln_pr.weight' among its \d+: take the names"):
        tiny_vit.encode_image(x, {"ln_pr.weight": torch.ones(96)})


def test_the_fingerprint_knows_the_weights(tiny_vit):
    same, other, text = tiny_vlm("mini-vit"), tiny_vlm("mini-vit", seed=1), tiny_vlm("mini-vit")
    with torch.no_grad():
        text.clip.text_projection[0, 0] += 1  # the text tower counts as well
    found = {tiny_vit.fingerprint, other.fingerprint, text.fingerprint}
    assert len(found) == 3
    assert same.fingerprint == tiny_vit.fingerprint
    with torch.no_grad():
        same.clip.text_projection[0, 0] += 1  # and is asked again after they were written to
    assert same.fingerprint == text.fingerprint
    assert Features(other).fingerprint != Features(tiny_vit).fingerprint


# --- precision ---


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mini-rn", "mini-vit"])
def test_half_precision_keeps_norms_and_features_in_float32(name, precision):
    model, reference = tiny_vlm(name), tiny_vlm(name)
    place(model, torch.device("cpu"), precision)
    assert model.dtype == precision
    norms = norm_layers(model.visual)
    assert all(
        v.dtype == torch.float32
        for m in norms.values()
        for v in m.state_dict().values()
        if v.is_floating_point()
    )
    x = images(model, 3)
    tuned = {k: v.requires_grad_() for k, v in norm_parameters(model.visual).items()}
    for mode in ("source", "batch"):
        z, want = model.encode_image(x, tuned, norms=mode), reference.encode_image(x, norms=mode)
        assert z.dtype == torch.float32
        torch.testing.assert_close(z.detach().norm(dim=1), torch.ones(3))
        assert (z * want).sum(1).min() > 0.99
        gradients = torch.autograd.grad((z * want.roll(1, 0)).sum(), list(tuned.values()))
        assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
        assert all(g.abs().sum() > 0 for g in gradients)
    text = model.encode_text(PROMPTS)
    torch.testing.assert_close(text.norm(dim=1), torch.ones(3))
    assert (text * reference.encode_text(PROMPTS)).sum(1).min() > 0.99
    assert (text * model.encode_embeddings(*model.embed(PROMPTS))).sum(1).min() > 0.999


# --- the text tower ---


def test_prompt_embeddings_give_the_features_of_the_text(tiny):
    embeddings, tokens = tiny.embed(PROMPTS)
    embeddings = embeddings.detach().requires_grad_()
    text = tiny.encode_embeddings(embeddings, tokens)
    torch.testing.assert_close(text, tiny.encode_text(PROMPTS), atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(text[:, 0].sum(), [embeddings])
    end = tokens.argmax(1)
    for row, last in zip(gradient, end.tolist(), strict=True):
        assert row[: last + 1].abs().sum(1).min() > 0
        assert row[last + 1 :].abs().sum() == 0  # what follows the end is not seen


def test_many_prompts_pass_in_chunks(tiny_vit, monkeypatch):
    lines = [f"a photo of {i} cats" for i in range(7)]
    whole = tiny_vit.encode_text(lines)
    monkeypatch.setattr("bayestta.models.open_clip.CHUNK", 3)
    torch.testing.assert_close(tiny_vit.encode_text(lines), whole)


SMALL_VIT = {"image_size": 16, "layers": 1, "width": 64, "patch_size": 8}
SMALL_TEXT = {"context_length": 16, "width": 64, "heads": 2, "layers": 1}


def test_a_siglip_adds_its_bias():
    from open_clip import SimpleTokenizer

    text = {**SMALL_TEXT, "no_causal_mask": True, "pool_type": "last", "proj_bias": True}
    config = {"embed_dim": 32, "vision_cfg": SMALL_VIT, "text_cfg": text, "custom_text": True}
    clip = build({**config, "init_logit_bias": -10.0})
    clip.visual.preprocess_cfg = {"size": 16, "resize_mode": "squash", "mean": (0.5,) * 3}
    model = OpenCLIP("siglip", clip, SimpleTokenizer(context_length=16))
    assert (model.preprocess.squash, model.mean, model.bias) == (True, (0.5,) * 3, -10.0)
    x = images(model, 3)
    with torch.no_grad():
        ours = model.logits(model.encode_image(x), model.encode_text(PROMPTS))
        theirs, _ = clip.get_logits(x, model.tokenizer(PROMPTS))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    text = model.encode_embeddings(*model.embed(PROMPTS))
    torch.testing.assert_close(text, model.encode_text(PROMPTS), atol=1e-6, rtol=0)


def test_a_text_tower_without_a_gradient_path_says_so():
    from open_clip import SimpleTokenizer

    text = {**SMALL_TEXT, "embed_cls": True}  # CoCa's kind
    config = {"embed_dim": 32, "vision_cfg": {**SMALL_VIT, "output_tokens": True}}
    clip = build({**config, "text_cfg": text, "custom_text": True})
    model = OpenCLIP("coca", clip, SimpleTokenizer(context_length=16))
    assert model.encode_image(images(model)).shape == (2, 32)
    assert not model.prompt_tuning
    with pytest.raises(NotImplementedError, match=r"'coca' has no gradient path .* use mini-rn"):
        model.embed(PROMPTS)


def test_a_preprocessing_that_we_do_not_have_is_refused():
    from open_clip import SimpleTokenizer

    clip = build({"embed_dim": 32, "vision_cfg": SMALL_VIT, "text_cfg": SMALL_TEXT})
    clip.visual.preprocess_cfg = {"size": (16, 16), "resize_mode": "longest"}
    with pytest.raises(ValueError, match="takes 16 x 16 pixels resized by 'longest'"):
        OpenCLIP("odd", clip, SimpleTokenizer(context_length=16))


# --- names ---


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("clip-vitb16", ValueError, "unknown model 'clip-vitb16': did you mean 'clip-vit-b16'"),
        ("", ValueError, "unknown model ''. Valid: PATH, clip-rn50"),
        ("openai/clip-vit", FileNotFoundError, "no checkpoint at openai/clip-vit: check the path"),
        ("clip.safetensors", FileNotFoundError, "no checkpoint at clip.safetensors"),
        ("open_clip:ViT-B-61/openai", ValueError, "'ViT-B-61': did you mean ViT-B-16"),
        ("open_clip:RN50-quickgelu", ValueError, "write open_clip:RN50-quickgelu/TAG with one of"),
        ("open_clip:RN50/openai", ValueError, "write open_clip:RN50-quickgelu/openai."),
        (
            "open_clip:ViT-B-16-quickgelu/laion400m_e32",
            ValueError,
            "unknown pretrained tag of ViT-B-16-quickgelu 'laion400m_e32'",
        ),
        (
            "open_clip:RN50-quickgelu/openay",
            ValueError,
            "unknown pretrained tag of RN50-quickgelu 'openay': did you mean 'openai'",
        ),
    ],
)
def test_an_unknown_name_gets_one_sentence(name, kind, message):
    with pytest.raises(kind, match=r"^[^\n]*$") as error:
        load_model(name)
    assert message in str(error.value)


def test_an_unknown_precision_or_device_gets_one_sentence():
    with pytest.raises(ValueError, match="unknown precision 'fp8': did you mean 'fp32' or 'fp16'"):
        load_model("mini-rn", precision="fp8")
    with pytest.raises(ValueError, match="unknown device 'gpu': use cpu, cuda"):
        load_model("mini-rn", device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="'cuda' does not exist, torch sees 0 CUDA device"):
            find_device("cuda")


def test_every_listed_model_has_a_line():
    found = {model["name"]: model["about"] for model in list_models()}
    assert {"lit", "mini-rn", "mini-vit", "clip-rn50", "clip-vit-b16", "PATH"} <= found.keys()
    assert all(len(line) > 20 for line in found.values())


def test_weights_that_cannot_be_fetched_get_one_sentence(monkeypatch):
    import open_clip

    def create_model(*args, **options):
        raise RuntimeError("Failed to download weights\nsecond line")

    monkeypatch.setattr(open_clip, "create_model", create_model)
    with pytest.raises(OSError, match=r"^[^\n]*$") as error:
        load_model("clip-rn50")
    assert "RN50-quickgelu/openai could not be fetched (Failed to download weights)" in str(
        error.value
    )


def test_a_missing_package_names_the_extra_that_brings_it():
    sentence = (
        "model 'hf:x' needs the package P, which is not installed: pip install 'bayestta[hf]'"
    )
    with pytest.raises(ImportError, match=re.escape(sentence)):
        require("no_such_module", package="P", model="hf:x", extra="hf")
