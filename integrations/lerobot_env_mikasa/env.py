"""For LeRobot's EnvHub: upload this file to a repository of the Hugging Face Hub. It needs mikasa-suite only.

from lerobot.envs import make_env
envs = make_env("USER/REPOSITORY", n_envs=8, trust_remote_code=True)
"""

from __future__ import annotations

from typing import Any

from mikasa_robo.clients.lerobot import LeRobotVectorEnv, task_ids

TASK = "RememberColor3-v0"
"""What is made where LeRobot passes no configuration: an ID, several separated by commas, or "all"."""
OBS = "rgb+joints"


def make_env(n_envs: int = 1, use_async_envs: bool = False, cfg: Any = None) -> dict[str, dict[int, LeRobotVectorEnv]]:
    """One vector environment for each task, as ``{task: {0: environment}}``.

    Args:
        n_envs: environments of each task; they are simulated together.
        use_async_envs: changes nothing.
        cfg: a LeRobot configuration; its ``task`` names the tasks.
    """
    tasks = task_ids(getattr(cfg, "task", None) or TASK)
    return {task: {0: LeRobotVectorEnv(task, n_envs, obs=OBS)} for task in tasks}
