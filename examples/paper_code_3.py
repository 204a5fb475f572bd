"""Code 3 of the MIKASA paper (arXiv 2502.10550).

It differs from the paper in one place: the paper writes ``gym.make(env_id, env_kwargs)``, but Gymnasium takes the arguments
of an environment as keywords, ``**env_kwargs``. With a predefined environment leave them out, or use ``env_kwargs = {}``.
"""

from typing import Any

import gymnasium as gym

import mikasa_base  # noqa: F401

# use pre-defined env
# env_id = "MemoryLengthEasy-v0"
# env_kwargs = {}

# create env using custom parameters
env_id = "MemoryLength-v0"
env_kwargs: dict[str, Any] = {"memory_length": 10, "num_bits": 1}
seed = 123

env = gym.make(env_id, **env_kwargs)

obs, _ = env.reset(seed=seed)

for _step in range(11):
    action = env.action_space.sample()
    next_obs, reward, terminations, truncations, infos = env.step(action)
env.close()
