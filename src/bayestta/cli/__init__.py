"""The command line: one file per command, found by walking this package.

Torch and the rest are imported by the command that needs them.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from bayestta.cli._app import app

__all__ = ["app", "main"]

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        import_module(f"{__name__}.{_module.name}")


def main() -> None:
    """The entry point of the `bayestta` command."""
    app(prog_name="bayestta")
