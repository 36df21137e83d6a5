"""Readers of files that people bring: whatever the bytes, they answer or raise one sentence.

Every attack writes one damaged file and reads it. Here each kind is attacked some dozens of times;
`make test-all` goes on for seconds per kind.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn.functional import normalize

import bayestta as bt
from bayestta.bench import execute
from bayestta.checks._case import same
from bayestta.data import ImageError, load_data, stream
from bayestta.evaluation.result import Result
from bayestta.images import decode_image
from bayestta.models._checkpoints import infer_architecture, read_state
from bayestta.models._feature_file import read_features, write_feature_file
from bayestta.models.mini import CONFIGS
from bayestta.report import render_table
from bayestta.state_file import pack
from bayestta.state_file import read_state as read_saved
from faults import altered, damaged, spoilt
from feature_file import feature_file, feature_run
from test_cross_domain_data import SPLIT, save_image
from test_fmow import satellites, save_fmow
from test_paper_data import portraits, save, wildtime
from test_user_streams import png, sample, shard

ROUNDS = 40  # attacks per kind
Attack = Callable[[np.random.Generator], None]


@contextmanager
def answers_or_one_sentence(name: str = "") -> Iterator[None]:
    """No other error than a ValueError, on one line and with the file's name, and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = name
        try:
            yield
        except ValueError as caught:  # ImageError is one
            error = str(caught)
    assert name in error
    assert "\n" not in error


# --- data sets ---


def data_sets(folder) -> Iterator[tuple[str, Attack]]:
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
    for kind, path, read in (
        ("coop", split, partial(load_data, "dtd", root=folder)),
        ("fmow", folder / "fmow.pkl", partial(load_data, "fmow", root=folder)),
        ("yearbook", folder / "yearbook.pkl", partial(load_data, "yearbook", root=folder)),
        ("csv", table, partial(load_data, "csv", root=table, cut=1)),
        ("tar", tar, partial(load_data, "webdataset", root=tar, **two)),
        ("names", names, partial(load_data, "csv", root=table, classes=names, cut=1)),
    ):
        yield kind, partial(read_damaged, path, path.read_bytes(), read)
    coop, years = partial(load_data, "dtd", root=folder), range(1930, 2014)
    fmow, yearbook = (partial(load_data, name, root=folder) for name in ("fmow", "yearbook"))
    structures = {
        "coop values": (split, SPLIT, lambda v: json.dumps(v).encode(), coop),
        "fmow values": (
            *(folder / "fmow.pkl", wildtime(satellites, range(16), "image_idxs")),
            *(pickle.dumps, fmow),
        ),
        "yearbook values": (
            *(folder / "yearbook.pkl", wildtime(portraits, years, "images")),
            *(pickle.dumps, yearbook),
        ),
    }
    for kind, (path, value, encode, read) in structures.items():
        yield kind, partial(read_altered, path, value, encode, read)


def read_damaged(path, content, read, rng) -> None:
    path.write_bytes(damaged(content, rng))
    visit(read)


def read_altered(path, value, encode, read, rng) -> None:
    path.write_bytes(encode(altered(value, rng)))
    visit(read)


def visit(read) -> None:
    with answers_or_one_sentence():
        for _ in stream(read(), tiny, limit=1):
            pass


def tiny(image):
    return torch.from_numpy(np.array(image.resize((4, 4)), np.float32))


# --- files of our own ---


def own_files(folder) -> Iterator[tuple[str, Attack]]:
    yield "state", partial(attack_state, folder / "s", *a_stream())
    file = feature_file(folder / "f.safetensors", images=6)
    result = execute(feature_run(file, "bayestta", settings={"refine": False})).to_json()
    yield "result", partial(attack_result, folder / "r.json", result)
    yield "features", partial(attack_features, folder / "g.safetensors", read_features(file))


def a_stream() -> tuple[bt.BayesTTA, torch.Tensor]:
    """An adapter that has learnt something, and a batch to go on with."""
    rng = torch.Generator().manual_seed(0)
    rows = normalize(torch.randn(4, 16, generator=rng), dim=1)
    adapter = bt.BayesTTA(bt.wrap(text=rows, scale=20.0), ["cat", "dog", "eel", "fox"])
    x = normalize(rows.repeat(8, 1) + 0.3 * torch.randn(32, 16, generator=rng), dim=1)
    for _ in range(12):  # until the guard keeps a state to return to
        adapter.adapt(x)
    return adapter, x


def attack_state(path, adapter, x, rng) -> None:
    """Damage with a checksum that fits, so that it reaches what is behind; all or nothing."""
    header, before = adapter.header(), adapter.state()
    tensors = [key for key, value in before.items() if isinstance(value, torch.Tensor)]
    kind, state = rng.integers(4), dict(before)
    if kind == 0:
        data = damaged(pack(header, state), rng)
    else:
        if kind == 1:
            key = tensors[rng.integers(len(tensors))]
            state[key] = spoilt(state[key], rng)
        elif kind == 2:
            values = {key: value for key, value in state.items() if key not in tensors}
            found = altered(values, rng)
            state = {key: state[key] for key in tensors} | (found if type(found) is dict else {})
        else:
            header = altered(header, rng)
        data = pack(header if isinstance(header, dict) else {"method": header}, state)
    path.write_bytes(data)
    refused = True
    with answers_or_one_sentence(path.name):
        adapter.load(path)
        refused = False
    if refused:
        assert same(adapter.state(), before)
        return
    assert torch.isfinite(adapter.adapt(x)).all()  # what is taken must serve
    adapter.summary()
    adapter.reset()
    adapter.load_state(before)


