"""Captions for the mini models: templates x synonyms, CIFAR-10 classes and digits."""

from __future__ import annotations

SYNONYMS: list[tuple[str, ...]] = [
    ("airplane", "plane", "aeroplane", "aircraft", "jet"),
    ("automobile", "car", "sedan", "motor car"),
    ("bird", "songbird", "small bird", "wild bird"),
    ("cat", "kitten", "kitty", "house cat"),
    ("deer", "stag", "doe", "wild deer"),
    ("dog", "puppy", "hound", "pet dog"),
    ("frog", "toad", "green frog"),
    ("horse", "pony", "stallion", "mare"),
    ("ship", "boat", "vessel", "ferry"),
    ("truck", "lorry", "cargo truck", "pickup truck"),
] + [
    (
        f'number:"{i}"',
        f"{i}",
        word,
        f"digit {i}",
        f"number {i}",
        f"digit {word}",
        f"number {word}",
        f"handwritten {i}",
    )
    for i, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    )
]

_PACKED = """a photo of a {}.|a photo of the {}.|a picture of a {}.|an image of a {}.|itap of a {}.
itap of the {}.|a bad photo of a {}.|a bad photo of the {}.|a good photo of a {}.
a good photo of the {}.|a origami {}.|the origami {}.|a photo of the large {}.
a photo of a large {}.|a photo of the small {}.|a photo of a small {}.|a {} in a video game.
the {} in a video game.|art of the {}.|art of a {}.|a photo of many {}.|a photo of one {}.
a photo of my {}.|a low resolution photo of a {}.|a low resolution photo of the {}.
a blurry photo of a {}.|a blurry photo of the {}.|a bright photo of a {}.
a bright photo of the {}.|a dark photo of a {}.|a dark photo of the {}.
a close-up photo of a {}.|a cropped photo of a {}.|a cropped photo of the {}.
a pixelated photo of a {}.|a black and white photo of a {}.|a drawing of a {}.
a drawing of the {}.|a sketch of a {}.|a painting of a {}.|a cartoon {}.|the cartoon {}.
a toy {}.|a plastic {}.|a sculpture of a {}.|a rendering of a {}.|a tattoo of a {}.
graffiti of a {}.|an embroidered {}.|a plushie {}.|a doodle of a {}.
a photo of the hard to see {}.|a photo of a hard to see {}.|a photo of a clean {}.
a photo of a dirty {}.|a photo of a cool {}.|a photo of a weird {}.
a photo of a {}, a type of thing.|a centered photo of a {}.|{}.|{}|a {}.|the {}.|this is a {}.
there is a {} in the photo.|a colorful image of a {}.|a noisy picture of a {}.
a small image of the {}.|a scan of the {}.|handwriting of the {}.|a {} on a plain background.
a {} outdoors.|one {}.|my {}.|look, a {}!"""
TEMPLATES = [t for line in _PACKED.split("\n") for t in line.split("|")]

# Never trained on: what the model card calls unseen prompts.
UNSEEN = [
    "a photo of the nice {}.",
    "a jpeg corrupted photo of a {}.",
    "we can see a {} here.",
    "a snapshot of some {}.",
]


def captions() -> list[list[str]]:
    """All captions of each of the twenty classes."""
    return [
        [template.format(name) for name in names for template in TEMPLATES] for names in SYNONYMS
    ]
