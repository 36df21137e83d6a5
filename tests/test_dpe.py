"""DPE against a literal reading of its spec, with torch's own AdamW."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from bayestta.methods.dpe import DPE
from test_sequential import build, names, run, vectors


def entropy(logits):
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def colnorm(x):
    return x / x.norm(dim=0, keepdim=True)


def literal(samples, W, scale, alpha=6.0, beta=5.0, lr=6e-4, lam=0.5, gate=0.1, selected=False):
    """Prototypes in columns, (D,K); samples (V,D)."""
    K = len(W)
    T, n, cache, answers = W.T.clone(), 0, {k: [] for k in range(K)}, []
    for views in samples:
        R_t = torch.zeros_like(T, requires_grad=True)
        text = colnorm(T + R_t)
        every = scale * views @ text
        chosen = list(range(len(views)))
        if len(views) > 1:
            chosen = entropy(every).argsort()[: int(0.1 * len(views))].tolist()
        z, clip_logits = views[chosen].mean(0), every[chosen].mean(0)
        p = every[chosen].softmax(1).mean(0)
        H = float(-(p * p.log()).sum().detach()) / math.log2(K)
        entries = cache[int(clip_logits.argmax())]
        if len(entries) < 3:
            entries.append((H, z))
        elif entries[-1][0] > H:
            entries[-1] = (H, z)
        entries.sort(key=lambda entry: entry[0])
        present = [k for k in range(K) if cache[k]]
        V = torch.stack([sum(e[1] for e in cache[k]) / len(cache[k]) for k in present], dim=1)
        onehot = functional.one_hot(torch.tensor(present), K).to(z.dtype)
        R_v = torch.zeros_like(V, requires_grad=True)
        optimiser = torch.optim.AdamW([R_t, R_v], lr=lr, eps=1e-3, weight_decay=0.1)

        def affinity(z, image, onehot=onehot):
            return alpha * torch.exp(-beta * (1 - z @ image)) @ onehot

        image = colnorm(V + R_v)
        logits = clip_logits + affinity(z, image)
        pairs = image.T @ text[:, present] / 0.01
        loss = entropy(logits) + lam * functional.cross_entropy(pairs, torch.arange(len(present)))
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            text, image = colnorm(T + R_t), colnorm(V + R_v)
            seen = z if selected else views[0]
            final = scale * seen @ text + affinity(seen, image)
            answers.append(final)
            if float(entropy(final)) / math.log2(K) < gate:
                n += 1
                T = T * n / (n + 1) + text / (n + 1)
    return torch.stack(answers), T, n


@pytest.mark.parametrize(("views", "final"), [(1, "plain"), (30, "plain"), (30, "selected")])
def test_literal(views, final):
    model, x = vectors(views=views, n=30, scale=10.0 if views == 1 else 3.0)
    adapter = build("dpe", model, views=views, final=final)
    flat = x.reshape(30, views, -1)
    expected, T, n = literal(flat, model.table, model.scale, selected=final == "selected")
    torch.testing.assert_close(run(adapter, x, 11), expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(adapter.evolved, T.T, rtol=1e-8, atol=1e-10)
    assert adapter.kept == n
    assert 0 < n < 30
    assert not torch.allclose(T.T, model.table, atol=1e-4)  # they have evolved


def test_hyperparameters():
    model, x = vectors(n=20)
    settings = {"alpha": 3.0, "beta": 8.0, "lr": 1e-3, "lam": 1.5, "gate": 0.3}
    expected, _, _ = literal(x[:, None], model.table, model.scale, **settings)
    found = run(build("dpe", model, **settings), x, 20)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    for key in ("align", "final"):
        with pytest.raises(ValueError, match=f"unknown value of {key} 'nothing'"):
            build("dpe", model, **{key: "nothing"})


def test_alignment_in_both_directions():
    model, x = vectors(n=20)
    one, both = build("dpe", model), build("dpe", model, align="both")
    image, text = functional.normalize(x[:3], dim=1), model.table[:3]
    forth, back = one._alignment(image, text), one._alignment(text, image)
    torch.testing.assert_close(both._alignment(image, text), (forth + back) / 2)
    assert not torch.allclose(run(one, x, 20), run(both, x, 20), rtol=1e-9)


def test_the_text_prototypes_are_a_mean_and_merge_as_one():
    model, x = vectors(n=40)
    one, two = build("dpe", model), build("dpe", model)
    run(one, x[:20], 20)
    run(two, x[20:], 20)
    sums = [adapter.evolved * (adapter.kept + 1) - model.table for adapter in (one, two)]
    total = one.kept + two.kept
    one.merge(two)
    assert one.kept == total
    torch.testing.assert_close(one.evolved, (model.table + sum(sums)) / (total + 1))


def test_no_image_prototypes_yet():
    model, x = vectors(n=3)
    adapter = build("dpe", model)
    answer = adapter.predict(x)  # only the text takes a step
    assert torch.isfinite(answer).all()
    assert not torch.equal(answer, model.logits(x, adapter.text))
    torch.testing.assert_close(answer, model.logits(x, adapter.text), rtol=0, atol=1.0)


def test_descriptions_join_the_templates():
    model, _ = vectors()
    told = {name: [str((int(name) + 1) % 5)] for name in names(model)}  # prompts are row numbers
    adapter = DPE(model, names(model), ["{}"], descriptions=told)
    expected = functional.normalize(model.table + model.table.roll(-1, 0), dim=1)
    torch.testing.assert_close(adapter.text, expected)
    told.pop("3")
    with pytest.raises(ValueError, match=r"1 of 5 classes have no descriptions \(3\)"):
        DPE(model, names(model), ["{}"], descriptions=told)
