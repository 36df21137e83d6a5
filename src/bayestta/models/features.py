"""Cached embeddings as a model: `encode_image` is normalisation, the text is the real model's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from PIL import Image
from torch import Tensor, nn

from bayestta.models._feature_file import read_features
from bayestta.models.base import VLM


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


class FeatureFile(VLM):
    """Stands in for the model that made a file of `bayestta features`; knows its prompts only."""

    def __init__(self, path: Path) -> None:
        found = read_features(path)
        self.header, self.features_of = found.header, found.header["model"]
        super().__init__(
            f"features:{self.features_of}",
            nn.Identity(),
            _no_images,
            dim=found.text.shape[1],
            scale=self.header["scale"],
            bias=self.header["bias"],
            trained_on=frozenset(self.header["trained_on"]),
        )
        self._text = nn.Module()
        self._text.register_buffer("table", found.text)
        self._rows = {line: row for row, line in enumerate(self.header["prompts"])}

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    def towers(self) -> list[nn.Module]:
        return [self._text]

    @property
    def _table(self) -> Tensor:
        table: Tensor = self._text.get_buffer("table")
        return table

    @property
    def device(self) -> torch.device:
        return self._table.device

    @property
    def dtype(self) -> torch.dtype:
        return self._table.dtype

    @cached_property
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
        return self._table[[self._rows[line] for line in prompts]]


def _no_images(image: Image.Image) -> NoReturn:
    raise ValueError(
        "a model of cached features cannot encode images: use --data features --root FILE."
    )


def load_features(path: str) -> FeatureFile:
    return FeatureFile(Path(path).expanduser())
