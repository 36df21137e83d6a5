"""Which layers of an image tower are norms, and how BatchNorms take their statistics."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from bayestta.names import unknown

NORMS: tuple[type[nn.Module], ...] = (nn.LayerNorm, _BatchNorm, nn.GroupNorm)
RULES = ("all", "released")


def norm_layers(visual: nn.Module, rule: str = "all") -> dict[str, nn.Module]:
    """The norm layers of a tower by name, chosen by type.

    `released` is the choice of the released BayesTTA, stated as a rule: no BatchNorm of a
    down-sampling branch.

    >>> tower = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.LayerNorm(4))
    >>> list(norm_layers(tower))
    ['1', '3']
    """
    if rule not in RULES:
        raise ValueError(unknown("rule for norm layers", rule, RULES))
    found = {name: module for name, module in visual.named_modules() if isinstance(module, NORMS)}
    if rule == "released":
        found = {
            name: module
            for name, module in found.items()
            if not (isinstance(module, _BatchNorm) and "downsample" in name.split("."))
        }
    return found


def norm_parameters(visual: nn.Module, rule: str = "all") -> dict[str, Tensor]:
    """Detached copies of the norms' weights and biases, float32 or wider, by their names."""
    return {
        f"{name}.{key}" if name else key: _at_least_float32(parameter.detach()).clone()
        for name, module in norm_layers(visual, rule).items()
        for key, parameter in module.named_parameters(recurse=False)
    }


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def batch_statistics(visual: nn.Module) -> dict[str, None]:
    """What a functional call replaces so that BatchNorms normalise by the batch.

    In evaluation mode, without running statistics, they take those of the batch and write nothing.
    """
    return {
        f"{name}.{key}" if name else key: None
        for name, module in visual.named_modules()
        if isinstance(module, _BatchNorm)
        for key in ("running_mean", "running_var")
    }


class OtherBatchNorm(TorchFunctionMode):
    """Inside this context BatchNorms with stored statistics compute what `normalise` says.

    The forward is caught where all BatchNorms end, in `functional.batch_norm`, for this thread and
    this block only: replaced modules, patched forwards or hooks would change a model that others
    share.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not functional.batch_norm:
            return func(*args, **(kwargs or {}))
        call = signature(functional.batch_norm).bind(*args, **(kwargs or {}))
        call.apply_defaults()
        if call.arguments["running_mean"] is None:  # a layer that always goes by the batch
            return func(*args, **(kwargs or {}))
        return self.normalise(**call.arguments)

    def normalise(
        self, input: Tensor, running_mean: Tensor, running_var: Tensor, **rest: Any
    ) -> Tensor:
        """What the layer makes of its input."""
        raise NotImplementedError


class RobustStatistics(OtherBatchNorm):
    """Inside this context BatchNorms normalise by stored statistics blended with the batch's.

    mean <- (1-a) mean + a batch mean, and so the (biased) variance; the blend normalises at once,
    and gradients flow through the batch's part (RoTTA, Yuan et al., CVPR 2023). `updated` then
    holds the blended statistics, detached; nothing is written anywhere else.

    A statistic of a layer is known only once the layers before it have been blended, so that it
    cannot be handed in with the functional call. The stored ones can: they tell the layers apart.

    >>> tower = nn.BatchNorm1d(2).eval()
    >>> stored = running_statistics(tower)
    >>> with RobustStatistics(stored, 0.5) as robust:
    ...     y = torch.func.functional_call(tower, stored, (torch.full((4, 2), 3.0),))
    >>> robust.updated["running_mean"].tolist(), robust.updated["running_var"].tolist()
    ([1.5, 1.5], [0.5, 0.5])
    """

    def __init__(self, stored: Mapping[str, Tensor], momentum: float) -> None:
        super().__init__()
        self.momentum, self.updated = momentum, dict(stored)
        self._name = {id(value): key for key, value in stored.items()}

    def normalise(
        self, input: Tensor, running_mean: Tensor, running_var: Tensor, **rest: Any
    ) -> Tensor:
        weight, bias, eps = rest["weight"], rest["bias"], rest["eps"]
        dims = [0, *range(2, input.ndim)]
        var, mean = torch.var_mean(input, dims, correction=0)
        mean = torch.lerp(running_mean.to(mean), mean, self.momentum)
        var = torch.lerp(running_var.to(var), var, self.momentum)
        self.updated[self._name[id(running_mean)]] = mean.detach()
        self.updated[self._name[id(running_var)]] = var.detach()
        gain = torch.rsqrt(var + eps) * (1.0 if weight is None else weight)
        shape = (1, -1, *[1] * (input.ndim - 2))
        y: Tensor = (input - mean.view(shape)) * gain.view(shape)
        return y if bias is None else y + bias.view(shape)


def running_statistics(visual: nn.Module) -> dict[str, Tensor]:
    """Copies of the BatchNorms' stored means and variances, by their names in the tower."""
    own = dict(visual.named_buffers())
    return {key: own[key].detach().clone() for key in batch_statistics(visual) if key in own}
