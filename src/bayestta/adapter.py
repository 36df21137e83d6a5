"""The base of every method: two verbs, a registry, and state that can be saved, loaded and
merged."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bayestta.files import replacing
from bayestta.models._text import check_names, check_templates, classifier
from bayestta.models.base import VLM
from bayestta.names import unknown

SCHEMA = 1
COMMON = ("self", "model", "names", "templates", "seed")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Adapter:
    """A method. `adapt` answers and learns; `predict` answers and changes nothing.

    A subclass keeps every hyper-parameter as an attribute of the same name, puts all that moves
    into `restart`, `state_dict` and `load_state_dict`, and never writes into the model.

    Parameters
    ----------
    model
        What `load_model` returned; shared, never changed.
    names, templates
        The classes, and sentences with `{}` in the place of a class name.
    seed
        Of the adapter's own generator.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    tunes: ClassVar[str] = "nothing"
    cost: ClassVar[str] = "1 forward an image"
    fidelity: ClassVar[str] = ""
    views: int = 1  # what the stream must supply an image; a keyword of some methods
    reset: ClassVar[str] = "never"  # when the runner restarts the method: never, domain or batch
    answer: str = "before"  # whether the answer precedes or follows the update of the weights
    norms: str = "source"
    needs_encoder: ClassVar[bool] = False  # True: cached features are not enough

    def __init__(
        self, model: VLM, names: Sequence[str], templates: Sequence[str], *, seed: int = 0
    ) -> None:
        self.model, self.seed = model, seed
        self.names, self.templates = check_names(names), check_templates(templates)
        if self.needs_encoder and not any(True for _ in model.visual.parameters()):
            raise ValueError(
                f"{self.name} runs the image tower, which cached features lack: give it a model "
                "such as 'lit', or use a method that works on features (zero-shot, tda, dota, bca, "
                "dpe, bayestta with refine=False)."
            )
        self.text = self.make_text()  # (K,D)
        self.generator = torch.Generator()
        self.restart()

    def make_text(self) -> Tensor:
        """The text classifier (K,D); by default the data set's templates, the same for every
        method."""
        return classifier(self.model, self.names, self.templates)

    # --- the two verbs ---

    def adapt(self, x: Tensor) -> Tensor:
        """Answer a batch (B,C,H,W) with logits (B,K), and learn from it."""
        self.check(x)
        logits = self._adapt(x)
        self.samples += len(x)
        self.steps += 1
        return logits.detach()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """The answer of the current state; nothing changes."""
        self.check(x)
        return self._predict(x).detach()

    def _adapt(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _predict(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities (B,K) of logits that this method gave."""
        return logits.float().softmax(1)

    def check(self, x: Tensor) -> None:
        """Refuse a batch that would poison the state."""
        plain = getattr(x, "plain", x)
        if len(plain) == 0:
            raise ValueError("the batch is empty: give at least 1 image.")
        if torch.isfinite(plain.sum()):  # one pass for the usual case
            return
        bad = ~torch.isfinite(plain.flatten(1)).all(1)
        if bad.any():
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"{int(bad.sum())} of {len(plain)} images of the batch hold NaN or infinite pixels "
                f"(first: {first}): remove them; the state is unchanged."
            )

    # --- state ---

    def restart(self) -> None:
        """Back to a fresh start. A subclass extends it with the state that it moves."""
        self.generator.manual_seed(self.seed)
        self.samples = 0
        self.steps = 0
        self.sketch: Tensor | None = (
            None  # zero-shot logits of the last batch, where the method has them
        )
        self.record: dict[str, Any] = {}  # what the last step has to say

    def summary(self) -> dict[str, Any]:
        """An account of the stream so far, for results."""
        return {}

    @classmethod
    def schema(cls) -> dict[str, inspect.Parameter]:
        """The hyper-parameters: the keyword arguments of `__init__`, with their defaults.

        An `__init__` with `**options` hands them on: its base's are hyper-parameters too.
        """
        found: dict[str, inspect.Parameter] = {}
        for base in cls.__mro__:
            if "__init__" not in vars(base):
                continue
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            named = {key: p for key, p in parameters.items() if p.kind not in VARIADIC}
            # The order is the base's, the default that of the class itself.
            found = {key: p for key, p in named.items() if key not in COMMON} | found
            if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                break
        return found

    def hyper(self) -> dict[str, Any]:
        """The hyper-parameters in force."""
        return {key: getattr(self, key) for key in hyperparameters(type(self))}

    def state_dict(self) -> dict[str, Tensor]:
        """Only what moves. A subclass adds to it."""
        return {
            "generator": self.generator.get_state(),
            "samples": torch.tensor(self.samples),
            "steps": torch.tensor(self.steps),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Strict: the keys must be those of `state_dict`. A subclass extends it."""
        self.generator.set_state(state["generator"])
        self.samples, self.steps = int(state["samples"]), int(state["steps"])

    def merge(self, other: Adapter) -> None:
        """Take in another worker's evidence; merging with an untouched copy changes nothing."""
        self.check_same(other)
        self._merge(other)
        self.samples += other.samples
        self.steps += other.steps

    def _merge(self, other: Any) -> None:
        raise NotImplementedError(f"merging has no meaning for {self.name}: {self.no_merge}")

    no_merge: ClassVar[str] = ""  # why, where a method opts out

    def check_same(self, other: Adapter) -> None:
        mine, theirs = self.header(), other.header()
        for key in ("method", "hyper", "names", "templates", "model"):
            if mine[key] != theirs[key]:
                raise ValueError(
                    f"the two adapters differ in {key} ({_short(mine[key])} against "
                    f"{_short(theirs[key])}): merge only copies that were made alike."
                )

    # --- files ---

    def header(self) -> dict[str, Any]:
        """What a state file says about itself."""
        return {
            "schema": SCHEMA,
            "method": self.name,
            "hyper": self.hyper(),
            "names": self.names,
            "templates": self.templates,
            "model": self.model.fingerprint,
            "samples": self.samples,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as safetensors with a JSON header, atomically."""
        tensors = {key: value.contiguous() for key, value in self.state_dict().items()}
        with replacing(path) as part:
            save_file(tensors, part, metadata={"bayestta": json.dumps(self.header())})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save` wrote; another method, model, class list or setting is
        refused."""
        try:
            with safe_open(path, "pt") as file:
                header = json.loads((file.metadata() or {})["bayestta"])
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path} is no complete BayesTTA state ({error}): use another file, or start anew."
            ) from None
        mine = self.header()
        for key in ("schema", "method", "model", "names", "templates", "hyper"):
            if header.get(key) != mine[key]:
                raise ValueError(
                    f"{path} was saved with another {key} ({_short(header.get(key))}) than this "
                    f"adapter's ({_short(mine[key])}): build the adapter as it was, or start anew."
                )
        expected = {key for key in self.state_dict() if not self._grows(key)}
        given = {key for key in state if not self._grows(key)}
        if expected != given:
            raise ValueError(
                f"{path} lacks {sorted(expected - given)} and adds {sorted(given - expected)}: it "
                "is of another version; start anew."
            )
        self.load_state_dict(state)

    growing: ClassVar[tuple[str, ...]] = (
        "@",
    )  # parts of keys that exist only once something was seen

    def _grows(self, key: str) -> bool:
        return any(part in key for part in self.growing)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


# --- the registry ---

A = TypeVar("A", bound=type[Adapter])
_REGISTRY: dict[str, type[Adapter]] = {}


def register(cls: A) -> A:
    """Class decorator: make a method known by its `name`."""
    if not cls.name:
        raise ValueError(f"{cls.__name__} has no name: set the class attribute `name`.")
    if cls.name in _REGISTRY and _REGISTRY[cls.name].__qualname__ != cls.__qualname__:
        raise ValueError(
            f"method {cls.name!r} is registered twice: give {cls.__name__} another name."
        )
    _REGISTRY[cls.name] = cls
    return cls


def methods() -> dict[str, type[Adapter]]:
    """All methods by name; the files of `bayestta.methods` are found by walking the package."""
    package = importlib.import_module("bayestta.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"bayestta.methods.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def hyperparameters(cls: type[Adapter]) -> dict[str, inspect.Parameter]:
    """The hyper-parameters of a method with their defaults."""
    return cls.schema()


def make_adapter(
    name: str,
    model: VLM,
    names: Sequence[str],
    templates: Sequence[str],
    *,
    seed: int = 0,
    **hyper: Any,
) -> Adapter:
    """Build a method by name; an unknown hyper-parameter is refused with the valid ones."""
    known = methods()
    if name not in known:
        raise ValueError(unknown("method", name, known))
    cls = known[name]
    for key in hyper:
        if key not in hyperparameters(cls):
            raise ValueError(unknown(f"hyper-parameter of {name}", key, hyperparameters(cls)))
    build: Callable[..., Adapter] = cls
    return build(model, names, templates, seed=seed, **copy.deepcopy(hyper))
