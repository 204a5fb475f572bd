"""The file of a sweep: what to train. `sweep` runs it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import fnmatch
import functools
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mikasa_robo.baselines.arguments import MOST_SEED, ArgumentError, require_training_seed
from mikasa_robo.baselines.option_words import option_words
from mikasa_robo.baselines.registry import RegistryError, get_algorithm, use_algorithm, use_memory
from mikasa_robo.env_ids import EnvIdError, split_env_id

from .env_ids import OptionError, resolve_env_id

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["TRAINING", "Plan", "PlannedRun", "SweepError", "Vocabulary", "read_plan"]

RESERVED = ("env_id", "seed", "run_dir", "resume", "variant")
"""Options of the trainers that a sweep sets itself."""
MOST_NAME_BYTES = 255
"""Longest name of a folder on the usual file systems."""
_NAME = re.compile(r"[A-Za-z0-9.+=-]+(_[A-Za-z0-9.+=-]+)*")
"""Names of variants: parts of the names of folders, which two underscores divide."""


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
    variant: str | None = None  # name of a [[variant]]
    args: Mapping[str, Any] | None = None
    """All its arguments, also those at their defaults, as the trainer records them; None where only ``options`` are known.
    Those that the sweep sets itself are not in it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of its algorithm where nothing is asked for. A record from before there was an option is of a run that
    had what is its default now."""

    @property
    def name(self) -> str:
        """Name of its folder and of its log, without modules."""
        return f"{self.task}__{self.label}__{self.seed}"

    @property
    def label(self) -> str:
        """Name of the variant, or of the algorithm."""
        return self.variant or self.algorithm_name

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
        fixed: dict[str, Any] = {"env_id": self.env_id, "seed": self.seed, "run_dir": run_dir}
        if self.variant is not None:
            fixed["variant"] = self.variant
        return [word for name, value in {**fixed, **self.options}.items() for word in option_words(name, value)]


@dataclass(frozen=True)
class Plan:
    """What the file of a sweep says."""

    out: Path
    runs: tuple[PlannedRun, ...]
    retries: int = 2
    left_out: tuple[PlannedRun, ...] = ()
    """Other runs of the file, which are not to be made now."""


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
    check_options: Callable[[str, str, Mapping[str, Any], str], Mapping[str, Any] | None]
    """Called with where in the file the options are, the algorithm's bare name, its options and a task. Returns all
    arguments of such a run (see `PlannedRun`), or None. Raises SweepError for an option that cannot be used."""
    defaults: Callable[[str], Mapping[str, Any]]
    """Called with the algorithm's bare name. Returns its arguments where nothing is asked for."""
    check_seed: Callable[[int, Mapping[str, Any]], None] = lambda seed, args: None
    """Called with a seed and all arguments of a run, where they are known. Raises SweepError for one that cannot be used."""
    algorithm: str = "algorithm"
    """The key of a [[variant]] that names its algorithm."""
    most_seed: int = 2**63 - 1
    """The largest seed of a run."""


