"""The few tensors that a method tunes, with their optimiser: beside the model, never in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

Optimiser = Callable[[list[Tensor]], torch.optim.Optimizer]


class Tuned(Mapping[str, Tensor]):
    """Named leaf tensors and the optimiser that moves them; reset, save and merge are easy.

    >>> tuned = Tuned({"w": torch.zeros(2)}, lambda tensors: torch.optim.SGD(tensors, lr=1.0))
    >>> tuned.step((tuned["w"] - 3).square().sum())
    >>> tuned["w"].tolist()
    [6.0, 6.0]
    >>> tuned.restart()
    >>> tuned["w"].tolist()
    [0.0, 0.0]
    """

    def __init__(self, start: Mapping[str, Tensor], optimiser: Optimiser) -> None:
        self.start = {key: value.detach().clone() for key, value in start.items()}
        self._make = optimiser
        self.tensors = {key: value.clone().requires_grad_() for key, value in self.start.items()}
        self.restart()

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def restart(self, *, optimiser_only: bool = False) -> None:
        """Back to the start, optimiser included."""
        if not optimiser_only:
            self.assign(self.start)
        nothing = [torch.zeros(0)]  # optimisers refuse an empty list
        self.optimiser = self._make(list(self.tensors.values()) or nothing)

    @torch.no_grad()
    def assign(self, values: Mapping[str, Tensor]) -> None:
        """Write new values into the tensors; the optimiser keeps its moments."""
        for key, tensor in self.tensors.items():
            tensor.copy_(values[key])

    def snapshot(self) -> dict[str, Tensor]:
        """Detached copies of the tensors."""
        return {key: tensor.detach().clone() for key, tensor in self.tensors.items()}

    def step(self, loss: Tensor, *, keep: float = 0.0) -> None:
        """One optimiser step, then theta <- keep * old + (1 - keep) * theta."""
        before = self.snapshot() if keep else {}
        tensors = list(self.tensors.values())
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient
        self.optimiser.step()
        self.optimiser.zero_grad()
        with torch.no_grad():
            for key, old in before.items():
                self.tensors[key].lerp_(old, keep)

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Tensors and moments under flat names."""
        state = {f"{prefix}{key}": tensor.detach().clone() for key, tensor in self.tensors.items()}
        for key, tensor in self.tensors.items():
            for slot, value in self.optimiser.state.get(tensor, {}).items():
                if value is not None:
                    state[f"{prefix}{key}@{slot}"] = torch.as_tensor(value).clone()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], prefix: str = "") -> None:
        """Take back what `state_dict` gave."""
        self.restart()
        self.assign({key: state[f"{prefix}{key}"] for key in self.tensors})
        for name, value in state.items():
            key, at, slot = name.removeprefix(prefix).partition("@")
            if name.startswith(prefix) and at and key in self.tensors:
                tensor = self.tensors[key]
                # moments live where the tensor does; Adam counts its steps on the CPU
                where = tensor.device if value.shape == tensor.shape else value.device
                self.optimiser.state[tensor][slot] = value.to(where, copy=True)

    @torch.no_grad()
    def merge(self, other: Tuned, mine: int, theirs: int) -> None:
        """Average tensors and moments, weighted by the samples that each has seen."""
        if theirs == 0:
            return
        share = theirs / (mine + theirs)
        for key, tensor in self.tensors.items():
            tensor.lerp_(other.tensors[key].detach(), share)
            slots = self.optimiser.state.get(tensor, {})
            for slot, value in other.optimiser.state.get(other.tensors[key], {}).items():
                if not isinstance(value, Tensor):
                    continue
                if slot in slots and slot != "step":
                    slots[slot] = torch.lerp(slots[slot], value, share)
                elif slot == "step":
                    slots[slot] = torch.maximum(slots.get(slot, value), value)
                else:
                    slots[slot] = share * value
            self.optimiser.state[tensor] = slots
