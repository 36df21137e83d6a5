"""The few tensors that a method tunes, with their optimiser: beside the model, never in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bayestta.state import matching, taken

Optimiser = Callable[[list[Tensor]], torch.optim.Optimizer]


class Named(Mapping[str, Tensor]):
    """Tensors by name."""

    tensors: dict[str, Tensor]

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class Tuned(Named):
    """Named leaf tensors and the optimiser that moves them, as a piece of state.

    >>> tuned = Tuned({"w": torch.zeros(2)}, lambda tensors: torch.optim.SGD(tensors, lr=1.0))
    >>> tuned.step((tuned["w"] - 3).square().sum())
    >>> tuned["w"].tolist()
    [6.0, 6.0]
    >>> tuned.reset()
    >>> tuned["w"].tolist()
    [0.0, 0.0]
    """

    def __init__(self, start: Mapping[str, Tensor], optimiser: Optimiser) -> None:
        self.start = {key: value.detach().clone() for key, value in start.items()}
        self._make = optimiser
        self.tensors = {key: value.clone().requires_grad_() for key, value in self.start.items()}
        self.reset()

    def reset(self, *, optimiser_only: bool = False) -> None:
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

    @torch.no_grad()
    def pull(self, part: float) -> None:
        """So much of the way back to the start."""
        for key, tensor in self.tensors.items():
            tensor.lerp_(self.start[key], part)

    def snapshot(self) -> dict[str, Tensor]:
        """Detached copies of the tensors."""
        return {key: tensor.detach().clone() for key, tensor in self.tensors.items()}

    def step(self, loss: Tensor, *, keep: float = 0.0) -> None:
        """One optimiser step, then theta <- keep * old + (1 - keep) * theta."""
        before = self.snapshot() if keep else {}
        tensors = list(self.tensors.values())
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
        self.descend(dict(zip(self.tensors, gradients, strict=True)))
        with torch.no_grad():
            for key, old in before.items():
                self.tensors[key].lerp_(old, keep)

    def descend(self, gradients: Mapping[str, Tensor]) -> None:
        """One optimiser step along given gradients."""
        for key, tensor in self.tensors.items():
            tensor.grad = gradients[key]
        self.optimiser.step()
        self.optimiser.zero_grad()

    def state(self) -> dict[str, Any]:
        """Tensors by their names, and moments as NAME@SLOT."""
        state: dict[str, Any] = self.snapshot()
        for key, tensor in self.tensors.items():
            for slot, value in self.optimiser.state.get(tensor, {}).items():
                if value is not None:
                    state[f"{key}@{slot}"] = torch.as_tensor(value).clone()
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave: the tensors, and all moments or none."""
        like = self.snapshot()
        if state.keys() - like.keys():
            like |= self._first_moments()
        if wrong := sorted(state.keys() ^ like.keys()):
            fact = f"{len(wrong)} entries are missing or unknown beside {len(self)} tuned tensors"
            raise ValueError(f"{fact}: {', '.join(wrong[:3])}.")
        least = {key: 0 if key.endswith(("@step", "@exp_avg_sq")) else None for key in like}
        new = {key: matching(key, state[key], like[key], least=least[key]) for key in like}
        self.reset()
        self.assign(new)
        for key, tensor in self.tensors.items():
            if slots := taken(new, f"{key}@"):
                self.optimiser.state[tensor] = slots

    def _first_moments(self) -> dict[str, Tensor]:
        """What the optimiser remembers of the tensors, as a step without a gradient shows."""
        probe = Tuned(self.start, self._make)
        for tensor in probe.tensors.values():
            tensor.grad = torch.zeros_like(tensor)
        probe.optimiser.step()
        return {key: value for key, value in probe.state().items() if "@" in key}

    @torch.no_grad()
    def merge(self, other: Tuned, share: float) -> None:
        """Average tensors and moments, `share` of them the other's."""
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


class Averaged(Named):
    """Named tensors that follow others slowly, such as a teacher, as a piece of state."""

    def __init__(self, start: Callable[[], Mapping[str, Tensor]]) -> None:
        self._start = start
        self.reset()

    def reset(self) -> None:
        self.tensors = {key: value.detach().clone() for key, value in self._start().items()}

    @torch.no_grad()
    def follow(self, target: Mapping[str, Tensor], rate: float) -> None:
        """tensor <- (1 - rate) tensor + rate target."""
        for key, value in self.tensors.items():
            value.lerp_(target[key], rate)

    def state(self) -> dict[str, Any]:
        return {key: value.clone() for key, value in self.tensors.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        if state.keys() != self.tensors.keys():
            raise ValueError(f"{len(state)} tensors do not match the {len(self.tensors)} kept.")
        least = {key: 0 if key.endswith("running_var") else None for key in self.tensors}
        self.tensors = {
            key: matching(key, state[key], v, least=least[key]) for key, v in self.tensors.items()
        }

    def merge(self, other: Averaged, share: float) -> None:
        self.follow(other, share)
