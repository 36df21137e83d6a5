"""What open_clip knows of the weights that were published for its architectures."""

from __future__ import annotations

from typing import Any


def check_activation(architecture: str, tag: str, have: bool, need: bool) -> None:
    """open_clip only warns, and the accuracy is then some points lower."""
    import open_clip

    other = f"{architecture}-quickgelu" if need else architecture.removesuffix("-quickgelu")
    if have == need or other == architecture or other not in open_clip.list_models():
        return  # without a twin there is nothing to confuse
    raise ValueError(
        f"the weights {tag} were trained {'with' if need else 'without'} the quick GELU, which "
        f"open_clip:{architecture} {'has' if have else 'lacks'}: write open_clip:{other}/{tag}."
    )


def published_preprocess(architecture: str) -> dict[str, Any]:
    """The preprocessing that all published weights of an architecture share, if they do."""
    import open_clip

    found: list[dict[str, Any]] = []
    for tag in open_clip.list_pretrained_tags_by_model(architecture):
        published = open_clip.get_pretrained_cfg(architecture, tag)
        keys = ("mean", "std", "interpolation", "resize_mode")
        found.append({key: published.get(key) for key in keys})
    return found[0] if found and all(one == found[0] for one in found) else {}
