"""docs/make_pictures.py knows every family and shows that something happens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from docs.make_pictures import CAPTION_HEIGHT, GAP, SIZE, STRIPS, main
from mikasa_robo.catalog import CATALOG


def test_every_family_has_a_strip_of_one_of_its_tasks() -> None:
    assert set(STRIPS) == {row.family for row in CATALOG.values()}
    for family, strip in STRIPS.items():
        row = CATALOG[strip.env_id]
        times = [frame.t for frame in strip.frames]
        assert row.family == family
        assert 2 <= len(times) <= 4
        assert times == sorted(set(times))
        assert times[-1] < row.horizon


@pytest.mark.render
def test_a_strip_shows_a_cue_an_empty_table_and_what_may_be_touched(tmp_path: Path) -> None:
    assert main(["--family", "RememberColor", "--out", str(tmp_path / "new")]) == 0
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == "RememberColor.png"
    assert path.stat().st_size < 170_000
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert picture.shape == (SIZE + CAPTION_HEIGHT, 3 * SIZE + 2 * GAP, 3)
    cue, delay, response = (picture[:SIZE, i * (SIZE + GAP) : i * (SIZE + GAP) + SIZE] for i in range(3))
    shown = [(np.abs(frame - delay).max(axis=2) > 40).sum() for frame in (cue, response)]
    assert 100 < shown[0] < shown[1] / 4, "one cube, then nine"


def test_an_unknown_family_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--family", "RememberColour", "--out", str(tmp_path / "none")]) == 2
    assert "--family RememberColour: use some of ShellGame" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
