"""Videos of environments that are not robot tasks: those of mikasa_base and of Gymnasium, one episode at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from mikasa_robo.baselines.env_wrappers import GymnasiumVectorEnv
from mikasa_robo.baselines.environments import UNKNOWN_HORIZON
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.rollouts import EpisodeTotals, play_episodes
from mikasa_robo.utils.wrappers.text import write_lines
from mikasa_robo.video import Images, VideoWriter, write_tiled_video

from .env_ids import OptionError
from .playing import CheckpointPlayer, UnsuitablePolicyError
from .progress import Progress

__all__ = ["Actor", "CheckpointActor", "RandomActor", "record"]

FPS = 5
"""Frames per second: one for each step. Small environments have no true speed; their steps are seen one by one."""
HOLD = 5
"""Frames for which the last image of an episode stays: a second."""


class Actor(Protocol):
    """A policy in a batch of one environment."""

    env_kwargs: dict[str, Any]
    """Arguments of the environment that the policy was trained in."""

    def start(self, env: GymnasiumVectorEnv, seed: int) -> Callable[[Any], Tensor]:
        """What maps observations (1, …) to actions (1, A), for an episode with this seed."""


class RandomActor:
    """Draws actions uniformly; the seed of the episode decides them."""

    env_kwargs: dict[str, Any] = {}  # noqa: RUF012

    def start(self, env: GymnasiumVectorEnv, seed: int) -> Callable[[Any], Tensor]:
        """See `Actor`."""
        action, generator = ActionLayout.of(env.single_action_space), np.random.default_rng(seed)

        def act(obs: Any) -> Tensor:
            if action.sizes:
                return torch.as_tensor(generator.integers(action.sizes))[None]
            return torch.as_tensor(generator.uniform(-1.0, 1.0, action.dim), dtype=torch.float32)[None]

        return act


class CheckpointActor:
    """A trained policy."""

    def __init__(self, player: CheckpointPlayer) -> None:
        self._player = player
        self.env_kwargs = dict(player.settings.env_kwargs)

    def start(self, env: GymnasiumVectorEnv, seed: int) -> Callable[[Any], Tensor]:
        """See `Actor`. Raises UnsuitablePolicyError where the policy was trained on other observations or actions."""
        checkpoint, network = self._player.checkpoint, self._player.network
        spaces = ObservationLayout.of(env.single_observation_space), ActionLayout.of(env.single_action_space)
        if spaces != (network.layout, network.action):
            raise UnsuitablePolicyError(
                f"--policy {checkpoint.path} was trained on {checkpoint.env_id}, which has other observations or actions"
            )
        return self._player.begin(seeds=[seed])


class _Camera(gym.Wrapper[Any, Any, Any, Any]):
    """Hands the images of one episode to `show`; the environment resets itself after the last, unseen."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.show: Callable[[Images], None] | None = None
        self.t, self.reward, self.total = 0, 0.0, 0.0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**kwargs)
        self.t, self.reward, self.total = 0, 0.0, 0.0
        self._draw()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.t, self.reward = self.t + 1, float(reward)
        self.total += self.reward
        self._draw()
        if terminated or truncated:
            self.show = None
        return obs, reward, terminated, truncated, info

    def _draw(self) -> None:
        if self.show is not None:
            image: Any = self.env.render()
            self.show(np.asarray(image, dtype=np.uint8))


