"""The ten cross-domain sets from split files of CoOp, and `bayestta data check`."""

from __future__ import annotations

import inspect
import json
import pickle
import re

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from bayestta.cli import app
from bayestta.data import check_files, list_data, load_data, stream
from bayestta.data._base import REGISTRY
from bayestta.models._text import prompts, templates
from bayestta.models.base import Preprocess
from stand_in import save_stand_in

# name: split file, and the documented and the released place of an image with the path p
SETS = {
    "caltech101": ("Caltech101", "caltech-101/101_ObjectCategories", None),
    "cars": ("StanfordCars", "stanford_cars", "StanfordCars"),
    "dtd": ("DescribableTextures", "dtd/images", "DTD/images"),
    "eurosat": ("EuroSAT", "eurosat/2750", "eurosat"),
    "flowers102": ("OxfordFlowers", "oxford_flowers/jpg", "Flower102/jpg"),
    "food101": ("Food101", "food-101/images", "Food101/images"),
    "pets": ("OxfordPets", "oxford_pets/images", "OxfordPets/images"),
    "sun397": ("SUN397", "sun397/SUN397", "SUN397"),
    "ucf101": ("UCF101", "ucf101/UCF-101-midframes", "UCF101"),
}
PROMPTS = {  # for the class fire_truck, from the paper's runs; the others have the seven
    "aircraft": "a photo of a fire truck, a type of aircraft.",
    "dtd": "fire truck texture.",
    "eurosat": "a centered satellite photo of fire truck.",
    "flowers102": "a photo of a fire truck, a type of flower.",
    "food101": "a photo of fire truck, a type of food.",
    "pets": "a photo of a fire truck, a type of pet.",
    "ucf101": "a photo of a person doing fire truck.",
}
COUNTS = {"aircraft": 100, "caltech101": 100, "cars": 196, "dtd": 47, "eurosat": 10}
COUNTS |= {"flowers102": 102, "food101": 101, "pets": 37, "sun397": 397, "ucf101": 101}
SPLIT = {
    "train": [["b/t1.jpg", 1, "zebra"], ["a/t0.jpg", 0, "fire_truck"]],
    "val": [["b/v1.jpg", 1, "zebra"]],
    "test": [["b/2.jpg", 1, "zebra"], ["a/1.jpg", 0, "fire_truck"], ["b/3.jpg", 1, "zebra"]],
}


def save_image(path, level):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (level, level, level)).save(path, quality=100)


def make(root, name, released=False):
    """The set's files, and the folder that holds them."""
    if name == "aircraft":
        folder = root / "fgvc_aircraft"
        for number in (34, 12, 56):
            save_image(folder / "images" / f"00{number}.jpg", number)
        (folder / "variants.txt").write_text("707-320\nBoeing 717\n")
        lines = "0034 Boeing 717\n0012 707-320\n0056 Boeing 717\n"
        (folder / "images_variant_test.txt").write_text(lines)
        return folder
    split, documented, other = SETS[name]
    images = root / ((released and other) or documented)
    for part in SPLIT.values():
        for path, _, _ in part:
            save_image(images / path, 10 * sum(path.encode()) % 256)
    folder = root / images.relative_to(root).parts[0]
    (folder / f"split_zhou_{split}.json").write_text(json.dumps(SPLIT))
    return folder


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_sets_with_a_split_file(tmp_path, name, released):
    make(tmp_path, name, released)
    data = load_data(name, root=tmp_path)
    assert (data.domains, data.split, data.contains) == (["test"], "test", {f"{name}/test"})
    assert data.classes == ["fire_truck", "zebra"]
    own = [PROMPTS[name]] if name in PROMPTS else prompts("fire_truck", templates("seven"))
    assert prompts(data.classes[0], data.templates) == own
    domain = data["test"]
    levels = [domain[i][0].getpixel((4, 4))[0] for i in range(3)]
    assert levels == [10 * sum(path.encode()) % 256 for path, _, _ in SPLIT["test"]]
    assert domain.labels(range(3)).tolist() == [1, 0, 1]
    (batch,) = stream(data, Preprocess(8), batch_size=64, order="given")
    assert batch.y.tolist() == [1, 0, 1]
    assert len(load_data(name, root=tmp_path, split="train")["train"]) == 2
    parts = check_files(name, root=tmp_path)
    assert all(part.found for part in parts)
    assert f"of {COUNTS[name]} are published" in parts[-1].note


