"""Embeddings as a model: `encode_image` is normalisation, the text is somebody's prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from bayestta.models._feature_file import read_features
from bayestta.models._vlm import VLM


class Features(VLM):
    """Stands in for a model whose image features were computed before.

    Methods that run the encoder refuse it.
    """

    def __init__(self, model: VLM) -> None:
        super().__init__(
            f"features:{model.name}",
            nn.Identity(),
            model.preprocess,
            dim=model.dim,
            scale=model.scale,
            bias=model.bias,
            mean=model.mean,
            std=model.std,
            trained_on=model.trained_on,
        )
        self.source, self.features_of = model, model.name

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    def towers(self) -> list[nn.Module]:
        return self.source.towers()  # so that features of different models differ in fingerprint

    @property
    def device(self) -> Any:
        return self.source.device

    @property
    def dtype(self) -> Any:
        return self.source.dtype

    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        return self.source.encode_text(prompts)


class Table(VLM):
    """Text is a table (P,D) at unit norm, and nothing is encoded."""

    def __init__(self, name: str, table: Tensor, **options: Any) -> None:
        super().__init__(name, nn.Identity(), _no_images, dim=table.shape[1], **options)
        self._holder = nn.Module()
        self._holder.register_buffer("table", table)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    def towers(self) -> list[nn.Module]:
        return [self._holder]

    @property
    def table(self) -> Tensor:
        return self._holder.get_buffer("table")

    @property
    def device(self) -> torch.device:
        return self.table.device

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype


class FeatureFile(Table):
    """Stands in for the model that made a file of `bayestta features`; knows its prompts only."""

    def __init__(self, path: Path) -> None:
        found = read_features(path)
        self.header, self.features_of = found.header, found.header["model"]
        super().__init__(
            f"features:{self.features_of}",
            found.text,
            scale=self.header["scale"],
            bias=self.header["bias"],
            trained_on=frozenset(self.header["trained_on"]),
        )
        self._rows = {line: row for row, line in enumerate(self.header["prompts"])}

    @property
    def fingerprint(self) -> str:
        """That of the model which made the features."""
        return str(self.header["fingerprint"])

    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        missing = [line for line in prompts if line not in self._rows]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(prompts)} prompts are not among the {len(self._rows)} of "
                f"the features file ({missing[0]!r}): make it again with --templates for these "
                "(ensemble needs eighty)."
            )
        return self.table[[self._rows[line] for line in prompts]]


class Prototypes(Table):
    """Text prototypes (K,D) that a person brings, one row per class; knows no words.

    Parameters
    ----------
    text
        One row per class, in the order of the names that an adapter gets.
    scale, bias
        Logits are `scale * cosine + bias`.
    """

    def __init__(
        self, text: Tensor, *, scale: float, bias: float = 0.0, name: str = "embeddings"
    ) -> None:
        if text.ndim != 2 or len(text) < 2 or not text.is_floating_point():
            raise ValueError(
                f"text is {text.dtype} of shape {tuple(text.shape)}: give floats (K,D), one row "
                "per class, at least 2."
            )
        text = text.detach().float()
        wrong = ~(torch.isfinite(text).all(1) & (text.norm(dim=1) > 0))
        if wrong.any():
            raise ValueError(
                f"{int(wrong.sum())} of {len(text)} rows of text are zero or not finite (first: "
                f"{int(wrong.nonzero()[0])}): give every class an embedding."
            )
        super().__init__(name, functional.normalize(text, dim=1), scale=scale, bias=bias)

    def prototypes(self, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
        if len(classes) != len(self.table):
            raise ValueError(
                f"{len(classes)} class names were given for the {len(self.table)} rows of text: "
                "give one name per row, in the order of the rows."
            )
        return self.table.clone()

    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        raise ValueError(
            f"model {self.name!r} has {len(self.table)} text prototypes and no text tower, so it "
            "cannot encode prompts: use a method that takes its text as it is, such as bayestta "
            "with refine=False."
        )


def _no_images(image: Image.Image) -> NoReturn:
    raise ValueError(
        "a model of embeddings cannot encode images: give it features (B,D), as from "
        "--data features --root FILE."
    )


def load_features(path: str) -> FeatureFile:
    return FeatureFile(Path(path).expanduser())
