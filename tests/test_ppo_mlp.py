"""PPO-MLP: its arithmetic, its files, and that it learns, mostly on a small task without a simulator."""

import dataclasses
import functools
import json
import math
import os
import pickle
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

from mikasa_robo.baselines import ppo_mlp, training
from mikasa_robo.baselines.advantages import compute_gae
from mikasa_robo.baselines.checkpoints import CheckpointError, load_network, load_policy, save_checkpoint, save_policy
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.encoder import ObservationNormalizer
from mikasa_robo.baselines.env_wrappers import ContinueAfterSuccess, EndAtSuccess, GymnasiumVectorEnv, StaggeredEpisodes
from mikasa_robo.baselines.environments import check_env_id, make_gymnasium_env, make_training_env, reset_with
from mikasa_robo.baselines.evaluation import evaluate, film
from mikasa_robo.baselines.loggers import EpisodeStats, ProgressCsv
from mikasa_robo.baselines.networks import ActorCritic, NetworkPolicy
from mikasa_robo.baselines.ppo_mlp import Args, ArgumentError, train
from mikasa_robo.sim import render
from mikasa_robo.sim.render import RenderingUnavailableError
from mikasa_robo.statistics import wilson_interval
from mikasa_robo.tools.plot import main as plot_main
from mikasa_robo.tools.plot import read_progress
from mikasa_robo.video import VideoError

CPU = torch.device("cpu")


