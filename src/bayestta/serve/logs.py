"""Structured logs: one JSON object per line, with the id of the request."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

REQUEST: ContextVar[str] = ContextVar("request", default="")
LOG = logging.getLogger("bayestta.serve")
LEVELS = ("debug", "info", "warning", "error")


class Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if REQUEST.get():
            line["request_id"] = REQUEST.get()
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def set_up(level: str) -> None:
    """Log to standard error from a level on."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is unknown: use {', '.join(LEVELS)}.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    for name in ("bayestta.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


def say(message: str, *, level: int = logging.INFO, **facts: Any) -> None:
    LOG.log(level, message, extra={"facts": facts})
