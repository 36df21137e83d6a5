"""Local weight files: every format gives the same features, and bad ones get one sentence."""

from __future__ import annotations

import json
import pickle
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from bayestta import load_model
from bayestta.models import mini
from bayestta.models._checkpoints import infer_architecture
from bayestta.models.open_clip import build
from conftest import tiny_clip

MARKS = {"input_resolution": 64, "context_length": 32, "vocab_size": 49408}


def images(size):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def features(visual, x):
    with torch.no_grad():
        return nn.functional.normalize(visual(x).float(), dim=1)


def write(kind, clip, folder):
    """One checkpoint of each kind that people have; returns what to load."""
    state = {key: value.contiguous() for key, value in clip.state_dict().items()}
    path = folder / "clip.pt"
    if kind == "safetensors":
        path = folder / "clip.safetensors"
        save_file(state, path)
    elif kind == "state dict":
        torch.save(state, path)
    elif kind == "legacy state dict":
        torch.save(state, path, _use_new_zipfile_serialization=False)
    elif kind == "training":
        inner = {f"module.{key}": value for key, value in state.items()}
        torch.save({"epoch": 3, "name": "run", "state_dict": inner, "optimizer": {}}, path)
    else:
        save_file(state, folder / "open_clip_model.safetensors")
        name = "mini-rn" if hasattr(clip.visual, "attnpool") else "mini-vit"
        config = {"model_cfg": mini.CONFIGS[name], "preprocess_cfg": {"mean": [0.5] * 3}}
        (folder / "open_clip_config.json").write_text(json.dumps(config))
        path = folder
    return path


KINDS = ["safetensors", "state dict", "legacy state dict", "training", "folder"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_checkpoint_gives_its_own_features(kind, tmp_path, tiny_rn):
    path = write(kind, tiny_rn.clip, tmp_path)
    model = load_model(str(path))
    x, lines = images(64), ["a cat", "a dog"]
    torch.testing.assert_close(model.encode_image(x), features(tiny_rn.visual, x))
    torch.testing.assert_close(model.encode_text(lines), tiny_rn.encode_text(lines))
    assert (model.name, model.scale, model.preprocess.size) == (str(path), tiny_rn.scale, 64)
    if kind == "folder":
        assert model.mean == (0.5,) * 3


def test_a_layer_norm_tower_is_found_by_its_shapes_and_placed(tmp_path, tiny_vit):
    path = write("safetensors", tiny_vit.clip, tmp_path)
    model = load_model(str(path), precision="bf16")
    assert model.dtype == torch.bfloat16
    x = images(32)
    assert (model.encode_image(x) * features(tiny_vit.visual, x)).sum(1).min() > 0.99


def test_openais_own_state_means_the_quick_gelu(tmp_path):
    clip = tiny_clip("mini-vit")
    state = {key: value.half() for key, value in clip.state_dict().items()}
    state |= {key: torch.tensor(value) for key, value in MARKS.items()}
    torch.save(state, tmp_path / "clip.pt")
    model = load_model(str(tmp_path / "clip.pt"))
    quick = build({**mini.CONFIGS["mini-vit"], "quick_gelu": True})
    quick.load_state_dict({k: v.float() for k, v in state.items() if k not in MARKS})
    x = images(32)
    torch.testing.assert_close(model.encode_image(x), features(quick.eval().visual, x))
    assert not torch.allclose(model.encode_image(x), features(clip.eval().visual, x), atol=1e-3)
    assert model.dtype == torch.float32


def test_a_named_architecture_takes_a_file(tmp_path, monkeypatch, tiny_vit):
    import open_clip

    path = write("state dict", tiny_vit.clip, tmp_path)
    config = {**mini.CONFIGS["mini-vit"], "custom_text": True}  # the text tower one level deeper
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", config)
    model = load_model(f"open_clip:tiny/{path}")
    x, lines = images(32), ["a cat"]
    torch.testing.assert_close(model.encode_image(x), features(tiny_vit.visual, x))
    torch.testing.assert_close(model.encode_text(lines), tiny_vit.encode_text(lines))


def test_openais_own_state_is_refused_without_the_quick_gelu(tmp_path, tiny_vit):
    state = {**tiny_vit.clip.state_dict(), "input_resolution": torch.tensor(32)}
    torch.save(state, tmp_path / "clip.pt")
    with pytest.raises(ValueError, match=r"write open_clip:ViT-B-16-quickgelu/.*clip\.pt"):
        load_model(f"open_clip:ViT-B-16/{tmp_path / 'clip.pt'}")


# --- which architecture ---


def known():
    import open_clip

    return {name: open_clip.get_model_config(name) for name in open_clip.list_models()}


@pytest.mark.parametrize(
    ("name", "heads"),
    [("RN50", 32), ("ViT-B-16", 12), ("ViT-H-14", 16), ("mini-rn", 8), ("mini-vit", 3)],
)
def test_shapes_find_the_architecture_with_its_heads(tmp_path, name, heads):
    table = {**known(), **mini.CONFIGS}
    with torch.device("meta"):
        state = build(table[name]).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, config = infer_architecture(state, tmp_path, table)
    assert found == name
    with torch.device("meta"):
        visual = build(config).visual
    pooled = getattr(visual, "attnpool", None)
    assert heads == (pooled.num_heads if pooled else visual.transformer.resblocks[0].attn.num_heads)
    marked = {**state, "input_resolution": torch.tensor(1)}
    assert infer_architecture(marked, tmp_path, table)[1]["quick_gelu"] is True


def test_an_activation_that_the_file_does_not_tell_is_warned_about(tmp_path):
    table = known()
    with torch.device("meta"):
        state = build(table["ViT-B-16-quickgelu"]).state_dict()
    with pytest.warns(
        UserWarning, match="GELU is assumed: write open_clip:ViT-B-16/.* for the quick"
    ):
        name, config = infer_architecture(state, tmp_path, table)
    assert (name, config["quick_gelu"]) == ("ViT-B-16", False)


def test_a_clip_without_a_name_is_not_guessed(tmp_path):
    clip = build(
        {"embed_dim": 32, **{k: mini.CONFIGS["mini-vit"][k] for k in ("vision_cfg", "text_cfg")}}
    )
    save_file(clip.state_dict(), tmp_path / "odd.safetensors")
    refused(tmp_path / "odd.safetensors", "open_clip has no name for", "'embedding': 32", "folder")


# --- bad files ---


def refused(path, *parts):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        load_model(str(path))
    for part in (str(path), *parts):
        assert part in str(error.value)


class Malicious:
    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return (open, (str(self.victim), "w"))


@pytest.mark.parametrize("wrap", ["torch", "pickle", "legacy"])
def test_code_in_a_pickle_is_not_run(tmp_path, wrap):
    victim, path = tmp_path / "touched", tmp_path / "clip.pt"
    state = {"text_projection": torch.zeros(2), "evil": Malicious(victim)}
    if wrap == "pickle":
        path.write_bytes(pickle.dumps(Malicious(victim), protocol=2))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=wrap == "torch")
    refused(path, "holds more than tensors", "save its state_dict() as .safetensors")
    assert not victim.exists()
    if wrap == "pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert victim.exists()  # the test could have failed


