"""What `make test-all` adds: the browser, the optional packages, killed processes, bench files."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the small worlds are shared
