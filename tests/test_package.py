"""The package: its public names, its files, and the wheel that is made of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import bayestta

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "bayestta"
PUBLIC = (
    *("Adapter", "BayesTTA", "GaussianStats", "Result", "box_m", "evaluate", "list_data"),
    *("list_models", "load_data", "load_model", "log_discriminant", "make_adapter"),
    *("register", "settings_of", "steps", "stream", "Guarded"),
    *("Batch", "Client", "Data", "Pipeline", "VLM", "pipeline", "register_data", "wrap"),
)


def python(code: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds the package in `path`."""
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_public_names_are_those_of_their_files() -> None:
    assert sorted(bayestta.__all__) == sorted([*PUBLIC, "__version__", "checks"])
    assert set(bayestta.__all__) <= set(dir(bayestta))
    for name in PUBLIC:
        value = getattr(bayestta, name)
        assert value is getattr(import_module(value.__module__), name)
        assert value.__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bayestta.nothing


def test_importing_the_package_imports_nothing_else(tmp_path: Path) -> None:
    code = (
        "import sys, bayestta\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert bayestta.__version__\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = python(code, ROOT / "src", tmp_path)
    assert done.returncode == 0, done.stderr


def test_files_are_short_and_their_names_say_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 250, path
        places.setdefault(path.name, []).append(path.parent.name)
    shared = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    del shared["__init__.py"]
    assert shared == {"features.py": ["cli", "data"]}  # cached features: written, and read


def test_versions_agree() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--no-index", "-w", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("bayestta-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    assets = sorted(path.name for path in (PACKAGE / "models" / "assets").glob("*.safetensors"))
    expected = ["py.typed", "cli/predict.py", *(f"models/assets/{name}" for name in assets)]
    assert {f"bayestta/{name}" for name in expected} <= inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert not any(name.startswith("tests") or "__pycache__" in name for name in inside)
    code = (
        "import bayestta as bt\n"
        f"assert bt.__file__.startswith({str(tmp_path / 'site')!r}), bt.__file__\n"
        "assert bt.__version__ != '0+unknown'\n"
        f"for name in {[name.removesuffix('.safetensors') for name in assets]}:\n"
        "    assert bt.load_model(name).encode_text(['a cat', 'a dog']).shape[0] == 2\n"
        "from bayestta.cli import main\n"
        "import sys; sys.argv = ['bayestta', '--version']; main()\n"
    )
    done = python(code, tmp_path / "site", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bayestta ")
