"""Which layers of an image tower are norms, and how BatchNorms take their statistics."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

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
    """Detached float32 copies of the norms' weights and biases, by their names in the tower."""
    return {
        f"{name}.{key}" if name else key: parameter.detach().float().clone()
        for name, module in norm_layers(visual, rule).items()
        for key, parameter in module.named_parameters(recurse=False)
    }


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
