"""A short life of benchmarks/long_life.py: what it measures at length must hold early on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHORT = {
    "features": ["--samples", "100000"],  # up to which no speed is asked of a busy machine
    "images": ["--images", "6000"],
}


@pytest.mark.parametrize("part", SHORT)
def test_no_bound_is_broken(part: str) -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/long_life.py", part, "--check", *SHORT[part]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken bounds: none" in done.stdout
