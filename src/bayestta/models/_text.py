"""Class names x templates -> text prototypes; `PromptLearner` for contexts that are tuned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from bayestta.models._prompts import PromptLearner as PromptLearner
from bayestta.names import unknown

if TYPE_CHECKING:
    from bayestta.models._vlm import VLM

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
    """A template set by name: `single`, `seven`, or `eighty`, the ensemble of the CLIP paper.

    >>> templates("single")
    ['a photo of a {}.']
    """
    if name == "eighty":
        from open_clip import OPENAI_IMAGENET_TEMPLATES

        return [template("{}") for template in OPENAI_IMAGENET_TEMPLATES]
    if name not in TEMPLATES:
        raise ValueError(unknown("template set", name, [*TEMPLATES, "eighty"]))
    return list(TEMPLATES[name])


def check_names(names: Sequence[str]) -> list[str]:
    """The class names as a list, or a ValueError for fewer than two, empty or repeated ones."""
    if isinstance(names, str):
        raise ValueError(f"the class names are one string ({names[:40]!r}): give a list of them.")
    found = [str(name).strip() for name in names]
    if len(found) < 2:
        raise ValueError(
            f"{len(found)} class name(s) given, at least 2 are needed to classify: "
            "add the missing ones."
        )
    if "" in found:
        raise ValueError(
            f"class name {found.index('') + 1} of {len(found)} is empty: "
            "give it a name or remove it."
        )
    for name in found:
        if any(0xD800 <= ord(letter) < 0xE000 for letter in name):  # bytes that were not UTF-8
            raise ValueError(
                f"class name {name!r} is not text in UTF-8, which a text tower reads: write it so, "
                "or rename its folder."
            )
    count = Counter(_plain(name) for name in found)  # what the text tower would see twice
    repeated = [name for name in found if count[_plain(name)] > 1]
    if repeated:
        shown = ", ".join(repr(name) for name in sorted(set(repeated))[:5])
        raise ValueError(
            f"{len(repeated)} of {len(found)} class names occur more than once ({shown}): "
            "remove the copies."
        )
    return found


def check_templates(given: Sequence[str]) -> list[str]:
    """The templates as a list, or a ValueError where one has no place for the class name."""
    found = [given] if isinstance(given, str) else list(given)
    wrong = [template for template in found if "{}" not in template]
    if not found:
        raise ValueError("0 templates given: write at least one, like 'a photo of a {}.'.")
    if wrong:
        raise ValueError(
            f"{len(wrong)} of {len(found)} templates lack the place for the class name "
            f"({wrong[0]!r}): write {{}} where it goes, as in 'a photo of a {{}}.'."
        )
    return found


def prompts(name: str, given: Sequence[str]) -> list[str]:
    """The prompts of one class; underscores in names become blanks.

    >>> prompts("traffic_light", ["a {}.", "two {}s."])
    ['a traffic light.', 'two traffic lights.']
    """
    return [template.replace("{}", _plain(name)) for template in given]


def _plain(name: str) -> str:
    return name.replace("_", " ")


def classifier(model: VLM, names: Sequence[str], given: Sequence[str]) -> Tensor:
    """The model's text prototypes (K,D) of checked names and templates."""
    return model.prototypes(check_names(names), check_templates(given))
