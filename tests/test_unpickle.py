"""The restricted unpickler: what honest files hold comes out, what others ask for is refused."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import types
from collections import OrderedDict, defaultdict
from enum import Enum

import numpy as np
import pytest

from bayestta.data import _unpickle as module
from bayestta.data._unpickle import unpickle

GRID = np.arange(24.0).reshape(2, 3, 4)
ARRAYS = [
    GRID,
    GRID.T,  # Fortran order
    GRID.transpose(1, 0, 2),  # neither
    GRID[:, ::2],  # not contiguous
    np.zeros((0, 3), np.float32),
    np.array(3.5),
    np.array([[True, False]]),
    np.arange(5, dtype=">i2"),
    np.arange(5, dtype=np.uint8),
]


def write(tmp_path, value, protocol=4):
    path = tmp_path / "file.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_arrays_come_out_as_pickle_has_them(tmp_path, protocol, number):
    expected = ARRAYS[number]
    found = unpickle(write(tmp_path, {"x": [expected, expected]}, protocol))["x"]
    assert type(found[0]) is np.ndarray
    assert found[0].dtype == expected.dtype
    np.testing.assert_array_equal(found[0], expected)
    assert found[0] is found[1]  # one array in the file, one in memory


@pytest.mark.parametrize("protocol", range(6))
def test_plain_things_come_out_as_they_are(tmp_path, protocol):
    value = {
        "plain": [1, -(2**70), 2.5, True, None, "ä", b"\x00\xff", b"", (), (1, (2,)), {3, 4}],
        2: frozenset({"a"}),
        (1, "key"): OrderedDict([("b", 1), ("a", 2)]),
        "default": defaultdict(list, {"k": [1]}),
    }
    found = unpickle(write(tmp_path, value, protocol))
    assert found == value
    assert type(found[1, "key"]) is type(found["default"]) is dict
    numbers = [np.int64(7), np.float32(0.5), np.bool_(True)]
    found = unpickle(write(tmp_path, {np.int64(1930): numbers}, protocol))
    assert found == {1930: [7, 0.5, True]}
    assert [type(n) for n in found[1930]] == [int, float, bool]


def test_names_of_numpy_before_2(tmp_path):
    path = write(tmp_path, GRID, 2)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.", b"numpy.core."))
    np.testing.assert_array_equal(unpickle(path), GRID)


def test_tuples_shared_many_times_take_no_time(tmp_path):
    nested = (GRID,)
    for _ in range(80):
        nested = (nested, nested)
    found = unpickle(write(tmp_path, nested))
    for _ in range(81):
        found = found[0]
    np.testing.assert_array_equal(found, GRID)
    circle: list = []
    circle.append((circle, GRID))
    assert unpickle(write(tmp_path, circle))[0][1].shape == GRID.shape


@pytest.fixture
def wildtime_mode(monkeypatch):
    """The enum as Wild-Time defines it, in a module `data.utils` that is gone when reading."""
    mode = Enum("Mode", {"TRAIN": 0, "TEST_ID": 1, "TEST_OOD": 2}, module="data.utils")
    for name in ("data", "data.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["data.utils"].Mode = mode
    return mode


@pytest.mark.parametrize("protocol", range(6))
def test_members_of_wildtimes_enum_are_integers(tmp_path, wildtime_mode, monkeypatch, protocol):
    path = write(tmp_path, {mode: {"labels": GRID} for mode in wildtime_mode}, protocol)
    monkeypatch.delitem(sys.modules, "data.utils")
    found = unpickle(path)
    assert list(found) == [0, 1, 2]
    assert all(type(key) is int for key in found)
    assert "data.utils" not in sys.modules


def test_other_ways_of_writing_the_enum(tmp_path):
    path = tmp_path / "file.pkl"
    path.write_bytes(b"cbuiltins\ngetattr\n(cdata.utils\nMode\nVTEST_OOD\ntR.")  # Python 3.11.0
    assert unpickle(path) == 2
    path.write_bytes(b"\x80\x04\x8c\x0adata.utils\x8c\x0cMode.TEST_ID\x93.")  # by global name
    assert unpickle(path) == 1


# --- what is refused ---


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


class Built:
    """Pickled as a NumPy array with a state of one's own."""

    def __init__(self, *state):
        self.state = state

    def __reduce__(self):
        return np.zeros(0).__reduce__()[0], (np.ndarray, (0,), b"b"), self.state


