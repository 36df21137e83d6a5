"""Class names x templates -> prototypes, and what is refused."""

from __future__ import annotations

import pytest
import torch

import bayestta as bt
from bayestta.models import _vlm
from bayestta.models._text import (
    TEMPLATES,
    check_names,
    check_templates,
    classifier,
    prompts,
    templates,
)
from conftest import tiny_vlm


def test_prototypes_equal_a_literal_loop(tiny_vit):
    names, given = ["cat", "dog", "traffic_light"], ["a photo of a {}.", "a {} on a {}."]
    found = classifier(tiny_vit, names, given)
    for name, row in zip(["cat", "dog", "traffic light"], found, strict=True):
        total = torch.zeros(tiny_vit.dim)
        for line in (f"a photo of a {name}.", f"a {name} on a {name}."):
            tokens = tiny_vit.tokenizer([line])
            feature = tiny_vit.clip.encode_text(tokens)[0]
            total += feature / feature.norm()
        torch.testing.assert_close(row, total / total.norm(), atol=1e-6, rtol=0)
    assert not found.requires_grad


def test_prompts_are_encoded_once_until_the_weights_change(monkeypatch):
    model, asked = tiny_vlm("mini-vit"), []
    encode = model.encode_text

    def count(lines):
        asked.append(len(lines))
        return encode(lines)

    monkeypatch.setattr(model, "encode_text", count)
    names, given = ["cat", "dog", "ship"], ["a {}.", "the {}."]
    first = bt.BayesTTA(model, names, given)
    second = bt.make_adapter("zero-shot", model, names, given)
    assert asked == [6]
    assert torch.equal(first.text, second.text)
    second.text.zero_()  # each adapter has its own
    assert torch.equal(bt.make_adapter("tda", model, names, given).text, first.text)
    assert asked == [6]
    classifier(model, names, given[:1])
    classifier(model, names[:2], given)
    assert asked == [6, 3, 4]
    with torch.no_grad():
        model.clip.text_projection.mul_(-1)
    torch.testing.assert_close(classifier(model, names, given), -first.text)
    for i in range(5):  # only the last few sets are kept
        classifier(model, ["cat", str(i)], given)
    assert len(model._texts) == _vlm.TEXTS
    with torch.inference_mode():
        classifier(model, ["bird", "frog"], given)
    assert not classifier(model, ["bird", "frog"], given).is_inference()


def test_braces_and_quotes_of_a_name_survive():
    assert prompts('number:"0"', ["{}!"]) == ['number:"0"!']
    assert prompts("{0}", ["a {}"]) == ["a {0}"]


def test_template_sets():
    assert templates("single") == ["a photo of a {}."]
    assert len(templates("seven")) == 7
    eighty = templates("eighty")
    assert len(set(eighty)) == 80
    assert set(templates("seven")) <= set(eighty)  # "best of" means a selection
    assert all("{}" in line for line in eighty)
    templates("seven").clear()
    assert len(TEMPLATES["seven"]) == 7
    with pytest.raises(ValueError, match="'sevn': did you mean 'seven'"):
        templates("sevn")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "0 class name(s) given, at least 2"),
        (["cat"], "1 class name(s) given, at least 2"),
        (["cat", " "], "class name 2 of 2 is empty"),
        (["cat", "dog", "cat "], "2 of 3 class names occur more than once ('cat')"),
        (["a_b", "a b", "c"], "2 of 3 class names occur more than once ('a b', 'a_b')"),
        ("cat", "one string ('cat')"),
    ],
)
def test_bad_names_are_refused(names, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        check_names(names)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "0 templates given"),
        (["a {}", "a photo", "b"], "2 of 3 templates lack the place for the class name ('a photo'"),
    ],
)
def test_bad_templates_are_refused(given, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        check_templates(given)
    assert message in str(error.value)


def test_good_ones_pass():
    assert check_names(("cat", " dog ")) == ["cat", "dog"]
    assert check_templates("a {}") == ["a {}"]
