"""Images that arrive in a folder, and frames of a video."""

from __future__ import annotations

import itertools
import os
import threading
import time
from fractions import Fraction

import numpy as np
import pytest

from bayestta.data._video import frames
from bayestta.data._watched import arriving


def put(path, age=10.0):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"image")
    moment = time.time() - age
    os.utime(path, (moment, moment))


def names(batches):
    return [[path.name for path in batch] for batch in batches]


def test_files_come_once_in_the_order_in_which_they_were_written(tmp_path):
    put(tmp_path / "b.png", 30)
    put(tmp_path / "sub" / "a.jpg", 20)
    put(tmp_path / "c.PNG", 10)
    put(tmp_path / "notes.txt")
    put(tmp_path / ".c.png.part")
    put(tmp_path / ".hidden" / "d.png")
    (tmp_path / "empty.png").touch()
    assert names(arriving(tmp_path, batch_size=2, patience=0)) == [["b.png", "a.jpg"], ["c.PNG"]]
    done = [str((tmp_path / "b.png").absolute())]
    assert names(arriving(tmp_path, done=done, patience=0)) == [["a.jpg", "c.PNG"]]


def test_a_file_that_is_still_written_waits_and_new_ones_are_noticed(tmp_path):
    put(tmp_path / "old.png")
    put(tmp_path / "growing.png", age=0)

    def later():
        time.sleep(0.2)
        put(tmp_path / "new.png")

    thread = threading.Thread(target=later)
    thread.start()
    batches = names(arriving(tmp_path, interval=0.05, patience=1.5, settle=0.8))
    thread.join()
    assert batches[0] == ["old.png"]
    assert sorted(name for batch in batches for name in batch) == [
        "growing.png",
        "new.png",
        "old.png",
    ]
    with pytest.raises(ValueError, match="is no folder"):
        next(arriving(tmp_path / "none"))


@pytest.fixture
def film(tmp_path):
    """Two seconds of ten frames each, which get brighter."""
    av = pytest.importorskip("av")
    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.time_base = Fraction(1, 10)
        for i in range(20):
            pixels = np.full((64, 64, 3), 10 * i, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


@pytest.mark.parametrize(("fps", "count"), [(1, 2), (2, 4), (5, 10), (100, 20)])
def test_frames_come_at_the_rate_that_was_asked_for(film, fps, count):
    found = list(frames(str(film), fps=fps))
    assert len(found) == count
    assert [frame.number for frame in found] == sorted({frame.number for frame in found})
    for frame, later in itertools.pairwise(found):
        assert later.seconds - frame.seconds == pytest.approx(1 / min(fps, 10), abs=0.02)
        assert np.asarray(later.image).mean() > np.asarray(frame.image).mean()
    assert found[0].image.size == (64, 64)


def test_what_is_no_video_is_said(tmp_path, film):
    with pytest.raises(ValueError, match="fps is 0"):
        next(frames(str(film), fps=0))
    with pytest.raises(ValueError, match="neither a file"):
        next(frames(str(tmp_path / "none.mp4")))
    (tmp_path / "text.mp4").write_text("no film")
    with pytest.raises(ValueError, match="cannot be opened as a video"):
        next(frames(str(tmp_path / "text.mp4")))
    with pytest.raises(ValueError, match="cannot be opened as a video"):
        next(frames("97"))
