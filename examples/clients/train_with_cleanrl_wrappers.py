"""A training loop in the manner of CleanRL's ``ppo_continuous_action.py``, with Gymnasium's vector wrappers.

    python examples/clients/train_with_cleanrl_wrappers.py --steps 500000

CleanRL wraps each environment of a SyncVectorEnv by itself. That works on the small environments of mikasa_base; a robot
task is one batch, and takes the vector wrappers of the same names.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.wrappers import vector
from torch import Tensor, nn

import mikasa_robo  # noqa: F401  (registers the tasks)


def make(env_id: str, num_envs: int, gamma: float) -> Any:
    """CleanRL's chain: statistics of the task's own rewards, then normalized observations and rewards."""
    envs: Any = gym.make_vec(env_id, num_envs=num_envs, obs_mode="state")
    envs = vector.RecordEpisodeStatistics(envs)
    envs = vector.ClipAction(envs)
    envs = vector.NormalizeObservation(envs)
    envs = vector.TransformObservation(envs, lambda obs: np.clip(obs, -10, 10))
    envs = vector.NormalizeReward(envs, gamma=gamma)
    return vector.TransformReward(envs, lambda reward: np.clip(reward, -10, 10))


class Agent(nn.Module):
    """A Gaussian policy and a value of observations (N, D)."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, actions))
        self.log_std = nn.Parameter(torch.zeros(actions))

    def policy(self, obs: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.actor(obs), self.log_std.exp())


def main(steps: int = 500_000, env_id: str = "RememberColor3-v0", num_envs: int = 16, seed: int = 0) -> list[float]:
    """Train for ``steps`` environment steps. Returns the returns of all episodes that ended."""
    torch.manual_seed(seed)
    gamma, length = 0.99, 32
    envs = make(env_id, num_envs, gamma)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.shape[0])
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
    returns: list[float] = []

    obs = torch.as_tensor(envs.reset(seed=seed)[0], dtype=torch.float32)
    over = torch.zeros(num_envs)
    for _ in range(max(1, steps // (num_envs * length))):
        seen, actions, rewards, ends, valid = [], [], [], [], []
        for _ in range(length):
            with torch.no_grad():
                action = agent.policy(obs).sample()
            # Gymnasium's autoreset: the step after the end of an episode only starts the next one
            seen.append(obs)
            actions.append(action)
            valid.append(1 - over)
            raw, reward, terminated, truncated, infos = envs.step(action.numpy())
            obs = torch.as_tensor(raw, dtype=torch.float32)
            over = torch.as_tensor(terminated | truncated, dtype=torch.float32)
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            ends.append(over)
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
        with torch.no_grad():
            target = agent.critic(obs).squeeze(-1)
        targets: list[Tensor] = []
        for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
            target = reward + gamma * (1 - end) * target
            targets.insert(0, target)
        goal, mask = torch.stack(targets), torch.stack(valid)
        values = agent.critic(torch.stack(seen)).squeeze(-1)
        log_prob = agent.policy(torch.stack(seen)).log_prob(torch.stack(actions)).sum(-1)
        losses = (goal - values) ** 2 - log_prob * (goal - values).detach()
        loss = (losses * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        if returns:
            print(f"{len(returns)} episodes, mean return {np.mean(returns[-100:]):.2f}")
    envs.close()
    return returns


if __name__ == "__main__":
    tyro.cli(main)