def test_aircraft_is_numbered_by_variants(tmp_path):
    folder = make(tmp_path, "aircraft")
    data = load_data("aircraft", root=tmp_path)
    assert data.classes == ["707-320", "Boeing 717"]
    assert prompts("fire_truck", data.templates) == [PROMPTS["aircraft"]]
    assert data["test"].labels(range(3)).tolist() == [1, 0, 1]
    assert data["test"].path(0) == str(folder / "images" / "0034.jpg")
    assert all(part.found for part in check_files("aircraft", root=tmp_path))
    with pytest.raises(ValueError, match=r"needs .*images_variant_val\.txt, which is not there"):
        load_data("aircraft", root=tmp_path, split="val")
    (folder / "images_variant_test.txt").write_text("0034 Boeing 747\n")
    with pytest.raises(ValueError, match="'0034 Boeing 747', whose variant is not one of the 2"):
        load_data("aircraft", root=tmp_path)
    assert [p.found for p in check_files("aircraft", root=tmp_path)] == [False, True]


def test_counts_are_known_before_the_files():
    found = {info.name: (info.classes, info.domains) for info in list_data()}
    assert {name: found[name] for name in COUNTS} == {n: (k, 1) for n, k in COUNTS.items()}
    assert (found["yearbook"], found["fmow"]) == ((2, 84), (62, 16))


