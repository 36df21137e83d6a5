"""Scores against torchmetrics, scikit-learn, literal loops and themselves."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss
from torch import Tensor

from bayestta.evaluation.metrics import BINS, Score
from bayestta.models._torchvision import import_torchvision


def sample(
    seed: int, n: int = 300, classes: int = 5, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=dtype)
    y = torch.randint(classes, (n,), generator=generator)
    return logits.softmax(dim=1), torch.where(
        torch.rand(n, generator=generator) < 0.5, logits.argmax(1), y
    )


def scored(p: Tensor, y: Tensor) -> Score:
    score = Score(p.shape[1])
    score.update(p, y)
    return score


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_equal_other_peoples_code(dtype: torch.dtype, seed: int, classes: int) -> None:
    import_torchvision()  # which torchmetrics imports
    from torchmetrics.classification import MulticlassCalibrationError

    p, y = sample(seed, classes=classes, dtype=dtype)
    score = scored(p, y)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    theirs = MulticlassCalibrationError(num_classes=classes, n_bins=BINS, norm="l1")(p, y)
    assert score.ece == pytest.approx(float(theirs), abs=1e-6)  # torchmetrics sums in float32
    rows, labels = p.double().numpy(), y.numpy()
    rows = rows / rows.sum(axis=1, keepdims=True)
    assert score.nll == pytest.approx(log_loss(labels, rows, labels=range(classes)), abs=tolerance)
    assert score.accuracy == pytest.approx(100 * accuracy_score(labels, rows.argmax(1)), abs=1e-12)
    assert np.array_equal(score.confusion.numpy(), confusion_matrix(labels, rows.argmax(1)))
    brier = np.mean(
        [((row - np.eye(classes)[k]) ** 2).sum() for row, k in zip(rows, labels, strict=True)]
    )
    assert score.brier == pytest.approx(brier, abs=tolerance)


def test_calibration_bins_equal_a_literal_loop() -> None:
    p, y = sample(7, n=100)
    p[0] = torch.tensor([1.0, 0, 0, 0, 0])  # the right edge belongs to the last bin
    expected = 0.0
    for m in range(BINS):
        members = [
            (float(row.max()), int(row.argmax()) == int(k))
            for row, k in zip(p, y, strict=True)
            if m / BINS < float(row.max()) <= (m + 1) / BINS
        ]
        if members:
            confidence = sum(c for c, _ in members) / len(members)
            accuracy = sum(hit for _, hit in members) / len(members)
            expected += len(members) / len(p) * abs(accuracy - confidence)
    assert scored(p, y).ece == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shards_merged_equal_one_pass(seed: int, dtype: torch.dtype) -> None:
    p, y = sample(seed, dtype=dtype)
    whole = scored(p, y).to_json()
    cut = 40 + 10 * seed
    merged = (scored(p[:cut], y[:cut]) + scored(p[cut:], y[cut:])).to_json()
    assert merged["confusion"] == whole["confusion"]
    for key in ("n", "hits", "accuracy", "ece", "nll", "brier"):
        assert merged[key] == pytest.approx(whole[key], rel=1e-12)


def test_json_round_trip() -> None:
    score = scored(*sample(1))
    text = json.dumps(score.to_json(), allow_nan=False)
    again = Score.from_json(json.loads(text))
    assert again.confusion.equal(score.confusion)
    assert (again.nll, again.brier) == pytest.approx((score.nll, score.brier), rel=1e-12)
    assert torch.equal(again.bins, score.bins)
    damaged = json.loads(text) | {"n": 299}
    with pytest.raises(ValueError, match="299 samples"):
        Score.from_json(damaged)


def test_a_score_of_nothing_is_nan() -> None:
    score = Score(3)
    assert score.n == 0
    assert math.isnan(score.accuracy)
    assert math.isnan(score.ece)
    score.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert Score.from_json(score.to_json()).n == 0


def test_certain_and_wrong_is_expensive_but_finite() -> None:
    for dtype in (torch.float32, torch.float64):
        score = scored(torch.tensor([[1.0, 0.0]], dtype=dtype), torch.tensor([1]))
        assert math.isfinite(score.nll)
        assert score.nll > 80
        assert (score.accuracy, score.ece, score.brier) == (0.0, 1.0, 2.0)


def test_input_is_not_changed_and_half_precision_works() -> None:
    p, y = sample(3)
    before = p.clone()
    score = scored(p, y)
    assert torch.equal(p, before)
    rough = scored(p.bfloat16(), y)
    assert rough.nll == pytest.approx(score.nll, rel=0.02)


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        (torch.ones(2, 4) / 4, torch.tensor([0, 1]), r"\(2, 4\)"),
        (torch.ones(2, 3) / 3, torch.tensor([0]), r"\(1,\)"),
        (torch.ones(2, 3) / 3, torch.tensor([0, 3]), "0 to 3"),
        (torch.ones(2, 3) / 3, torch.tensor([-1, 2]), "-1 to 2"),
        (torch.ones(2, 3), torch.tensor([0, 1]), "2 of 2 rows"),
        (torch.tensor([[0.2, 0.3, 0.5], [math.nan, 0, 1]]), torch.tensor([0, 1]), "1 of 2 rows"),
        (torch.tensor([[1.5, -0.5, 0.0]]), torch.tensor([0]), "1 of 1 rows"),
    ],
)
def test_bad_input_says_what_is_wrong(p: Tensor, y: Tensor, message: str) -> None:
    score = Score(3)
    with pytest.raises(ValueError, match=message):
        score.update(p, y)
    assert score.n == 0


def test_scores_of_different_classes_do_not_add() -> None:
    with pytest.raises(ValueError, match="2 and 3 classes"):
        Score(2) + Score(3)
