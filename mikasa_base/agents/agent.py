"""The interface of scripted agents, and a function that plays episodes with one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

__all__ = ["Agent", "Played", "RandomAgent", "play"]


class Agent(ABC):
    """Acts in one environment, episode after episode.

    An agent knows the rules of its environment and sees observations and rewards. From ``env`` it takes the spaces and
    the arguments that the environment was made with, never its state.

    Args:
        env: The environment that it will act in.
        rng: For its random decisions.
    """

    def __init__(self, env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        self.env = env
        self.rng = rng

    @abstractmethod
    def begin(self, obs: Any) -> None:
        """Starts an episode whose first observation is ``obs``. It is called before the first `act`."""

    @abstractmethod
    def act(self, obs: Any, reward: float) -> Any:
        """The action for ``obs``. ``reward`` is that of the previous step, and 0 for the first observation of an episode."""


class RandomAgent(Agent):
    """Samples actions uniformly from the action space, which it seeds."""

    def __init__(self, env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        super().__init__(env, rng)
        env.action_space.seed(int(rng.integers(2**31)))

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """Any action."""
        return self.env.action_space.sample()


@dataclass(frozen=True)
class Played:
    """Results of whole episodes."""

    returns: npt.NDArray[np.float64]
    """Sum of the rewards of each episode, (E,)."""
    lengths: npt.NDArray[np.int64]
    """Steps of each episode, (E,)."""
    success: npt.NDArray[np.bool_] | None
    """Whether ``info["success"]`` was true at the end of each episode, (E,); None if the environment does not report it."""


def play(env: gym.Env[Any, Any], agent: Agent, episodes: int, seed: int) -> Played:
    """Plays whole episodes: the first from ``env.reset(seed=seed)``, the others from ``env.reset()``."""
    if episodes < 1:
        raise ValueError(f"episodes={episodes} should be at least 1")
    returns, lengths, successes = np.zeros(episodes), np.zeros(episodes, np.int64), []
    for i in range(episodes):
        obs, _ = env.reset(seed=seed if i == 0 else None)
        agent.begin(obs)
        reward, over = 0.0, False
        while not over:
            obs, step_reward, terminated, truncated, info = env.step(agent.act(obs, reward))
            reward = float(step_reward)
            returns[i] += reward
            lengths[i] += 1
            over = terminated or truncated
        if "success" in info:
            successes.append(bool(info["success"]))
    return Played(returns, lengths, np.array(successes) if len(successes) == episodes else None)
