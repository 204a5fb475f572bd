"""Train PPO with skrl on a robot task.

    python examples/clients/train_with_skrl.py --steps 500000

Needs the extra ``clients``. Logs and checkpoints go to ``runs/skrl``.
"""

from typing import Any

import gymnasium as gym
import torch
import tyro
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import Tensor, nn

import mikasa_robo  # noqa: F401  (registers the tasks)


class Policy(GaussianMixin, Model):
    """Observations (N, D) to the mean and the log of the standard deviation of actions (N, A)."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
        GaussianMixin.__init__(self, clip_actions=True)
        self.net = nn.Sequential(nn.Linear(self.num_observations, 64), nn.Tanh(), nn.Linear(64, self.num_actions))
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    """Observations (N, D) to values (N, 1)."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
        DeterministicMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(self.num_observations, 64), nn.Tanh(), nn.Linear(64, 1))

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


def main(
    steps: int = 500_000,
    env_id: str = "RememberColor3-v0",
    num_envs: int = 16,
    seed: int = 0,
    run_dir: str = "runs/skrl",
) -> PPO:
    """Train for ``steps`` environment steps. Returns the agent."""
    set_seed(seed)
    # skrl expects the first observation of the next episode in the step that ends one
    env = wrap_env(gym.make_vec(env_id, num_envs=num_envs, obs_mode="state", autoreset_mode="SameStep"))
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    rollouts = 32
    agent = PPO(
        models={"policy": Policy(**spaces), "value": Value(**spaces)},
        memory=RandomMemory(memory_size=rollouts, num_envs=env.num_envs, device=env.device),
        cfg={"rollouts": rollouts, "learning_epochs": 4, "mini_batches": 4, "experiment": {"directory": run_dir}},
        **spaces,
    )
    settings = {"timesteps": max(1, steps // num_envs), "headless": True, "close_environment_at_exit": False}
    trainer = SequentialTrainer(env=env, agents=agent, cfg=settings)
    trainer.train()
    env.close()
    return agent


if __name__ == "__main__":
    tyro.cli(main)
