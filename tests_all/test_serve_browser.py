"""The live page in a real browser, with a real server and a stream that gets dark."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from chromium import Chromium, find

pytest.importorskip("fastapi")
pytestmark = pytest.mark.skipif(find() is None, reason="there is no Chromium")

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905


@pytest.fixture
def url(tmp_path):
    command = [sys.executable, "-m", "bayestta", "serve", "--model", "mini-rn", "--port", "0"]
    command += ["--store", str(tmp_path / "store"), "--classes", ",".join(CLASSES)]
    command += ["--keep-images", "6", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found
    yield found[0]
    process.terminate()
    process.wait(60)


def look(browser: Chromium, address: str, *, width: int, dark: bool) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.send("Emulation.setDeviceMetricsOverride", **metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.send("Emulation.setEmulatedMedia", features=[scheme])
    browser.send("Page.navigate", url=address)


def until(browser: Chromium, expression: str, *, seconds: float = 30) -> object:
    """The value of an expression, as soon as it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := browser.ask(expression):
            return value
        time.sleep(0.1)
    raise AssertionError(
        f"{expression} did not come true: {browser.ask('document.body.innerText')}"
    )


def test_numbers_change_an_alarm_appears_and_nothing_goes_wrong(url, tmp_path):
    import bayestta as bt
    from bayestta.serve.camera import Camera, to_png

    frames = Camera(seed=0, bright=224, fall=64, dark=0.1).frames()
    with Chromium(tmp_path) as browser, bt.Client(url) as client:
        look(browser, url, width=390, dark=True)
        until(browser, "document.getElementById('state')?.textContent.startsWith('Live')")
        camera = client.adapter("cam-1")

        def send() -> None:
            camera.classify([to_png(next(frames)[0]) for _ in range(32)])

        send()
        count = "Number(document.querySelector('#card-cam-1 .images')?.textContent || 0)"
        assert until(browser, f"{count} === 32") is True
        send()
        assert until(browser, f"{count} === 64") is True  # live, without a reload
        for _ in range(20):
            send()
            if camera.describe()["drift"]["alarms"]:
                break
        else:
            raise AssertionError("the drift alarm never spoke")
        news = until(browser, "document.getElementById('news').innerText")
        assert "cam-1: the images have drifted" in str(news)
        assert until(browser, "document.querySelector('#card-cam-1 .alarm')?.innerText")
        wide = browser.ask("document.documentElement.scrollWidth > innerWidth")
        assert wide is False, "the page is wider than a phone"
        dark = browser.ask("getComputedStyle(document.body).backgroundColor")
        assert dark == "rgb(20, 23, 26)"
        # by keyboard: to the card, and in
        browser.ask("document.getElementById('card-cam-1').focus()")
        for kind in ("keyDown", "keyUp"):
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
            browser.send("Input.dispatchKeyEvent", type=kind, **key)
        until(browser, "document.querySelectorAll('#detail svg').length >= 6")
        text = str(browser.ask("document.getElementById('detail').innerText"))
        for word in ("Effective classes", "Evidence of drift", "Share of each class", "drifted"):
            assert word in text
        until(browser, "document.querySelectorAll('#detail img').length > 0")
        wide = browser.ask("document.documentElement.scrollWidth > innerWidth")
        assert wide is False, "the page of an adapter is wider than a phone"
        browser.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
        assert not browser.said, browser.said
        assert all(each.startswith((url, "data:", "about:")) for each in browser.asked)
