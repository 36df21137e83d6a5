"""Prompts with a tunable context: their place, their gradient, their memory."""

from __future__ import annotations

import pytest
import torch

from bayestta.models import _prompts as prompts
from bayestta.models._prompts import PromptLearner
from bayestta.models.embeddings import Features

NAMES = ["cat", "red_car", "x", "giant anteater"]


def literal(model, names, context, words):
    """Sentence by sentence, at full length: the context's rows replace those of its words."""
    rows = []
    for name in names:
        embedded, tokens = model.embed([f"{words} {name.replace('_', ' ')}."])
        n = len(context)
        line = torch.cat([embedded[:, :1], context[None], embedded[:, 1 + n :]], 1)
        rows.append(model.encode_embeddings(line, tokens)[0])
    return torch.stack(rows)


def test_the_start_is_the_sentence_itself(tiny_vit):
    learner = PromptLearner(tiny_vit, NAMES)
    assert learner.start.shape == (4, 96)
    lines = [f"a photo of a {name}." for name in ("cat", "red car", "x", "giant anteater")]
    want = tiny_vit.encode_text(lines)
    torch.testing.assert_close(learner(learner.start), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("words", ["a photo of a", "a colorful image of a", "x x"])
def test_values_and_gradients_equal_a_literal_loop(tiny_vit, words):
    learner = PromptLearner(tiny_vit, NAMES, words)
    random = torch.Generator().manual_seed(0)
    context = torch.randn(learner.start.shape, generator=random).requires_grad_()
    found, want = learner(context), literal(tiny_vit, NAMES, context, words)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=0)
    weight = torch.randn(want.shape, generator=random)
    (a,) = torch.autograd.grad((found * weight).sum(), context)
    (b,) = torch.autograd.grad((want * weight).sum(), context)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert a.abs().max() > 1e-3


def test_chunks_bound_the_pass_and_change_nothing(tiny_vit, monkeypatch):
    learner = PromptLearner(tiny_vit, [f"thing {i}" for i in range(11)])
    many = (learner.start + torch.randn(3, *learner.start.shape)).requires_grad_()
    whole = learner(many)
    (want,) = torch.autograd.grad(whole.square()[..., 0].sum(), many)
    sizes, encode = [], tiny_vit.encode_embeddings

    def watch(embeddings, tokens):
        sizes.append(len(tokens))
        return encode(embeddings, tokens)

    monkeypatch.setattr(tiny_vit, "encode_embeddings", watch)
    monkeypatch.setattr(prompts, "TOKENS", 4 * learner.tokens.shape[1])
    found = learner(many)
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=0)
    assert sizes == [4] * 8 + [1]  # 3 x 11 in fours
    (gradient,) = torch.autograd.grad(found.square()[..., 0].sum(), many)
    assert len(sizes) == 18  # each chunk once more on the way back
    torch.testing.assert_close(gradient, want, atol=1e-6, rtol=1e-4)


def test_padding_is_left_out_only_where_the_tower_ignores_it(tiny_vit, monkeypatch):
    assert PromptLearner(tiny_vit, NAMES).tokens.shape[1] < 15  # of 32
    encode = tiny_vit.encode_embeddings

    def looks_at_padding(embeddings, tokens):
        feature = encode(embeddings, tokens) + 0.1 * embeddings.shape[1]
        return torch.nn.functional.normalize(feature, dim=1)

    monkeypatch.setattr(tiny_vit, "encode_embeddings", looks_at_padding)
    assert PromptLearner(tiny_vit, NAMES).tokens.shape[1] == 32


def test_what_is_refused(tiny_vit):
    with pytest.raises(ValueError, match=r"no gradient path through its text tower: .*use mini-rn"):
        PromptLearner(Features(tiny_vit), NAMES)
    with pytest.raises(ValueError, match="context is empty"):
        PromptLearner(tiny_vit, NAMES, "")
    with pytest.raises(ValueError, match=r"\(3, 96\).*place for \(4, 96\)"):
        PromptLearner(tiny_vit, NAMES)(torch.zeros(3, 96))


def test_text_offers_it_too():
    from bayestta.models._text import PromptLearner as FromText

    assert FromText is PromptLearner


@pytest.mark.parametrize(("kind", "length"), [("clip", 8), ("siglip", 12)])
def test_models_of_transformers(kind, length, tmp_path, monkeypatch):
    """CLIP's text is causal, so that padding can go; SigLIP's is not."""
    from bayestta import load_model
    from test_transformers import write

    write(kind, tmp_path)
    model = load_model(f"hf:{tmp_path}")
    learner = PromptLearner(model, ["cat", "dog"])
    assert learner.start.shape == (4, 32)
    assert learner.tokens.shape[1] == length
    want = model.encode_text(["a photo of a cat.", "a photo of a dog."])
    torch.testing.assert_close(learner(learner.start), want, atol=1e-5, rtol=0)
    context = learner.start.clone().requires_grad_()
    (whole,) = torch.autograd.grad(learner(context)[:, 0].sum(), context)
    monkeypatch.setattr(prompts, "TOKENS", 1)  # a class a pass
    (parts,) = torch.autograd.grad(learner(context)[:, 0].sum(), context)
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-3)
    assert whole.abs().max() > 1e-4
