"""CLIP and SigLIP of transformers, by hub id or local folder (extra `hf`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayestta.models._checkpoints import reason
from bayestta.models._optional import require
from bayestta.models._preprocess import FILTERS, Preprocess
from bayestta.models._vlm import VLM

FAMILIES = ("clip", "siglip")
CHUNK = 256  # prompts per text pass


class Tower(nn.Module):
    """Pixels -> feature: the vision model's pooled output, projected where the family does so."""

    def __init__(self, vision_model: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.vision_model = vision_model
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        feature: Tensor = self.projection(self.vision_model(pixel_values=x).pooler_output)
        return feature


class Transformers(VLM):
    """A CLIP or SigLIP of transformers; its text tower can be tuned through prompt embeddings."""

    prompt_tuning = True

    def __init__(self, name: str, model: Any, tokenizer: Any, transform: Preprocess) -> None:
        bias = getattr(model, "logit_bias", None)
        visual = Tower(model.vision_model, getattr(model, "visual_projection", nn.Identity()))
        self.text = model.text_model.eval().requires_grad_(False)
        project: nn.Module = getattr(model, "text_projection", nn.Identity())
        self.project = project.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.context = int(model.config.text_config.max_position_embeddings)
        super().__init__(
            name,
            visual,
            transform,
            dim=self._encode(self._tokens(["a"])).shape[-1],
            scale=float(model.logit_scale.detach().exp()),
            bias=0.0 if bias is None else float(bias.detach()),
            mean=transform.mean,
            std=transform.std,
        )

    def towers(self) -> list[nn.Module]:
        return [self.visual, self.text, self.project]

    @torch.no_grad()
    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        parts = [self._tokens(prompts[i : i + CHUNK]) for i in range(0, len(prompts), CHUNK)]
        with self.lock:  # no other thread's embeddings, see encode_embeddings
            return torch.cat([self._encode(part) for part in parts])

    def embed(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        tokens = self._tokens(prompts)
        with self.lock:
            return self._table(tokens).float(), tokens

    def encode_embeddings(self, embeddings: Tensor, tokens: Tensor) -> Tensor:
        embeddings = embeddings.to(self._table.weight)
        # The text model takes ids only, and finds the end of the text from them.
        with self.lock:
            hook = self._table.register_forward_hook(lambda *_: embeddings)
            try:
                return self._encode(tokens)
            finally:
                hook.remove()

    @property
    def _table(self) -> Any:
        return self.text.embeddings.token_embedding

    def _tokens(self, prompts: Sequence[str]) -> Tensor:
        """Ids (P,L), padded to the context: SigLIP was trained so, and CLIP does not mind."""
        found = self.tokenizer(
            list(prompts),
            padding="max_length",
            truncation=True,
            max_length=self.context,
            return_tensors="pt",
        )
        ids: Tensor = found["input_ids"]
        return ids.to(self._table.weight.device)

    def _encode(self, tokens: Tensor) -> Tensor:
        feature = self.project(self.text(input_ids=tokens).pooler_output)
        return functional.normalize(feature.float(), dim=-1)


def load_transformers(target: str, name: str) -> Transformers:
    """A model by hub id or folder, with its own tokenizer and preprocessing; runs no code of it."""
    hf = require("transformers", package="transformers", model=name, extra="hf")
    config = _fetch(hf.AutoConfig, "configuration", target)
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"model {name!r} is of the family {config.model_type!r}: hf:ID takes "
            f"{' and '.join(FAMILIES)}; choose one of those."
        )
    if Path(target).is_dir():
        hf.utils.logging.disable_progress_bar()
    options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    before = hf.utils.logging.get_verbosity()
    hf.utils.logging.set_verbosity_error()  # what it has to report is the error below
    try:
        model, report = _fetch(hf.AutoModel, "weights", target, **options)
    finally:
        hf.utils.logging.set_verbosity(before)
    missing, other = len(report["missing_keys"]), len(report["mismatched_keys"])
    if missing or other:
        raise ValueError(
            f"the weights of {name!r} do not fit its configuration: {missing} tensors are missing, "
            f"{other} of another shape; take both from one source."
        )
    tokenizer = _fetch(hf.AutoTokenizer, "tokenizer", target)
    check_tokenizer(tokenizer, model, name)
    processor = _fetch(hf.AutoImageProcessor, "image processor", target)
    transform = preprocess(json.loads(processor.to_json_string()), name)
    return Transformers(name, model.float().eval(), tokenizer, transform)


def check_tokenizer(tokenizer: Any, model: Any, name: str) -> None:
    """Refuse one that knows no word, as transformers makes where its files are missing."""
    rows = model.text_model.embeddings.token_embedding.num_embeddings
    if tokenizer("cat")["input_ids"] == tokenizer("dog")["input_ids"] or len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer of {name!r} has {len(tokenizer)} tokens for the {rows} of the model: "
            "add the tokenizer files that were published with the weights."
        )


def _fetch(kind: Any, what: str, target: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(target, trust_remote_code=False, **options)
    except Exception as error:  # transformers, the hub and safetensors each have their own
        local = Path(target).is_dir()
        cure = "complete the folder" if local else "check the id and the network, or give a folder"
        raise (ValueError if local else OSError)(
            f"the {what} of 'hf:{target}' cannot be loaded ({reason(error)}): {cure}."
        ) from error


def preprocess(settings: dict[str, Any], name: str) -> Preprocess:
    """Our preprocessing from the settings of an image processor of transformers."""
    size, crop = settings.get("size") or {}, settings.get("crop_size") or {}
    squash = size.get("shortest_edge") is None
    side = int(size.get("height" if squash else "shortest_edge") or 0)
    results = [crop] if settings.get("do_center_crop", False) else []
    results += [size] if squash else []
    square = results and all(r.get("height") == r.get("width") == side for r in results)
    usual = settings.get("do_resize", True) and settings.get("do_rescale", True)
    filters = {int(value): key for key, value in FILTERS.items()}
    if not (side and square and usual and settings.get("resample") in filters):
        raise ValueError(
            f"model {name!r} wants its images resized to {size}, cropped to {crop or 'nothing'}, "
            f"filter {settings.get('resample')}: only square results of that size, bilinear (2) or "
            "bicubic (3), are supported; choose another model."
        )
    plain = not settings.get("do_normalize", True)
    return Preprocess(
        side,
        (0.0,) * 3 if plain else tuple(settings["image_mean"]),
        (1.0,) * 3 if plain else tuple(settings["image_std"]),
        squash=squash,
        interpolation=filters[settings["resample"]],
    )
