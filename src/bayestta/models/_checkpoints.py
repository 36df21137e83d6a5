"""Weight files: read without running their code, matched to an architecture, loaded strictly."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

MARKS = ("input_resolution", "context_length", "vocab_size")  # only OpenAI's own files have them


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a state dict; no code of the file is run."""
    found: Any = None
    try:
        script = _is_torchscript(path)
        if path.suffix == ".safetensors":
            found = load_file(path)
        elif not script:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files fail in every way there is
        if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            raise ValueError(
                f"{path} holds more than tensors, and loading that could run its code: where you "
                "trust it, save its state_dict() as .safetensors."
            ) from error
        why = reason(error)
        if isinstance(error, pickle.UnpicklingError):  # torch would advise to run the file's code
            why = "no state dict that can be read without running code"
        raise ValueError(
            f"{path} ({path.stat().st_size} bytes) holds no readable weights ({why}): it is "
            "incomplete or no checkpoint; download it again."
        ) from error
    if script:
        raise ValueError(
            f"{path} is a TorchScript archive, which is code: where you trust it, convert it once "
            "with safetensors.torch.save_file(torch.jit.load(PATH, map_location='cpu')"
            ".state_dict(), 'clip.safetensors'), and give that file."
        )
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    tensors = found.items() if isinstance(found, dict) else ()
    named = {k: v for k, v in tensors if isinstance(k, str) and isinstance(v, Tensor)}
    state = {k.removeprefix("module."): v for k, v in named.items()}
    if not state:
        raise ValueError(f"{path} holds 0 named tensors: give a state dict or .safetensors file.")
    return state


def reason(error: Exception) -> str:
    """The first sentence of somebody else's error, to be quoted in one of ours."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0].rstrip(".")[:150]


def _is_torchscript(path: Path) -> bool:
    if path.suffix == ".safetensors" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(entry.endswith("/constants.pkl") for entry in archive.namelist())


def load_state(clip: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load strictly; what does not fit is refused in one sentence."""
    want = clip.state_dict()
    given = {key: value for key, value in state.items() if key not in MARKS}
    if "text.positional_embedding" in want and "positional_embedding" in given:
        own = ("visual.", "logit_")  # older files have the text tower at the top
        given = {k if k.startswith(own) else f"text.{k}": v for k, v in given.items()}
    for key in ("logit_scale", "logit_bias"):  # a number, or a list of one
        if key in given and key in want and given[key].numel() == want[key].numel():
            given[key] = given[key].reshape(want[key].shape)
    counters = {key for key in want if key.endswith("num_batches_tracked")}
    missing = sorted(want.keys() - given.keys() - counters)
    extra = sorted(given.keys() - want.keys())
    other = sorted(key for key in want.keys() & given.keys() if want[key].shape != given[key].shape)
    if missing or extra or other:
        raise ValueError(
            f"{path} is a checkpoint of another model: {len(missing)} of {len(want)} tensors are "
            f"missing, {len(extra)} unknown, {len(other)} of another shape (first: "
            f"{', '.join((missing + extra + other)[:3])}); name its own architecture, as in "
            f"open_clip:NAME/{path}."
        )
    clip.load_state_dict(given, strict=False)


def infer_architecture(
    state: dict[str, Tensor], path: Path, known: dict[str, dict[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """The architecture among `known`, by name, that the shapes of a checkpoint belong to.

    The number of heads leaves no trace in the shapes, which is why they are looked up and not
    guessed. Neither does the activation: OpenAI's own files mean the quick GELU; where open_clip
    has both forms, the plain one is taken, with a warning.
    """
    try:
        found = _shapes(state)
    except (KeyError, IndexError, ValueError):  # a tensor is missing, or of another rank
        raise ValueError(
            f"{path} has {len(state)} tensors that are no CLIP with a ViT or ResNet tower: name "
            f"the architecture, as in open_clip:NAME/{path}."
        ) from None
    fits = {name: config for name, config in known.items() if _settings(config) == found}
    if not fits:
        raise ValueError(
            f"{path} is a CLIP that open_clip has no name for ({found}): put it into a folder as "
            "open_clip_model.safetensors, with its open_clip_config.json."
        )
    openai = MARKS[0] in state
    plain = [name for name in fits if not fits[name].get("quick_gelu", False)]
    quick = [name for name in fits if name not in plain]
    if plain and quick and not openai:
        warnings.warn(
            f"{path} does not say with which activation it was trained; GELU is assumed: write "
            f"open_clip:{plain[0]}/{path}, or open_clip:{quick[0]}/{path} for the quick GELU.",
            stacklevel=2,
        )
    name = (quick or plain)[0] if openai else (plain or quick)[0]
    return name, {**fits[name], "quick_gelu": openai or name in quick}


def _shapes(state: dict[str, Tensor]) -> dict[str, Any]:
    """What the tensors tell about an architecture."""

    def blocks(prefix: str) -> int:
        return len({key[len(prefix) :].split(".")[0] for key in state if key.startswith(prefix)})

    if "visual.proj" in state:
        width, _, _, patch = state["visual.conv1.weight"].shape
        grid = round((state["visual.positional_embedding"].shape[0] - 1) ** 0.5)
        vision = [blocks("visual.transformer.resblocks."), width, patch, grid * patch]
    else:
        width = state["visual.layer1.0.conv1.weight"].shape[0]
        grid = round((state["visual.attnpool.positional_embedding"].shape[0] - 1) ** 0.5)
        vision = [[blocks(f"visual.layer{i}.") for i in (1, 2, 3, 4)], width, None, grid * 32]
    return {
        "embedding": state["text_projection"].shape[1],
        "layers, width, patch and size of the image tower": vision,
        "layers, width, context and vocabulary of the text tower": [
            blocks("transformer.resblocks."),
            state["ln_final.weight"].shape[0],
            state["positional_embedding"].shape[0],
            state["token_embedding.weight"].shape[0],
        ],
    }


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """The same from open_clip's settings; towers of other libraries never fit."""
    vision, text = config["vision_cfg"], config["text_cfg"]
    if "timm_model_name" in vision or "hf_model_name" in text or config.get("custom_text", False):
        return {}
    layers = vision.get("layers", 12)
    patch = None if isinstance(layers, list) else vision.get("patch_size", 16)
    size = vision.get("image_size", 224)
    return {
        "embedding": config["embed_dim"],
        "layers, width, patch and size of the image tower": [
            layers,
            vision.get("width", 768),
            patch,
            size,
        ],
        "layers, width, context and vocabulary of the text tower": [
            text.get("layers", 12),
            text.get("width", 512),
            text.get("context_length", 77),
            text.get("vocab_size", 49408),
        ],
    }
