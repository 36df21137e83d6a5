"""The settings: what is refused, and what the two published forms fix."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from bayestta.methods import hyperparameters, make_adapter
from bayestta.methods.bayestta.method import BayesTTA
from bayestta.methods.bayestta.presets import CHOICES, PRESETS, Settings, settings
from fake_vlm import names, world


def test_the_released_form_is_the_left_column():
    form = PRESETS["released"]
    assert (form.responsibilities, form.centre, form.softness) == ("sketch", "old", 1.0)
    assert (form.prior_scatter, form.epsilon, form.write_back) == (0.0, 1e-8, False)
    assert form.shrinkage * form.variance == pytest.approx(1e-6)
    assert (form.truncate, form.pinv_rtol, form.class_prior) == (True, 0.0, "uniform")
    assert (form.units, form.test, form.norm_rule) == ("logit", "released", "released")
    assert (form.alpha, form.lr, form.beta) == (1.0, 1e-3, 0.99)


def test_the_paper_form_is_the_right_column():
    form = PRESETS["paper"]
    assert (form.responsibilities, form.centre, form.softness) == ("posterior", "new", 1.0)
    assert (form.prior_scatter, form.epsilon, form.write_back) == (1.0, 0.0, True)
    assert (form.shrinkage, form.variance) == (1e-4, 0.1)
    assert (form.truncate, form.class_prior, form.units) == (True, "counts", "cosine")
    assert (form.test, form.norm_rule) == ("paper", "all")
    assert (form.alpha, form.lr, form.beta) == (1.0, 5e-3, 0.99)


@pytest.mark.parametrize("preset", ["released", "paper"])
def test_the_published_forms_neither_forget_nor_guard(preset):
    form = PRESETS[preset]
    assert not form.guard
    assert form.refine
    assert form.half_life == float("inf")
    assert not form.window
    assert form.fusion == "both"


def test_the_default_guards_and_is_made_of_the_fields():
    assert PRESETS["default"] == Settings()
    assert Settings().guard


def test_changes_go_over_the_preset():
    changed = settings("paper", alpha=10.0, test="shared")
    assert dataclasses.replace(changed, alpha=1.0, test="paper") == PRESETS["paper"]


@pytest.mark.parametrize(
    ("preset", "changes", "said"),
    [
        ("relased", {}, "unknown preset 'relased': did you mean 'released'"),
        (
            "default",
            {"alhpa": 1.0},
            "unknown setting of bayestta 'alhpa': did you mean 'alpha'",
        ),
        (
            "default",
            {"test": "per-clas"},
            "unknown value of test 'per-clas': did you mean 'per-class'",
        ),
        ("default", {"softness": 0.0}, "softness is 0.0, but must be positive"),
        ("default", {"temperature": -1.0}, "temperature is -1.0, but must be positive"),
        ("default", {"half_life": 0.0}, "half_life is 0.0, but must be positive"),
        ("default", {"half_life": float("nan")}, "half_life is nan, but must be positive"),
        ("default", {"beta": 1.5}, "beta is 1.5, but is a share: give a number from 0 to 1"),
        ("default", {"shrinkage": -0.1}, "shrinkage is -0.1, but is a share"),
        ("default", {"lr": -1e-3}, "lr is -0.001, but cannot be negative: give 0 or more"),
        ("default", {"alpha": float("nan")}, "alpha is nan, but cannot be negative"),
        ("default", {"pinv_rtol": -1.0}, "pinv_rtol is -1.0, but cannot be negative"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(preset, changes, said):
    with pytest.raises(ValueError, match="^" + said) as caught:
        settings(preset, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", CHOICES)
def test_every_choice_is_accepted_and_runs(key):
    model, stream = world(3, batch=12, batches=2)
    for value in CHOICES[key]:
        adapter = BayesTTA(model, names(model), ["{}"], **{key: value})
        for x, _ in stream:
            assert adapter.adapt(x).isfinite().all()


def test_the_signature_is_the_schema():
    schema = hyperparameters(BayesTTA)
    assert list(schema) == ["preset", *(field.name for field in dataclasses.fields(Settings))]
    for field in dataclasses.fields(Settings):
        assert schema[field.name].default == field.default
        assert schema[field.name].annotation in ("str", "float", "bool")
        assert schema[field.name].kind is inspect.Parameter.KEYWORD_ONLY


def test_the_hyper_parameters_in_force_are_told():
    model, _ = world(3, batches=0)
    told = make_adapter("bayestta", model, names(model), ["{}"], preset="paper", lr=0.5).settings
    assert (told["preset"], told["lr"], told["alpha"]) == ("paper", 0.5, 1.0)
    assert told["half_life"] is None  # JSON has no infinity
    assert told.keys() == hyperparameters(BayesTTA).keys()
