"""``mikasa eval --policy remote:HOST:PORT``: evaluates a policy that a server holds; keeps what is over if it fails."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

import mikasa_suite
from mikasa_robo.baselines.arguments import ArgumentError, CommonArgs
from mikasa_robo.baselines.command import env_factory, refuse_robot_options
from mikasa_robo.baselines.env_wrappers import GymnasiumVectorEnv
from mikasa_robo.baselines.environments import choose_obs_mode, is_maniskill_task, is_robot_task
from mikasa_robo.baselines.evaluation import Outcome, join_outcomes, play_rounds, torch_threads, whole_rounds
from mikasa_robo.baselines.files import why_not_writable, write_atomically
from mikasa_robo.baselines.loggers import provenance
from mikasa_robo.baselines.spaces import ActionLayout
from mikasa_robo.env_ids import EnvIdError, split_env_id
from mikasa_robo.locks import take_lock
from mikasa_robo.remote.client import RemotePolicy, RemotePolicyError, printable, read_address

from .env_ids import OptionError, resolve_env_id
from .extras import require_modules
from .output import require_new_file
from .progress import say

if TYPE_CHECKING:
    from .evaluate import Args

__all__ = ["evaluate_remote", "partial_path", "served_settings"]

PARTIAL_FORMAT = "mikasa/eval-partial/1"
MOST_TIMEOUT = 86_400
OUTCOME = tuple(field.name for field in dataclasses.fields(Outcome))


def served_settings(args: CommonArgs) -> dict[str, Any]:
    """What a policy was trained in, as `mikasa serve` tells it; an evaluation has to agree."""
    robot = is_robot_task(args.env_id)
    return {
        "env_id": args.env_id,
        "obs": choose_obs_mode(args) if robot else None,
        "control_mode": args.control_mode if robot else None,
        "reward_mode": args.reward_mode if robot else None,
        "env_kwargs": sorted(args.env_kwargs),
    }


def evaluate_remote(
    args: Args,
    command: Sequence[str] = (),
    make_factory: Callable[[CommonArgs], Callable[[int, str | None], Any]] | None = None,
) -> tuple[dict[str, Any], Path]:
    """Evaluate the policy of a server, write the JSON file, and return its content and its path.

    Episodes that were over when the server failed are in `partial_path`; the same call goes on with the others.

    Args:
        args, command, make_factory: see `evaluate.evaluate_checkpoints`.

    Raises:
        OptionError: an option cannot be used, or the server's policy is for something else; nothing has been written.
        RemotePolicyError: the server cannot be reached or failed.
        ModuleNotFoundError: a package of the extras is missing.
    """
    from .evaluate import EPISODES, FIRST_SEED, TIMEOUT, default_output, simulator_used, write_evaluation

    made_by = provenance(command)  # of the code that is loaded: files may change until the end of the evaluation
    require_modules("report", "rliable")
    require_modules("remote", "msgpack", "websockets")
    host, port, trained = _check(args)
    episodes = args.episodes or EPISODES
    with contextlib.ExitStack() as stack:
        say(f"connecting to {args.policy}")
        policy = RemotePolicy(host, port, TIMEOUT if args.timeout is None else args.timeout)
        stack.callback(policy.close)
        _require_agreement(policy, served_settings(trained))
        name = policy.metadata.get("name")
        name = name if isinstance(name, str) and name.replace("-", "").replace("_", "").isalnum() else "remote"
        out = args.out or default_output(trained.env_id, name[:60])
        require_new_file(out)
        partial_file = partial_path(out)
        if problem := why_not_writable(out.parent, lock_path(partial_file).name):
            raise OptionError(f"--out {out}: {problem}; name another file")
        stack.enter_context(_sole_evaluation(partial_file))
        num_envs = min(args.num_envs, episodes)
        say(f"making {num_envs} environments of {trained.env_id}")
        try:
            env: Any = (make_factory or env_factory)(trained)(num_envs, None)
        except (EnvIdError, MemoryError, RuntimeError, ValueError, gym.error.Error) as error:
            raise OptionError(f"--env-id {args.env_id} cannot be made: {error}") from error
        stack.callback(env.close)
        stack.enter_context(torch_threads(1))
        trained.sim_backend = simulator_used(trained.sim_backend, env)  # what "auto" stands for depends on the machine
        whole = is_maniskill_task(trained.env_id)
        partial = _Partial(
            partial_file,
            trained,
            args.policy or "",
            policy.metadata,
            episodes,
            num_envs if whole else None,
            made_by,
        )
        outcomes = partial.read()
        if outcomes and (doubts := _doubts(policy, whole)):
            told = f"{len(outcomes)} episodes are taken from {partial.path}. {' '.join(doubts)}"
            print(f"{told} In that case stop this, move the file away and begin again", file=sys.stderr)
        _bind(policy, env)
        rest = [k for k in range(episodes) if k not in outcomes]
        if whole:
            rest = whole_rounds(rest, num_envs, episodes)
        say(f"playing {len(rest)} episodes{f'; {len(outcomes)} are in {partial.path}' if outcomes else ''}")
        rounds = play_rounds(policy, env, rest, outcomes, first_seed=FIRST_SEED, device=torch.device("cpu"))
        try:
            for _ in rounds:
                partial.keep(outcomes)
        except BaseException as error:
            kept = partial.keep(outcomes)
            if isinstance(error, RemotePolicyError):
                raise RemotePolicyError(f"{error}; {kept}") from error
            if isinstance(error, KeyboardInterrupt):
                mikasa_suite.tell(mikasa_suite.exit_code(error), kept)
            raise
        result = join_outcomes([outcomes[k] for k in range(episodes)], FIRST_SEED)
        entry = {
            "checkpoint": None,
            "policy": args.policy,
            "server": _plain(policy.metadata),
            "sha256": _text(policy.metadata.get("sha256")),
            "seed": _integer(policy.metadata.get("seed")),
            "training_steps": _integer(policy.metadata.get("training_steps")),
            "args": {"env_id": trained.env_id, "env_kwargs": list(trained.env_kwargs)},
            "summary": result.summary(),
            **({"attempts": partial.attempts} if partial.attempts > 1 else {}),
        }
        content, out = write_evaluation(out, args, made_by, trained, name, num_envs, [(entry, result)])
        partial.path.unlink(missing_ok=True)
    return content, out


def partial_path(out: Path) -> Path:
    """Where the episodes of an unfinished evaluation are kept."""
    return out.with_name(f"{out.stem}.partial.json")


def lock_path(partial: Path) -> Path:
    """The file that is locked while an evaluation writes to ``partial``."""
    return partial.with_name(f".{partial.name}.lock")


@contextlib.contextmanager
def _sole_evaluation(partial: Path) -> Iterator[None]:
    """Be the only evaluation that keeps its episodes in ``partial``; the lock of a process that is killed is released.

    Raises:
        OptionError: another evaluation does.
    """
    path = lock_path(partial)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            take_lock(handle)
        except BlockingIOError as error:
            os.close(handle)
            raise OptionError(
                f"another evaluation is running that keeps its episodes in {partial}; wait for it, or name another --out"
            ) from error
        try:
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        except FileNotFoundError:
            pass
        os.close(handle)  # the evaluation that had the lock has removed its file since it was opened
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _check(args: Args) -> tuple[str, int, CommonArgs]:
    """Host, port and the arguments of the environments. Raises OptionError."""
    from .evaluate import check_sizes

    if args.checkpoint:
        raise OptionError(f"--policy {args.policy} and --checkpoint {args.checkpoint[0]}: evaluate one of them")
    try:
        host, port = read_address(args.policy or "")
    except ValueError as error:
        raise OptionError(str(error)) from error
    check_sizes(args)
    if args.timeout is not None and not 0 < args.timeout <= MOST_TIMEOUT:  # which nan is not, either
        raise OptionError(f"--timeout {args.timeout} cannot be used; give seconds, above 0 and at most {MOST_TIMEOUT}")
    if args.protocol == "paper":
        raise OptionError("--protocol paper takes three checkpoints; leave it out with --policy")
    for option in ("algorithm", "network", "memory"):
        if (value := getattr(args, option)) is not None:
            raise OptionError(f"--{option} {value} is for --checkpoint; leave it out with --policy")
    if args.sample_actions:
        raise OptionError("--sample-actions is for --checkpoint; a server chooses its actions itself: leave it out")
    if args.env_id is None:
        raise OptionError(f"--policy {args.policy} needs --env-id; name the task to play")
    env_id = resolve_env_id(args.env_id)
    module, _ = split_env_id(args.env_id)
    asked = {
        name: getattr(args, name)
        for name in ("obs", "control_mode", "reward_mode", "sim_backend", "env_kwargs", "num_workers")
        if getattr(args, name) is not None
    }
    trained = CommonArgs(env_id=env_id, env_module=module, **asked)
    try:
        refuse_robot_options(trained)
    except ArgumentError as error:
        raise OptionError(str(error)) from error
    return host, port, trained


def _require_agreement(policy: RemotePolicy, settings: Mapping[str, Any]) -> None:
    """Raise OptionError where the server says that its policy is for other environments."""
    for name, ours in settings.items():
        stated = policy.metadata.get(name)
        if isinstance(stated, np.ndarray):
            stated = stated.tolist()
        if isinstance(stated, list):  # of anything: the server is not trusted
            stated = sorted(map(str, stated)) if name == "env_kwargs" else [*map(str, stated)]
        if stated is None or stated == ours:
            continue
        option = f"--{name.replace('_', '-')}"
        given = " ".join(ours) if isinstance(ours, list) else ours
        wanted = printable(" ".join(stated) if isinstance(stated, list) else str(stated))
        raise OptionError(
            f"{option} {given or '(none)'}: {policy.name} says that its policy is for {wanted[:200] or 'none'}; give "
            f"{option} {wanted[:200]}"
            if wanted
            else f"{option} {given}: {policy.name} says that its policy is for none; leave it out"
        )


def _doubts(policy: RemotePolicy, whole: bool) -> list[str]:
    """When episodes of an earlier attempt should not count, as sentences.

    Args:
        policy: of the server.
        whole: whether rounds are played again as a whole.
    """
    doubts = []
    if policy.metadata.get("deterministic") is not True and not whole:
        doubts.append(
            "Those that were still running are played again, and a success ends an episode early: if the policy draws its "
            "actions at random, its success rate will be too high."
        )
    if _text(policy.metadata.get("sha256")) is None:
        doubts.append(f"{policy.name} names no sha256: they may be of another policy.")
    return doubts


def _bind(policy: RemotePolicy, env: Any) -> None:
    """Tell the policy what actions ``env`` takes. Raises OptionError for a space of another kind."""
    space = env.unwrapped.single_action_space
    try:
        action = ActionLayout.of(space)
    except ValueError as error:
        raise OptionError(f"--policy {policy.name}: {error}") from error
    if isinstance(env.unwrapped, GymnasiumVectorEnv) or not isinstance(space, gym.spaces.Box):
        policy.bind(action)
    else:
        policy.bind(action, torch.from_numpy(space.low.ravel()), torch.from_numpy(space.high.ravel()))


class _Partial:
    """The file that keeps the episodes of an unfinished evaluation."""

    def __init__(
        self,
        path: Path,
        trained: CommonArgs,
        policy: str,
        metadata: Mapping[str, Any],
        episodes: int,
        num_envs: int | None,
        made_by: Mapping[str, Any],
    ) -> None:
        self.path = path
        self.episodes = episodes
        self.attempts = 1  # how often an evaluation was begun or continued
        self._warned = False
        self._of = {
            **served_settings(trained),
            "sim_backend": trained.sim_backend,
            "episodes": episodes,
            "num_envs": num_envs,  # where an episode depends on the others of its round
            # the file of the evaluation names one revision, and one version of each library, for all episodes
            "versions of libraries": made_by["versions"],
            "git revision": made_by["git"],
            "server": _plain(metadata),
            # A policy with a hash may be served elsewhere the next time. Any other is known by its address alone.
            "policy": policy if _text(metadata.get("sha256")) is None else None,
        }

    def read(self) -> dict[int, Outcome]:
        """The episodes that are over. Raises OptionError for a file of another evaluation."""
        if not os.path.lexists(self.path):
            return {}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["format"] != PARTIAL_FORMAT:
                raise ValueError(f"its format is not {PARTIAL_FORMAT}")
            if differing := [name for name in self._of if content["of"].get(name) != self._of[name]]:
                raise ValueError(f"it is of another evaluation: not the same {', '.join(differing)}")
            outcomes = {
                int(k): Outcome(**dict(zip(OUTCOME, row, strict=True))) for k, row in content["outcomes"].items()
            }
            attempts = content.get("attempts", 1)
            if type(attempts) is not int or attempts < 1:
                raise ValueError("its number of attempts is not one")
            if not all(0 <= k < self.episodes for k in outcomes):
                raise ValueError("it has episodes that there are not")
            if not all(_is_plausible(outcome) for outcome in outcomes.values()):
                raise ValueError("an outcome is not of the types that it should be")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise OptionError(
                f"{self.path} is there and cannot be continued ({error}); move it away, or name another --out"
            ) from error
        self.attempts = attempts + 1
        return outcomes

    def keep(self, outcomes: Mapping[int, Outcome]) -> str:
        """Write the file, unless no episode is over, and return what the user has to know.

        Where it cannot be written, the evaluation goes on: there may be room when it is written the next time.
        """
        if not outcomes:
            return "no episode was over"
        over = f"{len(outcomes)} of {self.episodes} episodes are over"
        try:
            self._write(outcomes)
        except OSError as error:
            told = f"{over} and cannot be kept in {self.path} ({error.strerror or error})"
            if not self._warned:
                self._warned = True
                print(f"{told}; make room there, or they are lost if this evaluation ends early", file=sys.stderr)
            return told
        return f"{over} and kept in {self.path}: the same command goes on"

    def _write(self, outcomes: Mapping[int, Outcome]) -> None:
        rows = {str(k): [getattr(outcomes[k], name) for name in OUTCOME] for k in sorted(outcomes)}
        content = {"format": PARTIAL_FORMAT, "of": self._of, "attempts": self.attempts, "outcomes": rows}
        with mikasa_suite.finish_first():
            write_atomically(self.path, (json.dumps(content) + "\n").encode())


def _is_plausible(outcome: Outcome) -> bool:
    flags = (outcome.success_once, outcome.success_at_end, outcome.fail_once, outcome.tells_success)
    return all(type(flag) is bool for flag in flags) and type(outcome.returns) is float and type(outcome.lengths) is int


def _plain(value: Any) -> Any:
    """``value`` as JSON can hold it: arrays and bytes, which metadata need not have, as text."""
    try:
        return json.loads(json.dumps(value, default=str, skipkeys=True))
    except RecursionError as error:
        raise OptionError("the metadata of the server are nested too deeply; send a map of plain values") from error


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
