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
from types import MappingProxyType
from typing import Any

from mikasa_robo.baselines.arguments import LABEL
from mikasa_robo.baselines.registry import RegistryError, get_algorithm, use_algorithm
from mikasa_robo.env_ids import EnvIdError, split_env_id

from .env_ids import OptionError, resolve_env_id

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Plan", "PlannedRun", "SweepError", "read_plan"]

RESERVED = ("env_id", "seed", "run_dir", "resume", "label")
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
    variant: str | None = None  # its name, where the file has several sets of options for an algorithm

    @property
    def name(self) -> str:
        """Name of its folder and of its log, without modules."""
        return f"{self.task}__{self.variant or self.algorithm_name}__{self.seed}"

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
        if self.variant is not None:
            fixed["label"] = self.variant
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


def read_plan(path: Path) -> Plan:
    """Read and check the file of a sweep.

    Raises:
        SweepError: the file is not TOML, or a key or value in it cannot be used.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise SweepError(f"{path} cannot be read: {error.strerror}; name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SweepError(f"{path} is not a TOML file: {error}") from error
    known = ("out", "tasks", "algorithms", "seeds", "cpus_per_run", "retries", "options", "variant")
    _refuse_unknown(content, known, "")
    for key in known[:4]:
        if key not in content and not (key == "algorithms" and "variant" in content):
            raise SweepError(f"{key} is missing; add {_EXAMPLES[key]}")
    if not isinstance(content["out"], str) or not content["out"]:
        raise SweepError(f"out = {content['out']!r} is not the name of a folder; write {_EXAMPLES['out']}")
    tasks, seeds = (_list(content, key, kind) for key, kind in (("tasks", str), ("seeds", int)))
    algorithms = _list(content, "algorithms", str) if "algorithms" in content else []
    variants = _variants(content["variant"]) if "variant" in content else []
    if min(seeds) < 0:
        raise SweepError(f"seeds: {min(seeds)} is negative; use numbers of at least 0")
    cpus, retries, options = content.get("cpus_per_run", 1), content.get("retries", 2), content.get("options", {})
    if not isinstance(cpus, int | float) or isinstance(cpus, bool) or not cpus > 0:
        raise SweepError(f"cpus_per_run = {cpus!r} is not a number above 0; write cpus_per_run = 1")
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise SweepError(f"retries = {retries!r} is not a whole number of at least 0; write retries = 2")
    if not isinstance(options, dict):
        raise SweepError(f"options = {options!r} is not a table; write [options.ppo-mlp] above the options")
    names = _check_names("algorithms", algorithms, lambda name: use_algorithm(name).name)
    _check_names("tasks", tasks, lambda task: resolve_env_id(task, "tasks:"))
    of_variants = dict.fromkeys(variant["algorithm"] for variant in variants)
    shared = _check_names("variant", list(of_variants), lambda name: use_algorithm(name).name)
    own_name = dict(zip(of_variants, shared, strict=True))
    _refuse_unknown(options, list(dict.fromkeys([*names, *shared])), "options.")
    sets: list[tuple[str, str | None, Mapping[str, Any]]] = []  # algorithm, name of the variant, options
    for name, algorithm in zip(names, algorithms, strict=True):
        _check_options(name, options.get(name, {}), tasks, f"options.{name}")
        sets.append((algorithm, None, options.get(name, {})))
    for variant in variants:
        label, algorithm = variant["name"], variant["algorithm"]
        own = {key: value for key, value in variant.items() if key not in ("name", "algorithm")}
        if label in names:
            raise SweepError(f"variant {label}: an algorithm of this sweep has that name; choose another")
        _check_options(own_name[algorithm], own, tasks, f"variant {label}", options.get(own_name[algorithm], {}))
        sets.append((algorithm, label, {**options.get(own_name[algorithm], {}), **own}))
    runs = tuple(
        PlannedRun(task, algorithm, seed, values, cpus, label)
        for task in tasks
        for algorithm, label, values in sets
        for seed in seeds
    )
    return Plan(Path(content["out"]), runs, retries)


def _variants(found: Any) -> list[dict[str, Any]]:
    """The tables [[variant]], each with a name of its own and an algorithm."""
    example = '[[variant]] with name = "gsde", algorithm = "ppo-mlp" and options such as exploration = "gsde"'
    if not found or not isinstance(found, list) or not all(isinstance(variant, dict) for variant in found):
        raise SweepError(f"variant = {found!r} is not a list of tables, or is empty; write {example}")
    for variant in found:
        for key in ("name", "algorithm"):
            if not isinstance(variant.get(key), str):
                raise SweepError(f"variant {variant.get('name', '')}: {key} is missing or no text; write {example}")
        if not LABEL.fullmatch(variant["name"]):
            raise SweepError(
                f"variant {variant['name']!r} cannot name a folder; use letters, digits, dots, hyphens and underscores"
            )
    names = [variant["name"] for variant in found]
    for name in names:
        if names.count(name) > 1:
            raise SweepError(f"variant {name} is there twice; rename or remove one")
    return found


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


def _list(content: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    values = content[key]
    if not isinstance(values, list) or not values:
        raise SweepError(f"{key} = {values!r} is not a list, or is empty; write {_EXAMPLES[key]}")
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise SweepError(
                f"{key}: {value!r} is not {'a name' if kind is str else 'a number'}; write {_EXAMPLES[key]}"
            )
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


def _check_options(
    algorithm: str, options: Any, tasks: Sequence[str], where: str, shared: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Let the algorithm read its own options, for every task.

    Args:
        algorithm: its bare name.
        options: what the file has for it, or for one of its variants.
        tasks: of the sweep.
        where: the options are in the file.
        shared: options of the algorithm that ``options`` are added to.
    """
    from mikasa_robo.baselines.arguments import ArgumentError
    from mikasa_robo.baselines.command import parse_args

    if not isinstance(options, dict) or not isinstance(shared, Mapping):
        raise SweepError(
            f"options.{algorithm} = {options!r} is not a table; write [options.{algorithm}] above the options"
        )
    args_type = get_algorithm(algorithm).load().args_type
    fields = [field.name for field in dataclasses.fields(args_type) if field.name not in RESERVED]
    for place, table in ((f"options.{algorithm}", shared), (where, options)):
        for name in RESERVED:
            if name in table:
                raise SweepError(f"{place}.{name} is set by the sweep itself; remove it")
        _refuse_unknown(table, fields, f"{place}.")
    for task in tasks:
        run = PlannedRun(task, algorithm, 0, {**shared, **options})
        # A folder that cannot exist: whether the run's own folder is free is checked elsewhere.
        words = run.arguments(Path(os.devnull) / "run")
        refusal = open(os.devnull, "w")  # noqa: SIM115
        with refusal, contextlib.redirect_stdout(refusal), contextlib.redirect_stderr(refusal):
            try:
                args = parse_args(args_type, words, "")
            except SystemExit:
                args = None
            except (ArgumentError, EnvIdError, RegistryError) as error:
                raise SweepError(f"{where}: {error}") from error
        if args is None:
            raise SweepError(
                f"{where}: `mikasa train {algorithm} {shlex.join(words)}` cannot be read; "
                f"`mikasa train {algorithm} --help` describes the options"
            )
        try:
            args.check()
        except ArgumentError as error:
            raise SweepError(f"{where}: {error}") from error
