"""Checks of what a method answers, and of what it leaves alone while it does."""

from __future__ import annotations

import torch

from bayestta.checks._case import BATCHES, CLASSES, TEMPLATES, Case, differing, expect, frozen, same
from bayestta.checks._tiny_model import tiny_model
from bayestta.models.embeddings import Features


def finite_answers(case: Case) -> None:
    """An answer is one finite row per image, one column per class, without a gradient."""
    run = case.reference
    for logits in [*run.answers, run.predicted]:
        shape, wanted = tuple(logits.shape), (len(BATCHES[0]), len(CLASSES))
        expect(shape == wanted, f"the answer has shape {shape} instead of {wanted}")
        expect(logits.is_floating_point(), f"the answer is a tensor of {logits.dtype}")
        expect(bool(torch.isfinite(logits).all()), "the answer holds NaN or infinite numbers")
        expect(not logits.requires_grad, "the answer carries a gradient: detach it")


def seeded(case: Case) -> None:
    """The same seed gives the same answers; torch's global generator is neither used nor moved."""
    with torch.random.fork_rng():
        torch.manual_seed(1234)  # another state than that of the reference
        before = torch.get_rng_state()
        adapter = case.method(case.model, CLASSES, TEMPLATES, seed=0, **case.settings)
        answers = [adapter.adapt(case.batch(adapter, rows)) for rows in BATCHES]
        predicted = case.predict(adapter)
        moved = not torch.equal(torch.get_rng_state(), before)
    run, cure = case.reference, "draw from self.generator"
    kept = same([*answers, predicted], [*run.answers, run.predicted])
    expect(kept, f"answers of the same seed differ: {cure}")
    expect(not moved, f"torch's global generator was moved: {cure}")


def pure_predict(case: Case) -> None:
    """`predict` repeats itself, changes nothing, and leaves no trace in what is learnt next."""
    adapter = case.make()
    case.adapt(adapter, BATCHES[:1])
    before = frozen(adapter)
    first, second = case.predict(adapter), case.predict(adapter)
    expect(same(first, second), "two calls of predict on the same images gave different answers")
    after = adapter.state()
    expect(same(after, before), f"predict changed {differing(after, before)}")
    answers = case.adapt(adapter, BATCHES[1:])
    expect(same(answers, case.reference.answers[1:]), "adapt answers otherwise after a predict")


def input_untouched(case: Case) -> None:
    """The images that a caller hands over stay as they are."""
    adapter = case.make()
    for rows in BATCHES[:2]:
        x = case.batch(adapter, rows)
        adapter.adapt(x)
        adapter.predict(x)
        kept = torch.equal(getattr(x, "plain", x), case.pictures[rows])
        expect(kept, "the batch was changed in place: work on a copy")


def model_untouched(case: Case) -> None:
    """The model's tensors, flags and mode stay as they are."""
    towers = case.model.towers()
    before = [{k: v.clone() for k, v in tower.state_dict().items()} for tower in towers]
    adapter = case.make()
    case.adapt(adapter, BATCHES[:2])
    case.predict(adapter)
    for tower, was in zip(towers, before, strict=True):
        now = dict(tower.state_dict())
        expect(same(now, was), f"{differing(now, was)} of the model changed: tune a copy")
        training = any(module.training for module in tower.modules())
        expect(not training, "a module of the model is left in training mode")
        flags = any(p.requires_grad or p.grad is not None for p in tower.parameters())
        expect(not flags, "a parameter of the model is left with requires_grad or a gradient")


def independent(case: Case) -> None:
    """Two adapters on one model do not see each other."""
    one, two = case.make(), case.make(seed=5)
    answers = []
    for rows in BATCHES[:2]:
        answers += case.adapt(one, [rows])
        case.adapt(two, [rows[::-1]])
    kept = same(answers, case.reference.answers[:2])
    expect(kept, "an adapter answers otherwise when another one works on the same model")


def label_skew(case: Case) -> None:
    """Batches of one image, of one class, and of copies of one image leave all numbers finite."""
    adapter = case.make()
    with torch.no_grad():
        z = case.model.encode_image(case.pictures)
    answers = case.model.logits(z, adapter.text).argmax(1)
    alike = (answers == answers.mode().values).nonzero().flatten().tolist()
    for rows in ([3], alike[:3], [2, 2, 2], *([[alike[0]]] * 4), alike[:4], BATCHES[0]):
        logits = case.adapt(adapter, [rows])[0]
        shape, wanted = tuple(logits.shape), (len(rows), len(CLASSES))
        expect(shape == wanted, f"the answer has shape {shape} instead of {wanted}")
        expect(bool(torch.isfinite(logits).all()), f"a batch of {len(rows)} is answered with NaN")
    expect(bool(torch.isfinite(case.predict(adapter)).all()), "predict answers with NaN")
    wrong = adapter.unsound()
    expect(wrong is None, f"{wrong} holds NaN, infinite or huge numbers")


def half_precision(case: Case) -> None:
    """On a model in bfloat16, answers and state stay in float32 or wider, and finite."""
    case.model = tiny_model(case.tower, dtype=torch.bfloat16)
    adapter = case.make()
    for logits in [*case.adapt(adapter, BATCHES[:2]), case.predict(adapter)]:
        wide = logits.dtype in (torch.float32, torch.float64)
        expect(wide, f"the answer is of {logits.dtype} instead of float32")
        expect(bool(torch.isfinite(logits).all()), "the answer holds NaN or infinite numbers")
    for key, value in adapter.state().items():
        half = getattr(value, "dtype", None) in (torch.bfloat16, torch.float16)
        expect(not half, f"{key} is kept in half precision: keep state in float32 or wider")


def cached_features(case: Case) -> None:
    """Cached features give the same answers, or are refused with what to use instead."""
    first = case.make()
    if first.views > 1:
        expect(first.needs_encoder, "cached features have no views: set needs_encoder = True")
    with torch.no_grad():
        features = case.model.encode_image(case.pictures)
    try:
        adapter = case.make(model=Features(case.model))
    except ValueError as error:
        expect("use" in str(error), f"the refusal names no cure: {error}")
        return
    expect(not first.needs_encoder, "needs_encoder is True, but cached features are taken")
    for rows, expected in zip(BATCHES, case.reference.answers, strict=True):
        found = adapter.adapt(features[rows])
        close = torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
        expect(close, "answers to cached features differ from those to the images")