def test_a_torchscript_archive_is_refused_with_the_cure(tmp_path):
    path = tmp_path / "clip.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(2, 2)).save(str(path))
    refused(path, "TorchScript archive", "torch.jit.load(PATH, map_location='cpu')")


@pytest.mark.parametrize("kind", ["safetensors", "state dict", "legacy state dict"])
def test_a_truncated_file_is_refused_with_its_size(tmp_path, kind, tiny_rn):
    path = write(kind, tiny_rn.clip, tmp_path)
    content = path.read_bytes()
    for share in (0.5, 0.0001, 0.0):
        path.write_bytes(content[: int(share * len(content))])
        refused(
            path, f"({path.stat().st_size} bytes) holds no readable weights", "download it again"
        )


def test_noise_is_refused(tmp_path):
    for suffix in ("pt", "safetensors", "bin"):
        path = tmp_path / f"clip.{suffix}"
        path.write_bytes(bytes(range(256)) * 40)
        refused(path, "(10240 bytes) holds no readable weights")


def test_files_that_hold_something_else_are_refused(tmp_path, tiny_vit):
    path = tmp_path / "clip.pt"
    unnamed = {("a", "b"): torch.zeros(2)}  # keys of damaged files are of any kind
    for content in ({}, unnamed, [torch.zeros(2)], torch.zeros(2), {"state_dict": {"a": 1}}):
        torch.save(content, path)
        refused(path, "holds 0 named tensors")
    torch.save({"fc.weight": torch.zeros(2, 2)}, path)
    refused(path, "has 1 tensors that are no CLIP with a ViT or ResNet tower", "open_clip:NAME/")
    state = tiny_vit.clip.state_dict()
    del state["logit_scale"], state["ln_final.bias"]
    torch.save({**state, "extra": torch.zeros(1), "visual.ln_pre.bias": torch.zeros(5)}, path)
    refused(path, "of another model: 2 of", "1 unknown, 1 of another shape (first: ln_final.bias")


def test_the_checkpoint_of_another_model_is_refused(tmp_path, tiny_vit):
    path = write("safetensors", tiny_vit.clip, tmp_path)
    with pytest.raises(ValueError, match=r"another model: \d+ of \d+ tensors are missing, \d+ unk"):
        load_model(f"open_clip:RN50/{path}")


def test_bad_folders_are_refused(tmp_path, tiny_vit):
    refused(tmp_path, "has no open_clip_config.json beside one of", f"hf:{tmp_path}")
    write("folder", tiny_vit.clip, tmp_path)
    config = tmp_path / "open_clip_config.json"
    for content in ("{", "{}", '{"model_cfg": {"embed_dim": 3}}', '{"model_cfg": {"nonsense": 3}}'):
        config.write_text(content)
        refused(tmp_path, "does not describe a model", "published with the weights")
