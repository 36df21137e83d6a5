"""What a data set is: an ordered family of domains, each a sequence of images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bayestta.files import cache_root
from bayestta.registry import Registry

Index = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """One step of a stream: images, and what is known of them.

    Only the runner looks at `y` and `domain`; an adapter is handed `x`.

    Parameters
    ----------
    x
        (B,C,H,W), ready for the model. With more than one view (B,V,C,H,W), as an object that makes
        the views of `x[i:j]` when they are asked for, and has the first of each as `x.plain`.
    y
        (B,) numbers of classes, None where nobody knows.
    domain
        The domain that the images are of.
    index
        (B,) positions of the images in `data[domain]`.
    round
        How often the stream has come to the first domain.

    >>> import torch
    >>> batch = Batch(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]), "may", torch.tensor([5, 3]))
    >>> len(batch.x), batch.domain, batch.round
    (2, 'may', 1)
    """

    x: Tensor  # (B,C,H,W) or (B,V,C,H,W)
    y: Tensor | None  # (B,)
    domain: str
    index: Tensor  # (B,)
    round: int = 1


class Dataset:
    """One domain: a sequence of (RGB image, label or None).

    `pixels` and `tensors` are faster ways in, for sets that have them: grey levels of many images
    at once, and inputs of the model that need no transform (cached features).
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, i: int) -> tuple[Image.Image, int | None]:
        raise NotImplementedError

    def labels(self, index: Index) -> Tensor | None:
        """(n,) int64, without decoding an image; None where the set is unlabelled."""
        return None

    def pixels(self, index: Index) -> Tensor | None:
        """(n,H,W,3) uint8, or None where images have to be opened one by one."""
        return None

    def tensors(self, index: Index) -> Tensor | None:
        """(n,...) ready for the model, or None where the transform has to make them."""
        return None

    def path(self, i: int) -> str:
        """Where image `i` comes from, for messages and tables of predictions."""
        return f"image {i}"


@dataclass(frozen=True)
class Part:
    """A file or folder that a data set needs, at the path where it is expected."""

    path: str
    found: bool
    note: str = ""


def missing(name: str, path: object) -> str:
    """The sentence for a file that is not where it is expected.

    >>> missing("dtd", "data/dtd")
    "'dtd' needs data/dtd, which is not there: `bayestta data check dtd` says what goes where."
    """
    return (
        f"{name!r} needs {path}, which is not there: "
        f"`bayestta data check {name}` says what goes where."
    )


class Data:
    """An ordered family of domains over one list of classes: what `stream` walks through.

    A subclass sets the attributes and answers `data[domain]` with a `Dataset`.

    Attributes
    ----------
    name
        What results call it.
    classes
        The class names, in the order of the labels' numbers.
    templates
        Prompts with a place {} for the class name.
    domains
        Their names, in the order of time.
    labelled
        Whether images have labels.
    split
        Which images of the set these are.
    contains
        "source/split" of all of them, so that `check_split` can refuse a model that knows them.
    skipped
        "path: reason" of the images that `stream` could not decode.

    >>> class Night(Dataset):
    ...     def __len__(self):
    ...         return 4
    ...
    ...     def __getitem__(self, i):
    ...         return Image.new("RGB", (8, 8), (60 * i, 0, 0)), i % 2
    >>> class Nights(Data):
    ...     name, classes, templates = "nights", ["dark", "bright"], ["a {} photo."]
    ...     domains, skipped = ["may", "june"], []
    ...
    ...     def __getitem__(self, domain):
    ...         return Night()
    >>> [len(Nights()[domain]) for domain in Nights().domains]
    [4, 4]
    """

    # Known before any file is read; empty where the user's files decide.
    class_names: ClassVar[tuple[str, ...]] = ()
    domain_names: ClassVar[tuple[str, ...]] = ()
    class_count: ClassVar[int] = 0  # where it is known, and the names are in the files

    name: str
    classes: list[str]
    templates: list[str]
    domains: list[str]  # in time order
    labelled: bool = True
    split: str = "test"
    contains: frozenset[str] = frozenset()  # "source/split" of every image, see check_split
    skipped: list[str]  # "path: reason" of the images that stream() could not decode

    def __getitem__(self, domain: str) -> Dataset:
        raise NotImplementedError

    @classmethod
    def check(cls, root: str | os.PathLike[str] | None = None) -> list[Part]:
        """What the set needs on disk and whether it is there; empty for a person's own files."""
        from bayestta.data._sources import damage

        source = getattr(cls, "source", None)
        if source is None:
            return []
        folder = cache_root(root) / source
        if not folder.is_dir():
            note = f"not cached: `bayestta data get {cls.name}` fetches it"
            return [Part(str(folder), False, note)]
        wrong = damage(source, root)
        return [Part(str(folder), wrong is None, wrong or "cached")]


class Trained(Protocol):
    """What check_split needs to know of a model."""

    name: str
    trained_on: frozenset[str]


def check_split(model: Trained, data: Data) -> None:
    """Raise ValueError where the model was trained on images of the data."""
    seen = sorted(model.trained_on & data.contains)
    if seen:
        raise ValueError(
            f"model {model.name!r} was trained on {' and '.join(seen)}, which split {data.split!r} "
            f"of {data.name!r} contains, so its accuracy there says nothing: use split 'test', or "
            "a model that has not seen these images."
        )


def permutation(n: int, *key: object) -> NDArray[np.int64]:
    """A permutation of range(n) that the key alone decides, on any machine and any NumPy.

    It sorts raw bits, whose stream NumPy guarantees; `Generator.permutation` may change.

    >>> permutation(5, 1, "night").tolist() == permutation(5, 1, "night").tolist()
    True
    """
    return np.argsort(generator(*key).bit_generator.random_raw(n), kind="stable")


def generator(*key: object) -> np.random.Generator:
    """Random numbers that the key alone decides."""
    digest = hashlib.sha256("/".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


REGISTRY: Registry[type[Data]] = Registry("data set", "bayestta.data")
D = TypeVar("D", bound=type[Data])


def register_data(name: str) -> Callable[[D], D]:
    """Make `load_data(name)` build the class that is decorated.

    Parameters
    ----------
    name
        Not taken yet. The class takes its options as keywords, `root` and, where it has splits,
        `split` among them; its docstring has the lines `Citation:`, `Licence:` and `Get:`.

    >>> @register_data("example-nights")
    ... class Nights(Data):
    ...     \"""Photographs of the night.
    ...
    ...     Citation: none
    ...     Licence: CC0
    ...     Get: nothing to get
    ...     \"""
    ...
    ...     def __init__(self, *, root=None):
    ...         self.classes, self.domains, self.skipped = ["dark", "bright"], ["may"], []
    >>> from bayestta.data import load_data
    >>> load_data("example-nights").classes
    ['dark', 'bright']
    >>> REGISTRY.remove("example-nights")  # the example is over
    """

    def register(cls: D) -> D:
        REGISTRY.add(name, cls)
        cls.name = name
        return cls

    return register
