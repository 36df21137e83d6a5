"""The settings: what is refused, and what the two published forms fix."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from bayestta.methods import make_adapter, settings_of
from bayestta.methods.bayestta.method import BayesTTA
from bayestta.methods.bayestta.presets import PRESETS, BayesTTASettings, PublishedSettings
from bayestta.settings import describe, with_changes
from fake_vlm import names, world

CHOICES = [
    (preset, field.name, value)
    for preset, cls in (("default", BayesTTASettings), ("released", PublishedSettings))
    for field in dataclasses.fields(cls)
    for value in field.metadata["choices"]
    if field.name != "preset"
]


def settings(preset, **changes):
    return with_changes(BayesTTASettings.default({"preset": preset}), changes, "bayestta")


def test_the_released_form_is_the_left_column():
    form = PRESETS["released"]
    assert (form.responsibilities, form.centre) == ("sketch", "old")
    assert (form.prior_scatter, form.epsilon, form.write_back) == (0.0, 1e-8, False)
    assert form.shrinkage * form.variance == pytest.approx(1e-6)
    assert (form.pinv_rtol, form.class_prior) == (0.0, "uniform")
    assert (form.units, form.test, form.norm_rule) == ("logit", "released", "released")
    assert (form.alpha, form.lr, form.beta) == (1.0, 1e-3, 0.99)


def test_the_paper_form_is_the_right_column():
    form = PRESETS["paper"]
    assert (form.responsibilities, form.centre) == ("posterior", "new")
    assert (form.prior_scatter, form.epsilon, form.write_back) == (1.0, 0.0, True)
    assert (form.shrinkage, form.variance) == (1e-4, 0.1)
    assert (form.class_prior, form.units) == ("counts", "cosine")
    assert (form.test, form.norm_rule) == ("paper", "all")
    assert (form.alpha, form.lr, form.beta) == (1.0, 5e-3, 0.99)


@pytest.mark.parametrize("preset", ["released", "paper"])
def test_the_published_forms_neither_forget_nor_guard(preset):
    form = PRESETS[preset]
    assert form.preset == preset
    assert not {"guard", "half_life", "doubt", "statistics"} & set(form)  # there is no such thing
    assert form.refine
    assert not form.window
    assert form.fusion == "both"


def test_the_default_guards_and_is_made_of_the_fields():
    assert PRESETS["default"] == BayesTTASettings()
    assert BayesTTASettings().guard


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
        ("default", {"share": 0.0}, "share is 0.0: give a number above 0"),
        ("default", {"half_life": 0.0}, "half_life is 0.0: give a number above 0"),
        (
            "default",
            {"half_life": float("nan")},
            r"half_life is not a number \(NaN\): give a number above 0",
        ),
        ("released", {"beta": 1.5}, "beta is 1.5: give a number from 0 to 1"),
        ("paper", {"shrinkage": -0.1}, "shrinkage is -0.1: give a number from 0 to 1"),
        ("default", {"lr": -1e-3}, "lr is -0.001: give a number of 0 or more"),
        (
            "default",
            {"alpha": float("nan")},
            r"alpha is not a number \(NaN\): give a number of 0 or more",
        ),
        ("default", {"guard": "no"}, "guard is 'no', a str: give true or false"),
        ("default", {"alpha": "8"}, "alpha is '8', a str: give a number of 0 or more"),
        ("released", {"pinv_rtol": -1.0}, "pinv_rtol is -1.0: give a number of 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(preset, changes, said):
    with pytest.raises(ValueError, match="^" + said) as caught:
        settings(preset, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("preset", "key", "value"), CHOICES)
def test_every_choice_is_accepted_and_runs(preset, key, value):
    model, stream = world(3, batch=12, batches=2)
    flat = {"statistics": False} if preset == "default" else {}  # this world has no pixels
    adapter = BayesTTA(model, names(model), ["{}"], preset=preset, **flat, **{key: value})
    for x, _ in stream:
        assert adapter.adapt(x).isfinite().all()


def test_the_signature_is_the_schema():
    shown = inspect.signature(BayesTTA).parameters
    rows = {row["name"]: row for row in describe(BayesTTASettings)}
    own = [field.name for field in dataclasses.fields(BayesTTASettings)]
    assert list(rows) == own
    assert own[0] == "preset"
    assert [key for key in shown if key in rows] == own
    for field in dataclasses.fields(BayesTTASettings):
        assert shown[field.name].default == rows[field.name]["default"] == field.default
        assert rows[field.name]["type"] in ("str", "float", "bool")
        assert shown[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"    {field.name}=" in BayesTTA.__doc__
        assert rows[field.name]["doc"] in BayesTTA.__doc__


def test_the_settings_in_force_are_told():
    model, _ = world(3, batches=0)
    adapter = make_adapter("bayestta", model, names(model), ["{}"], preset="paper", lr=0.5)
    told = settings_of(adapter)
    assert (told["preset"], told["lr"], told["alpha"]) == ("paper", 0.5, 1.0)
    assert list(told) == [row["name"] for row in describe(PublishedSettings)]
    again = make_adapter("bayestta", model, names(model), ["{}"], **told)
    assert again.settings == adapter.settings
    assert type(again) is type(adapter)
    ours = make_adapter("bayestta", model, names(model), ["{}"], half_life=float("inf"))
    assert settings_of(ours)["half_life"] == float("inf")
    again = make_adapter("bayestta", model, names(model), ["{}"], **settings_of(ours))
    assert again.settings == ours.settings
