"""docs/make_pictures.py draws what happens in an episode of any family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from docs.make_pictures import CAPTION_HEIGHT, GAP, SIZE, Frame, families, frames_of, main
from mikasa_robo.catalog import CATALOG


def test_a_strip_shows_every_phase_once_and_the_success() -> None:
    chain = frames_of(CATALOG["ChainOfColors3-v0"], 90)
    cues = [Frame(0, "cue"), Frame(5, "cue"), Frame(10, "cue")]
    assert chain == [*cues, Frame(17, "delay"), Frame(20, "response"), Frame(90, "success")]
    assert frames_of(CATALOG["TakeItBack-v0"], 101) == [Frame(0, "cue"), Frame(50, "response"), Frame(101, "success")]
    assert frames_of(CATALOG["InterceptFast-v0"], 60) == [Frame(0, "cue"), Frame(30, "cue"), Frame(60, "success")]
    for row in families().values():
        times = [frame.t for frame in frames_of(row, row.horizon)]
        assert times == sorted(set(times)), row.id


@pytest.mark.render
def test_a_strip_shows_a_cue_an_empty_table_and_what_may_be_touched(tmp_path: Path) -> None:
    assert main(["--family", "RememberColor", "--out", str(tmp_path / "new")]) == 0
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == "RememberColor.png"
    assert path.stat().st_size < 250_000
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert picture.shape == (SIZE + CAPTION_HEIGHT, 4 * SIZE + 3 * GAP, 3)
    cue, delay, response, success = (picture[:SIZE, i * (SIZE + GAP) : i * (SIZE + GAP) + SIZE] for i in range(4))
    # the arm is held: until the response only objects come and go
    shown = [(np.abs(frame - delay).max(axis=2) > 40).sum() for frame in (cue, response)]
    assert 100 < shown[0] < shown[1] / 2, "one cube, then five"
    assert (np.abs(success - response).max(axis=2) > 40).sum() > 1000, "the arm has moved"


def test_an_unknown_family_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--family", "RememberColour", "--out", str(tmp_path / "none")]) == 2
    assert "--family RememberColour: use some of ShellGame" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