class ReachEnv(gym.Env[Tensor, Tensor]):
    """A point on a line goes to a place drawn per episode; ManiSkill's conventions, no simulator."""

    horizon = 20
    device = CPU
    reconfiguration_freq = 0
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  Gymnasium's own annotation

    def __init__(self, num_envs: int, render_mode: str | None = None) -> None:
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.elapsed_steps = torch.zeros(num_envs, dtype=torch.long)
        self.position, self.goal = torch.zeros(2, num_envs).unbind()
        self.generators = [torch.Generator() for _ in range(num_envs)]
        self.closed = False

    def _obs(self) -> Tensor:
        return torch.stack([self.position, self.goal, self.elapsed_steps / self.horizon], dim=1)

    def _info(self) -> dict[str, Any]:
        near = (self.position - self.goal).abs() < 0.1
        return {"success": near, "fail": self.position.abs() > 2.0, "reward_terms": {"reach": self._reward()}}

    def _reward(self) -> Tensor:
        return 1.0 - torch.tanh(2.0 * (self.position - self.goal).abs())

    def reset(  # ManiSkill takes a seed per environment
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        index = torch.arange(self.num_envs) if options is None else options["env_idx"]
        if seed is not None:
            seeds = seed if isinstance(seed, list) else [seed + i for i in range(self.num_envs)]
            for generator, s in zip(self.generators, seeds, strict=True):
                generator.manual_seed(s)
        for i in index.tolist():
            self.goal[i] = torch.rand((), generator=self.generators[i]) * 2 - 1
        self.position[index] = 0.0
        self.elapsed_steps[index] = 0
        return self._obs(), self._info()

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:  # type: ignore[override]
        assert action.abs().max() <= 1.0, "the learner must clamp its actions"
        self.position += 0.25 * action[:, 0]
        self.elapsed_steps += 1
        info = self._info()
        ends = info["success"] | info["fail"]
        return self._obs(), self._reward(), ends, self.elapsed_steps >= self.horizon, info

    def render(self) -> Tensor:  # type: ignore[override]
        if self.render_mode is None:
            raise RuntimeError("render_mode is not set")
        pictures = torch.zeros((self.num_envs, 16, 16, 3), dtype=torch.uint8)
        column = ((self.position.clamp(-1, 1) + 1) * 7.5).long()
        pictures[torch.arange(self.num_envs), :, column] = 255
        return pictures

    def close(self) -> None:
        self.closed = True


def small(**changes: Any) -> Args:
    """Arguments for a run of seconds on ReachEnv."""
    values: dict[str, Any] = {
        "env_id": "Reach-v0",
        "total_timesteps": 16_000,
        "num_envs": 16,
        "num_steps": 20,
        "num_minibatches": 4,
        "hidden_sizes": (32, 32),
        "torch_threads": 1,
        "learning_rate": 1e-3,
        "eval_every": 4_000,
        "eval_num_envs": 25,
        "video_episodes": 3,
    }
    return Args(**{**values, **changes})


def reference_gae(
    rewards: list[float],
    values: list[float],
    next_values: list[float],
    done: list[bool],
    gamma: float,
    lam: float,
) -> list[float]:
    """The definition in one environment: A_t is the sum of (gamma lam)^k delta_{t+k} up to the episode's end."""
    advantages = []
    for t in range(len(rewards)):
        total, weight = 0.0, 1.0
        for k in range(t, len(rewards)):
            total += weight * (rewards[k] + gamma * next_values[k] - values[k])
            weight *= gamma * lam
            if done[k]:
                break
        advantages.append(total)
    return advantages


def test_gae_agrees_with_the_definition_in_every_environment() -> None:
    generator = torch.Generator().manual_seed(0)
    s, n, gamma, lam = 30, 64, 0.9, 0.8
    rewards, values, final_values = torch.randn((3, s, n), generator=generator, dtype=torch.float64).unbind()
    last_value = torch.randn(n, generator=generator, dtype=torch.float64)
    terminated, truncated = (torch.rand((2, s, n), generator=generator) < 0.1).unbind()
    assert (terminated & truncated).any(), "the case where both are set is part of the test"
    advantages, returns = compute_gae(rewards, values, last_value, final_values, terminated, truncated, gamma, lam)
    for i in range(n):
        following = [*values[1:, i].tolist(), last_value[i].item()]
        for t in range(s):
            if terminated[t, i]:
                following[t] = 0.0
            elif truncated[t, i]:
                following[t] = final_values[t, i].item()
        done = (terminated | truncated)[:, i].tolist()
        expected = reference_gae(rewards[:, i].tolist(), values[:, i].tolist(), following, done, gamma, lam)
        torch.testing.assert_close(advantages[:, i], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(returns, advantages + values)


@pytest.mark.parametrize(
    ("ends", "first", "second"),
    # reward 1, values 10 and 20, next observation 30, last observation of the cut episode 4; gamma 0.5, lambda 0.5.
    # Second step: 1 + 0.5 * 30 - 20 = -4. First: truncated 1 + 0.5 * 4 - 10 = -7; terminated 1 - 10 = -9;
    # running 1 + 0.5 * 20 - 10 + 0.25 * -4 = 0.
    [("truncated", -7.0, -4.0), ("terminated", -9.0, -4.0), ("running", 0.0, -4.0)],
)
def test_gae_by_hand(ends: str, first: float, second: float) -> None:
    flag, no = torch.tensor([[True], [False]]), torch.zeros((2, 1), dtype=torch.bool)
    advantages, _ = compute_gae(
        torch.ones(2, 1),
        torch.tensor([[10.0], [20.0]]),
        torch.tensor([30.0]),
        torch.tensor([[4.0], [float("nan")]]),  # unread where nothing was truncated
        flag if ends == "terminated" else no,
        flag if ends == "truncated" else no,
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantages[:, 0].tolist() == [first, second]


def test_rollout_keeps_the_true_last_observation_of_each_truncated_episode() -> None:
    from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

    made = ManiSkillVectorEnv(ContinueAfterSuccess(ReachEnv(8)), record_metrics=True)
    env = StaggeredEpisodes(made, groups=4, horizon=20)
    policy = ActorCritic(3, 1, (8,))
    generator = torch.Generator().manual_seed(0)
    obs, _ = env.reset(seed=0)
    stats = EpisodeStats()
    first = ppo_mlp.rollout(env, policy, obs, 16, generator, stats)
    assert sorted(set(made.base_env.elapsed_steps.tolist())) == [1, 6, 11, 16]
    cut = first.truncated.nonzero()
    assert cut.tolist() == [[4, 2], [4, 3], [9, 4], [9, 5], [14, 6], [14, 7]]
    assert isinstance(first.final_obs, Tensor)
    torch.testing.assert_close(first.final_obs[:, 2], (cut[:, 0] + 1) / 20)
    assert "train/length" not in stats.pop(), "episodes that were cut short do not count"
    batch = ppo_mlp.rollout(env, policy, first.last_obs, 30, generator, stats)
    assert stats.pop()["train/length"] == 20.0
    assert isinstance(batch.obs, Tensor)
    assert isinstance(batch.last_obs, Tensor)
    assert isinstance(batch.final_obs, Tensor)
    assert batch.truncated.sum() == len(batch.final_obs) == 12
    # The clock (third component) reads 1 in the last observation of an episode and 0 in the first of the next.
    assert (batch.final_obs[:, 2] == 1.0).all()
    step, env_index = batch.truncated.nonzero().unbind(1)
    torch.testing.assert_close(batch.final_obs[:, 1], batch.obs[step, env_index, 1])  # the goal of the old episode
    following = torch.cat([batch.obs[1:], batch.last_obs[None]])
    assert (following[step, env_index, 2] == 0.0).all()
    # The log-probabilities kept are those that an update computes before its first step.
    log_prob, _, _ = policy.evaluate(policy.normalize(batch.obs.flatten(0, 1)), batch.actions.flatten(0, 1))
    torch.testing.assert_close(log_prob, batch.log_probs.flatten())


def test_an_episode_that_ends_when_it_would_be_cut_short_is_not_cut() -> None:
    inner = ReachEnv(2)
    env = StaggeredEpisodes(inner, groups=2, horizon=8)  # the second one would be cut short after 4 steps
    env.reset(seed=0)
    for _ in range(3):
        env.step(torch.zeros(2, 1))
    inner.position = torch.tensor([0.0, 2.5])  # a failure in the second one
    _, _, terminated, truncated, info = env.step(torch.zeros(2, 1))
    assert bool(terminated[1])
    assert not truncated.any()
    assert "cut_short" not in info
    assert inner.elapsed_steps.tolist() == [4, 4], "it was not reset here"


def test_only_first_episodes_are_cut_short() -> None:
    """An environment whose first episode ended early is out of phase already."""
    from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

    inner = ReachEnv(3)
    made = ManiSkillVectorEnv(inner, record_metrics=True)
    env = StaggeredEpisodes(made, groups=2, horizon=8)  # the last one would be cut short after 4 steps
    never = torch.zeros(3, dtype=torch.bool)
    for again in (False, True):
        env.reset(seed=0)
        for t in range(1, 7):
            inner.goal[:] = 1.0  # which none reaches
            if t == 2:
                inner.position = torch.tensor([0.0, 0.0, 2.5])  # a failure in the third one
            _, _, terminated, truncated, info = env.step(torch.zeros(3, 1))
            assert terminated.tolist() == [False, False, t == 2]
            assert not truncated.any(), again
            assert "cut_short" not in info
    env.reset(seed=0)
    cut = never.clone()
    for _ in range(6):
        inner.goal[:] = 1.0
        cut |= env.step(torch.zeros(3, 1))[4].get("cut_short", never)
    assert cut.tolist() == [False, False, True], "a reset of all staggers them anew"


def test_an_update_bootstraps_from_what_was_truncated_and_what_goes_on() -> None:
    torch.manual_seed(0)
    policy = ActorCritic(3, 1, (8,))
    torch.nn.init.normal_(policy.critic[-1].weight)  # so that values are large enough to matter
    policy.update_normalizer(3.0 + 2.0 * torch.randn(100, 3))
    obs, final_obs = 3.0 + 2.0 * torch.randn(7, 4, 3), 3.0 + 2.0 * torch.randn(2, 3)
    rewards, zeros, never = torch.randn(6, 4), torch.zeros(6, 4), torch.zeros(6, 4, dtype=torch.bool)
    truncated = never.clone()
    truncated[2, 0] = truncated[4, 3] = True
    batch = ppo_mlp.Rollout(
        obs[:6], torch.zeros(6, 4, 1), zeros, rewards, never, truncated, last_obs=obs[6], final_obs=final_obs
    )
    with torch.no_grad():
        values, final = (policy.value(policy.normalize(one)) for one in (obs, final_obs))
    args = small(num_envs=4, num_steps=6, num_minibatches=1, update_epochs=1)
    final_values = zeros.masked_scatter(truncated, final)
    advantages, _ = compute_gae(
        rewards, values[:6], values[6], final_values, never, truncated, args.gamma, args.gae_lambda
    )
    row = ppo_mlp.update(policy, torch.optim.Adam(policy.parameters()), batch, args, torch.Generator())
    assert row["loss/value"] == pytest.approx(0.5 * advantages.square().mean().item(), rel=1e-5)


def test_only_a_failure_ends_a_training_episode() -> None:
    env = ContinueAfterSuccess(ReachEnv(2))
    env.reset(seed=0)
    inner = env.unwrapped
    assert isinstance(inner, ReachEnv)
    inner.position = torch.tensor([inner.goal[0].item(), 2.5])
    _, _, terminated, _, info = env.step(torch.zeros(2, 1))
    assert info["success"].tolist() == [True, False]
    assert terminated.tolist() == [False, True]


def test_a_success_ends_a_training_episode_and_pays_its_worth() -> None:
    env = EndAtSuccess(ReachEnv(3), worth=4.0)
    env.reset(seed=0)
    inner = env.unwrapped
    assert isinstance(inner, ReachEnv)
    inner.position = torch.tensor([inner.goal[0].item(), 2.5, inner.goal[2].item() + 0.5])
    plain = inner._reward()
    _, reward, terminated, _, info = env.step(torch.zeros(3, 1))
    assert info["success"].tolist() == [True, False, False]
    assert terminated.tolist() == [True, True, False]
    assert reward.tolist() == [4.0 * plain[0].item(), plain[1].item(), plain[2].item()]


def test_training_ends_its_episodes_at_a_success_that_has_a_worth(tmp_path: Path) -> None:
    """ReachEnv pays 0.8 to 1 in a step with success, at most 1 in every other, and its episodes have 20 steps."""
    run_dir = tmp_path / "run"
    train(small(success_worth=100.0, run_dir=run_dir), ReachEnv)
    last = read_progress(run_dir)[-1]
    assert float(last["train/return"]) > 60.0
    assert float(last["train/length"]) < 10.0


@pytest.mark.parametrize("value", [0.0, -1.0, 1e7, float("nan")])
def test_a_worth_that_cannot_be_used_is_refused(value: float) -> None:
    with pytest.raises(ArgumentError, match=f"--success-worth {value} cannot be used; use a value above 0"):
        small(success_worth=value).check()


def test_normalizer_matches_the_statistics_of_all_its_batches() -> None:
    data = torch.randn((50, 7, 3), generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.0]) + 2.0
    normalizer = ObservationNormalizer(3)
    for part in data.split(10):
        normalizer.update(part)
    flat = data.reshape(-1, 3).double()
    torch.testing.assert_close(normalizer.mean, flat.mean(0))
    torch.testing.assert_close(normalizer.var, flat.var(0, unbiased=False))
    assert normalizer(data)[..., 2].abs().max() == 0.0  # a constant stays 0, whatever its rounding
    assert normalizer(torch.full((1, 3), 1e9)).max() == normalizer.clip


def test_checkpoint_gives_the_same_actions(tmp_path: Path) -> None:
    policy = ActorCritic(5, 2, (16, 8))
    obs = torch.randn(100, 5, generator=torch.Generator().manual_seed(1)) * 3 + 1
    policy.update_normalizer(obs)
    with torch.no_grad():  # larger actions than those of a fresh policy, so that a difference would show
        policy.actor[-1].weight.mul_(50.0)
    save_policy(tmp_path / "checkpoint.pt", policy, small(), step=7)
    loaded = load_policy(tmp_path / "checkpoint.pt")
    assert policy.act(obs).std() > 0.1
    assert torch.equal(loaded.act(obs), policy.act(obs))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"], "no temporary file is left"


class Payload:
    """What a hostile checkpoint would carry."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("payload-has-run",))


def test_checkpoint_with_a_pickled_object_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": "mikasa/ppo-mlp/1", "network": Payload()}, "bad.pt")
    with pytest.raises(CheckpointError, match=r"bad\.pt"):
        load_policy("bad.pt")
    Path("plain.pt").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(CheckpointError, match=r"plain\.pt"):
        load_policy("plain.pt")
    assert not Path("payload-has-run").exists()
    save_checkpoint(Path("other.pt"), {"format": "something else"})
    with pytest.raises(CheckpointError, match="something else"):
        load_policy("other.pt")
    with pytest.raises(CheckpointError, match=r"payload\['x'\]\[1\] is a Payload"):
        save_checkpoint(Path("never.pt"), {"x": [1, Payload()]})
    assert not Path("never.pt").exists()


def test_training_solves_a_small_task_and_fills_its_folder(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    envs: list[ReachEnv] = []

    def factory(num_envs: int, render_mode: str | None) -> ReachEnv:
        envs.append(ReachEnv(num_envs, render_mode))
        return envs[-1]

    before = evaluate(ActorCritic(3, 1, (32, 32)), ReachEnv(25), episodes=100, first_seed=2_000_000, device=CPU)
    result = train(small(run_dir=run_dir), factory, ["a", "b c"])
    assert before.summary()["success_once"] < 0.5
    assert result["final"]["success_once"] > 0.9
    assert len(envs) == 3
    assert all(env.closed for env in envs)

    assert json.loads((run_dir / "final_eval.json").read_text()) == result
    assert result["command"] == "a 'b c'"
    assert result["training_steps"] == 16_000
    assert result["final"]["success_low"] < result["final"]["success_once"] <= result["final"]["success_high"]
    assert result["versions"]["torch"] == metadata.version("torch")
    rows = read_progress(run_dir)
    assert [int(float(row["step"])) for row in rows] == list(range(320, 16_001, 320))
    evaluated = [row for row in rows if row["eval/success_once"]]
    assert len(evaluated) == 4
    assert float(rows[-1]["reward/reach"]) > float(rows[0]["reward/reach"])
    assert float(rows[-1]["train/success_at_end"]) > 0.7  # with exploration noise
    assert list(run_dir.glob("events.out.tfevents.*"))
    assert (run_dir / "video.mp4").stat().st_size > 0
    # What was evaluated is what was saved.
    policy = load_policy(run_dir / "checkpoint.pt")
    again = evaluate(policy, ReachEnv(25), episodes=100, first_seed=2_000_000, device=CPU).summary()
    assert again == {name: result["final"][name] for name in again}
    best = evaluate(load_policy(run_dir / "best.pt"), ReachEnv(25), episodes=100, first_seed=1_000_000, device=CPU)
    assert best.summary()["success_once"] == result["best_during_training"]["success_once"]

    assert plot_main([str(run_dir), "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_curves_need_a_folder_that_can_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "progress.csv").write_text("step,train/return\n1,2.0\n")
    assert plot_main([str(run), "--out", str(tmp_path / "new" / "curves.png")]) == 0
    assert (tmp_path / "new" / "curves.png").exists()
    out = run / "progress.csv" / "curves.png"
    assert plot_main([str(run), "--out", str(out)]) == 2
    assert f"--out {out}: the folder" in (message := capsys.readouterr().err)
    assert "is a file, not a folder" in message


def test_the_same_seed_trains_the_same_policy(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> dict[str, Tensor]:
        args = small(
            run_dir=tmp_path / name, seed=seed, total_timesteps=640, eval_every=0, eval_episodes=5, video=False
        )
        train(args, lambda num_envs, render_mode: ReachEnv(num_envs, render_mode))
        weights: dict[str, Tensor] = load_network(tmp_path / name / "checkpoint.pt").state_dict()
        return weights

    a, b, other = weights("a", 3), weights("b", 3), weights("other", 4)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["actor.0.weight"], other["actor.0.weight"])


def test_evaluation_is_the_same_whatever_the_number_of_environments() -> None:
    policy = ActorCritic(3, 1, (8,))
    torch.nn.init.normal_(policy.actor[-1].weight, std=3.0)
    results = [evaluate(policy, ReachEnv(n), episodes=100, first_seed=5, device=CPU) for n in (10, 25, 33)]
    for result in results[1:]:
        # To a rounding error: a product of matrices may round differently for another number of rows.
        assert result.returns == pytest.approx(results[0].returns, rel=1e-5)
        assert dataclasses.replace(result, returns=[]) == dataclasses.replace(results[0], returns=[])
    assert len(set(results[0].lengths)) > 2, "episodes of different lengths, or the comparison shows little"
    assert 0 < sum(results[0].success_once) < 100


def test_wilson_interval() -> None:
    assert wilson_interval(95, 100) == pytest.approx((0.8882, 0.9785), abs=1e-4)  # Brown, Cai, DasGupta 2001, eq. 4
    assert wilson_interval(100, 100)[1] == 1.0
    with pytest.raises(ValueError, match="3 successes in 2 trials"):
        wilson_interval(3, 2)


def test_no_video_where_nothing_can_be_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def factory(num_envs: int, render_mode: str | None) -> ReachEnv:
        raise RenderingUnavailableError("no Vulkan driver: install one")

    policy = ActorCritic(3, 1, (8,))
    with caplog.at_level("WARNING", logger="mikasa_robo.baselines"):
        film(policy, factory, tmp_path / "video.mp4", episodes=2, first_seed=0, device=CPU)
    assert [record.getMessage() for record in caplog.records] == ["no video: no Vulkan driver: install one"]
    assert not list(tmp_path.iterdir())


class Unseen(gym.Env[Any, Any]):
    """An environment of one step that draws nothing, and whose constructor does not know ``render_mode``."""

    observation_space: gym.spaces.Space[Any] = gym.spaces.Box(-1.0, 1.0, (3,))
    action_space: gym.spaces.Space[Any] = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 0.0, True, False, {}


class Undrawn(Unseen):
    """An environment whose pictures need a package that is missing."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  Gymnasium's own annotation

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled("pygame is not installed")


def register_drawn(made: Callable[..., gym.Env[Any, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**kwargs: Any) -> gym.Env[Any, Any]:
        return made(**kwargs)

    monkeypatch.setitem(gym.registry, "Drawn-v0", EnvSpec("Drawn-v0", make, max_episode_steps=5))


@pytest.mark.parametrize(
    ("made", "env_kwargs", "why"),
    [
        (Unseen, {}, "Drawn-v0 has no render_mode='rgb_array'"),
        (Unseen, {"size": 2}, "Drawn-v0 has no render_mode='rgb_array'"),
        (Undrawn, {}, "pygame is not installed"),
    ],
)
def test_no_video_of_an_environment_that_cannot_be_drawn(
    made: type[gym.Env[Any, Any]],
    env_kwargs: dict[str, Any],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Training is over by then, and its results are there."""
    register_drawn(made, monkeypatch)
    factory = functools.partial(make_gymnasium_env, env_id="Drawn-v0", env_kwargs=env_kwargs)
    policy = NetworkPolicy(ActorCritic(3, 1, (8,)))
    with caplog.at_level("WARNING", logger="mikasa_robo.baselines"):
        film(policy, factory, tmp_path / "video.mp4", episodes=2, first_seed=0, device=CPU)
    assert [record.getMessage() for record in caplog.records] == [f"no video: {why}"]
    assert not list(tmp_path.iterdir())


def test_an_argument_that_the_environment_lacks_is_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    register_drawn(Unseen, monkeypatch)
    with pytest.raises(ValueError, match=r"--env-kwargs width: .*unexpected keyword argument 'width'"):
        make_gymnasium_env(2, None, env_id="Drawn-v0", env_kwargs={"width": 2})


def test_no_video_where_ffmpeg_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training is over by then, and its results are there."""

    def full(*args: Any, **kwargs: Any) -> None:
        raise VideoError(Path("video.mp4"), "ffmpeg ended with the exit code 1")

    monkeypatch.setattr("mikasa_robo.baselines.evaluation.record_video", full)
    with caplog.at_level("WARNING", logger="mikasa_robo.baselines"):
        film(
            ActorCritic(3, 1, (8,)),
            lambda num_envs, render_mode: ReachEnv(num_envs),
            tmp_path / "video.mp4",
            episodes=2,
            first_seed=0,
            device=CPU,
        )
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("no video: the video video.mp4 could not be written: ffmpeg ended with the exit code 1;")


def test_a_video_that_fails_costs_no_result(tmp_path: Path) -> None:
    def factory(num_envs: int, render_mode: str | None) -> ReachEnv:
        if render_mode is not None:
            raise MemoryError("no memory for a second renderer")
        return ReachEnv(num_envs)

    with pytest.raises(MemoryError):
        train(small(total_timesteps=320, eval_every=0, run_dir=tmp_path / "run"), factory)
    assert json.loads((tmp_path / "run" / "final_eval.json").read_text())["training_steps"] == 320


def test_training_seeds_of_neighbouring_runs_differ() -> None:
    class Recorder:
        num_envs = 32

        def __init__(self) -> None:
            self.unwrapped = GymnasiumVectorEnv.__new__(GymnasiumVectorEnv)
            self.seeds: list[int] = []

        def reset(self, *, seed: list[int]) -> Any:
            self.seeds = seed

    def seeds(seed: int, dist: DistContext) -> list[int]:
        env = Recorder()
        reset_with(env, seed, dist)
        return env.seeds

    one, two = seeds(1, DistContext()), seeds(2, DistContext())
    assert len({*one, *two}) == 64
    assert min(*one, *two) > 400_000_000, "those of evaluations and datasets are below"
    assert max(*one, *two) < 2**31
    assert not {*one} & {*seeds(1, DistContext(rank=1, size=2))}


@pytest.mark.parametrize(("env_id", "own"), [("PickCube-v1", True), ("RememberColor3-v0", False)])
def test_automatic_resets_of_maniskill_s_tasks_differ_between_processes_and_after_a_resume(
    env_id: str, own: bool
) -> None:
    """They draw from torch's global generator."""

    class Env:
        num_envs, device, unwrapped = 2, CPU, None

        def reset(self, *, seed: Any) -> Any:
            return None, {}

    def state(rank: int, updates: int) -> int:
        torch.manual_seed(5)
        algorithm = SimpleNamespace(on_episode_start=lambda starts: None)
        run = SimpleNamespace(args=Args(env_id=env_id, seed=1), updates=updates, env=Env(), algorithm=algorithm)
        run.dist = DistContext(rank=rank, size=2)
        training._Run.start_episodes(run)
        return torch.initial_seed()

    found = {state(rank, updates) for rank in (0, 1) for updates in (0, 3)}
    assert len(found) == 4 if own else found == {5}


def test_a_missing_vulkan_driver_is_one_line_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a task of ours and for one of ManiSkill's own. test_sim_misuse.py takes the driver away from a real process."""
    monkeypatch.setattr(render, "rendering_problem", lambda device="cpu": "no driver")
    for env_id in ("RememberColor3-v0", "PickCube-v1"):
        check_env_id(env_id)
        factory = functools.partial(
            make_training_env,
            env_id=env_id,
            reward_mode="sparse",
            control_mode="pd_joint_delta_pos",
            sim_backend="physx_cpu",
        )
        film(None, factory, Path("never.mp4"), episodes=1, first_seed=0, device=CPU)
    lines = [line for line in caplog.messages if line.startswith("no video")]
    assert len(lines) == 2, caplog.messages
    for line in lines:
        assert line.startswith("no video: render_mode='rgb_array' needs pictures, but SAPIEN cannot draw here")
        assert "mesa-vulkan-drivers" in line


@pytest.mark.parametrize("where", ["the policy", "the environment", "the factory"])
@pytest.mark.parametrize("error", [RuntimeError, ImportError, OSError])
def test_an_error_while_filming_is_not_taken_for_a_missing_driver(
    where: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs: list[ReachEnv] = []

    def broken(*_: Any) -> Any:
        raise error("a mistake of the user's")

    def factory(num_envs: int, render_mode: str | None) -> ReachEnv:
        envs.append(ReachEnv(num_envs, render_mode))
        return envs[-1]

    policy = NetworkPolicy(ActorCritic(3, 1, (8,)))
    if where == "the policy":
        monkeypatch.setattr(policy, "act", broken)
    if where == "the environment":
        monkeypatch.setattr(ReachEnv, "render", broken)
    with pytest.raises(error, match="a mistake of the user's"):
        film(
            policy,
            broken if where == "the factory" else factory,
            tmp_path / "video.mp4",
            episodes=2,
            first_seed=0,
            device=CPU,
        )
    assert all(env.closed for env in envs)
    assert not list(tmp_path.iterdir())


def test_exploration_narrows_under_its_bound(tmp_path: Path) -> None:
    changes = {"total_timesteps": 3200, "learning_rate": 1e-6, "eval_episodes": 5, "video": False}

    def stds(name: str, **more: Any) -> list[float]:
        train(small(run_dir=tmp_path / name, **changes, **more), ReachEnv)
        return [float(row["loss/action_std"]) for row in read_progress(tmp_path / name)]

    narrowed = stds("narrowed", init_log_std=0.0, final_log_std=-2.0)
    assert narrowed == pytest.approx([math.exp(-2.0 * k / 10) for k in range(10)], rel=1e-3)
    assert stds("free", init_log_std=0.0) == pytest.approx([1.0] * 10, rel=1e-3)


def test_what_is_below_the_bound_of_exploration_stays() -> None:
    policy = ActorCritic(3, 2, (8,), init_log_std=-1.0)
    policy.log_std.data[1] = -3.0
    policy.limit_log_std(-2.0)
    assert policy.log_std.tolist() == [-2.0, -3.0]
    discrete = ActorCritic(3, [4], (8,))
    before = {name: value.clone() for name, value in discrete.state_dict().items()}
    discrete.limit_log_std(-2.0)
    assert all(torch.equal(before[name], value) for name, value in discrete.state_dict().items())


def test_progress_csv_widens_when_a_row_has_a_new_column(tmp_path: Path) -> None:
    table = ProgressCsv(tmp_path / "progress.csv")
    table.append({"step": 1.0, "a": 2.0})
    table.append({"step": 2.0, "eval": 3.0})
    table.append({"step": 3.0, "a": 4.0})
    assert (tmp_path / "progress.csv").read_text().split() == ["step,a,eval", "1.0,2.0,", "2.0,,3.0", "3.0,4.0,"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_envs": 0}, r"--num-envs 0 .* use 1 to"),
        ({"num_steps": -3}, r"--num-steps -3 .* use 1 to"),
        ({"eval_num_envs": 0}, r"--eval-num-envs 0 .* use 1 to"),
        ({"num_minibatches": 7}, r"--num-minibatches 7 does not divide .* = 320; use 8"),
        ({"num_minibatches": 320}, r"--num-minibatches 320 .* at most 160"),
        ({"total_timesteps": 319}, r"--total-timesteps 319 .* at least 320"),
        ({"gamma": 1.5}, r"--gamma 1.5 .* from 0 to 1"),
        ({"gamma": float("nan")}, r"--gamma nan .* from 0 to 1"),
        ({"learning_rate": 0.0}, r"--learning-rate 0.0 .* above 0"),
        ({"final_log_std": 0.5}, r"--final-log-std 0.5 .* use -20 to --init-log-std"),
        ({"final_log_std": float("-inf")}, r"--final-log-std -inf .* use -20 to --init-log-std"),
        (
            {"init_log_std": -3.0, "final_log_std": -2.5},
            r"--final-log-std -2.5 cannot be used; use -20 to --init-log-std, which is -3$",
        ),
        ({"hidden_sizes": (32, 0)}, r"--hidden-sizes \(32, 0\) .* at least 1"),
        ({"device": "abacus"}, r"--device abacus .* use cpu"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_made(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    def factory(num_envs: int, render_mode: str | None) -> ReachEnv:
        raise AssertionError("no environment may be made")

    with pytest.raises(ArgumentError, match=message):
        train(small(run_dir=tmp_path / "run", **changes), factory)
    assert not list(tmp_path.iterdir())


def test_an_environment_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    def factory(num_envs: int, render_mode: str | None) -> ReachEnv:
        raise ValueError("there is no such backend")

    with pytest.raises(ArgumentError, match="there is no such backend"):
        train(small(run_dir=tmp_path / "run"), factory)
    assert not list(tmp_path.iterdir())


def test_an_unknown_task_is_refused_with_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ppo_mlp.main(["--env-id", "RememberColour3-v0"]) == 2
    message = capsys.readouterr().err
    assert "RememberColour3-v0 is not registered" in message
    assert "RememberColor3-v0" in message
    assert not list(tmp_path.iterdir())


def test_an_existing_run_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "run" / "final_eval.json"
    kept.parent.mkdir()
    kept.write_text("mine")
    with pytest.raises(FileExistsError, match=r"run exists and is not empty; name another"):
        train(small(run_dir=kept.parent), lambda num_envs, render_mode: ReachEnv(num_envs, render_mode))
    assert kept.read_text() == "mine"
    assert list(kept.parent.iterdir()) == [kept]


def test_a_large_batch_is_evaluated_and_saved_each_time_so_many_steps_have_passed(tmp_path: Path) -> None:
    """A rollout of 2048 environments takes more steps than lie between two evaluations, and each counts once."""
    run_dir = tmp_path / "run"
    argv = (
        "--env-id MemoryLengthEasy-v0 --preset none --num-envs 2048 --num-steps 8 --total-timesteps 98304 --no-video "
        "--num-minibatches 2 --update-epochs 1 --hidden-sizes 8 --eval-episodes 4 --eval-num-envs 4 --torch-threads 1 "
        "--eval-every 10000 --checkpoint-every 40000 --keep-checkpoints 99"
    )
    assert ppo_mlp.main([*argv.split(), "--run-dir", str(run_dir)]) == 0
    rows = read_progress(run_dir)
    batch = 2048 * 8
    assert [int(float(row["step"])) for row in rows] == [batch * k for k in range(1, 7)]
    # 10,000 and 40,000 steps: at the first update that has them, then at the first that has the next multiple
    assert [bool(row["eval/return"]) for row in rows] == [True] * 6
    saved = [int(path.stem.partition("-")[2]) for path in sorted(run_dir.glob("resume-*.pt"))]
    assert saved == [0, 3 * batch, 5 * batch, 6 * batch]
    assert json.loads((run_dir / "final_eval.json").read_text())["training_steps"] == 98304


@pytest.mark.slow
def test_the_command_line_trains_on_the_real_task(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    argv = "--total-timesteps 256 --num-envs 8 --num-steps 32 --num-minibatches 4 --eval-every 256 --eval-episodes 4"
    status = ppo_mlp.main([*argv.split(), "--eval-num-envs", "4", "--no-video", "--run-dir", str(run_dir)])
    assert status == 0
    result = json.loads((run_dir / "final_eval.json").read_text())
    assert result["env_id"] == "RememberColor3-v0"
    assert result["training_steps"] == 256
    assert 1 <= result["final"]["length"] <= 60
    (row,) = read_progress(run_dir)
    assert 0.0 <= float(row["eval/success_once"]) <= 1.0
    assert any(name.startswith("reward/") for name in row)
    assert load_network(run_dir / "checkpoint.pt").action.dim == 8


@pytest.mark.slow
def test_a_robot_task_is_learnt(tmp_path: Path) -> None:
    """A guess is right in a third of the episodes, and a policy that hovers in none."""
    run_dir = tmp_path / "run"
    argv = (
        "--env-id ShellGameTouch-v0 --total-timesteps 50000 --sim-backend physx_cpu --eval-every 0 --no-video "
        "--torch-threads 1"
    )
    assert ppo_mlp.main([*argv.split(), "--run-dir", str(run_dir)]) == 0
    returns = [float(row["train/return"]) for row in read_progress(run_dir) if row["train/return"]]
    assert returns[-1] > 3 * returns[0] > 0
    assert json.loads((run_dir / "final_eval.json").read_text())["final"]["success_once"] >= 0.6
