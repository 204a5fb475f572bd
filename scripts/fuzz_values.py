"""Values that programs handle badly, as words of a command line and as Python objects."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch

__all__ = ["path_word", "pick", "value", "value_like", "word"]

INTEGERS = (0, 1, 2, 3, 5, 7, 10, 100, -1, -2, -(10**9), 10**9, 2**31, 2**32, 2**53 + 1, 2**63, 2**70, -(2**70))
SMALL = (0, 1, 2, 3, 4, 5, 8, -1, -3, -(2**70))
"""For what takes time or memory in proportion, where a large number is a wish like any other."""
FLOATS = (0.0, 1.0, -1.0, 0.5, 1.5, 1e-30, 1e30, 1e308, -1e308, math.nan, math.inf, -math.inf)
STRINGS = (
    "", " ", "foo", "None", "none", "auto", "held", "free", "true", "0", "-1", "nan", "1e999", "a=b", "--help", "-", "--",
    "module:NAME", "a:b:c", ":", "json:Foo-v0", "no.such.module:Foo-v0", "RememberColor3-v0", "état", "日本", "x" * 5000,
    "a\nb", "a\tb", "%s%n", "{0}", "$HOME", "'", '"', "\\", "\udc80", "state+rgb", "state", "physx_cpu", "cuda:99", "meta",
)  # fmt: skip
PATHS = (
    ".", "..", "/", "/proc/x", "/proc", "/dev/null", "/dev/full", "/dev/zero", "/sys/x", "nowhere", "no/where/at/all", "out",
    "out/a/b", "x" * 300, "y" * 300 + "/z", "z/" * 2500 + "end", "a b", "état", "run", "run/checkpoint.pt", "run/best.pt",
    "run/progress.csv", "run/final_eval.json", "resumable", "robo.pt", "foreign.csv", "empty", "text.json", "hostile.pt",
    "truncated.pt", "nan.pt", "flipped.pt", "folder", "pipe", "broken-link", "loop", "eval.json", "sweep.toml", "", "~",
    "\udc80", "out.mp4", "out.png", "out.foo", "out.",
)  # fmt: skip


def pick(rng: random.Random, pool: Any) -> Any:
    """One of ``pool``."""
    return pool[rng.randrange(len(pool))]


def path_word(rng: random.Random) -> str:
    """A path, most often one that is there."""
    return str(pick(rng, PATHS))


def word(rng: random.Random, kind: str) -> str:
    """A word of a command line for an option of this kind: int, small, float, path, text or any."""
    kind = kind if rng.random() < 0.75 else "any"
    if kind == "any":
        kind = pick(rng, ("small", "float", "path", "text"))
    pools: dict[str, Any] = {
        "int": INTEGERS,
        "small": SMALL,
        "float": (*FLOATS, *INTEGERS),
        "text": STRINGS,
        "path": PATHS,
    }
    return str(pick(rng, pools[kind]))


class Strange:
    """An object of no known type."""

    def __repr__(self) -> str:
        return "Strange()"


def _objects() -> tuple[Callable[[], Any], ...]:
    return (
        lambda: None,
        lambda: True,
        lambda: False,
        lambda: np.int64(3),
        lambda: np.float32(0.5),
        lambda: np.bool_(True),
        lambda: np.array([1, 2]),
        lambda: np.zeros((0,)),
        lambda: np.array("x"),
        lambda: torch.tensor(1),
        lambda: torch.tensor([1.0, 2.0]),
        lambda: torch.tensor(1.0, requires_grad=True),
        lambda: [],
        lambda: [1],
        lambda: [0, 0],
        lambda: [1.5],
        lambda: ["a"],
        lambda: [None],
        lambda: [[0], [1]],
        lambda: (),
        lambda: (1, 2),
        lambda: {},
        lambda: {"a": 1},
        lambda: {"reach": math.nan},
        lambda: {1: 2},
        lambda: {1, 2},
        lambda: range(2),
        lambda: b"x",
        lambda: 1 + 2j,
        lambda: Fraction(1, 2),
        Strange,
        lambda: Strange,
        lambda: len,
        lambda: ...,
    )


OBJECTS = _objects()


def value(rng: random.Random) -> Any:
    """Any object."""
    kind = rng.random()
    if kind < 0.3:
        return pick(rng, INTEGERS)
    if kind < 0.45:
        return pick(rng, FLOATS)
    if kind < 0.6:
        return pick(rng, STRINGS)
    return pick(rng, OBJECTS)()


def value_like(rng: random.Random, default: Any) -> Any:
    """An object that is of the type of ``default`` about half of the time."""
    if rng.random() < 0.5:
        return value(rng)
    if isinstance(default, bool):
        return rng.random() < 0.5
    if isinstance(default, int):
        return pick(rng, SMALL)
    if isinstance(default, float):
        return pick(rng, FLOATS)
    if isinstance(default, str):
        return pick(rng, STRINGS)
    return value(rng)
