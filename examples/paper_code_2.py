# ruff: noqa: F401, F403, F405
# mypy: disable-error-code=name-defined
"""Code 2 of the MIKASA paper (arXiv 2502.10550), with the imports that the paper leaves out.

It differs from the paper in two places, because of ManiSkill 3.0.1's RecordEpisode: with several environments it requires
``max_steps_per_video``, and its ``reset`` takes the seed as a keyword argument only.
512 environments with images need a GPU to be fast; use a smaller ``num_envs`` on a laptop.
"""

import gymnasium as gym
import torch
from IPython.display import Video
from mani_skill.utils.wrappers import RecordEpisode
from tqdm import tqdm

import mikasa_robo
from mikasa_robo.utils.wrappers import *

num_envs, seed = 512, 123
env = gym.make("RememberColor9-v0", num_envs=num_envs, obs_mode="rgb", render_mode="all")

env = StateOnlyTensorToDictWrapper(env)  # [always] gen. obs keys
env = RememberColorInfoWrapper(env)  # [debug] show task info
env = RenderStepInfoWrapper(env)  # [debug] show env step
env = RenderRewardInfoWrapper(env)  # [debug] show total reward
env = DebugRewardWrapper(env)  # [debug] show reward info
env = RecordEpisode(env, "./videos/demo_remember-color-9", max_steps_per_video=89)

obs, _ = env.reset(seed=seed)
for _ in tqdm(range(89)):
    action = torch.from_numpy(env.action_space.sample())
    obs, reward, terminated, truncated, info = env.step(action)

env.close()

Video("./videos/demo_remember-color-9/0.mp4", embed=True)
