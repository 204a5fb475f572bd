"""The file of a sweep: what to train. `sweep` runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mikasa_robo.baselines.registry import RegistryError, get_algorithm, use_algorithm
from mikasa_robo.env_ids import EnvIdError, split_env_id

from .env_ids import OptionError, resolve_env_id

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["TRAINING", "Plan", "PlannedRun", "SweepError", "Vocabulary", "read_plan"]

RESERVED = ("env_id", "seed", "run_dir", "resume")
"""Options of the trainers that a sweep sets itself."""


class SweepError(ValueError):
    """A sweep's file cannot be used; the message names the key and the fix."""


@dataclass(frozen=True)
class PlannedRun:
    """One training run of a sweep."""

    env_id: str  # as the file has it: ID or module:ID
    algorithm: str  # likewise: NAME or module:NAME
    seed: int
    options: Mapping[str, Any]
    cpus: float = 1

    @property
    def name(self) -> str:
        """Name of its folder and of its log, without modules."""
        return f"{self.task}__{self.algorithm_name}__{self.seed}"

    @property
    def task(self) -> str:
        """The bare ID."""
        return split_env_id(self.env_id)[1]

    @property
    def algorithm_name(self) -> str:
        """The name without its module."""
        return self.algorithm.rpartition(":")[2]

    def arguments(self, run_dir: Path) -> list[str]:
        """The words after `mikasa train <algorithm>` that start it in ``run_dir``."""
        fixed = {"env_id": self.env_id, "seed": self.seed, "run_dir": run_dir}
        return [word for name, value in {**fixed, **self.options}.items() for word in _words(name, value)]


@dataclass(frozen=True)
class Plan:
    """What the file of a sweep says."""

    out: Path
    runs: tuple[PlannedRun, ...]
    retries: int = 2