BROKEN = {
    "no JSON": ("{", r"is not a split file of CoOp \(JSONDecodeError"),
    "a list": ("[]", r"is not a split file of CoOp \(TypeError"),
    "no test": ('{"train": []}', r"is not a split file of CoOp \(KeyError: 'test'"),
    "pairs": ('{"test": [["a.jpg", 0]]}', r"is not a split file of CoOp \(ValueError"),
    "empty": ('{"test": []}', "lists 0 images"),
    "outside": ('{"test": [["../a.jpg", 0, "cat"]]}', r"lists the image \.\./a\.jpg, outside"),
    "root": ('{"test": [["/a.jpg", 0, "cat"]]}', r"lists the image /a\.jpg, outside"),
    "deep": ("[" * 100_000, r"is not a split file of CoOp \(RecursionError"),
    "half a label": ('{"test": [["a.jpg", 0.5, "cat"]]}', r"\(str, float, str\), not \(str, int"),
    "infinite": ('{"test": [["a.jpg", Infinity, "cat"]]}', "TypeError: an entry is"),
    "truth": ('{"test": [["a.jpg", false, "cat"]]}', "TypeError: an entry is"),
    "no name": ('{"test": [["a.jpg", 0, {"a": 1}]]}', "TypeError: an entry is"),
    "a word": ('{"test": "abc"}', "is not a split file of CoOp"),
    "a number": ('{"test": 5}', "TypeError"),
    "half a letter": ('{"test": [["\\ud800.jpg", 0, "cat"]]}', "UnicodeEncodeError"),
    "no text": ("\x00", "is not a split file of CoOp"),
    "a gap": ('{"test": [["a.jpg", 0, "cat"], ["b.jpg", 2, "dog"]]}', "not the labels 0 to 1"),
    "two names": ('{"test": [["a.jpg", 0, "cat"], ["b.jpg", 0, "dog"]]}', "not the labels 0 to 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_split_files(tmp_path, case):
    text, reason = BROKEN[case]
    file = make(tmp_path, "dtd") / "split_zhou_DescribableTextures.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))} .*{reason}.*download it again"):
        load_data("dtd", root=tmp_path)
    part = check_files("dtd", root=tmp_path)[0]
    assert (part.path, part.found) == (str(file), False)
    assert "download it again" in part.note


def test_a_path_that_is_too_long_is_missing_like_any_other(tmp_path):
    file = make(tmp_path, "dtd") / "split_zhou_DescribableTextures.json"
    file.write_text(json.dumps({"test": [["a" * 5000 + ".jpg", 0, "cat"]]}))
    with pytest.raises(ValueError, match="which is not there"):
        load_data("dtd", root=tmp_path)
    assert check_files("dtd", root=tmp_path)[-1].note.startswith("1 of 1 test images are missing")


def test_variants_that_are_no_text(tmp_path):
    (make(tmp_path, "aircraft") / "variants.txt").write_bytes(b"Boeing \xff\xfe")
    with pytest.raises(ValueError, match=r"variants.txt cannot be read as text .*again"):
        load_data("aircraft", root=tmp_path)


@pytest.mark.parametrize("name", ["pets", "aircraft"])
def test_sets_of_the_table_go_to_worker_processes(tmp_path, name):
    make(tmp_path, name)
    data = load_data(name, root=tmp_path)
    again = pickle.loads(pickle.dumps(data))
    assert type(again) is type(data)
    assert again.classes == data.classes
    assert again["test"].path(2) == data["test"].path(2)


def test_a_set_of_the_table_explains_itself():
    told = inspect.getdoc(REGISTRY["pets"])
    assert told.startswith("Oxford Pets: 37 breeds")
    assert "Citation: O. M. Parkhi" in told
    assert "Parameters\n----------\nroot\n    The folder" in told


def test_wrong_layouts_get_the_path_that_was_expected(tmp_path):
    file = tmp_path / "eurosat" / "split_zhou_EuroSAT.json"
    with pytest.raises(ValueError, match=rf"'eurosat' needs {re.escape(str(file))}, .* data check"):
        load_data("eurosat", root=tmp_path)
    folder = make(tmp_path, "eurosat")
    (folder / "2750").rename(folder / "EuroSAT_RGB")
    expected = re.escape(str(folder / "2750" / "b" / "2.jpg"))
    with pytest.raises(ValueError, match=rf"'eurosat' needs {expected}, which is not there"):
        load_data("eurosat", root=tmp_path)
    part = check_files("eurosat", root=tmp_path)[-1]
    assert (part.path, part.found) == (str(folder / "2750" / "b" / "2.jpg"), False)
    assert part.note.startswith("3 of 3 test images are missing")
    with pytest.raises(ValueError, match="split of eurosat 'vla': did you mean 'val'"):
        load_data("eurosat", root=tmp_path, split="vla")


# --- bayestta data check ---


def invoke(*args):
    return CliRunner().invoke(app, ["data", *map(str, args)])


def test_check_tells_of_every_set(tmp_path):
    done = invoke("check", "--root", tmp_path)
    assert done.exit_code == 0
    found = done.stdout
    states = dict(re.findall(r"^([\w-]+): (.+)$", found, re.M))
    assert set(states) == {info.name for info in list_data()}
    assert states["yearbook"] == states["rmnist"] == states["dtd"] == "missing"
    assert states["folder"] == "your own files"
    assert f"  missing: {tmp_path / 'dtd' / 'images'} (or all in {tmp_path / 'DTD'})" in found
    assert f"{tmp_path / 'mnist'} (not cached: `bayestta data get rmnist` fetches it)" in found
    assert "  get: dtd-r1.0.1.tar.gz, https://www.robots.ox.ac.uk/~vgg/data/dtd and " in found


def test_check_of_names(tmp_path):
    make(tmp_path, "pets")
    pixels, labels = np.zeros((2, 28, 28)), np.arange(2)
    save_stand_in(tmp_path / "mnist", train_x=pixels, train_y=labels, test_x=pixels, test_y=labels)
    done = invoke("check", "pets", "rmnist", "--root", tmp_path)
    assert done.exit_code == 0
    assert "pets: ready" in done.stdout
    assert f"  found: {tmp_path / 'mnist'} (cached)" in done.stdout
    assert "get:" not in done.stdout
    (tmp_path / "oxford_pets" / "images" / "a" / "1.jpg").unlink()
    done = invoke("check", "pets", "rmnist", "--root", tmp_path, "--json")
    assert done.exit_code == 1
    pets, rmnist = json.loads(done.stdout)
    assert (pets["state"], pets["ready"], rmnist["ready"]) == ("incomplete", False, True)
    lost = {
        "path": str(tmp_path / "oxford_pets" / "images" / "a" / "1.jpg"),
        "found": False,
        "note": "1 of 3 test images are missing, this one first",
    }
    assert pets["parts"][-1] == lost
    assert invoke("check", "--root", tmp_path, "-q").stdout.count("missing") > 5
    done = invoke("check", "petz", "--root", tmp_path)
    assert done.exit_code == 2
    assert "unknown data set 'petz': did you mean 'pets'" in done.output


def test_check_in_a_terminal_is_a_table_with_whole_addresses(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    found = invoke("check", "dtd", "--root", tmp_path).stdout
    assert "┏" in found
    cells = [line.split("│")[4].strip() for line in found.splitlines() if line.count("│") == 5]
    assert "https://drive.google.com/file/d/1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x" in "".join(cells)


def test_check_uses_the_folder_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESTTA_DATA", str(tmp_path))
    make(tmp_path, "aircraft")
    assert invoke("check", "aircraft").exit_code == 0
    assert len(load_data("aircraft")["test"]) == 3


def test_get_of_what_no_command_can_get(tmp_path):
    done = invoke("get", "dtd", "--root", tmp_path)
    assert done.exit_code == 2
    assert "'dtd' cannot be fetched by a command: get dtd-r1.0.1.tar.gz" in done.output
    make(tmp_path, "dtd")
    assert invoke("get", "dtd", "--root", tmp_path).stdout == "dtd: nothing to get\n"
