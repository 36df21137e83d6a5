"""`predict --watch` and `--video`: answered once, tidy on restart, and drift is told."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bayestta.cli import _live
from bayestta.methods import methods
from test_cli import answered, call, fails, home, photographs
from test_ways_in import film

__all__ = ["film", "home"]  # fixtures

WORDS = ["predict", "--classes", "cat,dog,bird", "--model", "tiny", "-b", "4"]
WATCH = [*WORDS, "--watch", "inbox", "--idle", "0"]
KEPT = [*WATCH, "--out", "p.csv", "--state", "s"]


def names(path: Path) -> list[str]:
    return [Path(row["path"]).name for row in answered(path)]


def test_files_are_answered_as_they_arrive_and_once(tmp_path: Path) -> None:
    photographs(tmp_path / "inbox", 0, 6)
    (tmp_path / "inbox" / "bad.png").write_bytes(b"no image")
    os.utime(tmp_path / "inbox" / "bad.png", (1, 1))
    first = call(*KEPT)
    assert first.exit_code == 0, first.output
    assert "6 images answered, 1 skipped -> p.csv" in first.stdout
    assert "6 new images, " in first.stderr
    assert names(tmp_path / "p.csv") == [f"img{i}.png" for i in range(5, -1, -1)]  # oldest first
    assert "bad.png,not an image" in (tmp_path / "p.skipped.csv").read_text()
    photographs(tmp_path / "inbox", 6, 8)
    again = call(*KEPT)
    assert "8 images answered, 6 from before" in again.stdout
    assert names(tmp_path / "p.csv")[6:] == ["img7.png", "img6.png"]
    learnt = (tmp_path / "s").read_bytes()
    assert "0 new images" in call(*KEPT).stderr
    assert (tmp_path / "s").read_bytes() == learnt


def test_an_interrupt_ends_it_and_nothing_is_learnt_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photographs(tmp_path / "inbox", 0, 12)
    assert call(*KEPT, "--out", "whole.csv", "--state", "whole").exit_code == 0
    adapt, steps = methods()["bayestta"].adapt, []

    def stops(self: Any, x: Any) -> Any:
        steps.append(len(x))
        logits = adapt(self, x)
        if len(steps) == 2:
            raise KeyboardInterrupt  # learnt, and not answered yet
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(methods()["bayestta"], "adapt", stops)
        result = call(*KEPT)
    assert result.exit_code == 0
    assert "4 images answered" in result.stdout
    assert call(*KEPT).exit_code == 0
    one, two = (answered(tmp_path / name) for name in ("p.csv", "whole.csv"))
    assert one == two


def test_drift_is_told_when_it_comes_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    folder, rng = tmp_path / "inbox", np.random.default_rng(0)
    folder.mkdir()

    def put(start: int, stop: int, light: int) -> None:
        for i in range(start, stop):
            pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8) // light
            Image.fromarray(pixels).save(folder / f"{i:04}.png")
            os.utime(folder / f"{i:04}.png", (i, i))

    words = [*KEPT, "-b", "32"]
    put(0, 208, 1)
    assert "Drift alarm" not in call(*words).stderr
    put(208, 272, 8)  # dark; the reference was seen by the process before
    told = call(*words).stderr
    assert "Drift alarm at image 2" in told
    assert "no longer like the 200 before them" in told


def test_without_a_table_answers_are_printed_at_once(tmp_path: Path) -> None:
    photographs(tmp_path / "inbox", 0, 5)
    lines = call(*WATCH, "-q").stdout.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("path,label")


def test_frames_of_a_video_are_named_by_their_second(tmp_path: Path, film: Path) -> None:
    words = [*WORDS, "--video", film, "--fps", "5", "--out", "v.csv", "--state", "s"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "10 new images (5 frames per second of the video), " in result.stderr
    expected = [f"film.mp4#{0.2 * i:.3f}" for i in range(10)]
    assert names(tmp_path / "v.csv") == expected
    assert "0 new images" in call(*words).stderr
    assert names(tmp_path / "v.csv") == expected
    assert call(*WORDS, "--video", film, "--out", "fresh.csv").exit_code == 0
    assert len(answered(tmp_path / "fresh.csv")) == 2


def test_a_camera_is_answered_after_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches do not wait for their full size, and its frames are named by the hour."""
    from bayestta.data._video import Frame

    def camera(source: str, *, fps: float) -> Any:
        for i in range(6):
            time.sleep(0.02)
            yield Frame(i, i / fps, Image.new("RGB", (20, 20), (40 * i, 0, 0)))

    monkeypatch.setattr(_live, "frames", camera)
    monkeypatch.setattr(_live, "GATHER", 0.03)
    for _ in range(2):
        source = _live.Video("0", ["cat", "dog"], [], fps=10)
        batches = list(source.gather(64, strict=False))
        assert len(batches) > 1
        titles = [title for batch in batches for title, _, _ in batch]
        assert len(set(titles)) == 6
        assert all(title.startswith("0#20") for title in titles)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "0 of --images, --watch and --video are given"),
        (["--watch", "inbox", "--video", "0"], "2 of --images, --watch and --video"),
        (["--watch", "nowhere"], "nowhere is no folder"),
        (["--watch", "inbox", "--out", "p.csv"], "add --state FILE"),
        (["--video", "rtsp://camera", "--out", "p.csv"], "add --state FILE"),
        (["--video", "0", "--fps", "0"], "--fps is 0.0"),
        (["--video", "none.mp4"], "none.mp4 is neither a file"),
    ],
)
def test_mistakes_get_a_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    photographs(tmp_path / "inbox", 0, 1)
    assert sentence in fails(*WORDS, *words, "-q")


def test_live_images_have_one_view(tmp_path: Path) -> None:
    source = _live.Watched(tmp_path, ["cat", "dog"], [], 0.0)
    with pytest.raises(ValueError, match="needs 8 views per image"):
        next(source.batches(None, 8, {"batch_size": 4, "strict": False}))
