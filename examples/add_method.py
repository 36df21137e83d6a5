"""Add a method: settings and state are declared, `_adapt` answers and learns, `_predict` answers.

The example takes from the zero-shot logits what all answers so far have in common, so that classes
that are named too often are named less (Saerens et al., Neural Computation 2002). In a program of
your own `register` makes it known by name. `bt.checks.check_adapter(Balance)` tells whether it
keeps what every method promises.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import bayestta as bt
from bayestta.settings import Settings, setting


@dataclass(frozen=True)
class BalanceSettings(Settings):
    """Declared once: checked everywhere, shown by help(), known to --set and TOML files."""

    strength: float = setting(1.0, "How much of the prior is taken away; 0 is zero-shot.", least=0)


@bt.register
class Balance(bt.Adapter):
    """Zero-shot, less what all answers so far have in common."""

    name = "balance"
    title = "Balance"
    tunes = "a prior of the classes"
    Settings = BalanceSettings

    def declare(self) -> None:
        # Reset, saving, loading and merging follow from this line.
        start = self.text.new_zeros(len(self.classes), dtype=torch.float64)
        self.add_state("mass", start, merge="sum")

    @torch.no_grad()
    def _adapt(self, x: Tensor) -> Tensor:
        self.sketch = self.model.logits(self.model.encode_image(x), self.text)  # (B,K)
        self.mass = self.mass + self.sketch.double().softmax(1).sum(0)
        return self._balanced(self.sketch)

    def _predict(self, x: Tensor) -> Tensor:
        return self._balanced(self.model.logits(self.model.encode_image(x), self.text))

    def _balanced(self, sketch: Tensor) -> Tensor:
        return sketch - self.settings.strength * self.prior.log().to(sketch)

    @property
    def prior(self) -> Tensor:
        """Share of each class in the answers so far, after one imagined image per class."""
        return (self.mass + 1) / (self.mass + 1).sum()


if __name__ == "__main__":
    adapter = bt.make_adapter("balance", bt.load_model("mini-rn"), ["cat", "dog"], strength=0.5)
    for _ in range(3):
        adapter.adapt(torch.rand(8, 3, 64, 64))
    print(adapter)
    print("share of each class:", adapter.prior.tolist())
