"""SAC and its expert's transitions: targets, replay, what a rollout keeps, and runs that learn and are resumed."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import mikasa_robo
from mikasa_robo.baselines import sac
from mikasa_robo.baselines.arguments import ArgumentError
from mikasa_robo.baselines.checkpoints import Checkpoints, load_policy, read_policy
from mikasa_robo.baselines.command import main
from mikasa_robo.baselines.dataset import DIGEST
from mikasa_robo.baselines.demonstrations import NoisyExpert, to_transitions
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.distributions import SquashedGaussian
from mikasa_robo.baselines.env_wrappers import StaggeredEpisodes
from mikasa_robo.baselines.environments import make_gymnasium_env
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.protocol import Setup
from mikasa_robo.baselines.replay import NEXT_OBS, OBS, ReplayBuffer, observation_of, sample_symmetric
from mikasa_robo.baselines.sac_arguments import SACArgs
from mikasa_robo.baselines.sac_network import Ensemble, SACNetwork
from mikasa_robo.data.dataset import Dataset
from mikasa_robo.tools import collect

CPU = torch.device("cpu")
SMALL = "--hidden-sizes 32 32 --num-critics 2 --batch-transitions 32 --torch-threads 1 --no-video --preset none"

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Point(gym.Env[Any, Any]):
    """Move a point to a place that is shown; the reward is 1 less the distance. It fails beyond 2."""

    observation_space = gym.spaces.Box(-4.0, 4.0, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, **_: Any) -> None:
        self.at = self.goal = 0.0
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1.0, 1.0, 2)
        self.steps = 0
        return self.seen(), {}

    def seen(self) -> Any:
        return np.array([self.at, self.goal, self.steps], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 0.5 * float(np.clip(action[0], -1.0, 1.0))
        self.steps += 1
        return self.seen(), 1.0 - abs(self.at - self.goal), bool(abs(self.at) > 2.0), False, {}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Any:
    gym.register("SacPoint-v0", Point, max_episode_steps=8)
    yield
    del gym.registry["SacPoint-v0"]


def algorithm_for(env: Any, **changes: Any) -> sac.SAC:
    args = SACArgs(num_envs=env.num_envs, hidden_sizes=(16,), num_critics=3, batch_transitions=8, **changes)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    spaces = env.single_observation_space, env.single_action_space
    return sac.SAC(args, Setup(*spaces, env.num_envs, CPU, generator, DistContext(), env))


def point_algorithm(**changes: Any) -> sac.SAC:
    space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    env = SimpleNamespace(num_envs=2, single_observation_space=space, single_action_space=Point.action_space)
    return algorithm_for(env, **changes)


def numbered(first: int, count: int) -> dict[str, Tensor]:
    """Transitions whose rewards are their numbers."""
    numbers = torch.arange(first, first + count, dtype=torch.float32)
    obs = numbers[:, None].expand(count, 3).clone()
    return {
        f"{OBS}": obs,
        f"{NEXT_OBS}": obs + 0.5,
        "actions": numbers[:, None] / 100,
        "rewards": numbers,
        "terminated": numbers % 2 == 1,
    }


# --------------------------------------------------------------------------------------------------------- formulas
def test_targets_by_hand() -> None:
    rewards, terminated = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, True, False])
    next_q = torch.tensor([[10.0, 10.0, -4.0], [8.0, 20.0, 6.0]])
    log_prob, temperature = torch.tensor([-2.0, 1.0, 3.0]), torch.tensor(0.5)
    # 1 + 0.9 (8 + 1), 2 because it is over, 3 + 0.9 (-4 - 1.5)
    found = sac.critic_targets(rewards, terminated, next_q, log_prob, temperature, 0.9)
    assert found.tolist() == pytest.approx([9.1, 2.0, -1.95])
    found = sac.critic_targets(rewards, terminated, next_q, None, temperature, 0.9)
    assert found.tolist() == pytest.approx([8.2, 2.0, -0.6])


def test_the_loss_of_the_critics_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = point_algorithm(gamma=0.5, entropy_backup=False, min_critics=3)
    network = algorithm.network
    next_q = torch.tensor([[4.0, 8.0], [6.0, 2.0], [9.0, 9.0]])
    monkeypatch.setattr(network, "target_q_values", lambda obs, action: next_q)
    monkeypatch.setattr(network, "q_values", lambda obs, action: torch.tensor([[3.0, 0.0], [4.0, 1.0], [5.0, 2.0]]))
    drawn = {name: value[:2] for name, value in numbered(0, 2).items()}  # rewards 0 and 1, the second is the end
    loss, figures = algorithm.critic_loss(torch.zeros(2, 3), torch.zeros(2, 3), drawn)
    # targets 0 + 0.5 x 4 and 1: squared errors (1, 1), (4, 0) and (9, 1), a mean for each critic
    assert float(loss) == pytest.approx(1.0 + 2.0 + 5.0)
    assert float(figures["loss/q"]) == pytest.approx(15.0 / 6.0)


def test_targets_are_of_the_observation_after_and_values_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = point_algorithm(gamma=0.5, entropy_backup=False, min_critics=3)

    def q(obs: Tensor, action: Tensor) -> Tensor:
        return (10.0 * obs[:, 0] + action[:, 0]).expand(3, -1)

    monkeypatch.setattr(algorithm.network, "q_values", q)
    monkeypatch.setattr(algorithm.network, "target_q_values", q)
    monkeypatch.setattr(algorithm, "_sample", lambda obs: (obs[:, :1] + 1.0, torch.zeros(2)))
    drawn = {"rewards": torch.zeros(2), "terminated": torch.zeros(2, dtype=torch.bool), "actions": torch.ones(2, 1)}
    loss, _ = algorithm.critic_loss(torch.full((2, 3), 2.0), torch.full((2, 3), 3.0), drawn)
    # a value of 10 x 2 + 1; the action after is 3 + 1, so the target is 0.5 (10 x 3 + 4)
    assert float(loss) == pytest.approx(3 * (21.0 - 17.0) ** 2)


def test_the_critics_learn_from_normalised_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = point_algorithm()
    network = algorithm.network
    network.update_normalizer(5.0 + 3.0 * torch.randn(100, 3))
    algorithm.buffer.add(numbered(0, 20))
    critic_loss, calls = algorithm.critic_loss, []

    def noted(obs: Any, next_obs: Any, drawn: dict[str, Tensor]) -> Any:
        calls.append((obs, next_obs, drawn))
        return critic_loss(obs, next_obs, drawn)

    monkeypatch.setattr(algorithm, "critic_loss", noted)
    algorithm.gradient_step(with_actor=False)
    ((obs, next_obs, drawn),) = calls
    assert torch.equal(obs, network.normalize(observation_of(drawn, OBS)))
    assert torch.equal(next_obs, network.normalize(observation_of(drawn, NEXT_OBS)))


def test_the_policy_acts_on_normalised_observations_in_training() -> None:
    algorithm = point_algorithm(random_steps=0)
    network = algorithm.network
    network.update_normalizer(5.0 + 3.0 * torch.randn(100, 3))
    with torch.no_grad():
        weight, bias = network.actor[-1].weight, network.actor[-1].bias
        weight[:1].normal_()
        bias[1:] = -20.0  # as good as no noise
    obs = 5.0 + torch.randn(2, 3)
    expected = network.act(obs)
    assert expected.abs().max() < 0.99, "the actions are not at their bounds, where they would be much the same"
    torch.testing.assert_close(algorithm.act(obs, torch.zeros(2, dtype=torch.bool)), expected, atol=0.01, rtol=0.0)


def test_the_actor_climbs_the_critics_and_leaves_them_alone() -> None:
    algorithm = point_algorithm(init_temperature=1e-8, learning_rate=1e-2)
    network, obs = algorithm.network, torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    network.q_values = lambda obs, action: -(action - 0.5).square().sum(dim=-1).expand(3, -1)
    before = {name: value.clone() for name, value in network.critic.state_dict().items()}
    for _ in range(150):
        loss, log_prob = algorithm.actor_loss(obs)
        algorithm._descend("actor", loss)
    assert not log_prob.requires_grad
    assert float(network.action_distribution(obs).mode().detach().mean()) == pytest.approx(0.5, abs=0.1)
    assert all(torch.equal(before[name], value) for name, value in network.critic.state_dict().items())
    assert all(weight.requires_grad for weight in network.critic.parameters())


def test_the_temperature_brings_the_entropy_to_its_target() -> None:
    for target, grows in ((5.0, True), (-50.0, False)):  # an entropy out of reach above, and one far below
        algorithm = point_algorithm(target_entropy=target, random_steps=0)
        algorithm.buffer.add(numbered(0, 20))
        before = float(algorithm.log_temperature)
        for _ in range(3):
            algorithm.gradient_step(with_actor=True)
        assert (float(algorithm.log_temperature) > before) == grows


def test_by_default_the_entropy_goes_to_minus_the_number_of_actions() -> None:
    assert point_algorithm().target_entropy == -1.0
    assert point_algorithm(target_entropy=0.5).target_entropy == 0.5


def test_a_new_policy_hardly_moves_and_has_the_noise_that_is_asked_for() -> None:
    torch.manual_seed(0)
    distribution = SACNetwork(3, 2, (8,), init_log_std=-1.5).action_distribution(torch.randn(50, 3))
    assert float(distribution.mean.detach().abs().max()) < 0.1
    torch.testing.assert_close(distribution.log_std, torch.full((50, 2), -1.5), atol=0.1, rtol=0.0)


def test_squashed_gaussian_agrees_with_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise = torch.randn(3, 50, 4, generator=generator).unbind()
    ours = SquashedGaussian(mean, log_std)
    action, log_prob = ours.sample_with_log_prob(noise)
    base = torch.distributions.Normal(mean.double(), log_std.double().exp())
    theirs = torch.distributions.TransformedDistribution(base, [torch.distributions.TanhTransform(cache_size=1)])
    before = mean.double() + log_std.double().exp() * noise.double()
    expected = (base.log_prob(before) - torch.log1p(-before.tanh().square())).sum(-1)
    near = before.abs().amax(dim=-1) < 3.0  # farther out 1 - tanh^2 itself loses digits
    assert torch.allclose(log_prob[near], expected[near].float(), atol=1e-4)
    assert torch.allclose(
        ours.log_prob(action)[near], theirs.log_prob(action.double())[near].sum(-1).float(), atol=2e-2
    )
    assert torch.equal(ours.mode(), mean.tanh())
    far = SquashedGaussian(torch.tensor([30.0]), torch.tensor([0.0])).sample_with_log_prob(torch.tensor([0.0]))[1]
    # log N(0) - 2 (log 2 - 30): no infinity where the tangent is flat
    assert float(far) == pytest.approx(-0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 30), rel=1e-5)
    with pytest.raises(NotImplementedError, match="average -log_prob"):
        ours.entropy()


def test_members_of_an_ensemble_are_networks_of_their_own() -> None:
    torch.manual_seed(0)
    ensemble = Ensemble(3, 5, (8, 8), layer_norm=True)
    x = torch.randn(7, 5)
    found = ensemble(x)
    assert found.shape == (3, 7)
    for k in range(3):
        y = x
        for layer in ensemble.layers:
            if hasattr(layer, "weight") and layer.weight.shape[-2] == 1 and y.shape[-1] == layer.weight.shape[-1]:
                y = torch.nn.functional.layer_norm(y, (8,), layer.weight[k, 0], layer.bias[k, 0])
            elif hasattr(layer, "weight"):
                y = y @ layer.weight[k] + layer.bias[k]
            else:
                y = y.relu()
        assert torch.allclose(found[k], y[:, 0], atol=1e-5)
    found[1].sum().backward()
    assert not ensemble.layers[0].weight.grad[0].any()
    assert ensemble.layers[0].weight.grad[1].any()


def test_targets_follow_by_a_share() -> None:
    network = SACNetwork(3, 1, (4,), num_critics=2)
    weight, target = network.critic.layers[0].weight, network.target_critic.layers[0].weight
    assert torch.equal(weight, target)
    with torch.no_grad():
        weight.add_(1.0)
    network.move_targets(0.25)
    assert torch.allclose(weight - target, torch.full_like(weight, 0.75))
    assert not target.requires_grad


# ----------------------------------------------------------------------------------------------------------- replay
def test_the_oldest_transitions_give_way() -> None:
    buffer = ReplayBuffer(5)
    buffer.add(numbered(0, 3))
    buffer.add(numbered(3, 4))
    generator = torch.Generator().manual_seed(0)
    drawn = buffer.sample(500, generator)
    assert set(drawn["rewards"].tolist()) == {2, 3, 4, 5, 6}
    assert torch.equal(observation_of(drawn, NEXT_OBS), observation_of(drawn, OBS) + 0.5)
    assert torch.equal(drawn["terminated"], drawn["rewards"] % 2 == 1)
    buffer.add(numbered(10, 12))
    assert len(buffer) == 5
    assert set(buffer.sample(500, generator)["rewards"].tolist()) == {17, 18, 19, 20, 21}


def test_a_saved_buffer_goes_on_in_the_same_places() -> None:
    one, two = ReplayBuffer(5), ReplayBuffer(5)
    one.add(numbered(0, 3))
    one.add(numbered(3, 4))  # the oldest is now the third
    two.load_state_dict(one.state_dict())
    for buffer in (one, two):
        buffer.add(numbered(7, 2))
    first, second = (buffer.sample(50, torch.Generator().manual_seed(3)) for buffer in (one, two))
    assert all(torch.equal(first[name], second[name]) for name in first)
    empty = ReplayBuffer(5)
    empty.load_state_dict(ReplayBuffer(5).state_dict())
    assert not len(empty)


def test_sampling_is_symmetric() -> None:
    own, expert, empty = (ReplayBuffer(100) for _ in range(3))
    own.add(numbered(0, 50))
    expert.add(numbered(100, 10))
    generator = torch.Generator().manual_seed(0)

    def shares(ratio: float, *buffers: ReplayBuffer) -> tuple[int, int]:
        rewards = sample_symmetric(*buffers, 64, ratio, generator)["rewards"]
        assert len(rewards) == 64
        return int((rewards >= 100).sum()), int((rewards < 100).sum())

    assert shares(0.5, own, expert) == (32, 32)
    assert shares(0.25, own, expert) == (16, 48)
    assert shares(0.0, own, expert) == (0, 64)
    assert shares(1.0, own, expert) == (64, 0)
    assert shares(0.5, own, empty) == (0, 64)
    assert shares(0.5, empty, expert) == (64, 0)


# ---------------------------------------------------------------------------------------------------------- rollout
def test_a_rollout_keeps_the_last_observations_and_bootstraps_truncated_episodes() -> None:
    env = make_gymnasium_env(4, None, env_id="SacPoint-v0")
    staggered = StaggeredEpisodes(env, 2, 8)
    algorithm = algorithm_for(staggered, num_steps=12)
    obs, _ = staggered.reset(seed=0)
    actions = torch.tensor([[1.0], [0.1], [-0.1], [0.0]])  # the first one leaves the range within some steps

    algorithm.act = lambda obs, starts: actions
    batch = algorithm.rollout(staggered, obs, EpisodeStats())
    assert isinstance(batch.obs, Tensor)
    assert isinstance(batch.next_obs, Tensor)
    moved = batch.next_obs[..., 0] - batch.obs[..., 0]
    assert torch.allclose(moved, 0.5 * actions[:, 0].expand(12, 4), atol=1e-5), "also where an episode ended"
    assert torch.equal(batch.next_obs[..., 1:] - batch.obs[..., 1:], torch.tensor([0.0, 1.0]).expand(12, 4, 2))
    assert torch.equal(batch.terminated, batch.next_obs[..., 0].abs() > 2.0)
    assert batch.terminated[:, 0].any()
    assert not batch.terminated[:, 1:].any(), "the time limit, and an episode that is cut short, do not terminate"
    begins = batch.obs[:, 1:, 2] == 0.0
    # by the time limit at step 8; the second half of the environments is cut short at step 4, and ends at 12
    assert [column.nonzero().flatten().tolist() for column in begins.unbind(1)] == [[0, 8], [0, 4], [0, 4]]
    transitions = batch.transitions()
    assert torch.equal(transitions["rewards"], batch.rewards.flatten())
    assert torch.equal(observation_of(transitions, OBS), batch.obs.flatten(0, 1))
    env.close()


def test_targets_take_the_least_of_some_critics_and_the_actor_the_mean_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = point_algorithm(gamma=1.0, entropy_backup=False, min_critics=1)
    rows = torch.tensor([[1.0], [2.0], [6.0]]).expand(3, 2)
    monkeypatch.setattr(algorithm.network, "target_q_values", lambda *_: rows)
    monkeypatch.setattr(algorithm.network, "q_values", lambda *_: torch.zeros(3, 2))
    drawn = {
        "rewards": torch.zeros(2),
        "terminated": torch.zeros(2, dtype=torch.bool),
        "actions": torch.zeros(2, 1),
    }
    found = {round(float(algorithm.critic_loss(torch.zeros(2, 3), torch.zeros(2, 3), drawn)[0]), 3) for _ in range(40)}
    assert len(found) == 3, "each of three critics was the only one that counts; one is missed once in 3.7 million"
    assert sorted(found)[1] == pytest.approx(4 * min(found), rel=1e-3)
    assert max(found) == pytest.approx(36 * min(found), rel=1e-3)
    monkeypatch.setattr(algorithm.network, "q_values", lambda *_: rows)
    loss, log_prob = algorithm.actor_loss(torch.zeros(2, 3))
    assert float(loss) == pytest.approx(algorithm.args.init_temperature * float(log_prob.mean()) - 3.0, abs=1e-5)


def test_a_gradient_step_moves_the_targets_and_the_rate_falls() -> None:
    algorithm = point_algorithm(tau=0.25, anneal_lr=True, learning_rate=0.01)
    algorithm.buffer.add(numbered(0, 20))
    weights = [dict(algorithm.network.named_parameters()), dict(algorithm.network.named_buffers())]
    both = {name: value for part in weights for name, value in part.items()}
    (critic,) = {name for name in both if name.startswith("critic.") and name.endswith("layers.0.weight")}
    target = f"target_{critic}"
    before, own = both[target].clone(), both[critic].clone()
    algorithm.gradient_step(with_actor=False)
    assert not torch.equal(both[critic], own)
    torch.testing.assert_close(both[target], before.lerp(both[critic], 0.25))
    algorithm.schedule(0.25)
    assert {group["lr"] for one in algorithm.optimizers.values() for group in one.param_groups} == {0.01 * 0.75}


def test_who_acts_and_when_gradient_steps_are_due() -> None:
    env = make_gymnasium_env(4, None, env_id="SacPoint-v0")
    algorithm = algorithm_for(env, num_steps=5, total_timesteps=200, random_steps=40, utd_ratio=0.12)
    asked: list[bool] = []
    step = algorithm.gradient_step

    def noted(with_actor: bool) -> Any:
        asked.append(with_actor)
        return step(with_actor)

    algorithm.gradient_step = noted
    obs, _ = env.reset(seed=0)
    steps = []
    for number in range(5):
        algorithm.schedule(number * 20 / 200)
        batch = algorithm.rollout(env, obs, EpisodeStats())
        obs = batch.last_obs
        if number < 2:
            assert batch.actions.std() > 0.4, "uniform in [-1, 1]"
        steps.append(int(algorithm.update(batch)["loss/gradient_steps"]))
    assert steps == [0, 0, 2, 2, 3], "0.12 x 20 = 2.4 at a time"
    assert asked == [False, True] * 3 + [False], "the actor learns in every second one"
    assert len(algorithm.buffer) == 100
    env.close()


def test_the_noise_of_the_expert_is_drawn_once_an_episode() -> None:
    env: Any = mikasa_robo.make_env("RememberColor3-v0", 3)
    spaces = env.unwrapped.single_observation_space, env.unwrapped.single_action_space
    args = SACArgs(env_id="RememberColor3-v0", num_envs=3, expert_steps=9, expert_noise=0.3)
    expert = NoisyExpert(args, Setup(*spaces, 3, CPU, torch.Generator().manual_seed(0), DistContext(), env))
    obs, _ = env.reset(seed=0)
    expert.act(obs, torch.ones(3, dtype=torch.bool))
    first = expert._stds.clone()
    expert.act(obs, torch.tensor([False, True, False]))
    assert (expert._stds == first).tolist() == [True, False, True]
    env.close()


def test_transitions_of_a_dataset() -> None:
    episode: Any = SimpleNamespace(
        length=3,
        terminated=True,
        observations={"state": np.arange(8, dtype=np.float32).reshape(4, 2)},
        actions=np.ones((3, 8), np.float32),
        rewards=np.array([0.1, 0.2, 1.0], np.float32),
        step_columns={"fail": np.zeros(3, bool), "success": np.array([False, False, True])},
    )
    found = to_transitions(episode, [""], train_to_horizon=True)
    assert found[f"{OBS}"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found[f"{NEXT_OBS}"].tolist() == [[2, 3], [4, 5], [6, 7]]
    assert found["terminated"].tolist() == [False, False, False], "training would go on after this success"
    assert to_transitions(episode, [""], train_to_horizon=False)["terminated"].tolist() == [False, False, True]
    episode.step_columns["fail"][-1] = True
    assert to_transitions(episode, [""], train_to_horizon=True)["terminated"].tolist() == [False, False, True]


# ------------------------------------------------------------------------------------------------------- refused
def test_arguments_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    args = SACArgs()
    for changes, message in (
        ({"expert_steps": 300_000}, "leave nothing of --total-timesteps 300000"),
        ({"expert_steps": 100, "num_workers": 1}, "the expert acts where the simulation is"),
        ({"expert_steps": 100, "control_mode": "pd_ee_delta_pose"}, "of pd_joint_delta_pos"),
        ({"init_log_std": 2.0}, "--init-log-std 2.0 cannot be used; use a value between -10 and 2"),
        ({"init_log_std": -10.0}, "--init-log-std -10.0 cannot be used"),
        ({"expert_ratio": 1.5}, "--expert-ratio 1.5"),
        ({"min_critics": 5}, "use 1 to --num-critics"),
        ({"tau": 0.0}, "--tau 0.0"),
        ({"utd_ratio": 0.0}, "--utd-ratio 0.0"),
        ({"hidden_sizes": ()}, "--hidden-sizes"),
        ({"target_entropy": math.nan}, "--target-entropy nan"),
        ({"dataset": str(tmp_path / "none")}, "is no folder"),
        (
            {"dataset": str(tmp_path), "train_env_kwargs": ("on_mistake=ignore",)},
            "--train-env-kwargs on_mistake=ignore",
        ),
        ({"exact_resume": True, "checkpoint_buffer": False}, "add --checkpoint-buffer"),
    ):
        with pytest.raises(ArgumentError, match=message):
            dataclasses.replace(args, **changes).check()


def test_environments_and_networks_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for algorithm, words, message in (
        ("sac", "--env-id CartPole-v1", "needs continuous actions; use ppo-mlp"),
        ("sac", "--env-id SacPoint-v0 --network mlp", "--network mlp cannot be used; use sac"),
        ("sac", "--env-id SacPoint-v0 --expert-steps 64", "SacPoint-v0 has no expert"),
        ("ppo-mlp", "--env-id SacPoint-v0 --network sac", "is the network of `mikasa train sac`"),
    ):
        run = tmp_path / "run"
        argv = f"{words} --preset none --total-timesteps 20000 --run-dir {run}".split()
        assert main(algorithm, argv) == 2
        assert message in capsys.readouterr().err
        assert not run.exists()


# ------------------------------------------------------------------------------------------------------------- runs
def rows_of(run: Path) -> list[dict[str, str]]:
    names, *rows = [line.split(",") for line in (run / "progress.csv").read_text().splitlines()]
    return [dict(zip(names, row, strict=False)) for row in rows]


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = shlex.split(
        f"--env-id SacPoint-v0 {SMALL} --num-envs 4 --num-steps 8 --total-timesteps 480 --random-steps 64 "
        "--buffer-transitions 200 --checkpoint-every 160 --exact-resume --eval-every 0 --eval-episodes 4"
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main("sac", [*argv, "--run-dir", str(whole)]) == 0
    update, done = sac.SAC.update, []

    def breaks(self: sac.SAC, batch: Any) -> dict[str, float]:
        done.append(1)
        if len(done) > 12:
            raise RuntimeError("the power went out")
        return update(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(sac.SAC, "update", breaks)
        with pytest.raises(RuntimeError, match="power"):
            main("sac", [*argv, "--run-dir", str(broken)])
    assert main("sac", ["--resume", str(broken)]) == 0
    one, two = (read_policy(path / "checkpoint.pt") for path in (whole, broken))
    assert all(torch.equal(two["state_dict"][name], value) for name, value in one["state_dict"].items())
    one, two = (Checkpoints.load_newest(path)["algorithm_state"] for path in (whole, broken))
    assert torch.equal(one["log_temperature"], two["log_temperature"])
    for name, column in one["buffer"]["columns"].items():
        assert torch.equal(two["buffer"]["columns"][name], column), name
    policy = load_policy(whole)
    assert policy.act(torch.zeros(5, 3)).shape == (5, 1)


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    argv = shlex.split(
        f"--env-id SacPoint-v0 {SMALL} --num-envs 8 --num-steps 4 --total-timesteps 3000 --random-steps 300 --gamma 0.9 "
        "--learning-rate 0.002 --utd-ratio 0.25 --tau 0.02 --eval-every 0 --eval-episodes 50 --checkpoint-every 0"
    )
    assert main("sac", [*argv, "--run-dir", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "final_eval.json").read_text())
    # to stand still earns 8 (1 - 2/3) = 2.7, and to go straight there 7.6 or so
    assert result["final"]["return"] > 6.8


@pytest.mark.slow
def test_the_expert_begins(tmp_path: Path) -> None:
    run = tmp_path / "run"
    argv = shlex.split(
        f"--env-id RememberColor3-v0 {SMALL} --num-envs 4 --num-steps 20 --total-timesteps 640 --expert-steps 320 "
        "--random-steps 160 --eval-every 0 --eval-episodes 2 --checkpoint-every 10000 --buffer-transitions 300"
    )
    assert main("sac", [*argv, "--run-dir", str(run)]) == 0
    rows = rows_of(run)
    assert [int(float(row["replay/expert_transitions"])) for row in rows] == [80, 160, 240, 320, 320, 320, 320, 320]
    assert [int(float(row["replay/own_transitions"])) for row in rows] == [0, 0, 0, 0, 80, 160, 240, 300]
    assert [int(float(row["loss/gradient_steps"])) for row in rows] == [0, 0, 0, 0, 0, 0, 10, 10]
    rewards = Checkpoints.load_newest(run)["algorithm_state"]["expert_buffer"]["columns"]["rewards"]
    assert float(rewards.max()) == 1.0, "the expert succeeds"


@pytest.mark.slow
def test_a_dataset_takes_the_place_of_the_expert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    words = f"--env-id RememberColor3-v0 --obs state --out {data} --episodes 3 --no-states"
    assert collect.main(words.split()) == 0
    count = sum(episode.length for episode in Dataset.open(data).episodes())
    argv = shlex.split(
        f"--env-id RememberColor3-v0 {SMALL} --num-envs 4 --num-steps 20 --total-timesteps 240 --random-steps 80 "
        f"--eval-every 0 --eval-episodes 2 --dataset {data} --run-dir {run}"
    )
    for more, message in (
        ("--reward-mode sparse", "recorded with the reward normalized_dense; use --reward-mode normalized_dense"),
        ("--obs joints", "has no joints in its observations"),
        ("--buffer-transitions 9", f"has {count} transitions; use --buffer-transitions {count}"),
    ):
        assert main("sac", [*argv, *more.split()]) == 2
        assert message in capsys.readouterr().err
    assert main("sac", argv) == 0
    assert {int(float(row["replay/expert_transitions"])) for row in rows_of(run)} == {count}
    saved = Checkpoints.load_newest(run)
    # as many observations of the dataset as of the run itself have been normalised by
    assert float(saved["policy"]["normalizer.count"]) == count + 240
    columns = saved["algorithm_state"]["expert_buffer"]["columns"]
    assert not columns["terminated"].any(), "successes are no ends where training goes on after them"
    digest = saved["algorithm_state"][DIGEST]
    assert len(digest) == 64
    assert json.loads((run / "final_eval.json").read_text())[DIGEST] == digest

    (run / "final_eval.json").unlink()  # as if it had been killed
    manifest = data / "manifest.json"
    other = json.loads(manifest.read_text())
    other["files"][other["episodes"][0]["file"]]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(other))
    capsys.readouterr()
    assert main("sac", ["--resume", str(run)]) == 2
    assert f"--dataset {data} has other episodes than when the run began" in capsys.readouterr().err
