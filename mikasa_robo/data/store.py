"""The native form of an episode: one ``.npz`` file of named arrays, and ``episode.json`` in it. Nothing is pickled.

A file depends on the episode alone, not on when it was written, so two recordings of one episode are equal byte by byte.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np

from mikasa_robo.partial_files import PartialFile

from .episode import Array, Episode

__all__ = ["DataError", "read_episode", "read_facts", "write_episode", "write_episodes"]

FACTS = "episode.json"
"""The member that holds what is not an array."""
LIKE_NO_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a ZIP file can hold: a member has to have one."""
COMPRESSION = 1
"""The fastest: most columns hardly change from step to step, and become small whatever the level."""
AT_ONCE = 16
"""Files that wait for the disk at a time."""
GROUPS = ("observations", "columns", "step_columns")
STATES = "env_states"
"""The first part of the names of states."""
UNREADABLE = (
    OSError,
    EOFError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    SyntaxError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What `zipfile`, `json` and NumPy raise for a file that is damaged: a changed byte may name another compression or an
encryption, or a shape that fits into no memory."""


class DataError(ValueError):
    """A dataset, or one of its files, is not as it should be; the message names the file."""


def write_episode(path: Path, episode: Episode) -> None:
    """Write ``path``, which appears when it is complete. It does not hold the index, which is a matter of the dataset."""
    write_episodes([(path, episode)])


def write_episodes(episodes: Iterable[tuple[Path, Episode]]) -> None:
    """`write_episode` for several. All wait for the disk at the same time, which takes far less than one after another."""
    rest = iter(episodes)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while chunk := list(itertools.islice(rest, AT_ONCE)):
            with contextlib.ExitStack() as stack:
                partials = [stack.enter_context(PartialFile(path)) for path, _ in chunk]
                for partial, (_, episode) in zip(partials, chunk, strict=True):
                    with open(partial.handle, "wb", closefd=False) as file:
                        _write(file, episode)
                list(pool.map(os.fsync, [partial.handle for partial in partials]))
                for partial in partials:
                    partial.replace()


def _write(file: IO[bytes], episode: Episode) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(FACTS, LIKE_NO_TIME), json.dumps(_facts(episode)))
        for name, array in _arrays(episode).items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy", LIKE_NO_TIME)
            archive.writestr(member, content.getbuffer(), zipfile.ZIP_DEFLATED, COMPRESSION)


def _facts(episode: Episode) -> dict[str, Any]:
    names = ("seed", "success", "fail", "terminated", "truncated", "length", "policy", "noise", "instruction")
    return {name: getattr(episode, name) for name in names}


def _arrays(episode: Episode) -> dict[str, Array]:
    found = {"actions": episode.actions, "rewards": episode.rewards}
    for group in GROUPS:
        found |= {f"{group}/{name}": array for name, array in getattr(episode, group).items()}
    return {**found, **episode.states}


def read_facts(path: Path) -> dict[str, Any]:
    """What is known of the episode in a file without reading its arrays, "length" among it. Raises DataError."""
    try:
        with zipfile.ZipFile(path) as archive:
            facts = json.loads(archive.read(FACTS))
        if not isinstance(facts, dict) or not isinstance(facts.get("seed"), int):
            raise ValueError(f"{FACTS} names no seed")
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as an episode ({type(error).__name__}: {error})") from error
    return facts


def read_episode(path: Path, index: int) -> Episode:
    """The episode in a file, as number ``index`` of its dataset. Raises DataError where the file is not one."""
    facts = read_facts(path)
    parts: dict[str, dict[str, Array]] = {group: {} for group in (*GROUPS, STATES, "")}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                if name == FACTS:
                    continue
                group, _, rest = name.partition("/")
                if group == STATES or not rest:
                    group, rest = (STATES if rest else ""), name
                array = archive[name]
                if not array.ndim:
                    raise ValueError(f"{name} is a single number, and should have a row for each step")
                parts[group][rest] = array
        length = facts.pop("length")
        episode = Episode(
            index=index,
            **facts,
            observations=parts["observations"],
            columns=parts["columns"],
            step_columns=parts["step_columns"],
            states=parts[STATES],
            actions=parts[""]["actions"],
            rewards=parts[""]["rewards"],
        )
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as an episode ({type(error).__name__}: {error})") from error
    if episode.length != length:
        raise DataError(f"{path} holds {episode.length} actions and says that it has {length}")
    return episode
