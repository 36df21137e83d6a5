"""Where a result comes from: versions, commit, machine, and the memory that it took."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = {
    "bayestta": "bayestta",
    "torch": "torch",
    "numpy": "numpy",
    "scipy": "scipy",
    "open_clip": "open_clip_torch",
}


def versions() -> dict[str, str | None]:
    """Versions of Python and of what the numbers depend on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of the code, "-dirty" after changes; None outside a checkout of its own."""
    package = Path(__file__).resolve().parents[1]
    root = package.parents[1]
    if package != root / "src" / "bayestta" or not (root / ".git").exists():
        return None  # installed: a repository around it would be somebody else's
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def machine() -> dict[str, Any]:
    """The kind of machine, without its name."""
    return {"platform": platform.platform(), "cores": os.cpu_count()}


def forget_peak_memory() -> None:
    """Measure the peak from here on, where the system lets a process do so (Linux)."""
    with suppress(OSError):  # the peak is then that of the process since its start, an upper bound
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int | None:
    """Peak resident bytes of this process; None where nobody keeps count."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
