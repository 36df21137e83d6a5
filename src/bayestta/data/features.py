"""Embeddings that `bayestta features` cached, as a data set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch import Tensor

from bayestta.data._base import Data, Dataset, Index, register_data
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.models._feature_file import Features


class FeatureDomain(Dataset):
    """One domain: rows of the file."""

    def __init__(self, images: Tensor, labels: Tensor | None) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> tuple[Image.Image, int | None]:
        raise ValueError("cached features hold no images: use the data set that they are of.")

    def labels(self, index: Index) -> Tensor | None:
        return None if self._labels is None else self._labels[np.asarray(index)]

    def tensors(self, index: Index) -> Tensor:
        return self._images[np.asarray(index)]


@register_data("features")
class FeatureData(Data):
    """Features of any data set, made once by `bayestta features` and used by `features:FILE`.

    The name, classes, templates and domains are those of the data set that they were made of.

    Parameters
    ----------
    root
        The file.

    Citation: that of the data set whose features they are
    Licence: that of the data set whose features they are
    Get: `bayestta features --data NAME --model NAME --out FILE`
    """

    def __init__(self, *, root: str | os.PathLike[str] | None = None) -> None:
        from bayestta.models._feature_file import read_features

        if root is None:
            raise ValueError(
                "the file of the features is not given: pass root=FILE, which `bayestta features "
                "--out FILE` writes."
            )
        self._file: Features = read_features(root)
        header = self._file.header
        self.name, self.split = header["data"], header["split"]
        self.classes, self.templates = list(header["classes"]), list(header["templates"])
        self.domains, self.skipped = list(header["domains"]), []
        self.contains, self.labelled = frozenset(header["contains"]), self._file.labels is not None
        self.made_by: str = header["fingerprint"]  # the model
        ends = np.cumsum(header["sizes"]).tolist()
        self._spans = dict(zip(self.domains, zip([0, *ends], ends, strict=False), strict=True))

    def __getitem__(self, domain: str) -> FeatureDomain:
        if domain not in self._spans:
            raise ValueError(unknown(f"domain of {self.name}", domain, self.domains))
        start, stop = self._spans[domain]
        labels = self._file.labels
        return FeatureDomain(
            self._file.images[start:stop], None if labels is None else labels[start:stop]
        )
