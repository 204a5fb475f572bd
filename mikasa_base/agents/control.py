"""Agents for the poles on carts and the pendulums that show a part of their state.

Those with memory estimate the whole state by a Kalman filter, which knows the physics and its own actions. Nothing is
taken from the environment but the level of the noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mikasa_base.agents.agent import Agent
from mikasa_base.envs.velocity_only_pendulum import GRAVITY, LENGTH, MASS, MOST_SPEED, MOST_TORQUE, TIME_STEP, swing

__all__ = [
    "Lean",
    "LeanOnVelocities",
    "PoleFromPositions",
    "PoleFromVelocities",
    "SwingFromNoise",
    "SwingFromVelocity",
    "TurnAgainst",
]

Floats = npt.NDArray[np.float64]

_SLOW = 5.35
"""rad/s up to which a pendulum is pushed along; the best of a few that were tried."""

# Gymnasium's CartPole, about upright: position, velocity, angle, angular velocity; force to the right.
_CART, _POLE, _HALF_POLE, _FORCE, _TICK, _G = 1.0, 0.1, 0.5, 10.0, 0.02, 9.8


def _cart_pole() -> tuple[Floats, Floats]:
    """A, B of x' = A x + B u."""
    total = _CART + _POLE
    inertia = _HALF_POLE * (4 / 3 - _POLE / total)
    a, b = np.eye(4), np.zeros((4, 1))
    a[0, 1] = a[2, 3] = _TICK
    a[3, 2] = _TICK * _G / inertia
    b[3, 0] = -_TICK / (total * inertia)
    a[1, 2] = -_TICK * _POLE * _HALF_POLE / total * _G / inertia
    b[1, 0] = _TICK * (1 / total + _POLE * _HALF_POLE / (total**2 * inertia))
    return a, b


def _regulator(a: Floats, b: Floats) -> Floats:
    """Gain K of the linear quadratic regulator u = -K x, with unit costs."""
    p: Floats = np.eye(len(a))
    gain: Floats = np.zeros((b.shape[1], len(a)))
    for _ in range(2000):
        gain = np.linalg.solve(np.eye(b.shape[1]) + b.T @ p @ b, b.T @ p @ a).astype(np.float64)
        p = np.eye(len(a)) + a.T @ p @ (a - b @ gain)
    return gain


class _Pole(Agent):
    _seen: tuple[int, int]
    """Indices of the two numbers of the state that the observation contains."""

    def __init__(self, env: Any, rng: np.random.Generator) -> None:
        super().__init__(env, rng)
        self._a, self._b = _cart_pole()
        self._gain = _regulator(self._a, self._b)
        self._shows = np.eye(4)[list(self._seen)]
        self._noise = 1e-4 + getattr(env.unwrapped, "noise_sigma", 0.0)

    def begin(self, obs: Any) -> None:
        """Starts from the initial distribution: each number of the state is within 0.05."""
        self._state, self._spread = np.zeros(4), np.eye(4) * 0.05**2 / 3
        self._force: float | None = None

    def act(self, obs: Any, reward: float) -> Any:
        """Filters the observation, then pushes in the direction of the regulator."""
        if self._force is not None:
            self._state = self._a @ self._state + self._b[:, 0] * self._force
            self._spread = self._a @ self._spread @ self._a.T + 1e-9 * np.eye(4)
        noise = self._noise**2 * np.eye(2)
        trust = self._spread @ self._shows.T @ np.linalg.inv(self._shows @ self._spread @ self._shows.T + noise)
        self._state = self._state + trust @ (obs - self._shows @ self._state)
        self._spread = (np.eye(4) - trust @ self._shows) @ self._spread
        right = float(self._gain[0] @ self._state) < 0
        self._force = _FORCE if right else -_FORCE
        return int(right)


class PoleFromPositions(_Pole):
    """PositionOnlyCartPole and NoisyPositionOnlyCartPole with memory."""

    _seen = (0, 2)


class PoleFromVelocities(_Pole):
    """VelocityOnlyCartPole with memory: infers the angle from changes of the velocities."""

    _seen = (1, 3)


class Lean(Agent):
    """PositionOnlyCartPole and NoisyPositionOnlyCartPole without memory: pushes to the side to which the pole leans."""

    _weight = -0.1
    """Of the cart's position, against 1 for the angle: the best of a few that were tried."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The sign of the weighted sum of the two numbers that the observation has."""
        return int(obs[1] + self._weight * obs[0] > 0)


class LeanOnVelocities(Lean):
    """VelocityOnlyCartPole without memory: pushes to the side to which the pole turns."""

    _weight = 0.1


def _wrapped(angle: float) -> float:
    return float((angle + np.pi) % (2 * np.pi) - np.pi)


