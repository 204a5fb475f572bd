"""What the JSON files of a dataset must hold: nobody vouches for a file that was downloaded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from .episode import DatasetInfo
from .seeds import SPLITS

__all__ = ["EPISODES", "episode_file", "read_info", "why_malformed"]

EPISODES = "episodes"
"""The folder of the native episodes."""


def episode_file(number: int) -> str:
    """The name of an episode's file in the folder of the dataset."""
    return f"{EPISODES}/{number:08d}.npz"


_ROW = {
    **dict.fromkeys(("seed", "length"), int),
    **dict.fromkeys(("success", "fail", "terminated", "truncated"), bool),
    "noise": (int, float),
    "policy": str,
}
_INFO = {
    **dict.fromkeys(("env_id", "obs_mode", "control_mode", "robot", "instruction", "policy", "split"), str),
    **dict.fromkeys(("control_freq", "max_episode_steps", "first_seed"), int),
    **dict.fromkeys(("env_kwargs", "versions", "names"), dict),
    "cameras": list,
    "noise": (int, float),
    "only_success": bool,
}
_SUMMARY = dict.fromkeys(("episodes", "successes", "failures", "steps"), int)
_BEGUN = {"info": dict, "arguments": dict}
_MANIFEST = {
    **_BEGUN,
    **dict.fromkeys(("summary", "files"), dict),
    **dict.fromkeys(("episodes", "left_out", "formats"), list),
    "native": bool,
    "command": str,
}
"""The entries of the JSON files that are used, and their types."""


def why_malformed(content: Mapping[str, Any], complete: bool) -> str | None:
    """What a manifest (or, where not ``complete``, the file of a dataset that is begun) lacks; None if it is well formed."""
    problem = _why_unfit(content, _MANIFEST if complete else _BEGUN, "it") or _why_unfit(content["info"], _INFO, "info")
    if problem is not None:
        return problem
    problem = _why_unsafe(content["info"]) or _why_no_size(content["info"].get("image_size"))
    if problem is not None:
        return problem
    if not complete:
        return None
    if not content["episodes"]:
        return "it lists no episodes"
    row = _ROW | ({"file": str} if content["native"] else {})
    problems = itertools.chain(
        [_why_unfit(content["summary"], _SUMMARY, "summary")],
        (_why_unfit(entry, row | {"index": int}, f"episodes[{k}]") for k, entry in enumerate(content["episodes"])),
        (_why_unfit(entry, row, f"left_out[{k}]") for k, entry in enumerate(content["left_out"])),
        (
            _why_unfit(entry, {"bytes": int, "sha256": str}, f"files[{name!r}]")
            for name, entry in content["files"].items()
        ),
        map(_why_outside, content["files"]),
        (None if isinstance(name, str) else f"formats has {name!r}, which is no name" for name in content["formats"]),
    )
    problem = next((problem for problem in problems if problem is not None), None)
    return _why_misnamed(content) if problem is None and content["native"] else problem


def _why_outside(name: str) -> str | None:
    """Why a file of the manifest is none in the folder of the dataset; None if it is one."""
    path = PurePosixPath(name)
    if path.parts and not path.is_absolute() and ".." not in path.parts and "\0" not in name:
        return None
    return f"files has {_short(name)}, which must be a relative name without '..'"


def _why_misnamed(content: Mapping[str, Any]) -> str | None:
    """Which episode of a manifest names another file than its seed does; None if none does."""
    for key in ("episodes", "left_out"):
        for k, row in enumerate(content[key]):
            wanted = episode_file(row["seed"] - content["info"]["first_seed"])
            if row["file"] != wanted:
                return f"{key}[{k}] has the file {_short(row['file'])}, which must be {wanted}"
    return None


def _why_unsafe(info: Mapping[str, Any]) -> str | None:
    """Why an entry could import a module or lead an export out of the dataset's folder; None if none could."""
    if ":" in info["env_id"]:  # Gymnasium would import the module
        return f"info has the env_id {_short(info['env_id'])}, which must be an ID without a module"
    if not all(map(_is_file_name, info["env_id"].split("/"))):  # namespace/name
        return f"info has the env_id {_short(info['env_id'])}, which must be an ID of Gymnasium's"
    if info["split"] not in SPLITS:
        return f"info has the split {_short(info['split'])}, which must be one of {', '.join(SPLITS)}"
    for name in ("control_freq", "max_episode_steps"):
        if info[name] < 1:
            return f"info has the {name} {info[name]}, which must be at least 1"
    for key, names in info["names"].items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return f"info has the names {_short(names)} of {_short(key)}, which must be a list of text"
    for camera in info["cameras"]:
        if not isinstance(camera, str) or not _is_file_name(camera):
            return f"info has the camera {_short(camera)}, which must be a name without slashes"
    return None


def _why_no_size(size: Any) -> str | None:
    """Why ``size`` is no height and width; None if it is, or if it is not known."""
    if size is None:
        return None
    # bool is a subclass of int
    if isinstance(size, list) and len(size) == 2 and all(type(pixels) is int and pixels > 0 for pixels in size):
        return None
    return f"info has the image_size {_short(size)}, which must be a height and a width in pixels"


def _is_file_name(name: str) -> bool:
    """Whether a folder of this name lies where it is made."""
    return bool(name) and not name.startswith(".") and not {*name} & {"/", "\\", "\0"}


def _why_unfit(values: Any, wanted: Mapping[str, Any], where: str) -> str | None:
    """Why ``values`` is no object with entries of the types ``wanted``; None if it is one."""
    if not isinstance(values, dict):
        return f"{where} must be an object, not {_short(values)}"
    for name, kind in wanted.items():
        if name not in values:
            return f"{where} has no {name}"
        value = values[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):  # True is an int in Python
            return f"{where} has the {name} {_short(value)}, which is of the wrong type"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def read_info(values: Mapping[str, Any]) -> DatasetInfo:
    """What the entry "info" says, which is well formed."""
    lists = {
        "cameras": tuple(values["cameras"]),
        "names": {key: tuple(names) for key, names in values["names"].items()},
    }
    if (size := values.get("image_size")) is not None:
        lists["image_size"] = tuple(size)
    return DatasetInfo(**{**values, **lists})