def read_plan(path: Path, words: Vocabulary | None = None) -> Plan:
    """Read and check the file of a sweep; ``words`` are by default those of `mikasa train`.

    Raises:
        SweepError: the file is not TOML, or a key or value in it cannot be used.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SweepError(f"{path} cannot be read: {error.strerror}; name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SweepError(f"{path} is not a TOML file: {error}") from error
    except RecursionError as error:
        raise SweepError(f"{path} has lists or tables nested too deeply; write it as docs/training.md shows") from error
    words = words or TRAINING
    known = [
        "out",
        words.tasks,
        words.algorithms,
        "seeds",
        "cpus_per_run",
        "retries",
        "options",
        "task_options",
        "variant",
    ]
    _refuse_unknown(content, known, "")
    variants = content.get("variant", [])
    for key in known[:4]:
        if key not in content and not (key == words.algorithms and variants):
            raise SweepError(f"{key} is missing; add {words.examples[key]}")
    if not isinstance(content["out"], str) or not content["out"]:
        raise SweepError(f"out = {content['out']!r} is not the name of a folder; write {words.examples['out']}")
    if "\0" in content["out"] or any(len(os.fsencode(part)) > MOST_NAME_BYTES for part in Path(content["out"]).parts):
        raise SweepError(
            f"out = {content['out']!r:.80} is no name that a folder can have; write {words.examples['out']}"
        )
    tasks, seeds = (
        _list(content, key, kind, words.examples[key]) for key, kind in ((words.tasks, str), ("seeds", int))
    )
    algorithms: list[str] = []
    if words.algorithms in content:
        algorithms = _list(content, words.algorithms, str, words.examples[words.algorithms])
    if min(seeds) < 0:
        raise SweepError(f"seeds: {min(seeds)} is negative; use numbers of at least 0")
    if max(seeds) > words.most_seed:
        raise SweepError(f"seeds: {max(seeds)} is too large; use numbers of at most {words.most_seed}")
    cpus, retries = content.get("cpus_per_run", 1), content.get("retries", 2)
    if not isinstance(cpus, int | float) or isinstance(cpus, bool) or not 0 < cpus < math.inf:
        raise SweepError(f"cpus_per_run = {cpus!r} is not a finite number above 0; write cpus_per_run = 1")
    if cpus > 1 and cpus != int(cpus):
        raise SweepError(f"cpus_per_run = {cpus!r}: Ray shares one core among runs, but not more; write a whole number")
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise SweepError(f"retries = {retries!r} is not a whole number of at least 0; write retries = 2")
    names = _check_names(words.algorithms, algorithms, words.algorithm_name)
    labels = _variant_labels(variants, names, words)
    _check_names(words.tasks, tasks, words.task_name)
    known_names = list(dict.fromkeys([*names, *(words.algorithm_name(entry[words.algorithm]) for entry in variants)]))
    options, by_task = _table(content, "options", known_names[0]), _table(content, "task_options", '"Intercept*"')
    _refuse_unknown(options, known_names, "options.")
    for name in known_names:
        _require_table(f"options.{name}", options.get(name, {}))
    for pattern, changes in by_task.items():
        _require_table(f"task_options.{pattern}", changes)
        if not any(fnmatch.fnmatchcase(split_env_id(task)[1], pattern) for task in tasks):
            raise SweepError(
                f"task_options.{pattern} is for none of the tasks; write the ID of one, or a pattern as Remember*"
            )
    agents: list[tuple[str, str, str | None, dict[str, Any]]]
    agents = [(name, algorithm, None, options.get(name, {})) for name, algorithm in zip(names, algorithms, strict=True)]
    for variant, entry in zip(labels, variants, strict=True):
        name = words.algorithm_name(entry[words.algorithm])
        agents.append((name, entry[words.algorithm], variant, {**options.get(name, {}), **entry.get("options", {})}))
    runs = []
    for task in tasks:
        task_name = split_env_id(task)[1]
        own = [changes for pattern, changes in by_task.items() if fnmatch.fnmatchcase(task_name, pattern)]
        for name, algorithm, label, common in agents:
            merged = {key: _of_task(value, task_name) for changes in (common, *own) for key, value in changes.items()}
            args = words.check_options(f"options.{name}" if label is None else f"variant {label}", name, merged, task)
            merged = {key: _as_list_where_one_is(value, key, args) for key, value in merged.items()}
            if args is not None:
                for seed in seeds:
                    words.check_seed(seed, args)
            defaults = words.defaults(name)
            runs += [PlannedRun(task, algorithm, seed, merged, cpus, label, args, defaults) for seed in seeds]
    return Plan(Path(content["out"]), tuple(runs), retries)


def _of_task(value: Any, task: str) -> Any:
    """An option of one task: "{task}" in a text is the task's ID."""
    return value.replace("{task}", task) if isinstance(value, str) else value


def _as_list_where_one_is(value: Any, key: str, args: Mapping[str, Any] | None) -> Any:
    """An option as its run records it: a single value of an option that takes several is a list of one."""
    return [value] if args is not None and isinstance(args.get(key), list) and not isinstance(value, list) else value


def _table(content: Mapping[str, Any], key: str, example: str) -> dict[str, Any]:
    value = content.get(key, {})
    if not isinstance(value, dict):
        raise SweepError(f"{key} = {value!r} is not a table; write [{key}.{example}] above the options")
    return value


