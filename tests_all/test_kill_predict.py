"""`predict` and `run --state`, killed 20 times at random moments: every image is answered once and
learnt once, and the state is that of an undisturbed run, bit for bit."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

SRC = str(Path(__file__).parents[1] / "src")
KILLS, IMAGES, SECONDS = 20, 160, 600.0
PREDICT = [
    *("predict", "-i", "photos", "-c", "cat,dog,horse,ship", "--model", "mini-rn", "-b", "4"),
    *("--out", "p.csv", "--state", "s", "--quiet"),
]
RUN = [
    *("run", "--data", "folder", "--root", "own", "--model", "mini-rn", "-b", "4", "--quiet"),
    *("--out", "r.json", "--state", "s"),
]


def start(folder: Path, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bayestta", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(folder: Path, words: list[str]) -> str:
    process = start(folder, words)
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()  # nothing where it has ended
    assert process.returncode == 0, out + err
    return out


def photographs(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"img{i}.png")
        os.utime(folder / f"img{i}.png", (1_000_000_000 + i, 1_000_000_000 + i))


def killed(process: subprocess.Popen[str], working: Path, moment: float) -> bool:
    """Kill the process a moment after it began to work; False where it had ended before."""
    wait_for(process, working)
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False


def wait_for(process: subprocess.Popen[str], working: Path) -> None:
    """Until the process holds the state: before that it imports, and has nothing to lose."""
    end = time.monotonic() + SECONDS
    while not working.exists() and process.poll() is None:
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)


def undisturbed(folder: Path, words: list[str]) -> float:
    """Seconds of work of a run from its start to its end."""
    process = start(folder, words)
    wait_for(process, folder / ".s.pid")
    began = time.monotonic()
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    return time.monotonic() - began


@pytest.mark.parametrize("refine", ["true", "false"])
def test_predict(tmp_path: Path, refine: str) -> None:
    words, rng = [*PREDICT, "--set", f"refine={refine}"], random.Random(refine)
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, folder):
        photographs(place / "photos", IMAGES)
        for name in ("img7.png", "img90.png"):
            (place / "photos" / name).write_bytes(b"no image")
    work = undisturbed(whole, words)
    expected = [(whole / name).read_bytes() for name in ("s", "p.csv", "p.skipped.csv")]
    kills = rounds = 0
    while kills < KILLS:
        if killed(start(folder, words), folder / ".s.pid", rng.uniform(0, work)):
            kills += 1
        else:
            rounds += check(folder, expected)
    finish(folder, words)
    rounds += check(folder, expected)
    print(f"{kills} kills, {rounds} complete runs")


def check(folder: Path, expected: list[bytes]) -> int:
    """A run has come to its end, by however many starts; the next begins from nothing."""
    with (folder / "p.csv").open(newline="") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    assert len(paths) == len(set(paths)) == IMAGES - 2
    names = ("s", "p.csv", "p.skipped.csv")
    assert [(folder / name).read_bytes() for name in names] == expected
    left = {path.name for path in folder.iterdir()}
    assert left == {"photos", ".s.lock", *names}
    for name in names:
        (folder / name).unlink()
    return 1


@pytest.mark.parametrize("refine", ["true", "false"])
def test_run(tmp_path: Path, refine: str) -> None:
    words, rng = [*RUN, "--set", f"refine={refine}"], random.Random(refine)
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, folder):
        for kind in ("cat", "dog"):
            photographs(place / "own" / "day" / kind, IMAGES // 2)
    work = undisturbed(whole, words)
    expected = (whole / "s").read_bytes(), outcome(whole)

    def delivered() -> int:
        """A result is there with its state, both as they should be; the next run begins anew."""
        assert ((folder / "s").read_bytes(), outcome(folder)) == expected
        left = {path.name for path in folder.iterdir()}
        assert left <= {"own", "s", "r.json", ".s.lock", ".s.pid"}
        for name in ("s", "r.json"):
            (folder / name).unlink()
        return 1

    kills = rounds = 0
    while kills < KILLS:
        kills += killed(start(folder, words), folder / ".s.pid", rng.uniform(0, work))
        if (folder / "r.json").exists():
            rounds += delivered()
    finish(folder, words)
    rounds += delivered()
    print(f"{kills} kills, {rounds} complete runs")


def outcome(folder: Path) -> dict[str, Any]:
    """What two equal runs share of a result; times and dates differ."""
    found = json.loads((folder / "r.json").read_text())
    return {key: found[key] for key in ("n", "accuracy", "ece", "nll", "domains", "steps")}
