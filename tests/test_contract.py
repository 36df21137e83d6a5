"""What every method must keep, over the registry and two towers; opt out by name, with a reason."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

import numpy as np
import pytest
import torch
from PIL import Image

from bayestta.adapter import Adapter
from bayestta.data._base import Data, Dataset
from bayestta.data._views import Recipe, Views, Workers
from bayestta.methods import hyperparameters, make_adapter, methods
from bayestta.models.base import place
from bayestta.models.features import Features
from bayestta.models.open_clip import OpenCLIP
from conftest import wake

NAMES = ["cat", "dog", "red car", "tree"]
TEMPLATES = ["a photo of a {}.", "a bad {}."]
VIEWS = 4
BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
TEXT = {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
TOWERS = {
    "BatchNorm": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
    "LayerNorm": {
        "image_size": 16,
        "layers": 2,
        "width": 32,
        "head_width": 16,
        "patch_size": 4,
    },
}

SMALL: dict[str, dict[str, object]] = {  # what keeps the suite fast, and memories full
    "adaprompt": {"capacity": 8},
    "cotta": {"augmentations": 2},
    "dynaprompt": {"prompts": 3},
    "histpt": {"bank": 3, "hardest": 2},
    "rotta": {"capacity": 8, "every": 4},
    "watt": {"rounds": 1, "steps_each": 1},
}
TUNES_BY_DEFAULT = ("bayestta",)  # works on cached features, but not with its default settings
OPT_OUT = {  # (test, method): why it does not apply
    ("merge_with_an_untouched_copy", "dynaprompt"): "prompts are in order of last use",
    (
        "merge_with_an_untouched_copy",
        "histpt",
    ): "banks are queues, and streams have no common order",
}


class Pictures(Dataset, Data):
    """Smooth random images, each a domain's worth of one kind of light and colour."""

    name, classes, templates, domains = "pictures", NAMES, TEMPLATES, ["all"]

    def __getitem__(self, i):
        if i == "all":
            return self
        rng = np.random.default_rng(i)
        levels = rng.integers(0, 256, (4, 4, 3), np.uint8)
        return Image.fromarray(levels).resize((24, 24), Image.Resampling.BICUBIC), None

    def __len__(self):
        return 16


@cache
def tokenizer():
    from open_clip import SimpleTokenizer

    return SimpleTokenizer(context_length=32)


@dataclass
class Tower:
    """A tiny CLIP, and the images as it takes them."""

    kind: str
    precision: torch.dtype = torch.float32
    runs: dict[str, Run] = field(default_factory=dict)

    @cached_property
    def model(self) -> OpenCLIP:
        from open_clip import CLIP

        with torch.random.fork_rng():
            torch.manual_seed(0)
            clip = CLIP(embed_dim=24, vision_cfg=TOWERS[self.kind], text_cfg=TEXT)
        wake(clip.visual)
        with torch.no_grad():
            clip.logit_scale.fill_(math.log(100))
        model = OpenCLIP(f"tiny:{self.kind}", clip, tokenizer())
        place(model, torch.device("cpu"), self.precision)
        known: dict[tuple[str, ...], torch.Tensor] = {}
        encode = model.encode_text

        def remember(prompts):  # the text is the same in every test
            key = tuple(prompts)
            if key not in known:
                known[key] = encode(prompts)
            return known[key].clone()

        model.encode_text = remember
        return model

    @cached_property
    def images(self) -> torch.Tensor:
        pictures = Pictures()
        return torch.stack([self.model.preprocess(pictures[i][0]) for i in range(len(pictures))])

    def views(self, plain: torch.Tensor, rows: list[int]) -> Views:
        """A lazy batch of `VIEWS` views, as the stream makes it."""
        recipe = Recipe(Pictures(), self.model.preprocess, "crop", VIEWS, 0)
        return Views(plain, rows, "all", Workers(recipe, 0))

    def batch(self, adapter: Adapter, rows: list[int]) -> torch.Tensor | Views:
        """What the stream would hand to this method."""
        plain = self.images[rows].clone()
        return plain if adapter.views == 1 else self.views(plain, rows)

    def make(self, method: str, seed: int = 0) -> Adapter:
        settings = dict(SMALL.get(method, {}))
        if methods()[method].views > 1 and "views" in hyperparameters(methods()[method]):
            settings["views"] = VIEWS
        return make_adapter(method, self.model, NAMES, TEMPLATES, seed=seed, **settings)

    def go(self, adapter: Adapter, batches: list[list[int]]) -> list[torch.Tensor]:
        return [adapter.adapt(self.batch(adapter, rows)) for rows in batches]

    def run(self, method: str) -> Run:
        """A run over `BATCHES` that the tests compare with; it is made once."""
        if method not in self.runs:
            adapter = self.make(method)
            logits = self.go(adapter, BATCHES)
            self.runs[method] = Run(logits, frozen(adapter), self.ask(adapter))
        return self.runs[method]

    def ask(self, adapter: Adapter) -> torch.Tensor:
        return adapter.predict(self.batch(adapter, BATCHES[1]))


