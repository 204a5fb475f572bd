"""Train PPO with TorchRL on a robot task.

    python examples/clients/train_with_torchrl.py --steps 500000

Needs the extra ``clients``.
"""

import gymnasium as gym
import torch
import tyro
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import mikasa_robo  # noqa: F401  (registers the tasks)


def main(steps: int = 500_000, env_id: str = "RememberColor3-v0", num_envs: int = 16, seed: int = 0) -> list[float]:
    """Train for ``steps`` environment steps. Returns the mean return of the episodes that ended in each batch."""
    torch.manual_seed(seed)
    # TorchRL resets environments itself, so autoreset_mode is "Disabled". It needs rewards as arrays.
    batch = gym.make_vec(env_id, num_envs=num_envs, obs_mode="state", autoreset_mode="Disabled")
    env = TransformedEnv(GymWrapper(batch), RewardSum())
    env.set_seed(seed)
    inputs, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]

    network = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 2 * actions), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
        spec=env.full_action_spec_unbatched,
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1)), ["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)

    returns = []
    frames = num_envs * 32
    for data in Collector(env, actor, frames_per_batch=frames, total_frames=max(steps, frames)):
        over = data["next", "done"]
        if over.any():
            returns.append(float(data["next", "episode_reward"][over].mean()))
            print(f"return {returns[-1]:.2f}")
        for _ in range(4):
            with torch.no_grad():
                advantage(data)
            for rows in torch.randperm(frames).split(frames // 4):
                terms = loss(data.reshape(-1)[rows])
                optimizer.zero_grad()
                sum(value for name, value in terms.items() if name.startswith("loss_")).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
    return returns


if __name__ == "__main__":
    tyro.cli(main)