def _action(torque: float) -> npt.NDArray[np.float32]:
    """The action for a torque in N m."""
    return np.clip([torque / MOST_TORQUE], -1, 1).astype(np.float32)


def _swing_up(angle: float, speed: float) -> npt.NDArray[np.float32]:
    """The torque of a linear regulator near the top, and elsewhere of a controller that pumps energy."""
    angle = _wrapped(angle)
    hold = -(14.0 * angle + 4.0 * speed)
    if abs(angle) < 0.6 and abs(hold) < 4 * MOST_TORQUE:
        torque = hold
    else:
        inertia = MASS * LENGTH**2 / 3
        energy = 0.5 * inertia * speed**2 + 0.5 * MASS * GRAVITY * LENGTH * (np.cos(angle) - 1)
        torque = -10.0 * energy * (np.sign(speed) if speed else 1.0)
    return _action(torque)


class SwingFromNoise(Agent):
    """PositionOnlyPendulum and NoisyPositionOnlyPendulum with memory: an extended Kalman filter of angle and velocity."""

    def begin(self, obs: Any) -> None:
        """Starts with the observed angle and a velocity in [-1, 1]."""
        self._noise = 1e-4 + getattr(self.env.unwrapped, "noise_sigma", 0.0)
        self._state = np.array([np.arctan2(obs[1], obs[0]), 0.0])
        self._spread = np.diag([self._noise**2, 1 / 3])
        self._last: Any = None

    def act(self, obs: Any, reward: float) -> Any:
        """Filters the observation, then swings."""
        if self._last is not None:
            angle, speed = self._state
            self._state = np.array(swing(angle, speed, self._last))
            pull = 1.5 * GRAVITY / LENGTH * np.cos(angle) * TIME_STEP
            change = np.array([[1 + pull * TIME_STEP, TIME_STEP], [pull, 1.0]])
            self._spread = change @ self._spread @ change.T + 1e-8 * np.eye(2)
            shows = np.array([[-np.sin(self._state[0]), 0.0], [np.cos(self._state[0]), 0.0]])
            seen = np.array([np.cos(self._state[0]), np.sin(self._state[0])])
            trust = self._spread @ shows.T @ np.linalg.inv(shows @ self._spread @ shows.T + self._noise**2 * np.eye(2))
            self._state = self._state + trust @ (obs - seen)
            self._spread = (np.eye(2) - trust @ shows) @ self._spread
        action = _swing_up(*self._state.tolist())
        self._last = MOST_TORQUE * float(action[0])
        return action


class SwingFromVelocity(Agent):
    """VelocityOnlyPendulum with memory.

    A change of the velocity gives the sine of the angle, and two sines give its cosine. From then on the agent integrates
    the velocity.
    """

    def begin(self, obs: Any) -> None:
        """Starts without knowing the angle."""
        self._angle: float | None = None
        self._sine: float | None = None
        self._speed = float(obs[0])
        self._last: float | None = None

    def act(self, obs: Any, reward: float) -> Any:
        """Swings up once it knows the angle; before, it pushes in the direction of the velocity to learn it."""
        speed = float(obs[0])
        if self._last is not None:
            self._learn(speed)
        self._speed = speed
        action = _action(np.sign(speed)) if self._angle is None else _swing_up(self._angle, speed)
        self._last = MOST_TORQUE * float(action[0])
        return action

    def _learn(self, speed: float) -> None:
        assert self._last is not None
        if self._angle is not None:
            self._angle += speed * TIME_STEP
            return
        if abs(speed) == MOST_SPEED:
            self._sine = None
            return
        gained = (speed - self._speed) / TIME_STEP - 3.0 / (MASS * LENGTH**2) * self._last
        sine = gained / (1.5 * GRAVITY / LENGTH)  # of the angle before the last action
        turned = self._speed * TIME_STEP  # to that angle from the one before
        if self._sine is not None and abs(turned) > 0.01:
            cosine = (sine - self._sine * np.cos(turned)) / np.sin(turned)
            self._angle = float(np.arctan2(self._sine, cosine)) + turned + speed * TIME_STEP
        self._sine = sine


class TurnAgainst(Agent):
    """Pendulums without memory: computes the torque from the current observation alone.

    With a position: full torque against the sine of the angle, towards the top; which way the pendulum swings is not to be
    seen. With a velocity: along with it while it is slow, so as to swing up, and against it when it is fast.
    """

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The torque."""
        if obs.size == 2:
            torque = -MOST_TORQUE * np.sign(obs[1])
        else:
            torque = MOST_TORQUE * np.sign(obs[0]) if abs(obs[0]) < _SLOW else -MOST_TORQUE * np.sign(obs[0])
        return _action(torque)
