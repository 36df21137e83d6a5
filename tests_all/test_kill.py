"""A bench that is killed, interrupted or started twice ends with the results of an undisturbed
one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feature_file import feature_file

SRC = str(Path(__file__).parents[1] / "src")
SECONDS = 240.0
METHODS = ("zero-shot", "tda", "dota", "bca")
# What two runs of one description must share; times, memory and dates may differ.
NUMBERS = ("method", "seed", "n", "accuracy", "ece", "nll", "brier", "domains", "settings", "steps")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    path = feature_file(folder / "f.safetensors", images=300)
    methods = ", ".join(f'"{name}"' for name in METHODS)
    (folder / "b.toml").write_text(
        f'[[runs]]\ndata = "features"\nroot = "{path}"\nmodels = "features:{path}"\n'
        f"methods = [{methods}]\nseeds = [1, 2, 3]\nbatch_size = 4\n"
    )
    return folder / "b.toml"


def start(plan: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bayestta", "bench", str(plan), "--folder", str(folder)]
    return subprocess.Popen(
        [*command, "--processes", "2", *more],
        env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell starts its background jobs deaf to Ctrl-C, and their children are born so
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(bench: subprocess.Popen[str]) -> str:
    try:
        out, err = bench.communicate(timeout=SECONDS)
    finally:
        bench.kill()  # nothing where it has ended
    assert bench.returncode == 0, out + err
    return err


def numbers(folder: Path) -> dict[str, Any]:
    found = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return {name: {key: value[key] for key in NUMBERS} for name, value in found.items()}


@pytest.fixture(scope="module")
def undisturbed(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(start(plan, folder))
    found = numbers(folder)
    assert len(found) == 3 * len(METHODS)
    assert (folder / "report.html").stat().st_size > 1000
    return found


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Processes of one's own session that bench started: its group outlives it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == pid:
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # gone
            continue
        if int(fields[3]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def moments(folder: Path) -> Iterator[Callable[[], object]]:
    """Before the first run, in the middle of one, just after a result, and near the end."""
    yield lambda: (folder / ".bench.pid").exists()
    yield lambda: len(list(folder.glob("*.json"))) >= 1
    yield lambda: len(list(folder.glob("*.json"))) >= 5


def test_killed_at_any_moment(plan: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    for moment in moments(tmp_path):
        bench = start(plan, tmp_path)
        wait_for(moment)
        os.kill(bench.pid, signal.SIGKILL)
        bench.wait()
        wait_for(lambda pid=bench.pid: not children(pid))  # nobody is left behind
        for path in tmp_path.glob("*.json"):
            json.loads(path.read_text())  # whole
    finish(start(plan, tmp_path))
    assert numbers(tmp_path) == undisturbed
    left = {path.name for path in tmp_path.iterdir()} - undisturbed.keys()
    assert left <= {"report.html", ".bench.lock"}


def test_interrupted(plan: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    bench = start(plan, tmp_path)
    wait_for(lambda: list(tmp_path.glob("*.json")))
    os.killpg(bench.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, err = bench.communicate(timeout=SECONDS)
    assert bench.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    wait_for(lambda: not children(bench.pid))
    kept = numbers(tmp_path)
    assert kept
    assert kept.items() <= undisturbed.items()
    err = finish(start(plan, tmp_path))
    assert f"{len(kept)} of {len(undisturbed)} runs are there already." in err
    assert numbers(tmp_path) == undisturbed


def test_a_second_one_is_refused(plan: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    first = start(plan, tmp_path)
    wait_for(lambda: (tmp_path / ".bench.pid").exists())
    second = start(plan, tmp_path)
    _, err = second.communicate(timeout=SECONDS)
    assert second.returncode == 2
    assert f"in use by another bench (process {first.pid})" in err
    finish(first)
    assert numbers(tmp_path) == undisturbed
