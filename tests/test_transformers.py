"""CLIP and SigLIP of transformers, tiny and random, from folders written here."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import nn

from bayestta import load_model
from bayestta.models._norms import norm_layers, norm_parameters
from bayestta.models.transformers import preprocess

PROMPTS = ["a photo of a cat", "a dog", "art"]
WORDS = ["a", "photo", "of", "cat", "dog", "art"]
VISION = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "intermediate_size": 64}
VISION |= {"num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {"vocab_size": 50, "max_position_embeddings": 12, "hidden_size": 32}
TEXT |= {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def write_tokenizer(folder, end):
    """Whole words; the largest id ends a text, as CLIP has it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", *WORDS])} | {end: 49}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, 49)]
    )
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": end}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(
        folder
    )


def write(kind, folder):
    """A tiny random model with its tokenizer and processor, as transformers saves them."""
    text = {**TEXT, "eos_token_id": 49, "bos_token_id": 48, "pad_token_id": 0}
    torch.manual_seed(0)
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)
        model = transformers.CLIPModel(config)
        processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32)
    else:
        model = transformers.SiglipModel(
            transformers.SiglipConfig(text_config=text, vision_config=VISION)
        )
        with torch.no_grad():
            model.logit_bias.fill_(-7.0)
            model.logit_scale.fill_(2.0)
        processor = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    write_tokenizer(folder, "<end>")
    return model


@pytest.fixture(scope="module", params=["clip", "siglip"])
def pair(request, tmp_path_factory):
    """Ours, loaded from a folder, and theirs."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = write(request.param, folder)
    return load_model(f"hf:{folder}"), theirs, folder


def images(n=2):
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_logits_equal_those_of_transformers(pair):
    ours, theirs, folder = pair
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(PROMPTS, padding="max_length", max_length=12, return_tensors="pt")
    x = images(3)
    with torch.no_grad():
        want = theirs(input_ids=tokens["input_ids"], pixel_values=x)
        z, text = ours.encode_image(x), ours.encode_text(PROMPTS)
    torch.testing.assert_close(z, want.image_embeds, atol=1e-6, rtol=0)
    torch.testing.assert_close(text, want.text_embeds, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.logits(z, text), want.logits_per_image, atol=1e-4, rtol=0)
    assert (ours.dim, ours.name) == (z.shape[1], f"hf:{folder}")


def test_gradients_reach_every_norm_and_nothing_else(pair):
    ours, _, _ = pair
    tuned = {k: v.requires_grad_() for k, v in norm_parameters(ours.visual).items()}
    kinds = {type(module) for module in norm_layers(ours.visual).values()}
    assert kinds == {nn.LayerNorm}
    z = ours.encode_image(images(), tuned)
    (z * torch.randn(z.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert all(value.grad.abs().sum() > 0 for value in tuned.values())
    assert all(p.grad is None for tower in ours.towers() for p in tower.parameters())


def test_prompt_embeddings_give_the_features_of_the_text(pair):
    ours, _, _ = pair
    embeddings, tokens = ours.embed(PROMPTS)
    embeddings = embeddings.detach().requires_grad_()
    text = ours.encode_embeddings(embeddings, tokens)
    torch.testing.assert_close(text, ours.encode_text(PROMPTS), atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(text[:, 0].sum(), [embeddings])
    assert gradient[:, 0].abs().sum(1).min() > 0
    noise = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(1))
    moved = ours.encode_embeddings(embeddings + noise, tokens)
    assert not torch.allclose(moved, text, atol=1e-3)
    torch.testing.assert_close(ours.encode_text(PROMPTS), text.detach(), atol=1e-6, rtol=0)


def test_half_precision(pair):
    ours, _, folder = pair
    model = load_model(f"hf:{folder}", precision="bf16")
    assert model.dtype == torch.bfloat16
    z = model.encode_image(images())
    assert z.dtype == torch.float32
    assert (z * ours.encode_image(images())).sum(1).min() > 0.99
    assert (model.encode_text(PROMPTS) * ours.encode_text(PROMPTS)).sum(1).min() > 0.99


def test_preprocessing_is_the_processors_own(pair):
    ours, theirs, folder = pair
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    rng = np.random.default_rng(0)
    smooth = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    for size in ((64, 48), (40, 90)):
        image = Image.fromarray(smooth).resize(size, Image.Resampling.BICUBIC)
        want = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"][0])
        assert (ours.preprocess(image) - want).abs().max() < 3 / 255 / min(ours.std)
    assert ours.preprocess.squash == (type(theirs).__name__ == "SiglipModel")


def test_settings_that_we_do_not_have_are_refused():
    usual = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    usual |= {"do_center_crop": True, "resample": 2, "image_mean": [0.5] * 3, "image_std": [1] * 3}
    found = preprocess(usual, "x")
    assert (found.size, found.squash, found.interpolation) == (32, False, "bilinear")
    assert preprocess({**usual, "do_normalize": False}, "x").mean == (0.0,) * 3
    for change in (
        {"crop_size": {"height": 28, "width": 28}},
        {"do_center_crop": False},
        {"size": {"height": 32, "width": 30}, "do_center_crop": False},
        {"resample": 0},
        {"do_resize": False},
        {"size": {}},
    ):
        with pytest.raises(ValueError, match="model 'x' wants its images resized to"):
            preprocess({**usual, **change}, "x")


# --- what is refused ---


def refused(name, *parts, kind=ValueError):
    with pytest.raises(kind, match=r"^[^\n]*$") as error:
        load_model(name)
    for part in parts:
        assert part in str(error.value)


def test_incomplete_folders_get_one_sentence(tmp_path):
    folder = tmp_path
    write("clip", folder)
    name, weights = f"hf:{folder}", folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    refused(name, f"the weights of '{name}' cannot be loaded", "complete the folder")
    from safetensors.torch import load, save_file

    state = load(content)
    del state["logit_scale"]
    key = "vision_model.post_layernorm.bias"
    save_file({**state, key: torch.zeros(3)}, weights, metadata={"format": "pt"})
    refused(name, "do not fit its configuration: 1 tensors are missing, 1 of another shape")
    weights.write_bytes(content)
    (folder / "preprocessor_config.json").unlink()
    refused(name, "the image processor of", "complete the folder")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    refused(name, "tokenizer of")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    refused(name, "is of the family 'bert': hf:ID takes clip and siglip")
    (folder / "config.json").unlink()
    refused(name, "the configuration of", "complete the folder")


def test_an_id_that_cannot_be_fetched_gets_one_sentence():
    name = "hf:no-such-owner/no-such-model"
    refused(name, f"the configuration of '{name}' cannot be loaded", "network", kind=OSError)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused("hf:x", "needs the package transformers", "bayestta[hf]", kind=ImportError)
