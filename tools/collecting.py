"""What plays episodes for `mikasa collect`: environments, a policy, and what is to be known of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from mikasa_robo.baselines.arguments import read_env_kwargs
from mikasa_robo.baselines.files import find_policy_file
from mikasa_robo.baselines.loggers import provenance
from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.core.observations import parse_modes
from mikasa_robo.data.episode import DatasetInfo, Episode, name_simulator
from mikasa_robo.data.recording import Act, batch_bytes, parts_of, record_episodes
from mikasa_robo.data.seeds import SPLITS
from mikasa_robo.experts.makers import POLICY_NAMES, policy_maker
from mikasa_robo.experts.policies import OBS_MODE
from mikasa_robo.experts.registry import has_skill, make_skill

from .env_ids import OptionError
from .playing import CheckpointPlayer, EnvSettings, make_player_env

if TYPE_CHECKING:
    from .collect import Options

__all__ = ["Collector"]

MOST_BYTES = 10**9
"""Memory that the episodes of a batch may take."""
POLICY_STREAM = 0x706F6C69
"""Keeps a policy's random numbers apart from what the seed of an episode decides in the task."""


class Collector:
    """Plays episodes by their numbers.

    Args:
        options: checked, as far as they do not depend on the task.
        env_id: the ID that ``options`` resolve to.
        num_envs: episodes at a time.

    Raises:
        OptionError, CheckpointError, UnsuitablePolicyError, RenderingUnavailableError: the task, the policy and the
            observation do not go together, or cannot be had here.
    """

    def __init__(self, options: Options, env_id: str, num_envs: int) -> None:
        obs_mode = _normal_mode(options.obs)
        for word in options.env_kwargs:
            if word.partition("=")[0] in ("control_mode", "reward_mode"):
                raise OptionError(
                    f"--env-kwargs {word}: scripted policies record pd_joint_delta_pos and normalized_dense, and a "
                    "checkpoint what it was trained with; leave it out"
                )
        kwargs = read_env_kwargs(options.env_kwargs)
        if options.arm is not None:  # free too: a checkpoint may have been trained with another
            kwargs["arm"] = options.arm
        self.num_envs = num_envs
        self._scripted = options.policy in POLICY_NAMES
        self._states = options.states
        player = None
        settings = EnvSettings(OBS_MODE)
        if not self._scripted:
            player = CheckpointPlayer(find_policy_file(Path(options.policy)), options.memory)
            settings = player.settings
            kwargs = {**settings.env_kwargs, **kwargs}
        elif not has_skill(env_id):
            raise OptionError(
                f"--policy {options.policy}: {env_id} has no expert, so no scripted policy; give a checkpoint"
            )
        self._policy_mode = settings.obs_mode
        both = replace(
            settings, obs_mode=_union(obs_mode, settings.obs_mode), sim_backend=options.sim_backend, env_kwargs={}
        )
        self.env: Any = make_player_env(env_id, num_envs, both, None, **kwargs)
        try:
            self.task: Any = self.env.unwrapped
            if not isinstance(self.task, MemoryEnv):
                raise OptionError(f"--env-id {env_id} is not a task with a cue; use one of `mikasa list`")
            if player is not None:
                player.require_fit_space(_subspace(self.task.single_observation_space, settings.obs_mode), self.env)
            _require_memory(self.env, num_envs)
            made_with = {"obs_mode": obs_mode, "control_mode": both.control_mode, "reward_mode": both.reward_mode}
            self.info = _describe(options, self.task, {**made_with, "sim_backend": options.sim_backend, **kwargs})
            self.start = self._prepare_scripted(options) if player is None else self._prepare_checkpoint(player)
        except BaseException:
            self.env.close()
            raise
        self.policy_sha256 = None if player is None else player.checkpoint.sha256
        """Of the checkpoint that plays."""

    @property
    def horizon(self) -> int:
        """Most control steps of an episode."""
        return int(self.task.horizon)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    def play(self, numbers: Sequence[int], on_step: Callable[[int], None]) -> Iterator[Episode]:
        """Record the episodes with these numbers, at most as many as there are environments; their index is the number.

        Args:
            numbers: of the seeds ``first_seed + number``.
            on_step: called with the number of control steps so far.
        """
        surplus = self.num_envs - len(numbers)  # the last batch: these environments play an episode that is dropped
        padded = [*numbers, *[numbers[-1]] * surplus]
        seeds = [self.info.first_seed + number for number in padded]
        episodes = record_episodes(
            self.env,
            lambda: self.start(seeds),
            seeds,
            self.info,
            indices=padded,
            states=self._states,
            labels=self._scripted,
            on_step=on_step,
        )
        for episode, _ in zip(episodes, numbers, strict=False):
            yield episode

    # ------------------------------------------------------------------ policies
    def _prepare_scripted(self, options: Options) -> Callable[[Sequence[int]], Act]:
        name: Any = options.policy
        try:
            policy = policy_maker(name)(make_skill(self.info.env_id, self.task))
        except ValueError as error:  # a policy for some families only
            raise OptionError(f"--policy {name} with --env-id {self.info.env_id}: {error}") from error

        def start(seeds: Sequence[int]) -> Act:
            policy.seed([(POLICY_STREAM, seed) for seed in seeds])
            policy.reset()
            return lambda obs, info: policy.act(self._policy_view(obs), info)

        return start

    def _prepare_checkpoint(self, player: CheckpointPlayer) -> Callable[[Sequence[int]], Act]:
        def start(seeds: Sequence[int]) -> Act:
            act = player.begin(self.task.device, seeds)
            return lambda obs, info: act(self._policy_view(obs))

        return start

    def _policy_view(self, obs: Any) -> Any:
        """What the policy sees of an observation: a dict of its parts, or a tensor in the mode "state"."""
        parts = parts_of(obs, self._policy_mode)
        return parts if parse_modes(self._policy_mode).joined else parts["state"]