def _require_table(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise SweepError(f"{key} = {value!r} is not a table; write [{key}] above the options")


def _variant_labels(variants: Any, algorithms: Sequence[str], words: Vocabulary) -> list[str]:
    """The names of the tables under [[variant]]. Raises SweepError for one that cannot be used."""
    if not isinstance(variants, list):
        raise SweepError(
            f"variant is not a list of tables; write [[variant]] above name, {words.algorithm} and options"
        )
    labels: list[str] = []
    for number, entry in enumerate(variants, 1):
        _require_table(f"variant number {number}", entry)
        where = f"variant number {number}: "
        for key in ("name", words.algorithm):
            if not isinstance(entry.get(key), str):
                raise SweepError(f'{where}{key} is missing, or is no text; add {key} = "…"')
        _refuse_unknown(entry, ("name", words.algorithm, "options"), f"variant {entry['name']}: ")
        _require_table(f"variant {entry['name']}: options", entry.get("options", {}))
        if not _NAME.fullmatch(entry["name"]):
            raise SweepError(
                f"{where}name = {entry['name']!r} cannot be part of a folder's name; "
                "use letters, digits, . - + = and single _"
            )
        if entry["name"] in (*labels, *algorithms):  # their runs would have the same folders
            raise SweepError(f"{where}name = {entry['name']!r} is there twice; choose another")
        _check_names(f"variant {entry['name']}: {words.algorithm}", [entry[words.algorithm]], words.algorithm_name)
        labels.append(entry["name"])
    return labels


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


def _check_options(where: str, algorithm: str, options: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Let the algorithm read its own options, for a task. Returns all arguments of such a run, those of a preset too."""
    from mikasa_robo.baselines.command import parse_args

    args_type = get_algorithm(algorithm).load().args_type
    for name in RESERVED:
        if name in options:
            raise SweepError(f"{where}.{name} is set by the sweep itself; remove it")
    start = options.get("init_from", "")
    if not isinstance(start, str) or "\0" in start:
        raise SweepError(f"{where}.init_from = {start!r} is not the name of a policy; write a path in quotes")
    fields = [field.name for field in dataclasses.fields(args_type) if field.name not in RESERVED]
    _refuse_unknown(options, fields, f"{where}.")
    run = PlannedRun(task, algorithm, 0, options)
    # A folder that cannot exist: whether the run's own folder is free is checked elsewhere.
    words = run.arguments(Path(os.devnull) / "run")
    refusal = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
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
    recorded = {name: value for name, value in args.to_dict().items() if name not in RESERVED}
    if "dataset" in options:  # the data of some tasks may come later: each run looks for its own
        args = dataclasses.replace(args, dataset=os.curdir)
    args = dataclasses.replace(args, seed=MOST_SEED)  # one that no evaluation has: seeds are checked apart
    try:
        args.check()
        _check_without_simulator(args)
    except ArgumentError as error:
        raise SweepError(f"{where}: {error}") from error
    return recorded


def _check_without_simulator(args: Any) -> None:
    """Raise ArgumentError where a run would refuse these arguments later, as far as that shows without an environment."""
    from mikasa_robo.baselines.command import env_factory
    from mikasa_robo.baselines.memory_arguments import MemoryArgs
    from mikasa_robo.catalog import CATALOG
    from mikasa_robo.core.observations import parse_modes

    env_factory(args)  # makes none yet
    if args.obs is not None and args.env_id in CATALOG:
        try:
            modes = parse_modes(args.obs)
        except ValueError as error:
            raise ArgumentError(f"--obs {args.obs}: {error}") from error
        if not modes.parts:
            raise ArgumentError(f"--obs {args.obs} gives nested observations; use state, or parts joined with '+'")
    if isinstance(args, MemoryArgs) and args.network_module is None:  # a network of the user's own may have no memory
        _check_memory(args.memory, args.hidden_size, args.memory_kwargs)


@functools.cache
def _check_memory(name: str, size: int, words: tuple[str, ...]) -> None:
    """Raise ArgumentError where there is no such memory, or one of the user's own is faulty. Cached for many tasks."""
    import torch

    from mikasa_robo.baselines.memory import make_memory
    from mikasa_robo.baselines.memory.contract import check_memory
    from mikasa_robo.baselines.memory_arguments import named_memory_errors
    from mikasa_robo.baselines.option_words import read_kwargs

    options = read_kwargs(words, "--memory-kwargs")
    with named_memory_errors(argparse.Namespace(memory=name, memory_kwargs=words)):
        if use_memory(name).module is None:
            with torch.device("meta"):  # takes no storage
                make_memory(name, size, hidden_size=size, **options)
        else:  # it may compute with numbers, which tensors without storage do not have
            with contextlib.suppress(RuntimeError):  # such as a lack of memory: each run finds out by itself
                check_memory(make_memory(name, size, hidden_size=size, **options), options)


def _check_seed(seed: int, args: Mapping[str, Any]) -> None:
    try:
        require_training_seed(seed, args)
    except ArgumentError as error:
        raise SweepError(f"seeds: {error}") from error


def _defaults(algorithm: str) -> dict[str, Any]:
    args: dict[str, Any] = get_algorithm(algorithm).load_args_type()().to_dict()
    return args


TRAINING = Vocabulary(
    tasks="tasks",
    algorithms="algorithms",
    examples=_EXAMPLES,
    task_name=lambda task: resolve_env_id(task, "tasks:"),
    algorithm_name=lambda name: use_algorithm(name).name,
    check_options=_check_options,
    defaults=_defaults,
    check_seed=_check_seed,
    most_seed=MOST_SEED,
)
"""Tasks and algorithms of `mikasa train`."""
