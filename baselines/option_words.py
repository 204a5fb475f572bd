"""Options as they are typed: words NAME=VALUE and what they stand for. Loads nothing but Python's own modules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["ArgumentError", "kwargs_words", "option_words", "read_env_kwargs", "read_kwargs", "replace_env_kwargs"]

OPTION_OF = {
    "obs_mode": "--obs",
    "sim_backend": "--sim-backend",
    "control_mode": "--control-mode",
    "reward_mode": "--reward-mode",
    "num_envs": "--num-envs",
    "num_workers": "--num-workers if the command has it, or leave it out",
}
"""Arguments of environments that have an option of their own."""
SET_BY_TRAINING = (
    "id",
    "render_mode",
    "max_episode_steps",
    "vectorization_mode",
    "vector_kwargs",
    "autoreset_mode",
    "wrappers",
    "disable_env_checker",
    "reconfiguration_freq",
)
"""Arguments of environments that commands set themselves, or need at their defaults."""


class ArgumentError(ValueError):
    """An argument cannot be used; the message names it, its value and the fix."""


def read_kwargs(words: Sequence[str], option: str) -> dict[str, Any]:
    """Keyword arguments from words NAME=VALUE. Values that are valid JSON are parsed as JSON, others are strings.

    >>> read_kwargs(["arm=held", "delay_steps=20"], "--env-kwargs")
    {'arm': 'held', 'delay_steps': 20}

    Raises:
        ArgumentError: a word is not NAME=VALUE, or a name is given twice. The message begins with ``option``.
    """
    kwargs: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name.isidentifier():
            raise ArgumentError(f"{option} {word} is not NAME=VALUE; write for example arm=held delay_steps=20")
        if name in kwargs:
            raise ArgumentError(f"{option} {word}: {name} is given twice; remove one")
        try:
            kwargs[name] = json.loads(text)
        except ValueError:
            kwargs[name] = text
    return kwargs


def kwargs_words(kwargs: Mapping[str, Any]) -> list[str]:
    """The words that `read_kwargs` reads as these arguments.

    >>> kwargs_words({"arm": "held", "spans": [1.0, 4.0]})
    ['arm=held', 'spans=[1.0, 4.0]']
    """
    return [f"{name}={_value_word(value)}" for name, value in kwargs.items()]


def _value_word(value: Any) -> str:
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def read_env_kwargs(words: Sequence[str], option: str = "--env-kwargs") -> dict[str, Any]:
    """`read_kwargs` for ``--env-kwargs`` and ``--train-env-kwargs``.

    Refuses arguments that have an option of their own or that commands set themselves.
    """
    kwargs = read_kwargs(words, option)
    for name, word in zip(kwargs, words, strict=True):
        if name in OPTION_OF:
            raise ArgumentError(f"{option} {word}: use {OPTION_OF[name]}")
        if name in SET_BY_TRAINING:
            raise ArgumentError(f"{option} {word}: the command sets {name} itself; leave it out")
    return kwargs


def replace_env_kwargs(words: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The words of ``--env-kwargs`` with some arguments replaced or added.

    >>> replace_env_kwargs(["arm=held", "delay_steps=20"], ["delay_steps=200"])
    ('arm=held', 'delay_steps=200')

    Raises:
        ArgumentError: see `read_env_kwargs`.
    """
    changed = read_env_kwargs(others)
    return *(word for word in words if word.partition("=")[0] not in changed), *others


def option_words(name: str, value: Any) -> list[str]:
    """What to type so that the option of the field ``name`` has this value.

    >>> option_words("head_sizes", [64, 64]), option_words("normalize_obs", False)
    (['--head-sizes', '64', '64'], ['--no-normalize-obs'])
    """
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", *map(str, value if isinstance(value, list | tuple) else [value])]