def _normal_mode(obs_mode: str) -> str:
    """``--obs`` with its parts in order. Raises OptionError where it names something else than parts."""
    try:
        parts = parse_modes(obs_mode).parts
    except ValueError as error:
        raise OptionError(f"--obs {obs_mode}: {error}") from error
    if not parts:
        raise OptionError(f"--obs {obs_mode} is a mode of ManiSkill's; a dataset takes parts such as rgb+joints")
    return "+".join(parts)


def _union(*modes: str) -> str:
    return "+".join(dict.fromkeys(part for mode in modes for part in mode.split("+")))


def _subspace(space: gym.Space[Any], obs_mode: str) -> gym.Space[Any]:
    """The space of what a policy sees that acts in ``obs_mode``."""
    modes = parse_modes(obs_mode)
    if not isinstance(space, gym.spaces.Dict):
        return space
    if not modes.joined:
        return space["state"]
    # pairs, because Gymnasium sorts a dict, and a policy's layout has the order of the observation
    return gym.spaces.Dict([(name, part) for name, part in space.items() if name in modes.parts or name == "prompt"])


def _require_memory(env: Any, num_envs: int) -> None:
    """Raises OptionError where a batch takes more than `MOST_BYTES`."""
    needed = batch_bytes(env)
    if needed > MOST_BYTES and num_envs > 1:
        fits = max(1, MOST_BYTES * num_envs // needed)
        raise OptionError(
            f"--num-envs {num_envs} would hold {needed / 1e9:.1f} GB of episodes in memory; use --num-envs {fits}"
        )


def _describe(options: Options, task: Any, env_kwargs: Mapping[str, Any]) -> DatasetInfo:
    facts = provenance(())
    git = facts["git"]
    revision = None if git is None else git["revision"] + (f"-dirty-{git['changes']}" if git["dirty"] else "")
    joints = tuple(joint.name for joint in task.agent.robot.active_joints)
    pose = tuple(f"tcp_{axis}" for axis in ("x", "y", "z", "qw", "qx", "qy", "qz"))
    width = task.single_action_space.shape[-1]
    arm = tuple(f"delta_{name}" for name in joints[: width - 1])
    return DatasetInfo(
        env_id=task.spec.id,
        env_kwargs=env_kwargs,
        obs_mode=env_kwargs["obs_mode"],
        control_mode=env_kwargs["control_mode"],
        control_freq=int(task.control_freq),
        max_episode_steps=int(task.horizon),
        robot=str(task.agent.uid),
        cameras=tuple(task._sensors) if parse_modes(options.obs).images else (),
        instruction=task.instruction,
        policy=options.policy,
        noise=options.noise,
        split=options.split,
        first_seed=SPLITS[options.split] + options.start,
        only_success=options.only_success,
        versions={name: version for name, version in facts["versions"].items() if version is not None}
        | {"simulator": name_simulator(str(task.backend.sim_backend))},
        revision=revision,
        names={
            "joints": (*(f"qpos_{name}" for name in joints), *(f"qvel_{name}" for name in joints), *pose),
            "actions": (*arm, "gripper") if env_kwargs["control_mode"] == "pd_joint_delta_pos" else (),
        },
        image_size=_image_size(options, task),
    )


def _image_size(options: Options, task: Any) -> tuple[int, int] | None:
    """Height and width of the images that are recorded; None without images."""
    for part in parse_modes(options.obs).images:
        height, width = task.single_observation_space[part].shape[:2]
        return int(height), int(width)
    return None
