"""The messages between an evaluation and a policy server: msgpack, with arrays as openpi's client packs them.

An array is a map with the byte-string keys ``__ndarray__`` (True), ``data`` (its bytes in C order), ``dtype`` (such as
``<f4``) and ``shape``. A NumPy scalar is a map of ``__npgeneric__``, ``data`` and ``dtype``. Source of the layout:
https://github.com/Physical-Intelligence/openpi, openpi_client. Only Booleans, integers and real numbers are taken, so that
nothing is ever unpickled.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PROTOCOL",
    "Array",
    "MessageError",
    "Observation",
    "pack",
    "read_actions",
    "read_request",
    "require_map",
    "unpack",
]

PROTOCOL = "mikasa/remote/1"
"""The entry "protocol" of the metadata that a server sends."""

Array: TypeAlias = NDArray[Any]
Observation: TypeAlias = Array | dict[str, Array]
"""Observations: one array with a leading axis of environments, or a flat dict of such arrays."""

_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
_ARRAY, _SCALAR = b"__ndarray__", b"__npgeneric__"

MOST_ENTRIES = 2**16
"""Lists, maps and their entries in a message, all together. An array has four, and one for each axis."""
MOST_TEXT_BYTES = 2**20
"""Longest text in a message."""
_REPR = reprlib.Repr()
_REPR.maxstring = 200


class MessageError(ValueError):
    """A message is not as the protocol wants it; the text names the entry, its value and the fix."""


def pack(message: Mapping[str, Any]) -> bytes:
    """The message as a frame.

    Raises:
        MessageError: it holds something other than plain values and arrays of numbers.
    """
    import msgpack

    try:
        packed: bytes = msgpack.packb(message, default=_to_plain)
    except (TypeError, OverflowError, RecursionError, ValueError) as error:
        raise MessageError(
            f"the message cannot be packed ({error}); send plain values and arrays of numbers"
        ) from error
    return packed


def unpack(frame: bytes | str) -> Any:
    """What is in a frame; arrays are copies that can be written to, in this machine's byte order.

    Raises:
        MessageError: the frame is not msgpack, it has more than `MOST_ENTRIES`, or an array in it is malformed.
    """
    import msgpack

    if isinstance(frame, str):
        raise MessageError(f"a text frame came ({frame[:80]!r}); send binary frames of msgpack")
    try:
        counter = _Counter()
        return msgpack.unpackb(
            frame,
            object_hook=counter.read_map,
            list_hook=counter.read_list,
            max_array_len=MOST_ENTRIES,
            max_map_len=MOST_ENTRIES,
            max_str_len=MOST_TEXT_BYTES,
            max_ext_len=0,
        )
    except MessageError:
        raise
    except (
        Exception
    ) as error:  # msgpack's own, ValueError, TypeError, UnicodeDecodeError, RecursionError: the bytes decide
        raise MessageError(
            f"a frame of {len(frame)} bytes is not msgpack ({str(error) or type(error).__name__}); pack a map with msgpack"
        ) from error


def require_map(message: Any, what: str) -> dict[str, Any]:
    """``message``, which has to be a map with names as keys. Raises MessageError where it is not."""
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise MessageError(f"{what} is {_short(message)}; send a map with names as keys")
    return message


def read_request(message: Any) -> tuple[Observation, NDArray[np.bool_]]:
    """The observations of N environments, and (N,) which of them begin an episode.

    Raises:
        MessageError: an entry is missing or malformed, or an observation is not finite.
    """
    request = require_map(message, "the request")
    if missing := [name for name in ("observation", "episode_start") if name not in request]:
        raise MessageError(f"the request has no {' and no '.join(missing)}; send both")
    starts = request["episode_start"]
    if not isinstance(starts, np.ndarray) or starts.dtype != np.bool_ or starts.ndim != 1 or not len(starts):
        raise MessageError(f"episode_start is {_short(starts)}; send an array (N,) of bool, N at least 1")
    observation = request["observation"]
    parts = observation if isinstance(observation, dict) else {"": observation}
    if not parts:
        raise MessageError("observation is an empty map; send an array (N, …), or a map of them")
    for name, part in parts.items():
        path = f"observation {name!r}" if name else "observation"
        if not isinstance(name, str) or not isinstance(part, np.ndarray) or part.ndim < 1:
            raise MessageError(f"{path} is {_short(part)}; send an array (N, …), or a map of them")
        if len(part) != len(starts):
            raise MessageError(
                f"{path} has the shape {part.shape}, and episode_start has {len(starts)} entries; send N of each"
            )
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise MessageError(f"{path} is not finite; send numbers")
    return observation, starts


def read_actions(message: Any, shape: tuple[int, int], sizes: tuple[int, ...] = ()) -> Array:
    """The actions in a server's answer.

    Args:
        message: what `unpack` returned.
        shape: (N, A).
        sizes: number of values of each discrete component; empty for continuous actions.

    Returns:
        (N, A) float32, or int64 from 0 for discrete actions.

    Raises:
        MessageError: there are none, or their shape, type or values cannot be used.
    """
    actions = require_map(message, "the answer").get("actions")
    if not isinstance(actions, np.ndarray):
        raise MessageError(f'its entry "actions" is {_short(actions)}; answer with an array {shape}')
    if actions.shape != shape:
        raise MessageError(f"its actions have the shape {actions.shape}; answer with {shape}, one row an environment")
    if sizes:
        if actions.dtype.kind not in "iu":
            raise MessageError(
                f"its actions are of {actions.dtype}; the task has discrete actions: answer with integers"
            )
        if ((actions < 0) | (actions >= np.array(sizes))).any():
            raise MessageError(
                f"its actions are from {actions.min()} to {actions.max()}; answer with 0 to {list(sizes)} less 1"
            )
        return actions.astype(np.int64)
    if actions.dtype.kind not in "fiu":
        raise MessageError(f"its actions are of {actions.dtype}; answer with float32")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and said so
        numbers = actions.astype(np.float32)
    bad = ~np.isfinite(numbers).all(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise MessageError(
            f"its actions are not finite: row {row} is {actions[row].tolist()}; answer with finite numbers"
        )
    return numbers


class _Counter:
    """Counts the entries of a message while it is read: empty maps take a hundred times the memory of their bytes.

    msgpack's own limits are those of a single list or map, and a list may hold others.
    """

    def __init__(self) -> None:
        self._left = MOST_ENTRIES

    def read_map(self, value: dict[Any, Any]) -> Any:
        """A map as what it stands for."""
        self._count(len(value))
        return _from_plain(value)

    def read_list(self, value: list[Any]) -> list[Any]:
        """The list."""
        self._count(len(value))
        return value

    def _count(self, entries: int) -> None:
        self._left -= 1 + entries  # itself, as it may be empty
        if self._left < 0:
            raise MessageError(f"a message has more than {MOST_ENTRIES} entries; send numbers as arrays")


def _to_plain(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"{type(value).__name__} {value!r:.80}")
    if not _DTYPE.fullmatch(value.dtype.str):
        raise TypeError(f"an array of dtype {value.dtype}")
    if isinstance(value, np.ndarray):
        return {_ARRAY: True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": list(value.shape)}
    return {_SCALAR: True, b"data": value.item(), b"dtype": value.dtype.str}


def _from_plain(value: dict[Any, Any]) -> Any:
    if _ARRAY in value:
        dtype, shape, data = _dtype(value), value.get(b"shape"), value.get(b"data")
        if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
            raise MessageError(f"an array has the shape {_short(shape)}; send a list of sizes")
        if len(shape) > 16:
            raise MessageError(f"an array has {len(shape)} axes; send at most 16")
        count = math.prod(shape) * dtype.itemsize
        if not isinstance(data, bytes) or len(data) != count:
            found = f"{len(data)} bytes" if isinstance(data, bytes) else _short(data)
            raise MessageError(f"an array {tuple(shape)} of {dtype} has {found} of data; send {count} bytes")
        return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))
    if _SCALAR in value:
        try:
            return _dtype(value).type(value[b"data"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise MessageError(f"a NumPy scalar is malformed ({error}); send its value and dtype") from error
    return value


def _dtype(value: dict[Any, Any]) -> np.dtype[Any]:
    dtype = value.get(b"dtype")
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise MessageError(
            f"an array has the dtype {_short(dtype)}; send Booleans, integers or real numbers, such as '<f4'"
        )
    return np.dtype(dtype)


def _short(value: Any) -> str:
    """A value in a few words."""
    if value is None:
        return "missing"
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    text = _REPR.repr(value)  # the whole text of a message would be many times as long as the message
    return text if len(text) <= 80 else f"{type(value).__name__} {text[:60]}…"
