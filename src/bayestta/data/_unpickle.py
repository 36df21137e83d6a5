"""Read data files that were written with pickle, without letting them run anything.

A pickle is a small program that names functions and calls them. Every name that it may use stands
for a function of ours here; NumPy never sees what the file says before it was checked (a forged
dtype makes it read raw pointers); and the outcome is looked through before it is handed out.
"""

from __future__ import annotations

import math
import os
import pickle
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

SCALARS = (str, bytes, bytearray, int, float, bool, type(None))
MODES = {"TRAIN": 0, "TEST_ID": 1, "TEST_OOD": 2}  # the members of Wild-Time's enum
_NUMBERS = re.compile("[biuf][1248]")


def unpickle(path: str | os.PathLike[str]) -> Any:
    """The plain containers, numbers, strings and NumPy arrays of numbers in a pickle.

    Members of Wild-Time's enum `Mode` become integers. Whatever else a file asks for is refused
    with a ValueError, before anything was imported or called.
    """
    try:
        with open(path, "rb") as file:
            return _plain(_Unpickler(file).load(), {})
    except OSError:
        raise
    except Exception as error:  # a forged or a cut file fails in every way there is
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{path} is not plain data ({reason}), and nothing of it was run: "
            "get the file again from where it is published."
        ) from error


def _refuse(reason: str) -> NoReturn:
    raise pickle.UnpicklingError(reason)


class _Closed:
    """Base of what stands on the unpickler's stack: no key of a dictionary, no state to set."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __setstate__(self, state: object) -> None:
        _refuse("it changes what it did not make")


class _Name(_Closed):
    """A permitted global; a file can call it and do nothing else with it."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    def __call__(self, *args: object) -> object:
        return self._make(*args)


class _Kind(_Closed):
    """A dtype of numbers."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if type(code) is not str or not _NUMBERS.fullmatch(code):
            _refuse(f"it has an array of type {str(code)[:20]!r}, and only numbers can be read")
        self.code, self.order = code, "="

    def __setstate__(self, state: object) -> None:
        plain = isinstance(state, tuple) and len(state) >= 5 and state[1] in ("<", ">", "|", "=")
        if not plain or any(part is not None for part in state[2:5]):  # type: ignore[index]
            _refuse("it has an array of structures, and only numbers can be read")
        self.order = state[1]  # type: ignore[index]


class _Array(_Closed):
    """An array that is being read."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: NDArray[Any] | None = None

    def __setstate__(self, state: object) -> None:
        if self.value is not None or not isinstance(state, tuple) or len(state) != 5:
            _refuse("it has an array without the usual parts")
        _, shape, kind, fortran, raw = state
        self.value = _numbers(raw, kind, shape, "F" if fortran is True else "C")


def _numbers(raw: object, kind: object, shape: object, order: str) -> NDArray[Any]:
    if not isinstance(kind, _Kind) or not isinstance(raw, (bytes, bytearray)):
        _refuse("it has an array whose values are not bytes")
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        _refuse("it has an array without a shape")
    dtype = np.dtype(kind.order + kind.code)
    if math.prod(shape) * dtype.itemsize != len(raw):
        _refuse(f"it has an array of shape {shape} in {len(raw)} bytes")
    return np.ndarray(shape, dtype, raw, order="F" if order == "F" else "C")


# --- what stands for the names that honest files use ---


def _reconstruct(kind: object = None, shape: object = None, code: object = None) -> _Array:
    return _Array()


def _frombuffer(
    raw: object, kind: object, shape: object, order: object, axes: object = None
) -> _Array:
    found = _Array()
    value = _numbers(raw, kind, shape, str(order))
    if axes is not None:
        if not isinstance(axes, tuple) or sorted(axes) != list(range(value.ndim)):
            _refuse("it has an array with axes that it has not")
        value = value.transpose(axes)
    found.value = value
    return found


def _scalar(kind: object, raw: object) -> object:
    return _numbers(raw, kind, (), "C").item()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """How bytes are written by the protocols below 3."""
    if type(text) is not str or encoding != "latin1":
        _refuse("it encodes what is not bytes")
    return text.encode("latin1")


def _no_bytes(*args: object) -> bytes:
    """The same protocols' way of writing bytes of length 0, and of no other."""
    if args:
        _refuse("it calls a type")
    return b""


def _mode(value: object) -> int:
    if type(value) is not int or value not in MODES.values():
        _refuse(f"Wild-Time has no split {str(value)[:20]!r}")
    return value


def _member(enum: object, name: object) -> int:
    if enum is not MODE or type(name) is not str or name not in MODES:
        _refuse("it asks for an attribute")
    return MODES[name]


def _uncalled(*args: object) -> NoReturn:
    _refuse("it calls a type")


def _empty(*factory: object) -> dict[Any, Any]:
    if any(not isinstance(part, _Name) for part in factory):
        _refuse("it fills a dictionary in an unusual way")
    return {}  # its items follow


MODE = _Name(_mode)
NAMES: dict[tuple[str, str], _Name] = {
    ("numpy", "ndarray"): _Name(_uncalled),
    ("numpy", "dtype"): _Name(_Kind),
    ("_codecs", "encode"): _Name(_encode),
    ("collections", "OrderedDict"): _Name(_empty),
    ("collections", "defaultdict"): _Name(_empty),
}
for _core in ("numpy.core", "numpy._core"):  # before and since NumPy 2
    NAMES[f"{_core}.multiarray", "_reconstruct"] = _Name(_reconstruct)
    NAMES[f"{_core}.multiarray", "scalar"] = _Name(_scalar)
    NAMES[f"{_core}.numeric", "_frombuffer"] = _Name(_frombuffer)
for _builtins in ("builtins", "__builtin__"):
    for _type in ("list", "dict", "int", "float", "str"):  # the factories of a defaultdict
        NAMES[_builtins, _type] = _Name(_uncalled)
    NAMES[_builtins, "set"], NAMES[_builtins, "frozenset"] = _Name(set), _Name(frozenset)
    NAMES[_builtins, "bytes"] = _Name(_no_bytes)
    NAMES[_builtins, "getattr"] = _Name(_member)  # how Python 3.11.0 wrote the member of an enum


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Our function for a name; nothing is imported."""
        first, _, member = name.partition(".")
        if first == "Mode" and module.rpartition(".")[2] in ("utils", "__main__"):
            return _member(MODE, member) if member else MODE
        if (module, name) not in NAMES:
            _refuse(f"it asks for {f'{module}.{name}'[:80]!r}")
        return NAMES[module, name]


def _plain(value: Any, done: dict[int, tuple[Any, Any]]) -> Any:
    """The outcome with arrays in their places, or an error for anything that is not data."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is _Array and value.value is not None:
        return value.value
    if id(value) in done:
        return done[id(value)][1]
    if kind in (set, frozenset):  # nothing of ours can be hashed, so none is in there
        return value
    if kind is tuple:
        found = tuple(_plain(part, done) for part in value)
        done[id(value)] = value, found  # the first keeps its id from being given to another
        return found
    done[id(value)] = value, value
    if kind is dict:
        for key, part in value.items():
            value[key] = _plain(part, done)
    elif kind is list:
        value[:] = [_plain(part, done) for part in value]
    else:
        _refuse("it ends in something that is not data")
    return value
