"""A headless Chromium at the other end of two pipes: the DevTools protocol without a package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--hide-scrollbars", "--disable-background-networking"),
    "--remote-debugging-pipe",
)
# Chromium reads commands from file descriptor 3 and writes to 4.
SHIM = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 120.0  # seconds that a busy machine may take to answer


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page; use it in a `with` statement."""

    def __init__(self, folder: Path) -> None:
        path = find()
        if path is None:
            raise FileNotFoundError("there is no Chromium: install the Debian package chromium.")
        ours_in, theirs_out = os.pipe()
        theirs_in, self._write = os.pipe()
        shim = [sys.executable, "-c", SHIM, str(theirs_in), str(theirs_out)]
        self.errors = (folder / "chromium.txt").open("w+b")
        self._process = subprocess.Popen(
            [*shim, path, *FLAGS, f"--user-data-dir={folder / 'profile'}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
        )
        os.close(theirs_in), os.close(theirs_out)
        self._read, self._buffer, self._number = ours_in, b"", 0
        self._session: str | None = None
        self.said: list[str] = []  # console messages, exceptions and what the page's policy refused
        self.asked: list[str] = []  # addresses that the page asked for
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{part}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)  # at the end of its orders it leaves
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self.errors.close()

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Show a file at a width, in light or dark, and wait until it is there."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        self._until("Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; page scripts stay forbidden."""
        told = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in told:
            raise RuntimeError(json.dumps(told["exceptionDetails"]))
        return told["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, as long as it is."""
        made = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        order: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._write, json.dumps(order).encode() + b"\0")
        number = self._number
        answer = self._wait(lambda message: message.get("id") == number, method)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, event: str) -> None:
        self._wait(lambda message: message.get("method") == event, event)

    def _wait(self, wanted: Any, what: str) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\0")
                message: dict[str, Any] = json.loads(line)
                self._note(message)
                if wanted(message):
                    return message
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self._read, 1 << 20) if ready else b""
            if not more:
                self.errors.seek(0)
                told = self.errors.read().decode(errors="replace")[-2000:]
                raise TimeoutError(f"Chromium did not answer {what}; it said: {told}")
            self._buffer += more

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.said.append(str([a.get("value") for a in params["args"]]))
            case "Runtime.exceptionThrown":
                self.said.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.said.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
