"""VelocityOnlyPendulum: swing up a pendulum whose angular velocity is observed, but not its angle."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image, canvas, disc

__all__ = ["GRAVITY", "LENGTH", "MASS", "MOST_SPEED", "MOST_TORQUE", "TIME_STEP", "VelocityOnlyPendulum", "swing"]

GRAVITY, MASS, LENGTH = 10.0, 1.0, 1.0
"""In m/s^2, kg, m; a uniform rod with a pivot at its end."""
TIME_STEP, MOST_SPEED, MOST_TORQUE = 0.05, 8.0, 2.0
"""In s, rad/s, N m."""
_WORST = 16.2736044
"""The largest cost of a step: upside down at full speed and torque."""
_ROD, _BACK, _PIVOT = (200, 80, 80), (255, 255, 255), (0, 0, 0)


def swing(angle: Any, speed: Any, torque: Any) -> tuple[Any, Any]:
    """Angle in rad (0 upright, counterclockwise) and angular velocity in rad/s after a time step. Arrays work, too."""
    turned = 1.5 * GRAVITY / LENGTH * np.sin(angle) + 3.0 / (MASS * LENGTH**2) * torque
    speed = np.clip(speed + turned * TIME_STEP, -MOST_SPEED, MOST_SPEED)
    return angle + speed * TIME_STEP, speed


class VelocityOnlyPendulum(DrawnEnv[npt.NDArray[np.float32], Any]):
    """Swing a pendulum up and hold it there. Only its angular velocity is observed.

    Task: infer the angle from the history of the velocity. At the start the angle is uniform over the whole circle, and
        the velocity over [-1, 1] rad/s.
    Observation: float32 (1,): angular velocity in rad/s, at most 8.
    Actions: float32 (1,) in [-1, 1], the torque in units of 2 N m.
    Reward: 1 - 2 c / 16.2736 divided by ``max_episode_length``, where the step costs
        c = angle^2 + 0.1 velocity^2 + 0.001 torque^2, with the angle from upright in [-pi, pi].
    End: truncates after ``max_episode_length`` steps.
    Source: the physics and cost of Gymnasium's Pendulum-v1 and the reward of POPGym's pendulum (Morad et al. 2023, arXiv
        2303.01859), which shows the angle; the MIKASA paper (arXiv 2502.10550, F.11.6) describes one that does not.

    Args:
        max_episode_length: Steps, 1 to 1,000,000.
        render_mode: None or "rgb_array". Unlike the observation, the image shows the angle.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, max_episode_length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.max_episode_length = checks.integer("max_episode_length", max_episode_length, 1, 1_000_000)
        self.observation_space = gym.spaces.Box(-MOST_SPEED, MOST_SPEED, (1,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self._angle, self._speed, self._steps = 0.0, 0.0, self.max_episode_length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Starts an episode; ``options`` are not used."""
        super().reset(seed=seed)
        self._angle = float(self.np_random.uniform(-np.pi, np.pi))
        self._speed = float(self.np_random.uniform(-1, 1))
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Plays one step. An action outside the space is clipped.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not one finite number in an array (1,).
        """
        if self._steps >= self.max_episode_length:
            raise ResetNeeded("VelocityOnlyPendulum.step(): no episode is going on; call reset() first")
        values = checks.array("action", action)
        if values.shape != (1,) or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
            raise ValueError(f"action={action!r} should be an array of one finite number, in {self.action_space}")
        torque = MOST_TORQUE * float(np.clip(values[0], -1, 1))
        from_top = (self._angle + np.pi) % (2 * np.pi) - np.pi
        cost = from_top**2 + 0.1 * self._speed**2 + 0.001 * torque**2
        angle, speed = swing(self._angle, self._speed, torque)
        self._angle, self._speed = float(angle), float(speed)
        self._steps += 1
        reward = (1 - 2 * cost / _WORST) / self.max_episode_length
        return self._observe(), float(reward), False, self._steps >= self.max_episode_length, {}

    def frame(self) -> Image:
        """The pendulum."""
        image = canvas(128, 128, _BACK)
        for along in np.linspace(0, 50, 40):
            disc(image, 64 - along * np.cos(self._angle), 64 - along * np.sin(self._angle), 5, _ROD)
        disc(image, 64, 64, 3, _PIVOT)
        return image

    def _observe(self) -> npt.NDArray[np.float32]:
        return np.array([self._speed], np.float32)