def _words(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", *map(str, value if isinstance(value, list) else [value])]


@dataclass(frozen=True)
class Vocabulary:
    """What the names in a sweep's file stand for, and how they are checked."""

    tasks: str
    """The key of the list of tasks."""
    algorithms: str
    """The key of the list of algorithms."""
    examples: Mapping[str, str]
    """A line of a file for each of out, these two keys, and seeds."""
    task_name: Callable[[str], str]
    """The bare name of a task. Raises OptionError, EnvIdError or RegistryError where there is none."""
    algorithm_name: Callable[[str], str]
    """Likewise of an algorithm."""
    check_options: Callable[[str, Any, Sequence[str]], None]
    """Called with an algorithm's bare name, its options and the tasks. Raises SweepError for an option it cannot use."""


def read_plan(path: Path, words: Vocabulary | None = None) -> Plan:
    """Read and check the file of a sweep; ``words`` are by default those of `mikasa train`.

    Raises:
        SweepError: the file is not TOML, or a key or value in it cannot be used.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise SweepError(f"{path} cannot be read: {error.strerror}; name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SweepError(f"{path} is not a TOML file: {error}") from error
    words = words or TRAINING
    known = ("out", words.tasks, words.algorithms, "seeds", "cpus_per_run", "retries", "options")
    _refuse_unknown(content, known, "")
    for key in known[:4]:
        if key not in content:
            raise SweepError(f"{key} is missing; add {words.examples[key]}")
    if not isinstance(content["out"], str) or not content["out"]:
        raise SweepError(f"out = {content['out']!r} is not the name of a folder; write {words.examples['out']}")
    tasks, algorithms, seeds = (
        _list(content, key, kind, words.examples[key])
        for key, kind in ((words.tasks, str), (words.algorithms, str), ("seeds", int))
    )
    if min(seeds) < 0:
        raise SweepError(f"seeds: {min(seeds)} is negative; use numbers of at least 0")
    cpus, retries, options = content.get("cpus_per_run", 1), content.get("retries", 2), content.get("options", {})
    if not isinstance(cpus, int | float) or isinstance(cpus, bool) or not cpus > 0:
        raise SweepError(f"cpus_per_run = {cpus!r} is not a number above 0; write cpus_per_run = 1")
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise SweepError(f"retries = {retries!r} is not a whole number of at least 0; write retries = 2")
    if not isinstance(options, dict):
        raise SweepError(f"options = {options!r} is not a table; write [options.{algorithms[0]}] above the options")
    names = _check_names(words.algorithms, algorithms, words.algorithm_name)
    _check_names(words.tasks, tasks, words.task_name)
    _refuse_unknown(options, names, "options.")
    for name in names:
        words.check_options(name, options.get(name, {}), tasks)
    runs = tuple(
        PlannedRun(task, algorithm, seed, options.get(name, {}), cpus)
        for task in tasks
        for name, algorithm in zip(names, algorithms, strict=True)
        for seed in seeds
    )
    return Plan(Path(content["out"]), runs, retries)


_EXAMPLES = {
    "out": 'out = "runs/colors"',
    "tasks": 'tasks = ["RememberColor3-v0"]',
    "algorithms": 'algorithms = ["ppo-mlp"]',
    "seeds": "seeds = [1, 2, 3]",
}


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"use one of {', '.join(prefix + k for k in known)}"
            raise SweepError(f"{prefix}{key} is not known here; {hint}")


def _list(content: Mapping[str, Any], key: str, kind: type, example: str) -> list[Any]:
    values = content[key]
    if not isinstance(values, list) or not values:
        raise SweepError(f"{key} = {values!r} is not a list, or is empty; write {example}")
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise SweepError(f"{key}: {value!r} is not {'a name' if kind is str else 'a number'}; write {example}")
        if values.count(value) > 1:
            raise SweepError(f"{key}: {value!r} is there twice; remove one")
    return values


def _check_names(key: str, values: Sequence[str], resolve: Callable[[str], str]) -> list[str]:
    """The bare names of NAME or module:NAME, as ``resolve`` finds them. Raises SweepError for one that it does not."""
    by_name: dict[str, str] = {}
    for value in values:
        try:
            name = resolve(value)
        except OptionError as error:
            raise SweepError(str(error)) from error
        except (EnvIdError, RegistryError) as error:
            raise SweepError(f"{key}: {error}") from error
        twin = by_name.setdefault(name, value)
        if twin != value:  # their runs would have the same folders
            raise SweepError(f"{key}: {twin!r} and {value!r} are both {name}; remove one")
    return list(by_name)


def _check_options(algorithm: str, options: Any, tasks: Sequence[str]) -> None:
    """Let the algorithm read its own options, for every task."""
    from mikasa_robo.baselines.arguments import ArgumentError
    from mikasa_robo.baselines.command import parse_args

    if not isinstance(options, dict):
        raise SweepError(
            f"options.{algorithm} = {options!r} is not a table; write [options.{algorithm}] above the options"
        )
    args_type = get_algorithm(algorithm).load().args_type
    for name in RESERVED:
        if name in options:
            raise SweepError(f"options.{algorithm}.{name} is set by the sweep itself; remove it")
    fields = [field.name for field in dataclasses.fields(args_type) if field.name not in RESERVED]
    _refuse_unknown(options, fields, f"options.{algorithm}.")
    for task in tasks:
        run = PlannedRun(task, algorithm, 0, options)
        # A folder that cannot exist: whether the run's own folder is free is checked elsewhere.
        words = run.arguments(Path(os.devnull) / "run")
        refusal = open(os.devnull, "w")  # noqa: SIM115
        with refusal, contextlib.redirect_stdout(refusal), contextlib.redirect_stderr(refusal):
            try:
                args = parse_args(args_type, words, "")
            except SystemExit:
                args = None
            except (ArgumentError, EnvIdError, RegistryError) as error:
                raise SweepError(f"options.{algorithm}: {error}") from error
        if args is None:
            raise SweepError(
                f"options.{algorithm}: `mikasa train {algorithm} {shlex.join(words)}` cannot be read; "
                f"`mikasa train {algorithm} --help` describes the options"
            )
        try:
            args.check()
        except ArgumentError as error:
            raise SweepError(f"options.{algorithm}: {error}") from error


TRAINING = Vocabulary(
    tasks="tasks",
    algorithms="algorithms",
    examples=_EXAMPLES,
    task_name=lambda task: resolve_env_id(task, "tasks:"),
    algorithm_name=lambda name: use_algorithm(name).name,
    check_options=_check_options,
)
"""Tasks and algorithms of `mikasa train`."""
