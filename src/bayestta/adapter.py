"""The base of every method: two verbs, and state that can be saved, loaded and merged."""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayestta.models._inputs import to_batch
from bayestta.models._placement import check_model
from bayestta.models._text import check_names, check_templates, classifier
from bayestta.models.base import VLM
from bayestta.settings import Settings as AnySettings
from bayestta.settings import describe, with_changes
from bayestta.state import Randomness, Stateful
from bayestta.state_file import read_state, write_state

TEMPLATES = ("a photo of a {}.",)
MADE_ALIKE = ("method", "model", "classes", "templates", "settings")  # what states must share
FROM_SETTINGS = ("views", "norms", "answer")  # what the runner asks, where a method lets one set it


class Adapter(Stateful):
    """A method. `adapt` answers and learns; `predict` answers and changes nothing.

    A subclass names its settings, declares what moves in `declare`, and answers in `_adapt` and
    `_predict`. It never writes into the model and never sees a label.

    Parameters
    ----------
    model
        What `load_model` or `wrap` returned; shared by any number of adapters, never changed.
    classes
        The names to choose from.
    templates
        Sentences with `{}` in the place of a class name; "a photo of a {}." by default.
    seed
        Seed of the adapter's own generator.
    settings
        An instance of the method's settings; or give single ones as keywords.
    """

    name: ClassVar[str] = ""
    title: str = ""
    about: ClassVar[str] = ""  # what lists say of it; by default the docstring's first sentence
    citation: ClassVar[str] = ""
    tunes: ClassVar[str] = "nothing"
    cost: ClassVar[str] = "1 forward per image"
    fidelity: ClassVar[str] = ""
    Settings: ClassVar[type[AnySettings]] = AnySettings
    settings: AnySettings
    views: int = 1  # that the stream must supply per image
    reset_every: ClassVar[str] = "never"  # when the runner resets the method: domain, batch, never
    answer: str = "before"  # whether the answer precedes or follows the update of the weights
    norms: str = "source"
    needs_encoder: ClassVar[bool] = False  # True: cached features are not enough
    moves_tower: bool = False  # True: the sketch of a step is not that of the pristine model
    no_merge: ClassVar[str] = ""  # why, where merging has no meaning
    samples: int  # images learnt from
    steps: int
    caution: int  # returns of a guard so far
    sketch: Tensor | None  # zero-shot logits of the last batch, if there are any
    record: dict[str, Any]  # what the last step has to say

    def __init__(
        self,
        model: VLM,
        classes: Sequence[str],
        templates: Sequence[str] | None = None,
        *,
        seed: int = 0,
        settings: AnySettings | None = None,
        **changes: Any,
    ) -> None:
        base = self.Settings.default(changes) if settings is None else settings
        self.settings = with_changes(base, copy.deepcopy(changes), self.name)
        if not isinstance(self.settings, self.Settings):
            wrong = type(self.settings).__name__
            raise ValueError(f"{wrong} are not {self.name}'s: give {self.Settings.__name__}.")
        check_model(model, self.name, needs_encoder=self.needs_encoder)
        self.model, self.seed = model, seed
        self.classes = check_names(classes)
        self.templates = check_templates(TEMPLATES if templates is None else templates)
        for key in FROM_SETTINGS:
            if key in self.settings:
                setattr(self, key, self.settings[key])
        # An inference tensor could never be learnt from; and while another thread's pass is under
        # way, the tower holds the tensors of its adapter, which are not to be copied as the start.
        with torch.inference_mode(False), self.model.lock:
            self.text = self.make_text().clone()  # (K,D)
            self.random = Randomness(seed)
            self.add_state("random", self.random)
            self.add_state("samples", 0, merge="sum", least=0)
            self.add_state("steps", 0, merge="sum", least=0)
            self.add_state("caution", 0, merge="max", least=0)
            self._forget_step()
            self.declare()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        rows = describe(cls.Settings)
        if "__doc__" in vars(cls) and rows and cls.__doc__ and "Settings\n" not in cls.__doc__:
            lines = [f"    {row['name']}={row['default']!r}\n        {row['doc']}" for row in rows]
            cls.__doc__ += "\n    Settings\n    --------\n" + "\n".join(lines) + "\n"
        common = list(inspect.signature(Adapter.__init__).parameters.values())[1:-1]
        kind = inspect.Parameter.KEYWORD_ONLY
        own = [inspect.Parameter(r["name"], kind, default=r["default"]) for r in rows]
        cls.__signature__ = inspect.Signature(common + own)  # type: ignore[attr-defined]

    def make_text(self) -> Tensor:
        """The text classifier (K,D); by default from the templates, the same for every method."""
        return classifier(self.model, self.classes, self.templates)

    def declare(self) -> None:
        """Declare by `add_state` what moves."""

    # --- the two verbs ---

    def adapt(self, images: Any) -> Tensor:
        """Answer images with logits (B,K), and learn from them: all of the step, or nothing.

        `images`: a batch (B,C,H,W) as `model.preprocess` makes it, one PIL image, array (H,W,C) of
        uint8 or path, or a list of them.
        """
        with torch.inference_mode(False), torch.enable_grad(), self.unchanged_on_error():
            x = to_batch(self.model, images, views=self.views)
            before = self.sketch, self.record
            try:
                logits = self._adapt(x).detach()
                self.samples += len(x)
                self.steps += 1
                self._check_step(logits)
            except BaseException:
                self.sketch, self.record = before
                raise
        return logits

    __call__ = adapt

    def predict(self, images: Any) -> Tensor:
        """The answer of the current state; nothing changes."""
        with torch.inference_mode(False), torch.no_grad():
            x = to_batch(self.model, images, views=self.views)
            return self._predict(x).detach()

    def _adapt(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _predict(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _check_step(self, logits: Tensor) -> None:
        wrong = "the answer" if not bool(torch.isfinite(logits).all()) else self.unsound()
        if wrong:
            raise ValueError(
                f"{wrong} would hold NaN, infinite or huge numbers after this batch of "
                f"{len(logits)}: look for extreme pixels, or lower the learning rate; the state is "
                "unchanged."
            )

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities (B,K) of logits that this method gave."""
        return logits.float().softmax(1)

    def reset(self) -> None:
        """Go back to a fresh start."""
        self.reset_state()
        self._forget_step()

    def _forget_step(self) -> None:
        self.sketch, self.record = None, {}

    def summary(self) -> dict[str, Any]:
        """An account of the stream so far, for results."""
        return {}

    # --- state and files ---

    def merge(self, other: Adapter) -> None:
        """Take in another worker's evidence; merging with an untouched copy changes nothing."""
        if self.no_merge:
            raise NotImplementedError(f"merging has no meaning for {self.name}: {self.no_merge}")
        differing(self.header(), other.header(), "the other adapter", "merge only what is alike")
        if other.samples == 0:
            return
        with torch.inference_mode(False), self.unchanged_on_error():
            if self.samples == 0:
                self.load_state({**other.state(), **self._own_draws()})
            else:
                self.merge_state(other, other.samples / (self.samples + other.samples))

    def _own_draws(self) -> dict[str, Any]:
        return {f"random/{key}": value for key, value in self.random.state().items()}

    def header(self) -> dict[str, Any]:
        """What a state file says about itself."""
        about = (self.name, self.model.fingerprint, self.classes, self.templates)
        given = dict(
            zip(MADE_ALIKE, (*about, json.loads(json.dumps(dict(**self.settings)))), strict=True)
        )
        return {**given, "samples": self.samples}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state, whole or not at all: safetensors with a header and a checksum."""
        write_state(path, self.header(), self.state())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save` wrote; ValueError, and nothing changed, for any other."""
        header, state = read_state(path)
        differing(self.header(), header, str(path), "make the adapter as it was")
        try:
            self.load_state(state)
        except ValueError as error:
            raise ValueError(f"{path} does not fit this adapter: {error}") from None

    @property
    def generator(self) -> torch.Generator:
        return self.random.generator

    def __repr__(self) -> str:
        changes = "".join(f", {key}={value!r}" for key, value in self.settings.changes().items())
        about = f"model={self.model.name!r}, {len(self.classes)} classes, {self.samples} samples"
        return f"{type(self).__name__}({about}{changes})"


def differing(mine: Mapping[str, Any], theirs: Mapping[str, Any], who: str, cure: str) -> None:
    """Refuse a state that was made in another way."""
    for key in MADE_ALIKE:
        if mine[key] != theirs.get(key):
            one, two = (json.dumps(about.get(key)) for about in (theirs, mine))
            one, two = (text if len(text) <= 120 else f"{text[:117]}…" for text in (one, two))
            raise ValueError(
                f"{who} has another {key} ({one}) than this adapter ({two}): {cure}, or start a "
                "new state."
            )
