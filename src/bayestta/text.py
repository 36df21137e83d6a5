"""Class names x templates -> text prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.model import VLM

TEMPLATES: dict[str, list[str]] = {
    "single": ["a photo of a {}."],
    "seven": [  # the "best of" ImageNet templates
        "itap of a {}.",
        "a bad photo of the {}.",
        "a origami {}.",
        "a photo of the large {}.",
        "a {} in a video game.",
        "art of the {}.",
        "a photo of the small {}.",
    ],
}


def templates(name: str) -> list[str]:
    """A template set by name: `single`, `seven`, or `eighty` (the ensemble of the CLIP paper, from open_clip)."""
    if name == "eighty":
        from bayestta.backends._torchvision import import_torchvision

        import_torchvision()
        from open_clip import OPENAI_IMAGENET_TEMPLATES

        return [template("{}") for template in OPENAI_IMAGENET_TEMPLATES]
    if name not in TEMPLATES:
        raise ValueError(unknown("template set", name, [*TEMPLATES, "eighty"]))
    return list(TEMPLATES[name])


def check_names(names: Sequence[str]) -> list[str]:
    """The class names as a list, or a ValueError for fewer than two, empty or repeated ones."""
    found = [str(name).strip() for name in names]
    if len(found) < 2:
        raise ValueError(f"{len(found)} class name(s) given, at least 2 are needed to classify: add the missing ones.")
    if "" in found:
        raise ValueError(f"class name {found.index('') + 1} of {len(found)} is empty: give it a name or remove it.")
    repeated = sorted({name for name in found if found.count(name) > 1})
    if repeated:
        shown = ", ".join(repr(name) for name in repeated[:5])
        raise ValueError(f"{len(repeated)} of {len(found)} class names occur more than once ({shown}): remove the copies.")
    return found


def check_templates(given: Sequence[str]) -> list[str]:
    """The templates as a list, or a ValueError where one has no place for the class name."""
    found = list(given)
    wrong = [t for t in found if "{}" not in t]
    if not found or wrong:
        raise ValueError(
            f"{len(wrong)} of {len(found)} templates lack the place for the class name"
            f"{f' ({wrong[0]!r})' if wrong else ''}: write at least one, like 'a photo of a {{}}.'."
        )
    return found


def prompts(name: str, given: Sequence[str]) -> list[str]:
    """The prompts of one class; underscores in names become blanks."""
    return [template.replace("{}", name.replace("_", " ")) for template in given]


@torch.no_grad()
def classifier(model: VLM, names: Sequence[str], given: Sequence[str]) -> Tensor:
    """Text prototypes: each prompt embedded at unit norm, averaged over templates, at unit norm again."""
    names, given = check_names(names), check_templates(given)
    text = model.encode_text([prompt for name in names for prompt in prompts(name, given)])  # (K*T,D)
    return F.normalize(text.view(len(names), len(given), -1).mean(1), dim=1)  # (K,D)
