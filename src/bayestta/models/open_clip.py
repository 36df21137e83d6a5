"""Models of open_clip: by architecture and tag, or from a local checkpoint."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayestta.models._checkpoints import MARKS, infer_architecture, load_state, read_state, reason
from bayestta.models._preprocess import CLIP_MEAN, CLIP_STD, Preprocess
from bayestta.models._published import check_activation, published_preprocess
from bayestta.models._vlm import VLM
from bayestta.names import unknown

CHUNK = 256  # prompts per text pass
FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin", "model.safetensors")


class OpenCLIP(VLM):
    """A CLIP of open_clip; its text tower can be tuned through prompt embeddings.

    It takes `clip` over: the module is put into evaluation mode and frozen.
    """

    def __init__(
        self, name: str, clip: Any, tokenizer: Any, preprocess: Any = None, **options: Any
    ) -> None:
        transform = _preprocess(name, clip.visual) if preprocess is None else preprocess
        self.clip = clip.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        text = getattr(clip, "text", clip)
        # An appended class token or a mask made from the ids is more than embeddings can carry.
        self.prompt_tuning = (
            hasattr(text, "token_embedding")
            and hasattr(text.transformer, "get_cast_dtype")  # open_clip's own, not OpenAI's
            and getattr(text, "cls_emb", None) is None
            and not getattr(text, "use_pad_mask", False)
        )
        if getattr(clip.visual, "output_tokens", False):
            clip.visual.output_tokens = False  # CoCa's tower would hand out its tokens as well
        device = next(clip.parameters()).device
        with torch.no_grad():
            dim = clip.encode_text(tokenizer(["a"]).to(device)).shape[-1]
        bias = getattr(clip, "logit_bias", None)
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

    def towers(self) -> list[nn.Module]:
        return [self.clip]

    @torch.no_grad()
    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        parts = []
        for i in range(0, len(prompts), CHUNK):
            tokens = self.tokenizer(list(prompts[i : i + CHUNK])).to(self.device)
            parts.append(functional.normalize(self.clip.encode_text(tokens).float(), dim=-1))
        return torch.cat(parts)

    def embed(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        text = self._text_transformer()
        tokens = self.tokenizer(list(prompts)).to(self.device)
        return text.token_embedding(tokens).float(), tokens

    def encode_embeddings(self, embeddings: Tensor, tokens: Tensor) -> Tensor:
        from open_clip.transformer import text_global_pool

        text = self._text_transformer()
        kind = text.transformer.get_cast_dtype()
        length = embeddings.shape[1]
        x = embeddings.to(kind) + text.positional_embedding[:length].to(kind)
        mask = None if text.attn_mask is None else text.attn_mask[:length, :length]
        x = text.ln_final(text.transformer(x, attn_mask=mask))
        if text is self.clip:
            pool, end = text.text_pool_type, getattr(text, "text_eos_id", None)
        else:
            pool, end = text.pool_type, getattr(text, "eos_id", None)
        x = text_global_pool(x, tokens, pool, eos_token_id=end)
        project = text.text_projection
        if project is not None:
            x = project(x) if isinstance(project, nn.Linear) else x @ project
        return functional.normalize(x.float(), dim=-1)

    def _text_transformer(self) -> Any:
        if not self.prompt_tuning:
            raise NotImplementedError(self._no_prompts())
        return getattr(self.clip, "text", self.clip)


def _preprocess(name: str, visual: Any) -> Preprocess:
    given: dict[str, Any] = getattr(visual, "preprocess_cfg", {})
    size = given.get("size") or visual.image_size
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    mode = given.get("resize_mode") or "shortest"
    if height != width or mode not in ("shortest", "squash"):
        raise ValueError(
            f"model {name!r} takes {height} x {width} pixels resized by {mode!r}: only square "
            "images, resized by 'shortest' or 'squash', are supported; choose another model."
        )
    return Preprocess(
        height,
        tuple(given.get("mean") or CLIP_MEAN),
        tuple(given.get("std") or CLIP_STD),
        squash=mode == "squash",
        interpolation=given.get("interpolation") or "bicubic",
    )


def load_open_clip(target: str, name: str) -> OpenCLIP:
    """`NAME/TAG`: an architecture of open_clip and a pretrained tag, or the path of a file."""
    import open_clip

    architecture, _, tag = target.partition("/")
    known = open_clip.list_models()
    if architecture not in known:
        near = get_close_matches(architecture, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"unknown open_clip architecture {architecture!r}: {hint}open_clip.list_models() "
            f"names all {len(known)}."
        )
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if not tag:
        raise ValueError(
            f"model 'open_clip:{architecture}' lacks its weights: write open_clip:{architecture}/"
            f"TAG with one of {', '.join(tags) or '(none published)'}, or the path of a file."
        )
    quick = bool(open_clip.get_model_config(architecture).get("quick_gelu", False))
    if tag in tags:
        published = open_clip.get_pretrained_cfg(architecture, tag)
        check_activation(architecture, tag, quick, bool(published.get("quick_gelu", False)))
        before = logging.root.manager.disable
        logging.disable(logging.ERROR)  # what it has to report is the error below
        try:
            clip = open_clip.create_model(architecture, pretrained=tag)
            tokenizer = open_clip.get_tokenizer(architecture)
        except (RuntimeError, OSError) as error:
            raise OSError(
                f"the weights of open_clip:{architecture}/{tag} could not be fetched "
                f"({reason(error)}): check the network, or download the file and write "
                f"open_clip:{architecture}/PATH."
            ) from error
        finally:
            logging.disable(before)
        return OpenCLIP(name, clip, tokenizer)
    if not Path(tag).exists():
        raise ValueError(unknown(f"pretrained tag of {architecture}", tag, [*tags, "PATH"]))
    state = read_state(Path(tag))
    if MARKS[0] in state:
        check_activation(architecture, tag, quick, True)
    clip = build(open_clip.get_model_config(architecture))
    clip.visual.preprocess_cfg = published_preprocess(architecture)
    load_state(clip, state, Path(tag))
    return OpenCLIP(name, clip, open_clip.get_tokenizer(architecture))


def load_checkpoint(path: Path) -> OpenCLIP:
    """A weight file, its architecture found by shapes, or a folder with `open_clip_config.json`."""
    import open_clip

    from bayestta.models.mini import CONFIGS

    if path.is_dir():
        return _load_folder(path)
    state = read_state(path)
    known = {name: open_clip.get_model_config(name) for name in open_clip.list_models()}
    name, config = infer_architecture(state, path, {**known, **CONFIGS})
    clip = build(config)
    load_state(clip, state, path)
    if name in known:
        tokenizer = open_clip.get_tokenizer(name)
    else:
        tokenizer = open_clip.SimpleTokenizer(context_length=clip.context_length)
    return OpenCLIP(str(path), clip, tokenizer)


def _load_folder(path: Path) -> OpenCLIP:
    import open_clip

    weights = next((path / file for file in FILES if (path / file).exists()), None)
    if weights is None or not (path / "open_clip_config.json").exists():
        raise ValueError(
            f"{path} has no open_clip_config.json beside one of {', '.join(FILES)}: give a weight "
            f"file, or write hf:{path} for a folder of transformers."
        )
    try:
        settings = json.loads((path / "open_clip_config.json").read_text(encoding="utf-8"))
        clip = build(settings["model_cfg"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path / 'open_clip_config.json'} does not describe a model ({error!r}): take the "
            "file that was published with the weights."
        ) from error
    clip.visual.preprocess_cfg = settings.get("preprocess_cfg", {})
    load_state(clip, read_state(weights), weights)
    text = settings["model_cfg"]["text_cfg"]
    if text.get("hf_tokenizer_name"):
        tokenizer = open_clip.get_tokenizer(f"local-dir:{path}")
    else:
        tokenizer = open_clip.SimpleTokenizer(context_length=clip.context_length)
    return OpenCLIP(str(path), clip, tokenizer)


def build(config: dict[str, Any]) -> Any:
    """An untrained model from open_clip's settings; nothing is downloaded."""
    import open_clip

    config = copy.deepcopy(config)
    if "timm_model_name" in config["vision_cfg"]:
        config["vision_cfg"]["timm_model_pretrained"] = False
    if "hf_model_name" in config["text_cfg"]:
        config["text_cfg"]["hf_model_pretrained"] = False
    custom = config.pop("custom_text", False) or "hf_model_name" in config["text_cfg"]
    if "multimodal_cfg" in config:
        return open_clip.CoCa(**config)
    return (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)
