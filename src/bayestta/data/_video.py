"""Frames of a video, a camera or a stream from the network, by PyAV (extra `video`)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

SCHEMES = ("rtsp://", "rtsps://", "rtmp://", "http://", "https://")


@dataclass(frozen=True)
class Frame:
    """One frame: its number among those yielded, its second in the video, and the image."""

    number: int
    seconds: float
    image: Image.Image


def frames(source: str, *, fps: float = 1.0) -> Iterator[Frame]:
    """Frames of a source, `fps` per second of the video.

    Neighbouring frames resemble each other, so that a low rate loses little and the drift alarm,
    which takes images for exchangeable, stays honest.

    Parameters
    ----------
    source
        A file, an address (rtsp, rtmp, http), or the number of a camera of this machine.
    fps
        Frames per second that are used; more than the source has gives all of them.
    """
    if not fps > 0:
        raise ValueError(f"fps is {fps}: give a number above 0.")
    try:
        av: Any = importlib.import_module("av")
    except ModuleNotFoundError:
        raise ImportError(
            "videos need the package av, which is not installed: pip install 'bayestta[video]'."
        ) from None
    place, options = _place(source)
    try:
        container = av.open(place, **options)
    except (av.FFmpegError, OSError) as error:
        raise ValueError(
            f"{source} cannot be opened as a video ({_short(error)}): check the path or address."
        ) from None
    with container:
        if not container.streams.video:
            raise ValueError(f"{source} holds no video stream: give another file.")
        yield from _taken(av, container, source, fps)


def _taken(av: Any, container: Any, source: str, fps: float) -> Iterator[Frame]:
    """Of the decoded frames, the first at or after each multiple of 1/fps."""
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    number, first = 0, None
    try:
        for i, frame in enumerate(container.decode(stream)):
            rate = float(stream.average_rate or 25)
            now = float(frame.time) if frame.time is not None else i / rate
            first = now if first is None else first
            seconds = now - first
            if seconds + 1e-6 >= number / fps:
                yield Frame(number, seconds, frame.to_image())
                number = max(number + 1, int(seconds * fps + 1e-6) + 1)
    except av.FFmpegError as error:
        raise ValueError(
            f"{source} cannot be decoded after {number} frames ({_short(error)}): the file is "
            "damaged or the connection was lost."
        ) from None
    if number == 0:
        raise ValueError(f"{source} holds no frame that can be decoded: give another file.")


def is_file(source: str) -> bool:
    """Whether a source has an end: a camera and an address may have none."""
    return not source.isdecimal() and not source.lower().startswith(SCHEMES)


def _place(source: str) -> tuple[str, dict[str, Any]]:
    """What PyAV opens: a camera by its number, an address or a file."""
    if source.isdecimal():
        return f"/dev/video{source}", {"format": "v4l2"}
    if not is_file(source):
        return source, {"timeout": 10.0}
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(
            f"{source} is neither a file, an address (rtsp://, http://) nor the number of a camera."
        )
    return str(path), {}


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
