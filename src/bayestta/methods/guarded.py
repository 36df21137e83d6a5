"""`Guarded`: any adapter, watched by the guard."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayestta.adapter import Adapter
from bayestta.methods.guard import Guard

PROBE = 8  # one image in eight also goes through the pristine tower: 64 of 512 images


class _Inner:
    """The guarded adapter, as a piece of state."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.reset, self.state, self.load = adapter.reset, adapter.state, adapter.load_state

    def merge(self, other: _Inner, share: float) -> None:
        self.adapter.merge(other.adapter)


class Guarded(Adapter):
    """Any adapter, watched: where its answers collapse it returns to its last good state.

    Parameters
    ----------
    adapter
        What `make_adapter` or a class gave; use it only through the guarded one from then on.

    >>> import bayestta as bt
    >>> model = bt.load_model("mini-rn")
    >>> adapter = Guarded(bt.make_adapter("tent-continual", model, ["cat", "dog"]))
    >>> adapter.adapt(torch.zeros(4, 3, 64, 64)).shape
    torch.Size([4, 2])
    """

    def __init__(self, adapter: Adapter) -> None:
        self.inner_adapter = adapter
        for key in ("name", "title", "citation", "tunes", "cost", "fidelity", "views", "answer"):
            setattr(self, key, getattr(adapter, key))
        for key in ("norms", "reset_every", "needs_encoder", "moves_tower", "no_merge", "Settings"):
            setattr(self, key, getattr(adapter, key))
        self.title = f"{adapter.title}, guarded"
        model, about = adapter.model, (adapter.classes, adapter.templates)
        super().__init__(model, *about, seed=adapter.seed, settings=adapter.settings)

    def make_text(self) -> Tensor:
        self.templates = self.inner_adapter.templates
        return self.inner_adapter.text

    def declare(self) -> None:
        self.add_state("inner", _Inner(self.inner_adapter))
        self.guard = Guard(self)
        self.add_state("guard", self.guard)

    def _adapt(self, x: Tensor) -> Tensor:
        answer = self.inner_adapter.adapt(x)
        self.sketch, self.record = self.inner_adapter.sketch, dict(self.inner_adapter.record)
        chosen = slice(None)
        if self.sketch is None or self.inner_adapter.moves_tower:
            chosen = slice(self.steps % min(PROBE, len(x)), None, PROBE)
        sketch = self._pristine(x, chosen)
        signs, bad = self.guard.review(self.probabilities(answer[chosen]), sketch)
        self.record["guard"] = signs
        return self._pristine(x, slice(None)) if bad else answer

    def _pristine(self, x: Tensor, chosen: slice) -> Tensor:
        """Zero-shot logits of some images of a batch by the pristine tower."""
        if self.sketch is not None and not self.inner_adapter.moves_tower:
            return self.sketch[chosen]
        plain = x.plain[chosen] if hasattr(x, "plain") else x[chosen]
        plain = plain[:, 0] if plain.ndim == 5 else plain
        with torch.no_grad():
            return self.model.logits(self.model.encode_image(plain), self.text)

    def _predict(self, x: Tensor) -> Tensor:
        return self.inner_adapter.predict(x)

    def probabilities(self, logits: Tensor) -> Tensor:
        return self.inner_adapter.probabilities(logits)

    def header(self) -> dict[str, Any]:
        return {**super().header(), "method": f"guarded {self.name}"}

    def summary(self) -> dict[str, Any]:
        return {**self.inner_adapter.summary(), "guard": self.guard.summary()}
