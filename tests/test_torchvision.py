"""The repair of torchvision: automatic after `import bayestta`, and for one failure only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from test_package import ROOT, python

BROKEN = """
import torch
with open({log!r}, "a") as log:
    log.write("run\\n")
from torchvision import part
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets)
"""


def run(code: str, path: Path | str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python(code, f"{ROOT / 'src'}:{path}", cwd)


def test_a_script_that_imports_bayestta_first_can_import_the_others(tmp_path):
    code = (
        "import sys, bayestta\n"
        "assert 'torch' not in sys.modules and 'torchvision' not in sys.modules\n"
        "import open_clip, timm, transformers\n"
        "from transformers import AutoProcessor, CLIPModel, CLIPProcessor, SiglipModel\n"
        "from torchvision.transforms import v2\n"
        "import torchvision, inspect\n"
        "assert inspect.getsource(torchvision) and torchvision.__spec__.loader.get_filename()\n"
    )
    done = run(code, "", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_script_that_failed_to_import_open_clip_can_try_again(tmp_path):
    code = (
        "try:\n    import open_clip\nexcept RuntimeError as error:\n    print(error)\n"
        "import bayestta, open_clip\n"
        "bayestta.load_model('mini-rn')\n"
    )
    done = run(code, "", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("", "operator torchvision::nms does not exist\n")


@pytest.fixture
def fake(tmp_path):
    """A torchvision with the trap, one without, one with another fault; each tells how often."""

    def make(code: str) -> Path:
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "part.py").write_text("")
        log = str(tmp_path / "log")
        (tmp_path / "torchvision" / "__init__.py").write_text(code.replace("{log!r}", repr(log)))
        return tmp_path

    return make


def test_the_trap_is_repaired(fake, tmp_path):
    path = fake(BROKEN)
    done = run("import bayestta, torchvision\nprint(torchvision.part.__name__)", path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (path / "log").read_text() == "run\nrun\n"
    assert done.stdout == "torchvision.part\n"
    without = run("import torchvision", path, tmp_path)
    assert "operator torchvision::nms does not exist" in without.stderr


def test_a_healthy_torchvision_is_left_alone(fake, tmp_path):
    path = fake(
        "with open({log!r}, 'a') as log:\n    log.write('run\\n')\nfrom torchvision import part"
    )
    code = (
        "import bayestta, sys, torchvision\n"
        "assert 'torch' not in sys.modules\n"
        "from bayestta.models import _torchvision\n"
        "assert not _torchvision._kept\n"
        "_torchvision.install()\n"
        "assert sum(type(f).__name__ == 'Repair' for f in sys.meta_path) == 1\n"
    )
    done = run(code, path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (path / "log").read_text() == "run\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('something else')", "RuntimeError: something else"),
        ("import no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_another_failure_is_the_callers_to_see(fake, tmp_path, body, message):
    path = fake(body)
    done = run("import bayestta, torchvision", path, tmp_path)
    assert message in done.stderr
    again = run(
        "from bayestta.models._torchvision import import_torchvision as i; i()", path, tmp_path
    )
    assert message in again.stderr


def test_without_torchvision_nothing_happens(tmp_path):
    code = (
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]\n"
        "import bayestta\n"
        "from bayestta.models._torchvision import import_torchvision\n"
        "import_torchvision()\n"
        "try:\n    import torchvision\n"
        "except ModuleNotFoundError as error:\n    print(error.name)\n"
    )
    done = run(code, "", tmp_path)
    assert (done.returncode, done.stdout) == (0, "torchvision\n"), done.stderr
