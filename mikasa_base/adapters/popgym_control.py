"""POPGym's cart poles and pendulums with parts of the state hidden."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import popgym.envs as upstream
from gymnasium import spaces

from mikasa_base import checks

from .popgym_adapter import PopGymEnv, check_steps

__all__ = [
    "NoisyPositionOnlyCartPole",
    "NoisyPositionOnlyPendulum",
    "PositionOnlyCartPole",
    "PositionOnlyPendulum",
    "VelocityOnlyCartPole",
]


class PositionOnlyCartPole(PopGymEnv):
    """CartPole that observes positions alone.

    Task: balance the pole, with velocities inferred from earlier observations.
    Observation: float32 (2,): position of the cart in m, angle of the pole in rad.
    Actions: Discrete(2): push left, push right.
    Reward: 1 / max_episode_length each step.
    End: terminates when the cart leaves +-2.4 m or the pole +-12 degrees, truncates after ``max_episode_length`` steps.

    Args:
        max_episode_length: Steps, 1 to 1,000,000.
        render_mode: None or "rgb_array".
    """

    def __init__(self, max_episode_length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(upstream.PositionOnlyCartPole(max_episode_length=check_steps(max_episode_length)), render_mode)


class VelocityOnlyCartPole(PopGymEnv):
    """CartPole that observes velocities alone.

    Task: balance the pole, with the angle inferred from earlier observations. A linear policy without memory can do it
    for 200 steps.
    Observation: float32 (2,) in [-20, 20], bounds that no episode reaches: velocity of the cart in m/s, angular velocity
        of the pole in rad/s. POPGym's reset returns the positions instead, and its space has no bounds.
    Actions, reward, end: as `PositionOnlyCartPole`.

    Args:
        max_episode_length: Steps, 1 to 1,000,000.
        render_mode: None or "rgb_array".
    """

    def __init__(self, max_episode_length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(upstream.VelocityOnlyCartPole(max_episode_length=check_steps(max_episode_length)), render_mode)
        self.observation_space = spaces.Box(-20, 20, (2,), np.float32)

    def _correct(self, obs: Any, first: bool = False) -> Any:
        return self._env.unwrapped.get_state()[[1, 3]] if first else obs  # type: ignore[attr-defined]


class NoisyPositionOnlyCartPole(PopGymEnv):
    """CartPole that observes positions alone, with noise.

    Task: balance the pole, with the state estimated from several noisy observations.
    Observation: as `PositionOnlyCartPole` with normal noise on each number, clipped to the space.
    Actions, reward, end: as `PositionOnlyCartPole`, with 200 steps.

    Args:
        noise_sigma: Standard deviation of the noise, in m and in rad, 0 to 10.
        render_mode: None or "rgb_array".
    """

    def __init__(self, noise_sigma: float = 0.1, render_mode: str | None = None) -> None:
        self.noise_sigma = checks.number("noise_sigma", noise_sigma, 0, 10)
        super().__init__(upstream.NoisyPositionOnlyCartPole(noise_sigma=self.noise_sigma), render_mode)


class _Pendulum(PopGymEnv):
    def __init__(self, env: gym.Env[Any, Any], render_mode: str | None) -> None:
        super().__init__(env, render_mode)
        self._action_scale = 2
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)


class PositionOnlyPendulum(_Pendulum):
    """Pendulum that observes its position alone.

    Task: swing the pendulum up, with its velocity inferred from earlier observations.
    Observation: float32 (2,): cosine and sine of the angle, which is 0 when upright.
    Actions: float32 (1,) in [-1, 1], the torque in units of 2 N m. POPGym takes it in N m.
    Reward: Gymnasium's, rescaled from [-16.27, 0] to [-1, 1], divided by ``max_episode_length``.
    End: truncates after ``max_episode_length`` steps.

    Args:
        max_episode_length: Steps, 1 to 1,000,000.
        render_mode: None or "rgb_array".
    """

    def __init__(self, max_episode_length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(upstream.PositionOnlyPendulum(max_episode_length=check_steps(max_episode_length)), render_mode)


class NoisyPositionOnlyPendulum(_Pendulum):
    """Pendulum that observes its position alone, with noise.

    Task: swing the pendulum up, with the state estimated from several noisy observations.
    Observation: as `PositionOnlyPendulum` with normal noise on each number, clipped to the space.
    Actions, reward, end: as `PositionOnlyPendulum`, with 200 steps.

    Args:
        noise_sigma: Standard deviation of the noise, 0 to 10.
        render_mode: None or "rgb_array".
    """

    def __init__(self, noise_sigma: float = 0.1, render_mode: str | None = None) -> None:
        self.noise_sigma = checks.number("noise_sigma", noise_sigma, 0, 10)
        super().__init__(upstream.NoisyPositionOnlyPendulum(noise_sigma=self.noise_sigma), render_mode)
