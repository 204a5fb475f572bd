"""``mikasa submit``: checks an evaluation for the leaderboard, and plays some of its episodes again; docs/leaderboard.md.

mikasa submit check eval-RememberColor3-v0-ppo-lstm.json --episodes 5
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mikasa_robo.baselines.option_words import replace_env_kwargs
from mikasa_robo.terminal import print_error, printable

from .env_ids import OptionError
from .leaderboard import CONTENT_HASH, LEADERBOARD_FORMAT, find_leaderboard_problems, find_problems
from .progress import say
from .runs import CHANGED, SAMPLED

if TYPE_CHECKING:
    from mikasa_robo.baselines.arguments import CommonArgs

__all__ = ["Check", "Show", "main", "replay"]

FLAGS = ("success_once", "success_at_end", "fail_once", "lengths")
"""Columns that have to be the same."""
TOLERANCE = 1e-4
"""Relative and absolute difference of returns that is rounding: a product of matrices rounds by the number of its rows."""


@dataclass
class Check:
    """Check a file: its hash and its form, and some of its episodes, which are played again. Exit code 1 if it is wrong."""

    file: tyro.conf.Positional[Path]
    """A file of `mikasa eval`, or a leaderboard, of which only hashes and forms are checked."""
    checkpoint: tuple[Path, ...] = ()
    """The policies that were evaluated; by default those that the file names. They are known by their SHA-256."""
    episodes: int = 5
    """Episodes of each policy that are played again, chosen at random; 0 for none."""
    sim_backend: str | None = None
    """Physics backend of robot tasks; by default that of the evaluation."""
    env_id: str | None = None
    """Only needed for a task of your own, as module:ID: a module is imported only where you name it."""
    algorithm: str | None = None
    """Likewise for an algorithm of your own, as module:NAME."""
    network: str | None = None
    """Likewise for a network of your own."""
    memory: str | None = None
    """Likewise for a memory of your own, as module:Class."""


@dataclass
class Show:
    """Print what is in a file of `mikasa eval`, or in a leaderboard."""

    file: tyro.conf.Positional[Path]
    """The file."""


_Command = Annotated[Check, tyro.conf.subcommand("check")] | Annotated[Show, tyro.conf.subcommand("show")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    # Any: tyro takes a union of commands, for which typing has no name.
    command_type: Any = _Command
    command = tyro.cli(command_type, args=argv, prog="mikasa submit", description="Files for the leaderboard.")
    try:
        content = _read(command.file)
        if isinstance(command, Show):
            print(_describe(content))
            return 0
        return _check(content, command)
    except (OptionError, FileNotFoundError, ModuleNotFoundError) as error:
        print_error(error)
        return 2


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{path} cannot be read ({error}); pass a file that `mikasa eval` wrote") from error
    if not isinstance(content, dict):
        raise OptionError(f"{path} holds no JSON object; pass a file that `mikasa eval` wrote")
    try:
        json.dumps(content)
    except RecursionError as error:  # what can be read cannot always be written
        raise OptionError(f"{path} is nested too deeply; pass a file that `mikasa eval` wrote") from error
    return content


def _is_leaderboard(content: Mapping[str, Any]) -> bool:
    return content.get("format") == LEADERBOARD_FORMAT


def _describe(content: Mapping[str, Any]) -> str:
    from .evaluate import describe

    problems = find_leaderboard_problems(content) if _is_leaderboard(content) else find_problems(content)
    if problems:
        raise OptionError("\n".join(map(printable, problems)))
    if not _is_leaderboard(content):
        return f"{describe(content)}\n{CONTENT_HASH}: {content[CONTENT_HASH]}"
    blocks = [
        f"{printable(', '.join((entry['name'], entry['date'], entry['url'])))}\n{_describe(entry['evaluation'])}"
        for entry in content["entries"]
    ]
    return "\n\n".join(blocks) or "no entries"


def _check(content: Mapping[str, Any], options: Check) -> int:
    if options.episodes < 0:
        raise OptionError(f"--episodes {options.episodes} must be at least 0")
    if _is_leaderboard(content):
        problems = find_leaderboard_problems(content)
        done = f"{len(content['entries'])} entries" if isinstance(content.get("entries"), list) else "no entries"
    else:
        problems, done = find_problems(content), "nothing was played again"
        if not problems and options.episodes:
            from mikasa_robo.baselines.checkpoints import CheckpointError
            from mikasa_robo.baselines.networks import NaNPolicyError

            try:
                problems, done = replay(content, options)
            except (CheckpointError, NaNPolicyError) as error:
                raise OptionError(str(error)) from error
    for problem in problems:
        print(printable(problem))
    print(f"{options.file}: {done}; {f'{len(problems)} problems' if problems else 'as it says'}")
    return 1 if problems else 0


def replay(
    content: Mapping[str, Any],
    options: Check,
    make_factory: Callable[[CommonArgs], Callable[[int, str | None], Any]] | None = None,
) -> tuple[list[str], str]:
    """Play some episodes of an evaluation without problems again.

    Args:
        content: the evaluation.
        options: see `Check`.
        make_factory: as for `evaluate.evaluate_checkpoints`.

    Returns:
        What differs from the file, and what was played, in words.

    Raises:
        OptionError, CheckpointError, FileNotFoundError: a policy is not there or is not the one that was evaluated.
    """
    import gymnasium as gym

    from mikasa_robo.baselines.command import env_factory
    from mikasa_robo.baselines.environments import is_maniskill_task
    from mikasa_robo.baselines.evaluation import whole_rounds
    from mikasa_robo.env_ids import EnvIdError

    from .checkpoint import import_foreign, read_checkpoint, resolve_checkpoint_env_id
    from .evaluate import require_robot_task

    import_foreign(options.algorithm, options.network, options.memory)
    runs = content["runs"]
    paths = options.checkpoint or tuple(
        Path(run["checkpoint"]) for run in runs if isinstance(run.get("checkpoint"), str)
    )
    checkpoints = [read_checkpoint(path, options.memory) for path in paths]
    known = {checkpoint.sha256: checkpoint for checkpoint in checkpoints}
    problems: list[str] = []
    chosen = sorted(
        random.sample(range(content["seeds"]["episodes"]), min(options.episodes, content["seeds"]["episodes"]))
    )
    played = 0
    for number, run in enumerate(runs):
        checkpoint = known.get(run.get("sha256"))
        if checkpoint is None:
            found = ", ".join(f"{known[digest].path} ({digest[:16]}…)" for digest in known) or "none"
            raise OptionError(
                f"--checkpoint: runs[{number}] is of a policy with the SHA-256 {str(run.get('sha256'))[:16]}…, and there is "
                f"{found}; name its file, or give --episodes 0 to check the file alone"
            )
        resolve_checkpoint_env_id(checkpoint, options.env_id)
        require_robot_task(checkpoint.env_id, options.sim_backend)
        if differing := _differing(content, run, checkpoint):
            problems += [f"runs[{number}]: {text}" for text in differing]
            continue
        trained = dataclasses.replace(checkpoint.args, env_id=checkpoint.env_id, num_workers=None)
        trained.env_kwargs = tuple(content["settings"]["env_kwargs"])
        trained.sim_backend = options.sim_backend or content["settings"]["sim_backend"]
        say(f"{checkpoint.path}: playing the episodes {', '.join(map(str, chosen))}")
        batch = _batch_size(content, options.file) if is_maniskill_task(trained.env_id) else None
        indices = whole_rounds(chosen, batch, content["seeds"]["episodes"]) if batch else chosen
        with contextlib.ExitStack() as stack:
            try:
                env: Any = (make_factory or env_factory)(trained)(batch or len(chosen), None)
            except (EnvIdError, MemoryError, RuntimeError, ValueError, gym.error.Error) as error:
                raise OptionError(f"{options.file}: cannot make {trained.env_id}: {error}") from error
            stack.callback(env.close)
            outcomes = _play(checkpoint, env, indices, content.get("actions") == SAMPLED)
        played += 1
        for k in chosen:
            problems += [f"runs[{number}], episode {k}: {text}" for text in _compare(run["episodes"], k, outcomes[k])]
    if not played:
        return problems, "nothing was played again"
    policies = f"{played} {'policy' if played == 1 else 'policies'}"
    return problems, f"episodes {', '.join(map(str, chosen))} of {policies} were played again"


def _batch_size(content: Mapping[str, Any], file: Path) -> int:
    """How many episodes of an evaluation were played at a time. Raises OptionError where the file does not say it."""
    num_envs, episodes = content.get("num_envs"), content["seeds"]["episodes"]
    if type(num_envs) is not int or not 1 <= num_envs <= episodes:
        raise OptionError(
            f"{file}: its num_envs is {num_envs!r}, not from 1 to {episodes}; give --episodes 0 to check the file alone"
        )
    return num_envs


def _differing(content: Mapping[str, Any], run: Mapping[str, Any], checkpoint: Any) -> list[str]:
    """What an evaluation says about its policy, or has as settings, and is not so: the task could have been made easier."""
    from .evaluate import SHARED_ARGS

    pairs = [
        ("env_id", content["env_id"], checkpoint.env_id),
        ("algorithm", content["algorithm"], checkpoint.algorithm),
        ("seed", run["seed"], checkpoint.args.seed),
        ("training_steps", run["training_steps"], checkpoint.step),
    ]
    for name in SHARED_ARGS:
        told = content["settings"][name]
        ours = json.loads(json.dumps(getattr(checkpoint.args, name)))
        if name == "sim_backend":  # it is free
            continue
        if name == "env_kwargs":  # in any order, and with those that the evaluation changed
            told, ours = sorted(told), sorted(replace_env_kwargs(ours, content.get(CHANGED, ())))
        elif name == "obs" and run.get("checkpoint") is None:
            # The evaluation of a served policy may have them spelt out, or as a default of its own.
            told, ours = _played_obs(told, checkpoint)
        pairs.append((name, told, ours))
    pairs += _pairs_of_arguments(content, run, checkpoint)
    return [
        f"{name} is {told} in the file, and {ours} in {checkpoint.path}" for name, told, ours in pairs if told != ours
    ]


def _pairs_of_arguments(
    content: Mapping[str, Any], run: Mapping[str, Any], checkpoint: Any
) -> list[tuple[str, Any, Any]]:
    """Name and value of each training argument, in the file and in the checkpoint; `mikasa report` names agents by them."""
    from mikasa_robo.baselines.arguments import ArgumentError

    told, ours = dict(run["args"]), json.loads(json.dumps(checkpoint.args.to_dict()))
    if run.get("checkpoint") is None:  # of a served policy, with no more than the task that was played
        ours |= {"env_id": content["env_id"], "env_kwargs": content["settings"]["env_kwargs"]}
        return [(f"args.{name}", value, ours.get(name)) for name, value in told.items()]
    try:
        told = json.loads(json.dumps(type(checkpoint.args).from_dict(told).to_dict()))
    except (ArgumentError, TypeError, ValueError) as error:
        return [("args", f"unusable ({error})", "usable")]
    return [(f"args.{name}", told[name], value) for name, value in ours.items()]


def _played_obs(told: str | None, checkpoint: Any) -> tuple[str | None, str | None]:
    """The observations of an evaluation of a served policy, and those of its checkpoint; None where there is no choice."""
    from mikasa_robo.baselines.arguments import CommonArgs
    from mikasa_robo.baselines.environments import choose_obs_mode, is_robot_task

    if not is_robot_task(checkpoint.env_id):
        return None, None
    ours = dataclasses.replace(checkpoint.args, env_id=checkpoint.env_id)
    return choose_obs_mode(CommonArgs(env_id=checkpoint.env_id, obs=told)), choose_obs_mode(ours)


def _play(checkpoint: Any, env: Any, chosen: Sequence[int], sampled: bool) -> dict[int, Any]:
    """The outcomes of the episodes ``chosen``, as many at a time as there are environments.

    Actions are ``sampled``, or the most likely ones.
    """
    from mikasa_robo.baselines.evaluation import Outcome, play_rounds, torch_threads

    from .checkpoint import make_policy, why_unfit
    from .evaluate import FIRST_SEED

    device = env.unwrapped.device
    network = checkpoint.load_network(device)
    if problem := why_unfit(network, env):
        raise OptionError(f"{checkpoint.path} does not fit {checkpoint.env_id} {problem}")
    outcomes: dict[int, Outcome] = {}
    with torch_threads(1):
        policy = make_policy(checkpoint, network, sampled=sampled)
        for _ in play_rounds(policy, env, chosen, outcomes, first_seed=FIRST_SEED, device=device):
            pass
    return outcomes


def _compare(columns: Mapping[str, Sequence[Any]], k: int, outcome: Any) -> list[str]:
    """What an episode had in the file, where it has something else now."""
    found = {name: (columns[name][k], getattr(outcome, name)) for name in (*FLAGS, "returns")}
    return [
        f"{name} is {told} in the file, and {now} here"
        for name, (told, now) in found.items()
        if not (_close(told, now) if name == "returns" else told == now)
    ]


def _close(told: float, now: float) -> bool:
    """Whether two returns are the same to a rounding error, or both are nan."""
    return math.isclose(told, now, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(told) and math.isnan(now))


if __name__ == "__main__":
    sys.exit(main())
