"""The dense reward rises along each expert's way, and neither an idle nor a hovering arm out-earns the expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from task_helpers import FAMILIES, base, collected, make, paid_once
from torch import Tensor

from mikasa_robo.core.choice import ChoiceTask
from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.experts.arm import facing_down, quaternion_product
from mikasa_robo.experts.policies import OBS_MODE, Expert
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.experts.taking_back import LEAN, TakeItBackSkill
from mikasa_robo.tasks.rolling_ball import RollingBallTask
from mikasa_robo.tasks.shell_game import ShellGame

pytestmark = pytest.mark.usefixtures("one_torch_thread")

EPISODES = 8
HOVER = 0.1
"""How far above its target the hovering hand stays, m."""
GAMMAS = (1.0, 0.99, 0.9)
RANK_CORRELATION = 0.9
"""The least median over episodes of Spearman's rank correlation of the expert's reward with time, from the start of the
response phase to success. Every family reaches 0.98: there is no detour in any, so there is no exception either."""
EXPERT, IDLE, HOVERING = range(3)
QUICK = ("RememberColor3-v0",)
"""IDs that are tested in every run; the others are slow."""


def hover_target(task: MemoryEnv[Any]) -> Tensor:
    """(N, 3) what a hand that knows the oracle hovers over, m: the next thing to act on."""
    s, data = task.task_state, task._read_sim(task.elapsed_steps)
    if isinstance(task, ChoiceTask):
        index = task._to_next(s, data)[0]
        return data.objects[torch.arange(len(index)), index, :3]
    if isinstance(task, ShellGame):
        return task._target_mug(s, data)[:, :3]
    thing = data.objects[:, 0, :3]
    if isinstance(task, RollingBallTask):
        # the point of its way that is nearest to the hand; the ball itself once it has rolled past
        velocity = data.objects[:, 0, 7:10]
        seconds = ((data.tcp[:, :3] - thing) * velocity).sum(1) / (velocity**2).sum(1).clamp(min=1e-6)
        return thing + velocity * seconds.clamp(min=0)[:, None]
    return thing


@dataclass
class Played:
    """Three policies in the same episodes."""

    reward: Tensor  # (T, 3, M) normalized_dense
    once: Tensor  # (T, 3, M) the part of it that is paid once
    success: Tensor  # (T, 3, M) bool
    start: int  # the first step of the response phase

    def returns(self, gamma: float) -> Tensor:
        """(3, M) return of each episode, which goes on after success as in training to the horizon."""
        weight = gamma ** torch.arange(len(self.reward), dtype=torch.float64)
        return (self.reward * weight[:, None, None]).sum(0)

    def correlations(self) -> list[float]:
        """Spearman's rank correlation of the expert's reward with time, for each episode that succeeds.

        What is paid once counts from then on.
        """
        found = []
        worth = collected(self.reward, self.once)[:, EXPERT]
        for won, reward in zip(self.success[:, EXPERT].T, worth.T, strict=True):
            if bool(won.any()):
                found.append(rank_correlation(reward[self.start : int(won.to(torch.int8).argmax()) + 1]))
        return found


def rank_correlation(values: Tensor) -> float:
    """Spearman's rank correlation of ``values`` (n,) with their positions; equal values share their mean rank."""
    less = (values[:, None] > values).sum(1)
    ranks = (less + (values[:, None] >= values).sum(1)).to(torch.float64)
    position = torch.arange(len(values), dtype=torch.float64)
    return float(torch.corrcoef(torch.stack([position, ranks]))[0, 1])


@torch.no_grad()
def play(env_id: str) -> Played:
    """Each of the three policies plays the same `EPISODES` episodes, in one batch; after its success the expert rests."""
    env = make(env_id, 3 * EPISODES, obs_mode=OBS_MODE)
    task = base(env)
    expert = Expert(make_skill(env_id, task))
    obs, info = env.reset(seed=[7 + i for i in range(EPISODES)] * 3)
    expert.reset()
    policy = torch.arange(3 * EPISODES)[:, None] // EPISODES
    down = facing_down(torch.zeros(3 * EPISODES))
    if isinstance(
        expert.skill, TakeItBackSkill
    ):  # over the whole way of the cube only a hand that leans as the expert's
        half = torch.tensor(-LEAN / 2)
        lean = torch.stack([half.cos(), torch.zeros(()), half.sin(), torch.zeros(())])
        down = quaternion_product(lean.expand_as(down), down)
    up, opened = torch.tensor([0.0, 0.0, HOVER]), torch.ones(3 * EPISODES)
    over = torch.zeros(3 * EPISODES, dtype=torch.bool)
    reward, once, success = [], [], []
    for _ in range(task.horizon):
        action = expert.act(obs, info)
        action[over, :-1] = 0.0
        hover = expert.skill.arm.act(obs["joints"], hover_target(task) + up, down, opened)
        action = torch.where(policy == IDLE, 0.0, torch.where(policy == HOVERING, hover, action))
        obs, paid, _, _, info = env.step(action)
        over = over | info["success"]
        reward.append(paid)
        once.append(paid_once(task, info))
        success.append(info["success"])
    env.close()
    shape = (-1, 3, EPISODES)
    return Played(
        torch.stack(reward).reshape(shape),
        torch.stack(once).reshape(shape),
        torch.stack(success).reshape(shape),
        max(task.timeline.response_start - 1, 0),
    )


@pytest.mark.parametrize("env_id", [pytest.param(i, marks=[] if i in QUICK else pytest.mark.slow) for i in FAMILIES])
def test_the_dense_reward_leads_along_the_experts_way(env_id: str) -> None:
    played = play(env_id)
    won = played.success.any(dim=0)
    assert int(won[EXPERT].sum()) >= EPISODES - 1
    assert not bool(won[[IDLE, HOVERING]].any())
    correlations = torch.tensor(played.correlations())
    assert float(correlations.median()) >= RANK_CORRELATION, correlations
    for gamma in GAMMAS:
        earned = played.returns(gamma)
        # of single episodes too, but for the one in eight that an expert may lose
        for other in (IDLE, HOVERING):
            assert float(earned[EXPERT].mean()) > float(earned[other].mean()), (gamma, earned)
            assert int((earned[EXPERT] > earned[other]).sum()) >= EPISODES - 1, (gamma, earned)


def test_rank_correlation_is_spearmans() -> None:
    assert rank_correlation(torch.tensor([1.0, 2.0, 10.0, 11.0])) == pytest.approx(1)
    assert rank_correlation(torch.tensor([3.0, 2.0, 1.0])) == pytest.approx(-1)
    # ranks 1, 2.5, 2.5, 4: the covariance with 0, 1, 2, 3 is 4.5, and the squares are 4.5 and 5
    assert rank_correlation(torch.tensor([0.0, 5.0, 5.0, 6.0])) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
