"""Models of open_clip: by architecture and tag, or from a local checkpoint."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayestta.backends._torchvision import import_torchvision
from bayestta.model import VLM, Preprocess
from bayestta.names import unknown

CHUNK = 256  # prompts a text pass


class OpenCLIP(VLM):
    """A CLIP of open_clip; its text tower can be tuned through prompt embeddings."""

    prompt_tuning = True

    def __init__(self, name: str, clip: Any, tokenizer: Any, **options: Any) -> None:
        settings = dict(getattr(clip.visual, "preprocess_cfg", {}))
        size = settings.get("size", clip.visual.image_size)
        size = size[0] if isinstance(size, (tuple, list)) else size
        defaults = Preprocess(size)
        transform = Preprocess(
            size,
            tuple(settings.get("mean") or defaults.mean),
            tuple(settings.get("std") or defaults.std),
            squash=settings.get("resize_mode") == "squash",
        )
        bias = getattr(clip, "logit_bias", None)
        text = getattr(clip, "text", clip)
        projection = text.text_projection
        dim = projection.out_features if isinstance(projection, nn.Linear) else projection.shape[1]
        super().__init__(
            name,
            clip.visual,
            transform,
            dim=dim,
            scale=float(clip.logit_scale.detach().exp()),
            bias=0.0 if bias is None else float(bias.detach()),
            mean=transform.mean,
            std=transform.std,
            **options,
        )
        self.clip = clip.eval().requires_grad_(False)
        self.tokenizer = tokenizer

    def towers(self) -> list[nn.Module]:
        return [self.clip]

    @torch.no_grad()
    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        parts = [
            self.clip.encode_text(self.tokenizer(list(prompts[i : i + CHUNK])).to(self.device), normalize=True).float()
            for i in range(0, len(prompts), CHUNK)
        ]
        return torch.cat(parts)

    def embed(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        text = self._text_transformer()
        tokens = self.tokenizer(list(prompts)).to(self.device)
        return text.token_embedding(tokens).float(), tokens

    def encode_embeddings(self, embeddings: Tensor, tokens: Tensor) -> Tensor:
        from open_clip.transformer import text_global_pool

        text = self._text_transformer()
        kind = text.transformer.get_cast_dtype()
        x = embeddings.to(kind) + text.positional_embedding[: embeddings.shape[1]].to(kind)
        mask = None if text.attn_mask is None else text.attn_mask[: x.shape[1], : x.shape[1]]
        x = text.ln_final(text.transformer(x, attn_mask=mask))
        pool = getattr(text, "text_pool_type", None) or text.pool_type
        x = text_global_pool(x, tokens, pool, eos_token_id=getattr(text, "text_eos_id", None))
        if text.text_projection is not None:
            project = text.text_projection
            x = project(x) if isinstance(project, nn.Linear) else x @ project
        return F.normalize(x.float(), dim=-1)

    def _text_transformer(self) -> Any:
        text = getattr(self.clip, "text", self.clip)
        if not hasattr(text, "token_embedding") or getattr(text, "cls_emb", None) is not None:
            raise NotImplementedError(self._no_prompts())
        return text


def load_open_clip(target: str, name: str) -> OpenCLIP:
    """`NAME/TAG`: an architecture of open_clip and a pretrained tag, or the path of a weight file."""
    import_torchvision()
    import open_clip

    architecture, _, tag = target.partition("/")
    if architecture not in open_clip.list_models():
        raise ValueError(unknown("open_clip architecture", architecture, open_clip.list_models()))
    if not tag:
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        raise ValueError(
            f"model 'open_clip:{architecture}' lacks the weights: write open_clip:{architecture}/TAG with one of "
            f"{', '.join(tags) or 'no published tags'}, or the path of a weight file."
        )
    if tag == "openai" and not architecture.endswith("quickgelu"):
        raise ValueError(
            f"OpenAI's weights were trained with the quick GELU, which open_clip:{architecture} lacks: "
            f"write open_clip:{architecture}-quickgelu/openai."
        )
    path = Path(tag)
    if path.exists():
        clip = open_clip.create_model(architecture, load_weights=False)
        load_state(clip, read_state(path), path)
    elif tag in open_clip.list_pretrained_tags_by_model(architecture):
        clip = open_clip.create_model(architecture, pretrained=tag)
    else:
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        raise ValueError(unknown(f"pretrained tag of {architecture}", tag, tags))
    return OpenCLIP(name, clip, open_clip.get_tokenizer(architecture))


def load_checkpoint(path: Path) -> OpenCLIP:
    """A weight file whose architecture is read off its tensors, or a folder with `open_clip_config.json`."""
    import_torchvision()
    import open_clip

    if path.is_dir():
        config, weights = path / "open_clip_config.json", path / "open_clip_model.safetensors"
        if not (config.exists() and weights.exists()):
            raise ValueError(f"{path} has no {config.name} with {weights.name}: give a weight file, or write hf:{path}.")
        settings = json.loads(config.read_text())
        clip = open_clip.CLIP(**settings["model_cfg"])
        open_clip.model.set_model_preprocess_cfg(clip, settings.get("preprocess_cfg", {}))
        state = read_state(weights)
    else:
        state = read_state(path)
        clip = open_clip.CLIP(**infer_architecture(state, path))
    load_state(clip, state, path)
    return OpenCLIP(str(path), clip, open_clip.SimpleTokenizer(context_length=clip.context_length))


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a state dict; no code of the file is run."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(entry.endswith("constants.pkl") for entry in archive.namelist()):
                raise ValueError(
                    f"{path} is a TorchScript archive, which runs code when it is loaded: where you trust it, convert it "
                    "once with safetensors.torch.save_file(torch.jit.load(PATH).state_dict(), 'clip.safetensors')."
                )
    try:
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError, OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} ({path.stat().st_size} bytes) holds no readable weights ({first[:150]}): download it again, or "
            "save it as .safetensors."
        ) from error
    state = state.get("state_dict", state)
    state = {key.removeprefix("module."): value for key, value in state.items() if isinstance(value, Tensor)}
    if state.get("input_resolution") is not None:  # OpenAI's own archives name these as tensors
        state["_openai"] = state.pop("input_resolution")
        state = {k: v for k, v in state.items() if k not in ("context_length", "vocab_size")}
    return state


def infer_architecture(state: dict[str, Tensor], path: Path) -> dict[str, Any]:
    """open_clip's settings of a CLIP from the shapes of its tensors; only OpenAI's own files use the quick GELU."""
    if "text_projection" not in state or not {"visual.proj", "visual.attnpool.c_proj.weight"} & state.keys():
        raise ValueError(
            f"{path} has {len(state)} tensors that are no CLIP with a ViT or ResNet tower: name the architecture, as in "
            f"open_clip:NAME/{path}."
        )
    if "visual.proj" in state:
        patch = state["visual.conv1.weight"].shape[-1]
        width = state["visual.conv1.weight"].shape[0]
        grid = round((state["visual.positional_embedding"].shape[0] - 1) ** 0.5)
        vision: dict[str, Any] = {
            "layers": _blocks(state, "visual.transformer.resblocks.", 3),
            "width": width,
            "patch_size": patch,
            "image_size": grid * patch,
            "head_width": 64 if width % 64 == 0 else 32,
        }
    else:
        grid = round((state["visual.attnpool.positional_embedding"].shape[0] - 1) ** 0.5)
        vision = {
            "layers": [_blocks(state, f"visual.layer{i}.", 2) for i in (1, 2, 3, 4)],
            "width": state["visual.layer1.0.conv1.weight"].shape[0],
            "patch_size": None,
            "image_size": grid * 32,
        }
    width = state["ln_final.weight"].shape[0]
    text = {
        "context_length": state["positional_embedding"].shape[0],
        "vocab_size": state["token_embedding.weight"].shape[0],
        "width": width,
        "heads": max(1, width // (64 if width % 64 == 0 else 32)),
        "layers": _blocks(state, "transformer.resblocks.", 2),
    }
    return {
        "embed_dim": state["text_projection"].shape[1],
        "vision_cfg": vision,
        "text_cfg": text,
        "quick_gelu": "_openai" in state,
    }


def _blocks(state: dict[str, Tensor], prefix: str, position: int) -> int:
    return len({key.split(".")[position] for key in state if key.startswith(prefix)})


def load_state(clip: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load strictly, with one sentence on what does not fit."""
    state = {key: value.float() for key, value in state.items() if key != "_openai"}
    want = clip.state_dict()
    state.setdefault("logit_scale", want["logit_scale"])
    missing = sorted(want.keys() - state.keys() - {k for k in want if k.endswith("num_batches_tracked")})
    extra = sorted(state.keys() - want.keys())
    other = sorted(k for k in want.keys() & state.keys() if want[k].shape != state[k].shape)
    if missing or extra or other:
        shown = ", ".join((missing + extra + other)[:3])
        raise ValueError(
            f"{path} is a checkpoint of another model: {len(missing)} tensors missing, {len(extra)} unknown, {len(other)} "
            f"of another shape (first: {shown}): name its own architecture, as in open_clip:NAME/{path}."
        )
    clip.load_state_dict(state, strict=False)
