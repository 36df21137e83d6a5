"""Readers of files that people bring: whatever the bytes, they answer or raise one sentence."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image

from bayestta.data import ImageError, load_data, stream
from bayestta.images import decode_image
from test_cross_domain_data import SPLIT, save_image
from test_fmow import save_fmow
from test_paper_data import portraits, save, wildtime
from test_user_streams import png, sample, shard

ROUNDS = 60  # changes of every kind of file


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, cut out, repeated, or the end lost."""
    changed = bytearray(content)
    kind = rng.integers(4)
    start = int(rng.integers(len(changed)))
    length = int(rng.integers(1, 40))
    if kind == 0:
        for place in rng.integers(len(changed), size=rng.integers(1, 8)):
            changed[place] = int(rng.integers(256))
    elif kind == 1:
        del changed[start : start + length]
    elif kind == 2:
        changed[start:start] = changed[start : start + length] * int(rng.integers(1, 5))
    else:
        del changed[start:]
    return bytes(changed)


def readers(folder):
    """What is damaged, and how it is then read."""
    save_image(folder / "dtd" / "images" / "b" / "2.jpg", 9)
    split = folder / "dtd" / "split_zhou_DescribableTextures.json"
    split.write_text(json.dumps(SPLIT))
    save_fmow(folder, inside=False)
    save(folder / "yearbook.pkl", wildtime(portraits, range(1930, 2014), "images"))
    for i in range(4):
        (folder / f"{i}.png").write_bytes(png(i))
    table = folder / "table.csv"
    rows = [f"{i}.png,{'cat' if i % 2 else 'dog'},2024-05-0{i + 1}" for i in range(4)]
    table.write_text("\n".join(["path,label,timestamp", *rows, ""]))
    tar = shard(folder / "a.tar", [m for i in range(3) for m in sample(i)])
    names = folder / "names.txt"
    names.write_text("cat\ndog\n")
    two = {"classes": ["cat", "dog"], "cut": 1}
    return {
        "coop": (split, lambda: load_data("dtd", root=folder)),
        "fmow": (folder / "fmow.pkl", lambda: load_data("fmow", root=folder)),
        "yearbook": (folder / "yearbook.pkl", lambda: load_data("yearbook", root=folder)),
        "csv": (table, lambda: load_data("csv", root=table, cut=1)),
        "tar": (tar, lambda: load_data("webdataset", root=tar, **two)),
        "names": (names, lambda: load_data("csv", root=table, classes=names, cut=1)),
    }


def tiny(image):
    return torch.from_numpy(np.array(image.resize((4, 4)), np.float32))


@pytest.mark.parametrize("kind", ["coop", "fmow", "yearbook", "csv", "tar", "names"])
def test_damaged_files_get_a_sentence(tmp_path, kind):
    path, read = readers(tmp_path)[kind]
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(ROUNDS):
        path.write_bytes(damage(content, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with suppress(ValueError):  # ImageError is one
                for _ in stream(read(), tiny, limit=1):
                    pass


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.tif", "a.webp", "a.bmp", "a.jp2"])
def test_damaged_images_are_image_errors(tmp_path, name):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (24, 30, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / name)
    content = (tmp_path / name).read_bytes()
    for _ in range(ROUNDS):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with suppress(ImageError):
                assert decode_image(damage(content, rng), name).mode == "RGB"
