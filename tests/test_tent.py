"""TENT against a literal reading of its spec: a copy of the tower, in train mode, with Adam."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from bayestta.data._base import Batch
from bayestta.evaluation.steps import steps
from bayestta.methods import make_adapter, methods
from bayestta.models._norms import NORMS
from bayestta.settings import describe

NAMES, TEMPLATES = ["cat", "dog", "car"], ["a photo of a {}."]


def batches(model, n=3, B=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    size = model.preprocess.size
    return [0.5 * torch.randn(B, 3, size, size, generator=rng) + 0.3 * i for i in range(n)]


def literal(model, text, xs, *, norms="batch", answer="before", updates=1, sgd=False, reset=False):
    """The official code's way: the model itself is changed."""
    answers = []
    tower = None
    for x in xs:
        if tower is None or reset:
            tower = copy.deepcopy(model.visual)
            parameters = []
            for module in tower.modules():
                if isinstance(module, NORMS):
                    parameters += [p.requires_grad_() for p in module.parameters(recurse=False)]
                if isinstance(module, nn.BatchNorm2d) and norms == "batch":
                    module.train()
                    module.track_running_stats = False
                    module.running_mean = module.running_var = None
            optimiser = torch.optim.Adam(parameters, lr=1e-3, betas=(0.9, 0.999))
            if sgd:
                optimiser = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

        def forward(x=x, tower=tower):
            return model.scale * functional.normalize(tower(x), dim=1) @ text.T

        for _ in range(updates):
            logits = forward()
            p = logits.softmax(1)
            loss = -(p * p.log()).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        answers.append((logits if answer == "before" else forward()).detach())
    return answers


def close(found, expected, tolerance=2e-4):
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance * float(theirs.abs().max()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norms": "source"},
        {"answer": "after"},
        {"updates": 2},
        {"updates": 2, "answer": "after", "optimiser": "sgd"},
    ],
    ids=str,
)
def test_continual(tiny, options):
    adapter = make_adapter("tent-continual", tiny, NAMES, TEMPLATES, **options)
    xs = batches(tiny)
    expected = dict(options)
    expected["sgd"] = expected.pop("optimiser", "adam") == "sgd"
    close([adapter.adapt(x) for x in xs], literal(tiny, adapter.text, xs, **expected))


def test_reset_restores_norms_and_optimiser_before_every_batch(tiny):
    adapter = make_adapter("tent-reset", tiny, NAMES, TEMPLATES)
    xs = batches(tiny)
    stream = [Batch(x, None, "all", torch.arange(4)) for x in xs]
    found = [step.logits for step in steps(adapter, stream)]
    close(found, literal(tiny, adapter.text, xs, reset=True, answer="after"))
    adapter.reset()
    kept = [step.logits for step in steps(adapter, stream, reset_every="never")]
    close(kept, literal(tiny, adapter.text, xs, answer="after"))
    assert not torch.allclose(kept[-1], found[-1], rtol=1e-3)


def test_reset_with_stored_statistics_and_answers_before_is_zero_shot(tiny):
    adapter = make_adapter("tent-reset", tiny, NAMES, TEMPLATES, norms="source", answer="before")
    zero_shot = make_adapter("zero-shot", tiny, NAMES, TEMPLATES)
    for x in batches(tiny):
        adapter.reset()
        torch.testing.assert_close(adapter.adapt(x), zero_shot.adapt(x), rtol=1e-5, atol=1e-5)


def test_one_step_lowers_the_entropy(tiny):
    adapter = make_adapter("tent-continual", tiny, NAMES, TEMPLATES, lr=1e-4)
    x = batches(tiny, 1)[0]
    before = torch.distributions.Categorical(logits=adapter.adapt(x)).entropy().mean()
    after = torch.distributions.Categorical(logits=adapter.predict(x)).entropy().mean()
    assert after < before


def test_batch_and_source_statistics_are_two_methods_on_batchnorm_alone(tiny_rn, tiny_vit):
    for model, differ in ((tiny_rn, True), (tiny_vit, False)):
        x = batches(model, 1)[0]
        batch, source = (
            make_adapter("tent-continual", model, NAMES, TEMPLATES, norms=norms).adapt(x)
            for norms in ("batch", "source")
        )
        assert torch.allclose(batch, source, rtol=1e-5, atol=1e-5) != differ


def test_only_norms_are_tuned(tiny):
    adapter = make_adapter("tent-continual", tiny, NAMES, TEMPLATES)
    layers = [m for m in tiny.visual.modules() if isinstance(m, NORMS)]
    assert len(adapter.tuned) == 2 * len(layers)
    adapter.adapt(batches(tiny, 1)[0])
    moved = [
        key for key, value in adapter.tuned.items() if not value.equal(adapter.tuned.start[key])
    ]
    assert len(moved) == len(adapter.tuned)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimiser": "adamw"}, "unknown value of optimiser 'adamw': did you mean 'adam'"),
        ({"norms": "robust"}, "unknown value of norms 'robust'"),
        ({"answer": "later"}, "did you mean 'after'"),
        ({"updates": 0}, "updates is 0"),
    ],
)
def test_bad_settings(tiny_vit, options, message):
    with pytest.raises(ValueError, match=message):
        make_adapter("tent-reset", tiny_vit, NAMES, TEMPLATES, **options)


def test_reset_has_the_settings_of_continual_with_another_default(tiny_vit):
    reset, continual = (
        {row["name"]: row["default"] for row in describe(methods()[f"tent-{kind}"].Settings)}
        for kind in ("reset", "continual")
    )
    assert list(reset) == list(continual) == ["lr", "optimiser", "updates", "norms", "answer"]
    assert [key for key in reset if reset[key] != continual[key]] == ["answer"]
    assert (reset["answer"], continual["answer"]) == ("after", "before")
    adapter = make_adapter("tent-reset", tiny_vit, NAMES, TEMPLATES, lr=0.5, seed=3)
    assert adapter.settings.lr == 0.5
    assert (adapter.answer, adapter.seed) == ("after", 3)
    with pytest.raises(ValueError, match="did you mean 'norms'"):
        make_adapter("tent-reset", tiny_vit, NAMES, TEMPLATES, norm="batch")
