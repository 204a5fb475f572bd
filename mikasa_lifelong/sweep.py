"""``mikasa lifelong sweep sweep.toml``: streams x learners x seeds, each a run of its own, several at a time, on Ray.

    out = "runs/digits"
    streams = ["split-digits", "permuted-digits"]
    learners = ["scn", "ewc"]
    seeds = [1, 2, 3]
    cpus_per_run = 1                  # how many cores Ray sets aside for one run
    retries = 2                       # how often a run that failed is started again

    [options.ewc]                     # options of `mikasa lifelong run` for that learner
    strength = 100.0

    [[variant]]                       # the same learner with other options, in folders of its own
    name = "ewc-0.1"
    learner = "ewc"
    options = { strength = 0.1 }

It is the sweep of `mikasa sweep` with other names: runs that are finished are skipped, others continue where they stopped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import tyro

from mikasa_robo.tools.env_ids import OptionError
from mikasa_robo.tools.sweep import Args, PlannedRun, SweepError, run_file
from mikasa_robo.tools.sweep_plan import Vocabulary

from .arguments import MOST_SEED, RunArgs
from .catalog import find_stream
from .errors import LifelongError
from .learners.registry import find_learner

__all__ = ["WORDS", "main", "run_command"]

RESERVED = ("stream", "learner", "seed", "run_dir", "resume")
"""Options of a run that a sweep sets itself."""
OF_NO_EFFECT = ("protocol", "checkpoint_every", "timed_forwards")
"""Arguments that do not change what a run learns; what ``protocol`` stands for is in ``steps``."""


def run_command(run: PlannedRun, run_dir: Path, resume: bool) -> list[str]:
    """`mikasa lifelong run`, with as many torch threads as the run has cores unless its options say otherwise."""
    words = ["-m", "mikasa_lifelong.command", "run"]
    if resume:
        return [*words, "--resume", str(run_dir)]
    options = {"torch_threads": max(1, int(run.cpus)), **run.options}
    fixed = {"stream": run.env_id, "learner": run.algorithm, "seed": run.seed, "run_dir": run_dir}
    for name, value in {**fixed, **options}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _stream_name(name: str) -> str:
    try:
        return find_stream(name, "streams:").name
    except LifelongError as error:
        raise OptionError(str(error)) from error


def _learner_name(name: str) -> str:
    try:
        return find_learner(name, "learners:").name
    except LifelongError as error:
        raise OptionError(str(error)) from error


def _check_options(where: str, learner: str, options: Mapping[str, Any], stream: str) -> dict[str, Any]:
    """Let the options be read as those of a run on a stream. Returns all arguments of such a run."""
    fields = {field.name for field in dataclasses.fields(RunArgs)}
    hints = get_type_hints(RunArgs)
    for name, value in options.items():
        if name in RESERVED:
            raise SweepError(f"{where}.{name} is set by the sweep itself; remove it")
        if name not in fields:
            raise SweepError(f"{where}.{name} is not known here; `mikasa lifelong run --help` lists the options")
        if isinstance(value, bool) or not _fits(value, hints[name]):
            raise SweepError(f"{where}.{name} = {value!r} is of the wrong kind; see `mikasa lifelong run --help`")
    try:
        data = {"data": Path(options["data"])} if "data" in options else {}
        args = RunArgs(**{"stream": stream, "learner": learner, **options, **data}).completed()
    except LifelongError as error:
        raise SweepError(f"{where}: {error}") from error
    return {name: value for name, value in args.to_dict().items() if name not in (*RESERVED, *OF_NO_EFFECT)}


def _defaults(learner: str) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(RunArgs)}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of a TOML file can be one of ``hint``: a type, a Literal, or a union of these with None."""
    choices = getattr(hint, "__args__", (hint,))
    for choice in choices:
        if isinstance(choice, type):
            if isinstance(value, str if choice is Path else choice) or (choice is float and isinstance(value, int)):
                return True
        elif isinstance(choice, str):
            if value == choice:
                return True
        elif _fits(value, choice):  # a Literal within a union
            return True
    return False


WORDS = Vocabulary(
    tasks="streams",
    algorithms="learners",
    examples={
        "out": 'out = "runs/digits"',
        "streams": 'streams = ["split-digits"]',
        "learners": 'learners = ["sequential", "scn"]',
        "seeds": "seeds = [1, 2, 3]",
    },
    task_name=_stream_name,
    algorithm_name=_learner_name,
    check_options=_check_options,
    defaults=_defaults,
    algorithm="learner",
    most_seed=MOST_SEED,
)
"""What the names in a sweep's file stand for here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code: 1 if a run failed."""
    args = tyro.cli(Args, args=argv, prog="mikasa lifelong sweep", description=__doc__)
    return run_file(args, WORDS, run_command, "mikasa lifelong report")
