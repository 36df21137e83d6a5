"""Augmented views of the images of a batch, made when they are asked for (Shu et al., TPT, 2022).

View 0 is the plain one. The others are random crops of the *original* image, resized to the size
of the model and mirrored half of the time, then mixed by AugMix (Hendrycks et al., 2020). A view
depends on (seed, domain, image, view) alone, not on the batch size or the number of processes.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from bayestta.data._base import generator

if TYPE_CHECKING:
    from bayestta.data._base import Data, Dataset

Transform = Callable[[Image.Image], Tensor]  # with size, mean and std, where views are made
Floats = NDArray[np.float32]
AUGMENT = ("augmix", "crop")
CHAINS = 3
BILINEAR = Image.Resampling.BILINEAR


def random_crop(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """A crop of 8 to 100 % of the area and aspect 3:4 to 4:3, resized to a square."""
    width, height = image.size
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            break
    else:  # a very long image: its middle, as near to square as allowed
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    return image.crop((left, top, left + w, top + h)).resize((size, size), BILINEAR)


def _sign(rng: np.random.Generator) -> int:
    return 1 if rng.random() < 0.5 else -1


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    if list(matrix) == [1, 0, 0, 0, 1, 0]:  # a shift of less than a pixel
        return image
    return image.transform(image.size, Image.Transform.AFFINE, matrix, BILINEAR)


def augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """One random operation of AugMix at severity 1, measured by the image's own size."""
    operation, level = int(rng.integers(9)), rng.uniform(0.1, 1.0)
    shear = _sign(rng) * 0.03 * level
    shift = _sign(rng) * int(level * image.width / 30)
    operations: list[Callable[[], Image.Image]] = [
        lambda: ImageOps.autocontrast(image),
        lambda: ImageOps.equalize(image),
        lambda: ImageOps.posterize(image, 4),
        lambda: image.rotate(_sign(rng) * int(3 * level), BILINEAR),
        lambda: ImageOps.solarize(image, 256 - int(25.6 * level)),
        lambda: _affine(image, 1, shear, 0, 0, 1, 0),
        lambda: _affine(image, 1, 0, 0, shear, 1, 0),
        lambda: _affine(image, 1, 0, shift, 0, 1, 0),
        lambda: _affine(image, 1, 0, 0, 0, 1, shift),
    ]
    return operations[operation]()


def make_view(image: Image.Image, size: int, rng: np.random.Generator, kind: str) -> Floats:
    """The grey levels of one augmented view (H,W,3), in 0..255.

    AugMix mixes normalised images. Its shares sum to one, so mixing before normalising is the same.
    """
    view = random_crop(image, size, rng)
    if rng.random() < 0.5:
        view = ImageOps.mirror(view)
    if kind == "crop":
        return np.asarray(view, np.float32)
    weights, share = rng.dirichlet([1.0] * CHAINS), rng.beta(1.0, 1.0)
    mixed = np.float32(share) * np.asarray(view)
    for weight in weights:
        chain = view
        for _ in range(int(rng.integers(1, 4))):
            chain = augment(chain, rng)
        mixed += np.float32((1 - share) * weight) * np.asarray(chain)
    return mixed


class Recipe:
    """All that an input depends on, small enough to send to a worker process."""

    def __init__(self, data: Data, transform: Transform, kind: str, views: int, seed: int) -> None:
        self.data, self.transform, self.kind = data, transform, kind
        self.views, self.seed = views, seed
        self._open: tuple[str, Dataset] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe, (self.data, self.transform, self.kind, self.views, self.seed)

    def dataset(self, domain: str) -> Dataset:
        """The domain's images, opened once."""
        if self._open is None or self._open[0] != domain:
            self._open = domain, self.data[domain]
        return self._open[1]

    def plain(self, domain: str, i: int) -> Floats:
        """(C,H,W); raises ImageError where the image cannot be decoded."""
        found: Floats = self.transform(self.dataset(domain)[i][0]).numpy()
        return found

    def augmented(self, domain: str, i: int) -> Floats:
        """(V-1,C,H,W), all views of one image but the plain one."""
        image, model = self.dataset(domain)[i][0], cast(Any, self.transform)
        size, mean, std = model.size, np.float32(model.mean), np.float32(model.std)
        found = np.empty((self.views - 1, 3, size, size), np.float32)
        for view in range(1, self.views):
            levels = make_view(image, size, generator(self.seed, domain, i, view), self.kind)
            found[view - 1] = ((levels / 255 - mean) / std).transpose(2, 0, 1)
        return found


_recipe: Recipe | None = None  # of a worker process


def _begin(recipe: Recipe) -> None:
    global _recipe
    _recipe = recipe
    torch.set_num_threads(1)


def _work(method: str, domain: str, i: int) -> Floats:
    found: Floats = getattr(_recipe, method)(domain, i)
    return found


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process ended before its time: put the calls of your script under "
            "`if __name__ == '__main__':`, give it more memory, or use workers=0."
        ) from error


class Workers:
    """Where inputs are made: in `count` processes, or in this one when there are none left."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.recipe, self._pool = recipe, None
        self.ahead = 2 * count  # images under way before they are asked for
        if count:
            try:
                pickle.dumps(recipe)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"the data or the transform cannot be sent to worker processes ({error}): "
                    "define them at the top level of a module, or use workers=0."
                ) from error
            context = get_context("spawn")  # a fork would copy the threads of torch half-way
            self._pool = ProcessPoolExecutor(count, context, _begin, (recipe,))

    def start(self, method: str, domain: str, i: int) -> Callable[[], Floats]:
        """Begin to make an input, and return the function that waits for it."""
        here: Callable[[], Floats] = partial(getattr(self.recipe, method), domain, i)
        if self._pool is None:
            return here
        with _explained():
            future = self._pool.submit(_work, method, domain, i)

        def wait() -> Floats:
            try:
                with _explained():
                    return future.result()
            except CancelledError:  # the stream has ended, its last views are still asked for
                return here()

        return wait

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, self.ahead = None, 0


class Views:
    """The views of a batch as if they were a tensor (B,V,C,H,W), made slice by slice.

    `x[i:j]` gives a tensor (n,V,C,H,W), `x.plain` view 0 of every image (B,C,H,W).
    """

    def __init__(self, plain: Tensor, index: list[int], domain: str, workers: Workers) -> None:
        self.plain = plain
        self._index, self._domain, self._workers = index, domain, workers
        self._pending: dict[int, Callable[[], Floats]] = {}

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.plain), self._workers.recipe.views, *self.plain.shape[1:]))

    @property
    def ndim(self) -> int:
        return 5

    @property
    def dtype(self) -> torch.dtype:
        return self.plain.dtype

    def __len__(self) -> int:
        return len(self.plain)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, rows: int | slice) -> Tensor:
        if isinstance(rows, int):
            row = range(len(self))[rows]  # IndexError for a row that is not there
            return self[row : row + 1][0]
        asked = list(range(len(self)))[rows]
        last = max(asked, default=-1) + 1
        ahead = range(last, min(len(self), last + self._workers.ahead))
        self._pending = {
            row: self._pending.get(row)
            or self._workers.start("augmented", self._domain, self._index[row])
            for row in (*asked, *ahead)
        }
        found = self.plain.new_empty((len(asked), *self.shape[1:]))
        found[:, 0] = self.plain[asked]
        for n, row in enumerate(asked):
            found[n, 1:] = torch.from_numpy(self._pending.pop(row)())
        return found
