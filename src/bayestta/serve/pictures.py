"""The last images whose answer adaptation changed; kept only where the operator asked for it."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from PIL import Image

from bayestta.serve.hosted import Answer

SIDE = 160


class Pictures:
    """Small copies, in memory only, the last `most` per adapter; 0 keeps none."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._kept: dict[str, deque[dict[str, Any]]] = {}

    def add(self, name: str, image: Image.Image, **about: Any) -> None:
        small, file = image.copy(), io.BytesIO()
        small.thumbnail((SIDE, SIDE))
        small.save(file, "JPEG", quality=80)
        with self._lock:
            kept = self._kept.setdefault(name, deque(maxlen=self.most))
            kept.append({**about, "jpeg": file.getvalue()})

    def keep(self, name: str, answer: Answer, images: Sequence[Image.Image]) -> None:
        """Keep those of a request whose answer differs from the zero-shot one."""
        ours, plain = answer.probabilities.argmax(1), answer.sketch.argmax(1)
        for i in (ours != plain).nonzero()[0].tolist():
            about = {"answer": int(ours[i]), "zero_shot": int(plain[i]), "index": i}
            self.add(name, images[i], request_id=answer.request_id, **about)

    def list(self, name: str) -> list[dict[str, Any]]:
        """The newest first."""
        with self._lock:
            return list(self._kept.get(name, ()))[::-1]

    def removed(self, name: str) -> None:
        with self._lock:
            self._kept.pop(name, None)
