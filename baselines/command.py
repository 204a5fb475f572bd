"""The command line ``mikasa train``: from words to arguments, environments and a run."""

from __future__ import annotations

import dataclasses
import errno
import functools
import importlib
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import tyro

import mikasa_suite
from mikasa_robo.env_ids import EnvIdError, import_env_id, split_env_id
from mikasa_robo.partial_files import remove_leftovers
from mikasa_robo.terminal import print_error

from .arguments import ArgumentError, CommonArgs, changed_option, non_default_options, read_env_kwargs
from .files import why_not_writable
from .presets import choose_preset
from .registry import NETWORKS, AlgorithmSpec, RegistryError, get_network, use_algorithm, use_memory, use_network

if TYPE_CHECKING:  # these load torch, and `--help` must not
    from .distributed import DistContext
    from .environments import EnvFactory

__all__ = ["env_factory", "main", "parse_args", "refuse_robot_options"]

ROBOT_OPTIONS = "reward_mode control_mode sim_backend train_to_horizon"
"""Fields of the arguments that only robot tasks read."""

log = logging.getLogger(__name__)

Args = TypeVar("Args", bound=CommonArgs)


def main(algorithm: str, argv: Sequence[str] | None = None) -> int:
    """``mikasa train ALGORITHM ...``; returns the exit status.

    Args:
        algorithm: a registered name, or ``module:NAME`` for a module that registers it.
        argv: the words after it; by default those of this process.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    program = f"mikasa train {algorithm}"
    try:
        spec = use_algorithm(algorithm)
        tyro.cli(spec.load_args_type(), args=argv, prog=program)  # --help ends here
    except (ArgumentError, EnvIdError, RegistryError) as error:
        print_error(error)
        return 2
    if sys.stderr.isatty():
        print("loading torch and the simulator ...", file=sys.stderr, flush=True)
    return _train(spec, argv, program)


def _train(spec: AlgorithmSpec, argv: Sequence[str], program: str) -> int:
    from . import training
    from .checkpoints import CheckpointError
    from .distributed import join_processes
    from .environments import check_env_id
    from .loggers import configure_logging

    importlib.import_module("torch.utils.tensorboard")  # if it is missing, fail before there is a run folder
    configure_logging()
    run_dir = None
    try:
        with join_processes() as dist:
            args = parse_args(spec.load_args_type(), argv, program)
            args.check()
            if args.resume is None:
                args = dataclasses.replace(args, run_dir=args.default_run_dir())
            if dist.is_main:
                _require_run_dir(args)
            check_env_id(args.env_id, args.env_module)
            run_dir = args.resume or args.run_dir
            command = [*program.split(), *argv]
            training.train(args, env_factory(args, dist), command, dist, env_factory(args, dist, training=True))
    except (ArgumentError, CheckpointError, EnvIdError, RegistryError, FileExistsError) as error:
        print_error(error)
        return 2
    except FloatingPointError as error:
        print_error(error)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        print(f"{error}; make room, then continue with --resume", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else "the machine has no more"
        print(
            f"too little memory ({reason}); use fewer --num-envs or --num-steps, or a smaller network", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt as error:
        code = mikasa_suite.exit_code(error)
        mikasa_suite.tell(code, _what_is_left(run_dir))
        return code
    return 0


def _what_is_left(run_dir: Path | None) -> str:
    """What an interrupted training has to say."""
    if run_dir is None or not run_dir.is_dir():
        return "nothing was written"
    if any(run_dir.glob("resume-*.pt")):
        return f"{run_dir} keeps what was written so far, and --resume {run_dir} continues it"
    return f"{run_dir} keeps what was written so far"


def _require_run_dir(args: CommonArgs) -> None:
    """Raise ArgumentError where the folder of the run cannot be written to, FileExistsError where something is in it."""
    option = "--run-dir" if args.resume is None else "--resume"
    run_dir = args.default_run_dir() if args.resume is None else args.resume
    problem = why_not_writable(run_dir, "checkpoint.pt")
    if problem is not None and not os.path.isfile(run_dir):
        raise ArgumentError(f"{option} {run_dir}: {problem}; choose another folder")
    if args.resume is None:
        from .loggers import require_free

        remove_leftovers(run_dir)
        require_free(run_dir)


def parse_args(args_type: type[Args], argv: Sequence[str], program: str) -> Args:
    """The arguments of a command line, with the values of a preset or of the run to continue as defaults.

    Imports the modules that the words name in ``module:ID`` and ``module:NAME``, and no others.

    Raises:
        ArgumentError: there is no such preset, network or environment, or an option differs from the run to continue.
        EnvIdError, RegistryError: a name is malformed or unknown.
        CheckpointError: there is no run to continue.
    """
    args = _with_modules(tyro.cli(args_type, args=argv, prog=program))
    # The words alone, and not what a run to continue says: nothing is imported because a file names it.
    if isinstance(memory := getattr(args, "memory", None), str):
        use_memory(memory)
    if args.resume is not None:
        return _resumed_args(args, argv, program)
    preset = choose_preset(args.preset, args.env_id, args.obs, args.algorithm)
    if "train_env_kwargs" in preset:  # those of --train-env-kwargs replace them all
        given = {word.partition("=")[0] for word in args.env_kwargs}
        words = (word for word in preset["train_env_kwargs"] if word.partition("=")[0] not in given)
        preset["train_env_kwargs"] = tuple(words)
    known = {field.name for field in dataclasses.fields(args_type)}
    preset = {name: value for name, value in preset.items() if name in known}
    preset = _fitting_network(preset, args_type(**preset), args.network_name)

    def parsed(defaults: dict[str, Any]) -> Args:
        return _with_modules(tyro.cli(args_type, args=argv, prog=program, default=args_type(**defaults)))

    share = preset.pop("curriculum_share", 1.0)  # of the preset's own --train-env-kwargs, and of no others
    chosen = parsed(preset)
    if not chosen.normalize_obs and preset.pop("fine_inputs", 0):  # which needs the running statistics
        log.info("--no-normalize-obs leaves out --fine-inputs of the preset")
        chosen = parsed(preset)
    if chosen.train_env_kwargs and chosen.train_env_kwargs == preset.get("train_env_kwargs"):
        if share < 1:
            chosen = parsed({**preset, "curriculum_share": share})
        log.info(
            "the preset trains with --train-env-kwargs %s%s; evaluations play the task itself",
            shlex.join(chosen.train_env_kwargs),
            f" in the first {chosen.curriculum_share:.0%} of the steps" if chosen.curriculum_share < 1 else "",
        )
    refuse_robot_options(chosen)
    return chosen


def _fitting_network(preset: dict[str, Any], as_args: CommonArgs, network: str) -> dict[str, Any]:
    """A preset without the options that the chosen network does not take: nobody asked for these two together.

    Args:
        preset: values by the names of their fields.
        as_args: the arguments of a run that has these values, and defaults for the rest.
        network: name of the chosen network.
    """
    asked = as_args.asked_of_network()
    if not asked and network == as_args.default_network:
        return preset
    network_class = get_network(network).load()
    taken: frozenset[str] = getattr(network_class, "ppo_options", frozenset())
    left_out = {name: option for name, option in asked.items() if option not in taken}
    sizes = getattr(network_class, "sizes_left_out", lambda: ())()
    left_out |= {name: f"--{name.replace('_', '-')}" for name in sizes if name in preset}
    if left_out:
        log.info("--network %s does not take %s of the preset", network, " and ".join(left_out.values()))
    return {name: value for name, value in preset.items() if name not in left_out}


def refuse_robot_options(args: CommonArgs) -> None:
    """Raise ArgumentError for an option that does nothing in an environment that is no robot task."""
    from .environments import is_robot_task

    if args.env_id not in gym.registry or is_robot_task(args.env_id):
        return
    for option in non_default_options(args, ROBOT_OPTIONS):
        raise ArgumentError(f"{option} is for robot tasks, and {args.env_id} is none; leave it out")


def _with_modules(args: Args) -> Args:
    """``args`` with bare names of environment and network, and the modules that register them, which are imported."""
    module, _ = split_env_id(args.env_id)
    changes: dict[str, Any] = {"env_id": import_env_id(args.env_id)}
    if module is not None:
        changes["env_module"] = module
    if args.network_module is not None and args.network_name not in NETWORKS and ":" not in args.network_name:
        raise ArgumentError(
            f"the network {args.network_name!r} is in the module {args.network_module}, which is imported only if you name "
            f"it; add --network {args.network_module}:{args.network_name}"
        )
    network = use_network(args.network_name)
    changes |= {"network": args.network and network.name, "network_module": network.module}
    changes["algorithm_module"] = use_algorithm(args.algorithm).module
    return dataclasses.replace(args, **changes)


def _resumed_args(args: Args, argv: Sequence[str], program: str) -> Args:
    """The arguments of the run in ``args.resume``; refuses options that differ from them."""
    assert args.resume is not None
    from . import training

    saved = type(args).from_dict(training.saved_run(args.resume, args.algorithm)["args"])
    asked = _with_modules(tyro.cli(type(args), args=argv, prog=program, default=saved))
    if problem := changed_option(saved, asked):
        raise ArgumentError(problem)
    return asked


def env_factory(args: CommonArgs, dist: DistContext | None = None, *, training: bool = False) -> EnvFactory:
    """What makes the environments of a run: those for evaluation or, with ``--train-env-kwargs``, those for training.

    Raises:
        ArgumentError: an option does not apply to this kind of environment.
    """
    from .environments import check_workers, choose_obs_mode, is_robot_task, make_gymnasium_env, make_training_env

    env_kwargs = read_env_kwargs(args.env_kwargs)
    if training:
        env_kwargs |= read_env_kwargs(args.train_env_kwargs, "--train-env-kwargs")
    if args.num_workers is not None:
        check_workers(args.env_id, args.num_workers, args.sim_backend)
    if is_robot_task(args.env_id):
        return functools.partial(
            make_training_env,
            env_id=args.env_id,
            reward_mode=args.reward_mode,
            control_mode=args.control_mode,
            sim_backend=args.sim_backend,
            obs_mode=choose_obs_mode(args),
            env_kwargs=env_kwargs,
            gpu=None if dist is None else dist.gpu,
            num_workers=args.num_workers,
        )
    if args.obs is not None:
        raise ArgumentError(
            f"--obs {args.obs} is for robot tasks; {args.env_id} has only one kind of observation: leave it out"
        )
    return functools.partial(make_gymnasium_env, env_id=args.env_id, env_kwargs=env_kwargs)
