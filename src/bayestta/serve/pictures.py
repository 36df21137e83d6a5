"""The last images whose answer adaptation changed; kept only where the operator asked for it."""

from __future__ import annotations

import io
import threading
from collections import deque
from typing import Any

from PIL import Image

SIDE = 160


class Pictures:
    """Small copies, in memory only, the last `most` per adapter; 0 keeps none."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._kept: dict[str, deque[dict[str, Any]]] = {}

    def add(self, name: str, image: Image.Image, **about: Any) -> None:
        if not self.most:
            return
        small, file = image.copy(), io.BytesIO()
        small.thumbnail((SIDE, SIDE))
        small.save(file, "JPEG", quality=80)
        with self._lock:
            kept = self._kept.setdefault(name, deque(maxlen=self.most))
            kept.append({**about, "jpeg": file.getvalue()})

    def list(self, name: str) -> list[dict[str, Any]]:
        """The newest first."""
        with self._lock:
            return list(self._kept.get(name, ()))[::-1]

    def removed(self, name: str) -> None:
        with self._lock:
            self._kept.pop(name, None)
