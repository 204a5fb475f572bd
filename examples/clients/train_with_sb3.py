"""Train an agent with memory on a robot task with sb3-contrib's RecurrentPPO, and evaluate it.

    python examples/clients/train_with_sb3.py --steps 500000

Needs the extra ``clients``.
"""

import gymnasium as gym
import numpy as np
import tyro
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.evaluation import evaluate_policy

import mikasa_robo  # noqa: F401  (registers the tasks)
from mikasa_robo.clients.sb3 import SB3VecEnv


def main(steps: int = 500_000, env_id: str = "RememberColor3-v0", num_envs: int = 16, seed: int = 0) -> float:
    """Train for ``steps`` environment steps. Returns the mean return of 16 episodes."""
    # "objects": what a perfect perception system reports at this instant, so the agent has to remember the cue
    env = SB3VecEnv(gym.make(env_id, num_envs=num_envs, obs_mode="objects"))
    policy = {"lstm_hidden_size": 64}
    model = RecurrentPPO(
        "MultiInputLstmPolicy", env, n_steps=30, batch_size=160, n_epochs=4, policy_kwargs=policy, seed=seed, verbose=1
    )
    model.learn(steps)
    returns, _ = evaluate_policy(model, env, n_eval_episodes=16, return_episode_rewards=True)
    score = float(np.mean(returns))
    print(f"{env_id}: mean return {score:.2f} over 16 episodes")
    env.close()
    return score


if __name__ == "__main__":
    tyro.cli(main)