def attack_result(path, value, rng) -> None:
    data = json.dumps(value).encode()
    bytes_ = rng.random() < 0.3
    path.write_bytes(damaged(data, rng) if bytes_ else json.dumps(altered(value, rng)).encode())
    with answers_or_one_sentence(path.name):
        render_table([Result.load(path)], "terminal")


def attack_features(path, found, rng) -> None:
    tensors = {"images": found.images, "labels": found.labels, "text": found.text}
    header, kind = dict(found.header), rng.integers(3)
    if kind == 0:
        key = sorted(tensors)[rng.integers(3)]
        tensors[key] = spoilt(tensors[key], rng)
    elif kind == 1:
        header = altered(header, rng)
    write_feature_file(path, tensors, header if isinstance(header, dict) else {"model": header})
    if kind == 2:
        path.write_bytes(damaged(path.read_bytes(), rng))
    with answers_or_one_sentence():
        data, model = load_data("features", root=path), bt.load_model(f"features:{path}")
        adapter = bt.make_adapter("zero-shot", model, data.classes, data.templates)
        for _ in bt.steps(adapter, stream(data, model.preprocess, limit=4)):
            pass


# --- checkpoints ---


def checkpoints(folder) -> Iterator[tuple[str, Attack]]:
    """The few tensors that tell the architecture of a CLIP, small enough to be read often."""
    sizes = {
        "visual.proj": (8, 4),
        "visual.conv1.weight": (8, 3, 2, 2),
        "visual.positional_embedding": (5, 8),
        "visual.transformer.resblocks.0.ln_1.weight": (8,),
        "transformer.resblocks.0.ln_1.weight": (8,),
        "text_projection": (8, 4),
        "ln_final.weight": (8,),
        "positional_embedding": (7, 8),
        "token_embedding.weight": (9, 8),
    }
    state = {key: torch.ones(size) for key, size in sizes.items()}
    save_file(state, folder / "c.safetensors")
    torch.save(state, folder / "c.pt")
    torch.save({"state_dict": state}, folder / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("c.safetensors", "c.pt", "old.pt"):
        path = folder / name
        yield f"checkpoint {name}", partial(attack_checkpoint, path, path.read_bytes())
    yield "checkpoint shapes", partial(attack_shapes, folder / "d.safetensors", state)


def attack_checkpoint(path, content, rng) -> None:
    if path.suffix == ".safetensors" and rng.random() < 0.5:  # a header that is JSON again
        size = int.from_bytes(content[:8], "little")
        text = json.dumps(altered(json.loads(content[8 : 8 + size]), rng)).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    else:
        path.write_bytes(damaged(content, rng))
    recognise(path)


def attack_shapes(path, state, rng) -> None:
    key = sorted(state)[rng.integers(len(state))]
    save_file({**state, key: spoilt(state[key], rng)}, path)
    recognise(path)


def recognise(path) -> None:
    with answers_or_one_sentence(path.name):
        infer_architecture(read_state(path), path, CONFIGS)


# --- the tests ---

KINDS = (
    *("coop", "fmow", "yearbook", "csv", "tar", "names"),
    *("coop values", "fmow values", "yearbook values", "state", "result", "features"),
    *("checkpoint c.safetensors", "checkpoint c.pt", "checkpoint old.pt", "checkpoint shapes"),
)


@pytest.fixture(scope="module")
def attacks(tmp_path_factory) -> dict[str, Attack]:
    return all_attacks(tmp_path_factory.mktemp("fuzz"))


def all_attacks(folder) -> dict[str, Attack]:
    return {**dict(data_sets(folder)), **dict(own_files(folder)), **dict(checkpoints(folder))}


def test_every_kind_is_listed(attacks):
    assert tuple(attacks) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_get_a_sentence(attacks, kind):
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS):
        attacks[kind](rng)


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
                assert decode_image(damaged(content, rng), name).mode == "RGB"


def test_sixty_flipped_bits_of_a_saved_state_are_noticed(tmp_path):
    """In 0.1 all of 60 such states loaded, and 8 of them gave other answers."""
    adapter, _ = a_stream()
    adapter.save(tmp_path / "s")
    content, before = (tmp_path / "s").read_bytes(), adapter.state()
    rng = np.random.default_rng(2)
    for place in rng.integers(8 * len(content), size=60):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << (place % 8)
        (tmp_path / "s").write_bytes(flipped)
        with pytest.raises(ValueError, match=r"/s (is damaged|is no complete|has schema)"):
            adapter.load(tmp_path / "s")
        assert same(adapter.state(), before)
    (tmp_path / "s").write_bytes(content)
    adapter.load(tmp_path / "s")


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_json_in_the_header_of_a_state(tmp_path, deep):
    adapter, _ = a_stream()
    data = pack(adapter.header(), adapter.state())
    size = int.from_bytes(data[:8], "little")
    for text in (deep, json.dumps({"__metadata__": {"bayestta": deep, "sha256": ""}})):
        header = text.encode()
        forged = len(header).to_bytes(8, "little") + header + data[8 + size :]
        (tmp_path / "s").write_bytes(forged)
        with pytest.raises(ValueError, match="is no complete BayesTTA state"):
            read_saved(tmp_path / "s")