TRICKS = {
    "a command": (lambda mark: Call(os.system, f"touch {mark}"), "posix.system"),
    "eval": (lambda mark: Call(eval, f"open({str(mark)!r}, 'w')"), ".eval'"),
    "a process": (lambda mark: Call(subprocess.Popen, ["touch", str(mark)]), ".Popen'"),
    "open": (lambda mark: Call(open, str(mark), "w"), ".open'"),
    "numpy": (lambda mark: Call(np.save, str(mark), GRID), "numpy.save"),
    "numpy's loader": (lambda mark: Call(np.load, str(mark), None, True), "numpy.load"),
    "memmap": (lambda mark: Call(np.memmap, str(mark), "u1", "w+", 0, (9,)), "numpy.memmap"),
    "getattr": (lambda mark: Call(getattr, GRID, "tofile"), "asks for an attribute"),
    "an array": (lambda mark: Call(np.ndarray, (9,), np.dtype("O")), "type 'O8'"),
    "objects": (lambda mark: np.array([Call(os.system, f"touch {mark}")], object), "type 'O8'"),
    "plain objects": (lambda mark: np.array([1, "a"], object), "type 'O8'"),
    "structures": (lambda mark: np.zeros(2, [("a", "i4")]), "type 'V4'"),
    "text": (lambda mark: np.array(["a"]), "type 'U1'"),
    "a class": (lambda mark: {"x": dict}, "not data"),
    "a type to call": (lambda mark: Call(list, (1, 2)), "calls a type"),
    "a slice": (lambda mark: slice(1), ".slice'"),
    "half an array": (lambda mark: Built(1, (3,), np.dtype("f8"), False, b"12"), "in 2 bytes"),
    "a list for bytes": (lambda mark: Built(1, (1,), np.dtype("f8"), False, [1]), "not bytes"),
    "minus one": (lambda mark: Built(1, (-1,), np.dtype("u1"), False, b"12"), "without a shape"),
    "no state": (lambda mark: Call(np.zeros(0).__reduce__()[0], np.ndarray, (0,), b"b"), "data"),
}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_are_refused_and_nothing_runs(tmp_path, trick, protocol):
    make, reason = TRICKS[trick]
    mark = tmp_path / "mark"
    path = write(tmp_path, {"labels": make(mark)}, protocol)
    with pytest.raises(ValueError, match="nothing of it was run: get the file again") as caught:
        unpickle(path)
    assert reason in str(caught.value)
    assert not mark.exists()


FORGED = {  # written by hand: no honest pickler makes these
    "state of a name": (b"cnumpy\ndtype\n(N(dVcode\nVO8\nstb.", "did not make"),
    "dtype with fields": (b"cnumpy\ndtype\n(Vf8\ntR(I3\nV<\nN(Va\nt}tb.", "structures"),
    "second state": (b"cnumpy.core.multiarray\nscalar\n}b.", "did not make"),
    "new object": (b"\x80\x02cnumpy\nndarray\n(I9\nt\x81.", "NEWOBJ"),
    "instance": (b"(ios\nsystem\n.", "os.system"),
    "object": (b"(cos\nsystem\nVtrue\no.", "os.system"),
    "dotted": (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "ndarray.tofile"),
    "dotted enum": (b"\x80\x04\x8c\x0adata.utils\x8c\x0eMode.__class__\x93.", "an attribute"),
    "enum elsewhere": (b"cos\nMode\n(I2\ntR.", "os.Mode"),
    "no such split": (b"cdata.utils\nMode\n(I7\ntR.", "no split '7'"),
    "persistent": (b"Pname\n.", "persistent"),
    "registered": (b"\x80\x02\x82\x01.", "unregistered"),
    "key": (b"(dcnumpy\nndarray\nI1\ns.", "unhashable"),
    "codec": (b"c_codecs\nencode\n(Vabc\nVrot13\ntR.", "encodes"),
    "many bytes": (b"cbuiltins\nbytes\n(I1000000000000\ntR.", "calls a type"),
    "cut": (b"\x80\x04}", "out of input"),
    "nothing": (b"", "out of input"),
    "deep": (b"(l" * 5000 + b"a" * 4999 + b".", "recursion"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_files_are_refused(tmp_path, name):
    path = tmp_path / "file.pkl"
    content, reason = FORGED[name]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"file\.pkl is not plain data \(.*{reason}"):
        unpickle(path)


def test_a_file_cannot_change_the_reader_for_the_next_one(tmp_path):
    before = dict(module.NAMES), module._Kind.__init__, module._Array.__setstate__
    for name in FORGED:
        path = tmp_path / "file.pkl"
        path.write_bytes(FORGED[name][0])
        with pytest.raises(ValueError, match="not plain data"):
            unpickle(path)
    assert before == (module.NAMES, module._Kind.__init__, module._Array.__setstate__)
    np.testing.assert_array_equal(unpickle(write(tmp_path, GRID)), GRID)


def test_a_file_that_is_not_there_is_no_forgery(tmp_path):
    with pytest.raises(FileNotFoundError):
        unpickle(tmp_path / "none.pkl")
