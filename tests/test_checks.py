"""The checks of arguments accept what they should and name what they refuse."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mikasa_robo import checks


@pytest.mark.parametrize("value", [1, 5, np.int64(3), np.uint8(2), torch.tensor(4)])
def test_integers_of_every_kind_are_whole_numbers(value: Any) -> None:
    result = checks.whole_number("n", value, 1, 5)
    assert type(result) is int
    assert result == int(value)
    assert checks.positive_int("n", value) == result


@pytest.mark.parametrize(
    "value", [0, 6, -1, 2.0, 2.5, True, np.bool_(True), torch.tensor(True), "3", None, math.nan, [3], np.float32(3)]
)
def test_what_is_no_whole_number_in_the_limits_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number from 1 to 5") as error:
        checks.whole_number("n", value, 1, 5)
    assert str(error.value).startswith(f"n={value!r} ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checks.positive_int("num_envs", 0), "num_envs=0 must be a whole number of at least 1"),
        (lambda: checks.whole_number("seed", -1), "seed=-1 must be a whole number of at least 0"),
        (
            lambda: checks.whole_number("cue_steps", 0, 1, unit="control steps"),
            "cue_steps=0 must be a whole number of control steps, at least 1",
        ),
        (
            lambda: checks.whole_number("cue_steps", 9, 1, 5, "control steps"),
            "cue_steps=9 must be a whole number of control steps from 1 to 5",
        ),
        (lambda: checks.number("x", "1"), "x='1' must be a number"),
        (lambda: checks.number("x", -1, 0, unit="rad"), "x=-1 must be a number of at least 0 rad"),
        (lambda: checks.number("x", 2, high=1), "x=2 must be a number of at most 1"),
        (lambda: checks.number("x", 2, 0.5, 1, "m"), "x=2 must be a number from 0.5 to 1 m"),
        (
            lambda: checks.number_range("r", (2, 1), 0, 3, "m/s"),
            "r=(2, 1) must be two numbers (first, second) with 0 <= first <= second <= 3 m/s",
        ),
        (lambda: checks.boolean("b", 1), "b=1 must be True or False"),
        (lambda: checks.one_of("mode", "c", ("a", "b")), "mode='c' is not known: use 'a' or 'b'"),
        (lambda: checks.one_of("mode", None, ("a", "b", "c")), "mode=None is not known: use 'a', 'b' or 'c'"),
        (lambda: checks.one_of("mode", "b", ("a",)), "mode='b' is not known: use 'a'"),
    ],
)
def test_messages_name_the_argument_its_value_and_what_is_allowed(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize("value", [0, 1, 0.25, np.float32(0.5), np.int64(1), torch.tensor(0.5)])
def test_numbers_of_every_kind_are_accepted(value: Any) -> None:
    result = checks.number("x", value, 0, 1)
    assert type(result) is float
    assert result == float(value)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, True, np.bool_(False), "0.5", None, [0.5, 0.5], 10**400]
)
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^x="):
        checks.number("x", value)


@pytest.mark.parametrize("value", [(0.1, 0.2), [0, 1], np.array([0.5, 0.5]), torch.tensor([0.25, 1.0])])
def test_ranges_of_every_kind_are_accepted(value: Any) -> None:
    assert checks.number_range("r", value, 0, 1) == (float(value[0]), float(value[1]))


@pytest.mark.parametrize(
    "value", [None, 0.5, "01", (0.5,), (0, 0.5, 1), (0, 2), (-1, 0.5), (True, 1), (math.nan, 1), (0, "1")]
)
def test_what_is_no_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be two numbers"):
        checks.number_range("r", value, 0, 1)


def test_a_hard_value_is_named_with_the_limit() -> None:
    with pytest.warns(UserWarning, match=r"^speed=3 is hard: more than 1 m/s$"):
        checks.warn_hard("speed", 3, "more than 1 m/s")


def test_choices_and_booleans_come_back_as_they_are() -> None:
    assert checks.one_of("mode", "b", ("a", "b")) == "b"
    assert checks.boolean("flag", False) is False


def test_the_checks_need_no_other_module_of_the_package() -> None:
    code = (
        f"import runpy, sys; runpy.run_path({checks.__file__!r});"
        "print([m for m in sys.modules if m.split('.')[0] in ('mikasa_robo', 'torch', 'numpy', 'sapien')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
