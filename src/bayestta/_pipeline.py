"""`pipeline`: called as transformers' zero-shot-image-classification pipeline is, and it adapts.

The file has an underscore because a module `bayestta.pipeline` would hide the function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods import METHODS, make_adapter
from bayestta.models._inputs import is_one
from bayestta.models._text import check_names, check_templates
from bayestta.models.base import VLM, load_model
from bayestta.names import unknown

Answer = list[dict[str, Any]]  # {"score": float, "label": str}, best first
FUNCTIONS = ("softmax", "sigmoid")


def pipeline(
    model: str | os.PathLike[str] | VLM = "lit",
    candidate_labels: Sequence[str] | None = None,
    *,
    hypothesis_template: str | Sequence[str] | None = None,
    top_k: int | None = None,
    adapt: bool = True,
    state: str | os.PathLike[str] | None = None,
    function_to_apply: str = "softmax",
    batch_size: int = 64,
    device: str | torch.device = "cpu",
    method: str = "bayestta",
    seed: int = 0,
    **settings: Any,
) -> Pipeline:
    """Make a classifier that is called with images, answers with labels, and learns as it goes.

    Parameters
    ----------
    model
        A name for `load_model`, or what `load_model` or `wrap` returned.
    candidate_labels
        The labels to choose from; left out, the first call names them.
    hypothesis_template
        Sentence with `{}` in the place of a label, or a list of them; "a photo of a {}." by
        default.
    top_k
        How many labels to return per image; all by default.
    adapt
        Learn from the images. False answers from the state as it is.
    state
        A file to go on from, if it exists; `save()` writes it.
    function_to_apply
        `softmax`: which of the labels it is; scores sum to one. `sigmoid`: how well each label
        fits by itself, for a SigLIP.
    batch_size
        Images per step; a longer list is taken in several.
    device
        Where a model that is given by name runs.
    method, seed, settings
        As in `make_adapter`.

    >>> from PIL import Image
    >>> pipe = pipeline("mini-rn", ["airplane", "dog"], top_k=1)
    >>> pipe(Image.new("RGB", (64, 64), "skyblue"))  # doctest: +ELLIPSIS
    [{'score': 0..., 'label': 'airplane'}]
    """
    METHODS.find(method)  # before the work of loading
    if function_to_apply not in FUNCTIONS:
        raise ValueError(unknown("function_to_apply", function_to_apply, FUNCTIONS))
    _check_count("batch_size", batch_size)
    vlm = model if isinstance(model, VLM) else load_model(model, device=device)
    if function_to_apply == "sigmoid":
        vlm.sigmoid(torch.zeros(1, 1))  # refused where it has no meaning
    pipe = Pipeline(
        vlm,
        partial(make_adapter, method, vlm, seed=seed, **settings),
        templates=hypothesis_template,
        top_k=top_k,
        adapt=adapt,
        state=state,
        sigmoid=function_to_apply == "sigmoid",
        batch_size=batch_size,
    )
    if candidate_labels is not None:
        pipe.choose(candidate_labels)
    return pipe


class Pipeline:
    """What `pipeline` returns: call it with images. `model` and `adapter` are there to be used."""

    def __init__(
        self,
        model: VLM,
        make: Callable[..., Adapter],
        *,
        templates: str | Sequence[str] | None,
        top_k: int | None,
        adapt: bool,
        state: str | os.PathLike[str] | None,
        sigmoid: bool,
        batch_size: int,
    ) -> None:
        self.model = model
        self.adapter: Adapter | None = None  # until the labels are known
        self.state = None if state is None else Path(state)
        self._make, self._templates, self._top_k = make, templates, _check_count("top_k", top_k)
        self._adapt, self._sigmoid, self._batch_size = adapt, sigmoid, batch_size

    def __call__(
        self,
        images: Any,
        candidate_labels: Sequence[str] | None = None,
        *,
        hypothesis_template: str | Sequence[str] | None = None,
        top_k: int | None = None,
        adapt: bool | None = None,
    ) -> Answer | list[Answer]:
        """Labels with scores, best first: a list for one image, a list of lists for several.

        Parameters
        ----------
        images
            A path, file:// URL, PIL image or uint8 array (H,W,3), a list of them, or a batch as the
            model takes it. If one of them cannot be read, nothing is learnt from the others.
        candidate_labels, hypothesis_template
            Needed once, if the pipeline was made without; others need another pipeline.
        top_k, adapt
            Instead of what the pipeline was made with, for this call.
        """
        if candidate_labels is None and self.adapter is not None:
            candidate_labels = self.adapter.classes
        if candidate_labels is not None:
            self.choose(candidate_labels, hypothesis_template)
        if self.adapter is None:
            raise ValueError(
                "the pipeline has no labels to choose from: give candidate_labels, here or to "
                "pipeline()."
            )
        limit = _check_count("top_k", self._top_k if top_k is None else top_k)
        learn = self._adapt if adapt is None else adapt
        answers: list[Answer] = []
        one = is_one(images)
        with self.adapter.unchanged_on_error():
            for batch in [images] if one else self._batches(images):
                logits = self.adapter.adapt(batch) if learn else self.adapter.predict(batch)
                answers += self._answers(logits, limit)
        return answers[0] if one else answers

    def choose(
        self,
        candidate_labels: Sequence[str],
        hypothesis_template: str | Sequence[str] | None = None,
    ) -> None:
        """Settle the labels: make the adapter, and go on from the state file if there is one."""
        given = self._templates if hypothesis_template is None else hypothesis_template
        if self.adapter is None:
            adapter = self._make(candidate_labels, given)
            if self.state is not None and self.state.exists():
                adapter.load(self.state)
            self.adapter = adapter
            return
        labels, own = check_names(candidate_labels), self.adapter.classes
        if set(labels) != set(own):
            raise ValueError(
                f"the pipeline adapts to {len(own)} labels ({', '.join(own[:5])}), and the "
                f"{len(labels)} of this call are others ({', '.join(labels[:5])}): make another "
                "with pipeline(pipe.model, labels), which shares the model."
            )
        if hypothesis_template is None:
            return
        if (templates := check_templates(hypothesis_template)) != self.adapter.templates:
            raise ValueError(
                f"the pipeline's prompts are {self.adapter.templates}, and those of this call are "
                f"others ({templates}): make another with pipeline(pipe.model, labels, "
                "hypothesis_template=...), which shares the model."
            )

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write what was learnt to the state file, or to another."""
        target = self.state if path is None else path
        if target is None or self.adapter is None:
            what = "labels" if self.adapter is None else "state file"
            cure = "call it once" if self.adapter is None else "write save(PATH)"
            raise ValueError(f"the pipeline has no {what} yet: {cure}, or name it in pipeline().")
        self.adapter.save(target)

    def _batches(self, images: Any) -> list[Any]:
        if not isinstance(images, (Sequence, Tensor, np.ndarray)) or not len(images):
            return [images]  # the adapter says what is wrong with it
        step = self._batch_size
        return [images[i : i + step] for i in range(0, len(images), step)]

    def _answers(self, logits: Tensor, limit: int | None) -> list[Answer]:
        assert self.adapter is not None
        score = self.model.sigmoid if self._sigmoid else self.adapter.probabilities
        scores, order = score(logits).sort(dim=1, descending=True, stable=True)
        return [
            [
                {"score": value, "label": self.adapter.classes[k]}
                for value, k in zip(values[:limit], ranks[:limit], strict=True)
            ]
            for values, ranks in zip(scores.tolist(), order.tolist(), strict=True)
        ]

    def __repr__(self) -> str:
        return f"Pipeline({self.adapter or self.model.name!r})"


def _check_count(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} is {value!r}: give a whole number of 1 or more.")
    return value
