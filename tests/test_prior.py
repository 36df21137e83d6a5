"""The empirical-Bayes prior: literal loops, the modality gap, unseen classes, label skew."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional

from bayestta.maths.discriminant import Discriminant
from bayestta.maths.stats import GaussianStats
from bayestta.methods.bayestta.prior import KAPPA, KIN, RIDGE, SLOPE, expected_means, regularised

K, D = 4, 6
STRUCTURES = ("shared", "per-class")


def drawn(structure="shared", *, seed=0, n=60, offset=0.0, gap=0.0, counts=None, slope=0.8):
    """Statistics of a labelled batch, its text, features and weights.

    Images and text vary in the first D dimensions; two more hold an offset of each.
    """
    rng = torch.Generator().manual_seed(seed)
    text = functional.pad(torch.randn(K, D, generator=rng, dtype=torch.float64), (0, 2))
    y = torch.arange(n) % K if counts is None else torch.arange(K).repeat_interleave(counts)
    noise = functional.pad(torch.randn(len(y), D, generator=rng, dtype=torch.float64), (0, 2))
    soft = torch.rand(len(y), K, generator=rng, dtype=torch.float64)
    weight = (functional.one_hot(y, K) + 0.1 * soft) / 1.5
    if counts is not None:
        weight = functional.one_hot(y, K).double()
    z = slope * text[y] + 0.7 * noise
    z[:, D] += offset
    text[:, D + 1] += gap
    stats = GaussianStats(text, structure=structure, prior_count=0.0, wide=torch.float64)
    stats.update(z, weight)
    return stats, text, z, weight


def kriged(apart, n, kappa, stray):
    """Posterior mean of N(0, G) at all classes, seen with noise kappa / n_k where n_k > 0."""
    K = len(apart)
    G = torch.eye(K, dtype=torch.float64) * (1 - KIN)
    for k in range(K):
        for j in range(K):
            G[k, j] += KIN * float(functional.cosine_similarity(apart[k], apart[j], dim=0))
    seen = [k for k in range(K) if n[k] > 0]
    noise = torch.diag(torch.tensor([kappa / float(n[k]) for k in seen], dtype=torch.float64))
    return G[:, seen] @ torch.linalg.inv(G[seen][:, seen] + noise) @ stray[seen]


def literal(z, weight, text):
    """The equations of prior.py, number by number."""
    K, D = text.shape
    n = [sum(float(w[k]) for w in weight) for k in range(K)]
    N = sum(n)
    m = [sum(float(w[k]) * x for x, w in zip(z, weight, strict=True)) / n[k] for k in range(K)]
    zbar = sum(n[k] * m[k] for k in range(K)) / N
    tbar = sum(n[k] * text[k] for k in range(K)) / N
    over = sum(n[k] * float((m[k] - zbar) @ (text[k] - tbar)) for k in range(K))
    a = over / sum(n[k] * float((text[k] - tbar) @ (text[k] - tbar)) for k in range(K))
    a = min(max(a, SLOPE[0]), SLOPE[1])
    pi = [zbar + a * (text[k] - tbar) for k in range(K)]
    within = sum(
        float(w[k]) * float((x - m[k]) @ (x - m[k]))
        for x, w in zip(z, weight, strict=True)
        for k in range(K)
    )
    sigma2 = within / (N * D)
    far = sum(n[k] * float((m[k] - pi[k]) @ (m[k] - pi[k])) for k in range(K))
    tau2 = (far / D - K * sigma2) / N
    kappa = min(max(sigma2 / max(tau2, 1e-12), KAPPA[0]), KAPPA[1])
    v = a * a * sum(n[k] * float((text[k] - tbar) @ (text[k] - tbar)) for k in range(K)) / (N * D)
    told = v / (v + max(tau2, 0.0)) if v else 0.0
    mu = torch.stack(pi) + kriged(text - tbar, n, kappa, torch.stack(m) - torch.stack(pi))
    scatter = [
        sum(float(w[k]) * torch.outer(x - mu[k], x - mu[k]) for x, w in zip(z, weight, strict=True))
        for k in range(K)
    ]
    return a, kappa, sigma2, told, mu, n, scatter


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("slope", [0.8, -0.5, 3.0])
def test_means_and_covariance_equal_the_equations(structure, slope):
    stats, text, z, weight = drawn(structure, slope=slope)
    a, kappa, sigma2, told, mu, n, scatter = literal(z, weight, text)
    expected = expected_means(stats, text)
    assert expected.slope == pytest.approx(a)
    assert expected.kappa == pytest.approx(kappa)
    assert expected.within == pytest.approx(sigma2)
    assert expected.foretold == pytest.approx(told)
    torch.testing.assert_close(expected.mean, mu)
    N, one = sum(n), torch.eye(D + 2, dtype=torch.float64)
    level = float(sum(scatter).trace()) / N / (D + 2)
    ridge = RIDGE * (D + 2)
    cov = regularised(stats, expected.mean)
    if structure == "shared":
        share = ridge / (N + ridge)
        torch.testing.assert_close(cov, (1 - share) * sum(scatter) / N + share * level * one)
        return
    for k in range(K):
        share = ridge / (n[k] + ridge)
        literal_k = (1 - share) * scatter[k] / n[k] + share * level * one
        torch.testing.assert_close(cov[k], literal_k)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_modality_gap_changes_no_score(structure):
    def scores(offset, gap):
        stats, text, z, _ = drawn(structure, offset=offset, gap=gap)
        expected = expected_means(stats, text)
        cov = regularised(stats, expected.mean)
        score = Discriminant(expected.mean, cov, torch.zeros(K, dtype=torch.float64)).contrast(z)
        return score, expected.slope, expected.kappa, expected.foretold

    plain = scores(0.0, 0.0)
    for offset, gap in ((5.0, 0.0), (0.0, 5.0), (3.0, -4.0)):
        score, *rest = scores(offset, gap)
        torch.testing.assert_close(score, plain[0], rtol=1e-9, atol=1e-9)
        assert rest == pytest.approx(plain[1:])


def test_text_tells_all_of_classes_that_lie_as_it_says_and_nothing_of_others():
    stats, text, _, _ = drawn("shared")
    other = torch.randn(text.shape, generator=torch.Generator().manual_seed(9), dtype=text.dtype)
    assert expected_means(stats, text).foretold > 0.95
    assert expected_means(stats, other).foretold < 0.3


@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_unseen_class_is_where_text_and_kin_put_it(structure):
    stats, text, z, _ = drawn(structure, counts=torch.tensor([40, 40, 40, 0]))
    assert float(stats.seen[3]) == 0
    expected = expected_means(stats, text)
    pi = z.mean(0) + expected.slope * (text - text[:3].mean(0))
    moved = kriged(text - text[:3].mean(0), stats.seen, expected.kappa, stats.mean - pi)
    torch.testing.assert_close(expected.mean, pi + moved)
    true = 0.8 * text[3]
    assert (expected.mean[3] - true).norm() < (text[3] - true).norm()  # nearer than the text is
    cov = regularised(stats, expected.mean)
    assert bool(torch.isfinite(cov).all())
    torch.linalg.cholesky(cov)
    if structure == "per-class":  # the variance of all the others
        level = cov[3].diagonal()
        torch.testing.assert_close(level, level[0].expand(D + 2))
        assert 0.3 < float(level[0] / expected.within) < 3


def test_what_cats_stray_by_an_unseen_cat_strays_by_too():
    rng = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=rng, dtype=torch.float64)
    text = (3 * draw(2, D)).repeat_interleave(4, 0) + draw(8, D)  # four cats, and others
    true = text.clone()
    true[:4] += draw(D)
    y = torch.tensor([0, 1, 2, 4, 5, 6, 7]).repeat(40)
    stats = GaussianStats(text, prior_count=0.0, wide=torch.float64)
    stats.update(true[y] + 0.3 * draw(len(y), D), functional.one_hot(y, 8).double())
    expected, n = expected_means(stats, text), stats.seen
    alone = n @ stats.mean / n.sum() + expected.slope * (text[3] - n @ text / n.sum())
    assert (expected.mean[3] - true[3]).norm() < 0.8 * (alone - true[3]).norm()
    seen = n > 0
    assert (expected.mean - true)[seen].norm(dim=1).max() < 0.3


def test_label_skew_shifts_nothing():
    """With weights that are alike for images and text, many of one class move no other class."""
    even, text, _, _ = drawn(counts=torch.tensor([50, 50, 50, 50]))
    skewed, _, _, _ = drawn(counts=torch.tensor([1000, 50, 50, 50]), seed=0)
    one, two = expected_means(even, text), expected_means(skewed, text)
    naive = (skewed.mean * skewed.seen[:, None]).sum(0) / skewed.seen.sum()
    for k in range(1, K):
        assert (one.mean[k] - two.mean[k]).norm() < 0.5
        # an offset from the plain mean of the text would be wrong by this
        assert (two.mean[k] - (naive + text[k] - text.mean(0))).norm() > 0.5
    assert two.slope == pytest.approx(0.8, abs=0.15)


def test_weights_that_are_tiny_do_no_harm():
    _, text, z, weight = drawn("per-class")
    rare = GaussianStats(text, structure="per-class", prior_count=0.0, wide=torch.float64)
    scale = torch.tensor([1.0, 1.0, 1e-60, 1e-300], dtype=torch.float64)
    rare.update(z, weight * scale)
    expected = expected_means(rare, text)
    cov = regularised(rare, expected.mean)
    assert bool(torch.isfinite(expected.mean).all())
    torch.linalg.cholesky(cov)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_no_spread_is_no_covariance(structure):
    stats, text, z, weight = drawn(structure)
    stats.reset()
    assert regularised(stats, expected_means(stats, text).mean) is None
    stats.update(z[:1], weight[:1])
    assert regularised(stats, expected_means(stats, text).mean) is None
    stats.update(z[1:2], weight[1:2])
    assert regularised(stats, expected_means(stats, text).mean) is not None


def test_the_prior_gives_way_to_evidence():
    few, text, _, _ = drawn(counts=torch.tensor([1, 1, 1, 1]))
    many, _, _, _ = drawn(counts=torch.tensor([500, 500, 500, 500]))
    for stats, nearer in ((few, False), (many, True)):
        expected = expected_means(stats, text)
        share = float(1 / (1 + expected.kappa / stats.seen[0]))
        assert (share > 0.85) == nearer
