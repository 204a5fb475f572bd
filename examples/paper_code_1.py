# ruff: noqa: F401, F403, F405
# mypy: disable-error-code=name-defined
"""Code 1 of the MIKASA paper (arXiv 2502.10550), with the imports that the paper leaves out.

512 environments with images need a GPU to be fast; use a smaller ``num_envs`` on a laptop.
"""

import gymnasium as gym
import torch
from tqdm import tqdm

import mikasa_robo
from mikasa_robo.utils.wrappers import *

num_envs, seed = 512, 123

# Create the environment via gym.make()
# obs_mode="rgb" for modes "RGB", "RGB+joint", "RGB+oracle" etc.
# obs_mode="state" for mode "state"
env = gym.make("RememberColor9-v0", num_envs=num_envs, obs_mode="rgb", render_mode="all")

env = StateOnlyTensorToDictWrapper(env)  # [always] gen. obs keys

obs, _ = env.reset(seed)
for _ in tqdm(range(89)):
    action = torch.from_numpy(env.action_space.sample())
    obs, reward, terminated, truncated, info = env.step(action)

env.close()
