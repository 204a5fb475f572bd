"""What the tests of datasets share: a small data format."""

from __future__ import annotations

import json
from pathlib import Path

from mikasa_robo.data.episode import DatasetInfo, Episode


class Lines:
    """Writes a line of JSON for each episode."""

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        out.mkdir()
        self._file = open(out / "episodes.jsonl", "w", encoding="utf-8")  # noqa: SIM115  closed by `finish`
        self._info = info

    def add(self, episode: Episode) -> None:
        row = {"index": episode.index, "seed": episode.seed, "actions": episode.actions.tolist()}
        self._file.write(json.dumps(row) + "\n")

    def finish(self) -> None:
        self._file.close()


class episodes(Lines):
    """Would have the folder of the native episodes."""


class Absolute(Lines):
    """Wants an absolute path."""

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        if not out.is_absolute():
            raise ValueError(f"{out} is relative")
        super().__init__(out, info)


class Refuses:
    """Cannot hold any data."""

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        out.mkdir()
        raise ValueError("it cannot hold images; use another --obs")

    def add(self, episode: Episode) -> None:
        raise AssertionError

    def finish(self) -> None:
        raise AssertionError


class RefusesLater(Lines):
    """Cannot hold an episode that it is given."""

    def add(self, episode: Episode) -> None:
        raise ValueError("an episode is too long for it")
