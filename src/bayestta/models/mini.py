"""The embedded dual encoders `mini-rn` (BatchNorm) and `mini-vit` (LayerNorm).

They are open_clip's own CLIP at a small size, trained by `training/train_mini.py` on the train
splits of CIFAR-10 and MNIST, and go down the same path as real CLIP. The weight files keep only the
rows of the token table that captions used; every other token loads as their mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bayestta.models._checkpoints import reason
from bayestta.models.open_clip import OpenCLIP

ASSETS = Path(__file__).parent / "assets"
TABLE = "token_embedding.weight"
_TEXT = {"context_length": 32, "vocab_size": 49408, "width": 96, "heads": 3, "layers": 2}
_RESNET = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}
_VIT = {"image_size": 32, "layers": 6, "width": 96, "head_width": 32, "patch_size": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "mini-rn": {"embed_dim": 128, "vision_cfg": _RESNET, "text_cfg": _TEXT},
    "mini-vit": {"embed_dim": 128, "vision_cfg": _VIT, "text_cfg": _TEXT},
}

# Of the CIFAR-10 images that they were trained on, by training/spectrum.py; mini-rn sees them at
# twice their size, which leaves little in its finest bands.
SPECTRA = {
    "mini-rn": (-5.93, -7.26, -7.62, -8.48, -9.31, -10.16, -11.25, -12.69, -14.47, -15.73, -17.06),
    "mini-vit": (-5.93, -7.26, -7.62, -8.48, -9.29, -10.12, -11.13, -12.33, -13.89),
}


def build(name: str) -> nn.Module:
    """The untrained architecture."""
    from open_clip import CLIP

    clip: nn.Module = CLIP(**CONFIGS[name])
    return clip


def save_weights(
    state: dict[str, Tensor], used_tokens: Tensor, path: Path, about: dict[str, Any]
) -> None:
    """Write float16 weights with the used rows of the token table, and `about` in the header."""
    packed = {
        key: value.half().contiguous() if value.is_floating_point() else value
        for key, value in state.items()
        if key != TABLE
    }
    packed["token_rows"] = state[TABLE][used_tokens].half().contiguous()
    packed["token_ids"] = used_tokens.to(torch.int32)
    save_file(packed, path, metadata={"about": json.dumps(about, sort_keys=True)})
    path.chmod(0o644)  # safetensors writes for the owner alone, and this file is shipped


def load_weights(path: Path) -> dict[str, Tensor]:
    """The state dict of a file written by `save_weights`: float32, with the whole token table."""
    with safe_open(path, "pt") as file:
        packed = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    state = {k: v.float() if v.is_floating_point() else v for k, v in packed.items()}
    rows, ids = state.pop("token_rows"), state.pop("token_ids").long()
    table = rows.mean(0).repeat(_TEXT["vocab_size"], 1)
    table[ids] = rows
    return {**state, TABLE: table}


def load_mini(name: str) -> OpenCLIP:
    """A mini model from the package's assets."""
    from open_clip import SimpleTokenizer

    clip, path = build(name), ASSETS / f"{name}.safetensors"
    try:
        clip.load_state_dict(load_weights(path))
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"the weights of {name!r} at {path} cannot be read ({reason(error)}): install bayestta "
            "again, or train them with `make mini`."
        ) from error
    tokenizer = SimpleTokenizer(context_length=_TEXT["context_length"])
    trained_on = frozenset({"cifar10/train", "mnist/train"})
    layout = torch.channels_last if name == "mini-rn" else torch.contiguous_format
    return OpenCLIP(
        name, clip, tokenizer, spectrum=SPECTRA[name], trained_on=trained_on, layout=layout
    )
