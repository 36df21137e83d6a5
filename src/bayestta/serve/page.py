"""The live page: one self-contained document, put together from its files."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from bayestta.report.style import CSS

FOLDER = Path(__file__).parent


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


SCRIPT = _read("page_base.js") + _read("page.js")
STYLE = CSS + _read("page.css")
PAGE = _read("page.html").replace("{{style}}", STYLE).replace("{{script}}", SCRIPT)
# The page loads nothing from elsewhere and runs no script but its own.
POLICY = (
    f"default-src 'none'; script-src 'sha256-{_digest(SCRIPT)}'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
