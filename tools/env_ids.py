"""The environments that commands take: ``ID``, or ``module:ID`` for a task of the user's own, and their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mikasa_robo.baselines.option_words import ArgumentError, read_env_kwargs
from mikasa_robo.catalog import CATALOG
from mikasa_robo.env_ids import EnvIdError, import_env_id

__all__ = ["OptionError", "read_task_kwargs", "resolve_env_id"]


class OptionError(ValueError):
    """An option of a command cannot be used; the message names the option, its value and the fix."""


def resolve_env_id(env_id: str, option: str = "--env-id") -> str:
    """Import the module that ``env_id`` names, if it names one, and return the bare ID.

    Args:
        env_id: ``ID`` or ``module:ID``, as the user gave it.
        option: where the user gave it, for the error.

    Raises:
        OptionError: the ID is malformed, its module does not exist, or no such environment is registered.
    """
    try:
        name = import_env_id(env_id)
    except EnvIdError as error:
        raise OptionError(f"{option} {error}") from error
    import mikasa_base

    if name not in CATALOG and name not in mikasa_base.VARIANTS:
        from mikasa_robo.baselines.environments import check_env_id

        try:
            check_env_id(name)
        except ArgumentError as error:
            raise OptionError(str(error).replace("--env-id", option, 1)) from error
    return name


def read_task_kwargs(words: Sequence[str], refused: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a task from the words NAME=VALUE of ``--env-kwargs``.

    Args:
        words: as the user gave them.
        refused: names that cannot be given here, and what to do instead, such as {"arm": "use --arm {value}"}.

    Raises:
        OptionError: a word is not NAME=VALUE, or its name is refused.
    """
    for word in words:
        name, _, value = word.partition("=")
        if name in refused:
            raise OptionError(f"--env-kwargs {word}: {refused[name].format(value=value)}")
    try:
        return read_env_kwargs(words)
    except ArgumentError as error:
        raise OptionError(str(error)) from error
