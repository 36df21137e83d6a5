"""TDA, DPE, DOTA, BCA and ADAPT: one encoder pass, then features decide and not the batch size."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from bayestta.methods import make_adapter, methods
from bayestta.methods._entropy_cache import Cache
from bayestta.methods._multiview import CHUNK, encode_views
from bayestta.methods._sequential import Sequential
from fake_vlm import Fake, names

METHODS = [name for name, cls in methods().items() if issubclass(cls, Sequential)]


def vectors(K=5, D=24, n=40, *, views=1, scale=10.0, noise=1.5, seed=0, dtype=torch.float64):
    """A model whose images are features, and samples around its text prototypes."""
    rng = torch.Generator().manual_seed(seed)
    text = torch.randn(K, D, generator=rng, dtype=dtype)
    y = torch.randint(K, (n,), generator=rng)
    model = Fake(nn.Flatten(), text, scale)
    z = model.table[y, None] + noise / D**0.5 * torch.randn(n, views, D, generator=rng, dtype=dtype)
    z = functional.normalize(z, dim=2)
    return model, z[:, 0] if views == 1 else z[:, :, None, None]  # (n,D) or (n,V,1,1,D)


def build(method, model, **settings):
    return make_adapter(method, model, names(model), ["{}"], **settings)


def equal(one, two):
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


def run(adapter, x, batch):
    return torch.cat([adapter.adapt(part) for part in x.split(batch)])


def test_five_methods():
    assert METHODS == ["adapt-gaussian", "bca", "dota", "dpe", "tda"]


@pytest.mark.parametrize("views", [1, 20])
@pytest.mark.parametrize("method", METHODS)
def test_batch_size_changes_no_bit(method, views):
    model, x = vectors(dtype=torch.float32, n=23, views=views)
    one, many = (build(method, model, views=views) for _ in range(2))
    assert torch.equal(run(one, x, 1), run(many, x, 7))
    states = one.state(), many.state()
    different = {key for key in states[0] if not equal(states[0][key], states[1][key])}
    assert different == {"steps"}
    assert torch.equal(many.predict(x[3:5]), torch.cat([one.predict(x[i : i + 1]) for i in (3, 4)]))


@pytest.mark.parametrize("method", METHODS)
def test_the_first_view_is_the_sketch_and_ten_percent_count(method):
    model, x = vectors(views=64, n=3)
    adapter = build(method, model, views=64)
    adapter.adapt(x)
    torch.testing.assert_close(adapter.sketch, model.logits(x[:, 0, 0, 0], adapter.text))
    z = x[0, :, 0, 0]
    chosen, logits = adapter._confident(z, adapter.text)
    every = model.logits(z, adapter.text)
    entropy = torch.distributions.Categorical(logits=every).entropy()
    kept = entropy.argsort()[:6]
    assert torch.equal(chosen, z[kept])
    assert torch.equal(logits, every[kept])


def test_views_are_encoded_a_few_images_at_a_time():
    model, x = vectors(views=64, n=5)
    events, encode = [], model.encode_image

    class Lazy:
        shape, ndim, __len__ = x.shape, 5, lambda self: len(x)

        def __getitem__(self, rows):
            events.append("made")
            return x[rows]

    model.encode_image = lambda x: events.append(len(x)) or encode(x)
    z = encode_views(model, Lazy())
    assert events == ["made", CHUNK, "made", CHUNK, "made", 64]  # never all at once
    torch.testing.assert_close(z, x[:, :, 0, 0])


def test_cache_keeps_the_lowest_entropies_in_order():
    rng = torch.Generator().manual_seed(0)
    cache, lists = Cache(3, 4, torch.zeros(0), feature=2), [[], [], []]
    for _ in range(60):
        k, entropy = int(torch.randint(3, (), generator=rng)), float(torch.rand((), generator=rng))
        feature = torch.rand(2, generator=rng)
        entropy = round(entropy, 1)  # with ties
        cache.insert(k, entropy, feature=feature)
        if len(lists[k]) < 4:
            lists[k].append((entropy, feature))
        elif entropy < lists[k][-1][0]:
            lists[k][-1] = (entropy, feature)
        lists[k].sort(key=lambda entry: entry[0])
        for c in range(3):
            assert cache.entropy[c] == [entry[0] for entry in lists[c]]
            assert cache.filled[c].sum() == len(lists[c])
            for i, entry in enumerate(lists[c]):
                assert torch.equal(cache["feature"][c, i], entry[1])


def test_cache_merges_by_insertion():
    rng = torch.Generator().manual_seed(1)
    both, one, two = (Cache(2, 3, torch.zeros(0), feature=1) for _ in range(3))
    for i in range(30):
        entropy = float(torch.rand((), generator=rng))
        for cache in (both, one if i % 2 else two):
            cache.insert(i % 3 % 2, entropy, feature=torch.tensor([entropy]))
    one.merge(two, share=0.5)
    assert one.entropy == both.entropy
    assert torch.equal(one["feature"], both["feature"])
    empty = Cache(2, 3, torch.zeros(0), feature=1)
    one.merge(empty, share=0.0)
    assert one.entropy == both.entropy
    assert Cache(2, 0, torch.zeros(0), feature=1).insert(0, 0.1, feature=torch.ones(1)) is None