def record(
    env_id: str,
    actor: Actor,
    seeds: Sequence[int],
    files: Sequence[Path],
    *,
    size: int,
    overlay: Sequence[str],
    tiled: bool,
    env_kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[str]:
    """Film an episode for each seed, and yield a line on each video.

    Args:
        env_id: a registered ID, not of a robot task.
        actor: the policy.
        seeds: that of each episode.
        files: the MP4 of each episode, or a single one for all if ``tiled``.
        size: height and width to which images are enlarged, pixels; by whole factors, so that pixels stay sharp.
        overlay: some of "step" and "reward".
        tiled: put all episodes side by side.
        env_kwargs: arguments of the environment; they replace those of the actor.

    Raises:
        OptionError: the environment cannot be made or cannot be drawn.
        UnsuitablePolicyError: the policy does not fit.
    """
    camera, env, horizon = _make(env_id, {**actor.env_kwargs, **env_kwargs})
    try:
        try:  # before there is a file
            act = actor.start(env, seeds[0])
            env.reset(seed=seeds[0])
            camera.render()
        except UnsuitablePolicyError:
            raise
        except (ImportError, ValueError, gym.error.Error) as error:
            raise OptionError(f"--env-id {env_id} cannot be recorded: {error}") from error
        files[0].parent.mkdir(parents=True, exist_ok=True)
        films: list[list[Images]] = []
        successes = []
        for k, seed in enumerate(seeds):
            act = actor.start(env, seed)
            with Progress(horizon, f"episode {k + 1} of {len(seeds)}") as progress:

                def draw(image: Images) -> Images:
                    return _annotate(_enlarge(image, size), camera, horizon, overlay)

                if tiled:
                    film: list[Images] = []
                    camera.show = lambda image: film.append(draw(image))  # noqa: B023
                    totals = _play(env, act, seed, horizon, progress)
                    films.append(film)
                else:
                    with VideoWriter(files[k], FPS, hold=HOLD) as video:
                        camera.show = lambda image: video.add(draw(image))
                        totals = _play(env, act, seed, horizon, progress)
            successes.append(totals.reports_success and bool(totals.success_once[0]))
            if not tiled:
                outcome = ("success, " if successes[-1] else "no success, ") if totals.reports_success else ""
                yield f"{files[k]}: {outcome}return {totals.returns.item():.2f} in {totals.lengths.item()} steps"
        if tiled:
            write_tiled_video(files[0], _side_by_side(films), FPS, hold=HOLD)
            yield f"{files[0]}: {len(seeds)} episodes" + (
                f", {sum(successes)} with success" if totals.reports_success else ""
            )
    finally:
        env.close()


def _make(env_id: str, env_kwargs: dict[str, Any]) -> tuple[_Camera, GymnasiumVectorEnv, int]:
    """The environment, what films it, and the length of an episode."""
    import mikasa_base

    cameras: list[_Camera] = []

    def film(env: gym.Env[Any, Any]) -> _Camera:
        cameras.append(_Camera(env))
        return cameras[0]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's own on a render_mode that the environment lacks
            env = gym.make_vec(
                env_id,
                1,
                vectorization_mode="sync",
                vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
                wrappers=[film],
                render_mode="rgb_array",
                **env_kwargs,
            )
    except (gym.error.Error, ImportError, RuntimeError, TypeError, ValueError) as error:
        raise OptionError(f"--env-id {env_id} cannot be made: {error}") from error
    if "rgb_array" not in cameras[0].metadata.get("render_modes", ()):
        env.close()
        raise OptionError(f"--env-id {env_id} has no render_mode='rgb_array', so it cannot be recorded")
    variant = mikasa_base.VARIANTS.get(env_id)
    limit = (
        None if env_kwargs and variant is not None else variant.steps if variant else gym.spec(env_id).max_episode_steps
    )
    return cameras[0], GymnasiumVectorEnv(env, limit), limit or UNKNOWN_HORIZON


def _play(
    env: GymnasiumVectorEnv, act: Callable[[Any], Tensor], seed: int, horizon: int, progress: Any
) -> EpisodeTotals:
    totals = EpisodeTotals()
    for step in play_episodes(env, lambda obs, info: act(obs), [seed], horizon):
        totals.add(step)
        progress.to(step.t)
    return totals


def _enlarge(image: Images, size: int) -> Images:
    """``image`` (H, W, 3), enlarged to at most ``size`` pixels by a whole factor, with even sides."""
    factor = max(1, size // max(image.shape[:2]))
    large = image.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(large, ((0, large.shape[0] % 2), (0, large.shape[1] % 2), (0, 0)), mode="edge")


def _annotate(image: Images, camera: _Camera, horizon: int, overlay: Sequence[str]) -> Images:
    if "step" in overlay:
        write_lines(image, [f"step {camera.t}" + (f" of {horizon}" if horizon < UNKNOWN_HORIZON else "")], "top")
    if "reward" in overlay:
        write_lines(image, [f"reward {camera.reward:.3f} (sum {camera.total:.2f})"], "bottom")
    return image


def _side_by_side(films: Sequence[Sequence[Images]]) -> Iterator[tuple[Images, Any]]:
    for t in range(max(map(len, films))):
        showing = np.array([t < len(film) for film in films])
        yield np.stack([film[min(t, len(film) - 1)] for film in films]), showing
