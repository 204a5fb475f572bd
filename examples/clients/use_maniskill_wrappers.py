"""The wrappers of ManiSkill's PPO examples on a robot task: observations as they expect them, metrics, trajectories.

python examples/clients/use_maniskill_wrappers.py --steps 10000 --out demos
python examples/clients/use_maniskill_wrappers.py --images
"""

import gymnasium as gym
import tyro
from mani_skill.utils.wrappers.flatten import FlattenRGBDObservationWrapper
from mani_skill.utils.wrappers.record import RecordEpisode
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

import mikasa_robo  # noqa: F401  (registers the tasks)


def main(
    steps: int = 10_000,
    env_id: str = "RememberColor3-v0",
    num_envs: int = 16,
    images: bool = False,
    out: str | None = None,
    seed: int = 0,
) -> list[float]:
    """Take random actions for ``steps`` environment steps. Returns the returns of all episodes that ended.

    With ``images``, observations are ``rgb`` and ``state``. ``out`` is a folder for trajectories that ManiSkill's
    ``replay_trajectory`` can play.
    """
    if images:
        # "joints" is what ManiSkill calls agent; obs_layout gives the keys that its wrappers read
        env = gym.make(env_id, num_envs=num_envs, obs_mode="rgb+joints", obs_layout="maniskill")
        env = FlattenRGBDObservationWrapper(env, rgb=True, depth=False, state=True)
    else:
        env = gym.make(env_id, num_envs=num_envs, obs_mode="state")
    if out is not None:
        env = RecordEpisode(env, out, save_trajectory=True, save_video=False)
    vector = ManiSkillVectorEnv(env, num_envs, ignore_terminations=False, record_metrics=True)
    returns: list[float] = []
    vector.reset(seed=seed)
    for _ in range(max(1, steps // num_envs)):
        *_, info = vector.step(vector.action_space.sample())
        if "final_info" in info:
            returns += info["final_info"]["episode"]["return"][info["_final_info"]].tolist()
    vector.close()
    print(f"{len(returns)} episodes, mean return {sum(returns) / max(1, len(returns)):.2f}")
    return returns


if __name__ == "__main__":
    tyro.cli(main)
