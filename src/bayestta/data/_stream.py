"""`stream`: the batches of a data set in a seeded order, the same for every method."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from bayestta.data._base import Batch, Data, Dataset, permutation
from bayestta.data._orders import BY_LABEL, Indices, arrange, parse_order
from bayestta.data._tensor_file import Kept
from bayestta.data._tensors import TensorCache
from bayestta.data._views import AUGMENT, Floats, Recipe, Transform, Views, Workers
from bayestta.images import ImageError
from bayestta.names import unknown


def stream(
    data: Data,
    transform: Transform,
    *,
    batch_size: int = 128,
    seed: int = 0,
    views: int = 1,
    order: str = "time",
    limit: int | None = None,
    strict: bool = False,
    domains: Sequence[str] | None = None,
    workers: int = 0,
    augment: str = "augmix",
    rounds: int = 1,
    cache: TensorCache | None = None,
) -> Iterator[Batch]:
    """Yield the batches of a data set, domain after domain; a last short batch is kept.

    Parameters
    ----------
    transform
        A model's `preprocess`: PIL image -> (C,H,W). Its `batch`, uint8 (n,H,W,3) -> (n,C,H,W), is
        used where it exists and the data are arrays; views need its `size`, `mean` and `std`.
    order
        `time`: domains in order, images shuffled inside; `shuffled`: the order of domains too;
        `correlated`: inside a domain, runs of one class (Dirichlet 0.1); `sorted`: inside a domain,
        one class after the other; `skewed:SHARE`, such as `skewed:0.9`: one class, which the seed
        draws for each domain, makes up that share of its images, the others come at random, all
        mixed; `given`: the data's own order, for example of the names or times of files.
    limit
        The first n images of a domain's order, which (seed, domain) alone decides: every method
        and every batch size sees the same ones; `correlated` and `sorted` see those of `time`. A
        `skewed` domain has fewer where it has too few images to keep the share: no image is drawn
        twice.
    views
        More than 1 makes `x` a lazy (B,V,C,H,W), view 0 the plain one; see `augment`.
    strict
        Raise at an image that cannot be decoded, instead of adding it to `data.skipped`.
    domains
        Visit these, in this order, instead of all in time order; one may come again.
    workers
        Processes that open images and make views; 0 does it in this one.
    augment
        What views are: `augmix` (crop, mirror and AugMix) or `crop` (crop and mirror).
    rounds
        Walk through all of it so many times, each time the same.
    cache
        Keep what the transform makes of the images on disk, to read it there the next time.
    """
    least = {"batch_size": batch_size, "views": views, "limit": 1 if limit is None else limit}
    least["rounds"] = rounds
    for key, value in {**least, "workers": workers + 1}.items():
        if value < 1:
            low, given = (0, workers) if key == "workers" else (1, value)
            raise ValueError(f"{key} is {given}: it must be at least {low}.")
    kind, _ = parse_order(order)
    if augment not in AUGMENT:
        raise ValueError(unknown("augment", augment, AUGMENT))
    if kind in BY_LABEL and not data.labelled:
        raise ValueError(
            f"order {order!r} goes by label, and {data.name!r} has none: use 'time' or 'given'."
        )
    missing = [key for key in ("size", "mean", "std") if not hasattr(transform, key)]
    if views > 1 and missing:
        raise ValueError(
            f"{views} views need the input size and normalisation, and the transform has no "
            f"{' and no '.join(missing)}: pass a model's preprocess."
        )
    visits = list(data.domains if domains is None else domains)
    for domain in visits:
        if domain not in data.domains:
            raise ValueError(unknown(f"domain of {data.name}", domain, data.domains))
        if len(data[domain]) == 0:
            raise ValueError(
                f"domain {domain!r} of {data.name!r} has 0 images: add some, or leave it out."
            )
    if order == "shuffled":
        visits = [visits[i] for i in permutation(len(visits), seed, "domains")]
    recipe = Recipe(data, transform, augment, views, seed)
    walk = [(turn, domain) for turn in range(1, rounds + 1) for domain in visits]
    return _batches(recipe, walk, batch_size, order, limit, strict, workers, cache)


def sizes(
    data: Data, limit: int | None = None, order: str = "time", seed: int = 0
) -> dict[str, int]:
    """How many images of each domain a stream visits, at most: some may not be decoded."""
    if parse_order(order)[0] == "skewed":
        return {name: len(arrange(data[name], name, order, seed, limit)) for name in data.domains}
    return {name: min(len(data[name]), limit or len(data[name])) for name in data.domains}


def _batches(
    recipe: Recipe,
    walk: list[tuple[int, str]],
    batch_size: int,
    order: str,
    limit: int | None,
    strict: bool,
    count: int,
    cache: TensorCache | None,
) -> Iterator[Batch]:
    workers = Workers(recipe, count)
    try:
        for turn, domain in walk:
            dataset = recipe.dataset(domain)
            index = arrange(dataset, domain, order, recipe.seed, limit)
            fast = _fast(recipe, dataset, index[:1]) is not None
            kept = None if cache is None else cache.open(recipe, domain, index, fast=fast)
            n = 0
            for x, rows in (
                _sliced(recipe, dataset, index, batch_size, kept)
                if fast
                else _decoded(workers, domain, index, batch_size, strict, kept)
            ):
                n += len(rows)
                y = dataset.labels(rows) if recipe.data.labelled else None
                if recipe.views > 1:
                    x = cast(Tensor, Views(x, rows, domain, workers))
                yield Batch(x, y, domain, torch.tensor(rows), turn)
            if n == 0:
                raise ValueError(
                    f"none of the {len(index)} images of domain {domain!r} can be decoded "
                    f"({recipe.data.skipped[-1]}): replace them, or leave the domain out."
                )
    finally:
        workers.close()


def _fast(recipe: Recipe, dataset: Dataset, index: Indices) -> Tensor | None:
    """Many inputs at once, where data and transform know how."""
    ready = dataset.tensors(index)
    if ready is not None:
        if recipe.views > 1:
            raise ValueError(
                f"{recipe.data.name!r} holds cached features, of which {recipe.views} views cannot "
                "be made: use the images, or a method that needs one view."
            )
        return ready
    batch = getattr(recipe.transform, "batch", None)
    pixels = None if batch is None else dataset.pixels(index)
    return None if batch is None or pixels is None else cast(Tensor, batch(pixels))


def _sliced(
    recipe: Recipe, dataset: Dataset, index: Indices, batch_size: int, kept: Kept | None
) -> Iterator[tuple[Tensor, list[int]]]:
    for i in range(0, len(index), batch_size):
        rows = index[i : i + batch_size]
        x = _fast(recipe, dataset, rows) if kept is None else kept.read(rows)
        yield cast(Tensor, x), rows.tolist()


def _decoded(
    workers: Workers,
    domain: str,
    index: Indices,
    batch_size: int,
    strict: bool,
    kept: Kept | None,
) -> Iterator[tuple[Tensor, list[int]]]:
    """Open images one by one, leaving out those that cannot be, until a batch is full."""
    skipped = workers.recipe.data.skipped
    rest, under_way = deque(index.tolist()), deque[tuple[int, Callable[[], Floats]]]()
    xs: list[Tensor] = []
    rows: list[int] = []
    while rest or under_way:
        while rest and len(under_way) <= workers.ahead:
            under_way.append((i := rest.popleft(), _begin(workers, domain, i, kept)))
        i, wait = under_way.popleft()
        try:
            xs.append(torch.from_numpy(wait()))
            rows.append(i)
        except ImageError as error:
            if strict:
                raise ValueError(f"{error}: replace the image, or run without strict.") from error
            if str(error) not in skipped:  # a second stream meets it again
                skipped.append(str(error))
        if len(rows) == batch_size:
            yield torch.stack(xs), rows
            xs, rows = [], []
    if rows:
        yield torch.stack(xs), rows


def _begin(workers: Workers, domain: str, i: int, kept: Kept | None) -> Callable[[], Floats]:
    """What waits for an image: the cache lacks those that cannot be decoded."""
    if kept is None or i not in kept:
        return workers.start("plain", domain, i)
    return lambda: kept.read([i])[0].numpy()
