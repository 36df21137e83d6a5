"""The words that the mini models know: those of the captions that they were trained on."""

from __future__ import annotations

from collections.abc import Sequence

from bayestta.cli._screen import Screen

MINI = ("mini-rn", "mini-vit")


def unknown_words(model: str, classes: Sequence[str]) -> list[str]:
    """The class names with a word that a mini model never saw; none for any other model."""
    if model not in MINI:
        return []
    from safetensors import safe_open

    from bayestta.models._torchvision import import_torchvision
    from bayestta.models.mini import ASSETS

    import_torchvision()
    from open_clip import SimpleTokenizer

    with safe_open(ASSETS / f"{model}.safetensors", "pt") as file:
        known = set(file.get_tensor("token_ids").tolist())
    tokenizer = SimpleTokenizer()
    return [name for name in classes if not known >= {*tokenizer.encode(name.replace("_", " "))}]


def warn_of_words(screen: Screen, model: str, classes: Sequence[str]) -> None:
    """Say which classes a mini model can only guess."""
    unseen = unknown_words(model, classes)
    if unseen:
        shown = ", ".join(repr(name) for name in unseen[:5]) + ", …" * (len(unseen) > 5)
        screen.note(
            f"{model} knows only the words of its captions (things of CIFAR-10, digits), and not "
            f"{shown}: its answers for {'this class' if len(unseen) == 1 else 'these classes'} "
            "are guesses; use --model lit, or a CLIP."
        )
