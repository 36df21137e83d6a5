"""Cached embeddings as a model: `encode_image` is normalisation, the text is the real model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from bayestta.model import VLM


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
        self.source = model

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