@dataclass
class Run:
    logits: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    answer: torch.Tensor


def frozen(adapter: Adapter) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in adapter.state_dict().items()}


def same(one, two) -> bool:
    """Bit for bit."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return one.dtype == two.dtype and torch.equal(one, two)


@pytest.fixture(scope="module")
def towers() -> dict[str, Tower]:
    return {kind: Tower(kind) for kind in TOWERS}


@pytest.fixture(scope="module", params=list(TOWERS))
def tower(towers, request) -> Tower:
    return towers[request.param]


@pytest.fixture(scope="module")
def layer_norms(towers) -> Tower:
    """For what does not depend on the tower."""
    return towers["LayerNorm"]


@pytest.fixture(autouse=True)
def opt_out(request) -> None:
    """Skip what a method opts out of."""
    if "method" in request.fixturenames:
        test = request.function.__name__.removeprefix("test_")
        if (test, method := request.getfixturevalue("method")) in OPT_OUT:
            pytest.skip(f"{method}: {OPT_OUT[test, method]}")


every_method = pytest.mark.parametrize("method", list(methods()))


@every_method
def test_one_finite_row_a_sample(tower, method):
    run = tower.run(method)
    for logits in [*run.logits, run.answer]:
        assert logits.shape == (4, len(NAMES))
        assert logits.is_floating_point()
        assert torch.isfinite(logits).all()
        assert not logits.requires_grad


@every_method
def test_predict_changes_nothing_and_repeats_itself(tower, method):
    adapter = tower.make(method)
    tower.go(adapter, BATCHES[:1])
    before, shared = frozen(adapter), torch.get_rng_state()
    first, second = tower.ask(adapter), tower.ask(adapter)
    assert same(first, second)
    assert same(frozen(adapter), before)
    assert torch.equal(torch.get_rng_state(), shared)
    assert same(tower.go(adapter, BATCHES[1:]), tower.run(method).logits[1:])
    assert torch.equal(torch.get_rng_state(), shared)  # nor does learning draw from torch's own


@every_method
def test_input_and_model_stay_untouched(tower, method):
    adapter, clip = tower.make(method), tower.model.clip
    weights = {key: value.clone() for key, value in clip.state_dict().items()}
    for rows in BATCHES[:2]:
        x = tower.batch(adapter, rows)
        adapter.adapt(x)
        assert torch.equal(getattr(x, "plain", x), tower.images[rows])
    assert same(dict(clip.state_dict()), weights)
    assert not any(module.training for module in clip.modules())
    assert not any(p.requires_grad or p.grad is not None for p in clip.parameters())


@every_method
def test_two_adapters_on_one_model(tower, method):
    one, two = tower.make(method), tower.make(method, seed=5)
    found = []
    for rows in BATCHES[:2]:
        found += tower.go(one, [rows])
        tower.go(two, [rows[::-1]])
    assert same(found, tower.run(method).logits[:2])


@every_method
def test_same_seed_same_logits_and_restart_is_a_fresh_start(tower, method):
    adapter, fresh = tower.make(method), tower.make(method)
    assert same(tower.go(adapter, BATCHES[:1]), tower.run(method).logits[:1])
    adapter.reset()
    assert same(frozen(adapter), frozen(fresh))
    assert same(tower.go(adapter, BATCHES), tower.run(method).logits)
    assert same(frozen(adapter), tower.run(method).state)


@every_method
def test_save_load_go_on(tower, method, tmp_path):
    first = tower.make(method)
    tower.go(first, BATCHES[:2])
    given = first.state_dict()
    before = {key: value.clone() for key, value in given.items()}
    first.save(tmp_path / "state.safetensors")
    tower.go(first, BATCHES[2:])
    assert same(given, before)  # a state that was handed out is nobody else's
    second = tower.make(method, seed=9)
    tower.go(second, BATCHES[2:])  # something to be overwritten
    second.load(tmp_path / "state.safetensors")
    assert same(frozen(second), before)
    assert same(tower.go(second, BATCHES[2:]), tower.run(method).logits[2:])
    assert same(frozen(second), tower.run(method).state)
    assert same(tower.ask(second), tower.run(method).answer)


@every_method
def test_odd_batches(tower, method):
    adapter = tower.make(method)
    with torch.no_grad():
        sketch = tower.model.logits(tower.model.encode_image(tower.images), adapter.text)
    answers = sketch.argmax(1)
    alike = (answers == answers.mode().values).nonzero().flatten().tolist()
    for rows in ([3], alike[:3], [2, 2, 2], [3], BATCHES[0]):
        logits = adapter.adapt(tower.batch(adapter, rows))
        assert logits.shape == (len(rows), len(NAMES))
        assert torch.isfinite(logits).all()
    assert torch.isfinite(tower.ask(adapter)).all()
    for key, value in adapter.state_dict().items():
        assert not value.is_floating_point() or torch.isfinite(value).all(), key


@every_method
def test_memory_stops_growing(layer_norms, method):
    adapter = layer_norms.make(method)

    def size() -> int:
        return sum(value.nbytes for value in adapter.state_dict().values())

    layer_norms.go(adapter, [[0, 1, 2], [3, 4, 5]] * 4)
    before = size()
    layer_norms.go(adapter, [[0, 1, 2], [3, 4, 5]] * 2)
    assert size() - before < 4 * 12  # less than one number for each of the 12 samples


@every_method
def test_merge_with_an_untouched_copy(tower, method):
    adapter = tower.make(method)
    adapter.load_state_dict(tower.run(method).state)
    adapter.merge(tower.make(method, seed=3))
    assert same(frozen(adapter), tower.run(method).state)
    assert same(tower.ask(adapter), tower.run(method).answer)
    fresh = tower.make(method)
    fresh.merge(adapter)
    torch.testing.assert_close(tower.ask(fresh), tower.run(method).answer)


@pytest.mark.parametrize("method", [key for key, cls in methods().items() if cls.no_merge])
def test_a_method_that_cannot_merge_says_why(layer_norms, method):
    assert ("merge_with_an_untouched_copy", method) in OPT_OUT
    one, two = layer_norms.make(method), layer_norms.make(method)
    with pytest.raises(NotImplementedError, match=f"no meaning for {method}: .*\\."):
        one.merge(two)


@pytest.fixture(scope="module", params=list(TOWERS))
def half_tower(request) -> Tower:
    return Tower(request.param, torch.bfloat16)


@every_method
def test_bf16_weights(half_tower, method):
    adapter = half_tower.make(method)
    assert half_tower.model.dtype == torch.bfloat16
    for logits in [*half_tower.go(adapter, BATCHES[:2]), half_tower.ask(adapter)]:
        assert logits.dtype in (torch.float32, torch.float64)
        assert torch.isfinite(logits).all()
    for key, value in adapter.state_dict().items():
        assert value.dtype not in (torch.bfloat16, torch.float16), key


@every_method
def test_nan_is_refused(layer_norms, method):
    adapter = layer_norms.make(method)
    layer_norms.go(adapter, BATCHES[:1])
    before = frozen(adapter)
    plain = layer_norms.images[:3].clone()
    plain[1, 0, 0, 0] = math.nan
    x = plain if adapter.views == 1 else layer_norms.views(plain, [0, 1, 2])
    for verb in (adapter.adapt, adapter.predict):
        with pytest.raises(ValueError, match=r"1 of 3 images .* NaN .*first: 1"):
            verb(x)
    with pytest.raises(ValueError, match="empty"):
        adapter.adapt(layer_norms.batch(adapter, []))
    assert same(frozen(adapter), before)


@every_method
def test_unknown_hyperparameter(layer_norms, method):
    build = partial(make_adapter, method, layer_norms.model, NAMES, TEMPLATES)
    valid = hyperparameters(methods()[method])
    for key, parameter in valid.items():
        assert parameter.default is not parameter.empty, f"{key} has no default"
        with pytest.raises(ValueError, match=f"did you mean.*'{key}'.*Valid:"):
            build(**{f"{key}x": 1})
    with pytest.raises(ValueError, match="unknown setting"):
        build(nonsense=1)


@every_method
def test_hyperparameters_are_told(layer_norms, method):
    adapter, cls = layer_norms.make(method), methods()[method]
    assert set(adapter.settings) == set(hyperparameters(cls))
    assert {key: adapter.settings[key] for key in SMALL.get(method, {})} == SMALL.get(method, {})
    assert json.loads(json.dumps(adapter.settings)) == adapter.settings


@every_method
def test_a_method_says_what_it_is(method):
    cls = methods()[method]
    assert cls.name == method
    for key in ("title", "citation", "tunes", "cost"):
        assert getattr(cls, key), key
    assert "20" in cls.citation  # a year
    assert isinstance(cls.fidelity, str)
    assert cls.__doc__
    assert cls.views >= 1
    assert cls.reset in ("never", "domain", "batch")
    assert cls.answer in ("before", "after")


@every_method
def test_cached_features_do_or_are_refused_with_a_cure(layer_norms, method):
    model = layer_norms.model
    if methods()[method].views > 1:  # which cached features lack
        assert methods()[method].needs_encoder
    build = partial(make_adapter, method, Features(model), NAMES, TEMPLATES)
    if methods()[method].needs_encoder or method in TUNES_BY_DEFAULT:
        with pytest.raises(ValueError, match="use"):
            build(**SMALL.get(method, {}))
        return
    adapter = build(**SMALL.get(method, {}))
    with torch.no_grad():
        features = model.encode_image(layer_norms.images)
    for rows, expected in zip(BATCHES, layer_norms.run(method).logits, strict=True):
        torch.testing.assert_close(adapter.adapt(features[rows]), expected)
