"""Learning from experts: labels, episodes, what the loss counts, and runs that are written and resumed as others."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv
from torch import Tensor
from train_helpers import assert_same_policy, break_off

import mikasa_robo
from mikasa_robo.baselines.checkpoints import Checkpoints, load_policy, read_policy
from mikasa_robo.baselines.command import main
from mikasa_robo.baselines.dagger import BC, DAgger, Imitation
from mikasa_robo.baselines.dagger_arguments import BCArgs, DAggerArgs, ImitationArgs
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.env_wrappers import StaggeredEpisodes
from mikasa_robo.baselines.episodes import Episode, EpisodeBuffer, EpisodeCutter
from mikasa_robo.baselines.imitation import Figures, imitation_loss, run_memory
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.memory import make_memory
from mikasa_robo.baselines.protocol import Setup
from mikasa_robo.baselines.readouts import CountedReadout, OracleReadout
from mikasa_robo.core import observations
from mikasa_robo.core.phases import CUE, RESPONSE
from mikasa_robo.experts.policies import Expert
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.rollouts import play_episodes
from mikasa_robo.tools.plot import read_progress

CPU = torch.device("cpu")
SMALL = {"memory_size": 16, "token_size": 16, "head_sizes": (16,)}
ENV = "RememberColor3-v0"


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def made(obs_mode: str = "objects+joints", n: int = 4, env_id: str = ENV, **kwargs: Any) -> Any:
    """A batched task with automatic resets, as training has it."""
    env = mikasa_robo.make_env(env_id, n, obs_mode=obs_mode, **kwargs)
    return ManiSkillVectorEnv(env, record_metrics=True)


def learner(env: Any, kind: type[Imitation] = DAgger, **changes: Any) -> Any:
    args = kind.args_type(num_envs=env.num_envs, **{**SMALL, **changes})
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    spaces = env.single_observation_space, env.single_action_space
    return kind(args, Setup(*spaces, env.num_envs, CPU, generator, DistContext(), env))


# ---------------------------------------------------------------------------------------------------------- labels
def test_on_the_experts_way_labels_are_its_actions() -> None:
    env = made(arm="held")
    algorithm = learner(env, BC, expert_noise=0.0, num_steps=35)
    obs, _ = env.reset(seed=3)
    algorithm.on_episode_start(torch.ones(4, dtype=torch.bool))
    batch = algorithm.rollout(env, obs, EpisodeStats())
    assert batch.over.sum() >= 4, "episodes end within the rollout, and others begin"

    expert = Expert(make_skill(ENV, env.unwrapped))
    labels: list[Tensor] = []

    def act(obs: Any, info: Any) -> Tensor:
        labels.append(expert.act(obs, info).clamp(-1, 1))
        return labels[-1]

    for step in play_episodes(env._env, act, 3, 60):
        if step.t == 0:
            expert.reset()
    for i in range(4):
        first = int(batch.over[:, i].nonzero()[0]) + 1
        assert torch.equal(batch.labels[:first, i], torch.stack(labels)[:first, i])
    env.close()


def test_the_expert_is_asked_at_every_step_and_reset_where_episodes_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    env = made()
    algorithm = learner(env, num_steps=30, warm_start_steps=10**6, total_timesteps=2 * 10**6, expert_noise=0.0)
    log: list[Any] = []
    reset, act = Expert.reset, Expert.act

    def logged_reset(self: Expert, env_idx: Tensor | None = None) -> None:
        assert env_idx is not None
        log.append(env_idx.tolist())
        reset(self, env_idx)

    def logged_act(self: Expert, obs: Any, info: Any) -> Tensor:
        log.append("asked")
        assert torch.equal(info["phase"], env.unwrapped.get_info()["phase"]), "the info of this very step"
        return act(self, obs, info)

    monkeypatch.setattr(Expert, "reset", logged_reset)
    monkeypatch.setattr(Expert, "act", logged_act)
    obs, _ = env.reset(seed=0)
    algorithm.on_episode_start(torch.ones(4, dtype=torch.bool))
    batch = algorithm.rollout(env, obs, EpisodeStats())
    expected: list[Any] = [[0, 1, 2, 3]]
    for over in batch.over:
        expected += ["asked", over.nonzero().squeeze(1).tolist()]
    assert log == [entry for entry in expected[:-1] if entry != []]
    env.close()


def test_what_counts_and_what_can_be_known() -> None:
    """With a held arm no action counts before the response; the oracle can be told once the cue is over."""
    for arm in ("held", "free"):
        env = made(n=2, arm=arm)
        algorithm = learner(env, num_steps=14, oracle_weight=0.1)
        obs, info = env.reset(seed=0)
        batch = algorithm.rollout(env, obs, EpisodeStats())
        timeline = env.unwrapped.timeline
        phases = timeline.phase(torch.arange(14))
        counts = phases == RESPONSE if arm == "held" else torch.ones(14, dtype=torch.bool)
        assert torch.equal(batch.carried, counts[:, None].expand(14, 2))
        assert torch.equal(batch.known, (phases != CUE)[:, None].expand(14, 2))
        assert torch.equal(batch.oracle[0], info["oracle_info"])
        env.close()


def test_after_an_episode_was_cut_short_the_oracle_is_that_of_the_next() -> None:
    env = StaggeredEpisodes(made(n=8), 2, 8)  # the second half of the environments begins anew after 4 steps
    algorithm = learner(env, num_steps=6)
    obs, _ = env.reset(seed=0)
    algorithm.on_episode_start(torch.ones(8, dtype=torch.bool))
    batch = algorithm.rollout(env, obs, EpisodeStats())
    assert batch.over[3].tolist() == [False] * 4 + [True] * 4
    now = env.unwrapped.get_info()["oracle_info"]
    assert torch.equal(batch.oracle[4:], now.expand(2, -1, -1))
    assert bool((batch.oracle[3] != now).any()), "or the test shows nothing"
    env.close()


@pytest.mark.parametrize(
    ("env_id", "arm", "held", "known"),
    [
        ("InterceptMediumHidden-v0", "held", 4, 2),
        ("InterceptMediumHidden-v0", "free", 0, 2),
        ("InterceptGrabSlow-v0", "free", 0, 2),
        ("RotateLenientPosReplaced-v0", "free", 10, 5),
    ],
)
def test_what_counts_where_the_arm_is_held_otherwise(env_id: str, arm: str, held: int, known: int) -> None:
    """Intercept has no response phase, its Hidden forms hold the arm for the views; a Replaced task holds it in any case."""
    env = made(n=2, env_id=env_id, arm=arm)
    algorithm = learner(env, BC, env_id=env_id, num_steps=14, oracle_weight=0.1)
    obs, _ = env.reset(seed=0)
    start = env.unwrapped.agent.robot.get_qpos().clone()
    moved: list[bool] = []
    step = env.step

    def logged_step(action: Any) -> Any:
        moved.append(bool(((env.unwrapped.agent.robot.get_qpos() - start).abs() > 1e-3).any()))
        return step(action)

    env.step = logged_step
    batch = algorithm.rollout(env, obs, EpisodeStats())
    assert batch.carried.sum(dim=0).tolist() == [14 - held] * 2
    assert batch.carried[held:].all()
    assert not any(moved[: held + 1])
    assert any(moved), "the expert acts"
    assert batch.known[known:].all()
    assert not batch.known[:known].any()
    env.close()


def test_a_teacher_that_guesses_goes_on_with_its_own_random_numbers() -> None:
    env = made(n=3)
    env.reset(seed=0)
    one = learner(env, teacher="memoryless")
    starts = torch.ones(3, dtype=torch.bool)
    for _ in range(4):
        one.labeler.reset(starts)
    saved = one.state_dict()["teacher"]
    one.labeler.reset(starts)
    other = learner(env, teacher="memoryless")
    other.labeler.load_state_dict(saved)
    other.labeler.reset(starts)
    assert torch.equal(other.labeler._expert._u, one.labeler._expert._u)
    fresh = learner(env, teacher="memoryless")
    fresh.labeler.reset(starts)
    assert not torch.equal(fresh.labeler._expert._u, one.labeler._expert._u)
    env.close()


def test_a_student_of_another_mode_gets_the_same_labels() -> None:
    env, other = made(n=2), made("state", n=2)
    labels = []
    for one in (env, other):
        algorithm = learner(one, BC, num_steps=12, expert_noise=0.0, token_size=BCArgs.token_size)
        obs, _ = one.reset(seed=5)
        labels.append(algorithm.rollout(one, obs, EpisodeStats()).labels)
        one.close()
    assert torch.equal(*labels)


def test_observe_shows_what_the_mode_would_show() -> None:
    env, other = made(n=2), made("state", n=2)
    obs, _ = env.reset(seed=5)
    other.reset(seed=5)
    shown = observations.observe(other.unwrapped, "objects", other.unwrapped.get_info())
    assert set(shown) == set(obs)
    assert all(torch.equal(shown[name], obs[name]) for name in obs)
    with pytest.raises(ValueError, match="images"):
        observations.observe(other.unwrapped, "rgb", {})
    env.close()
    other.close()


def test_who_acts_follows_from_beta() -> None:
    env = made(n=4)
    args: dict[str, Any] = {
        "warm_start_steps": 640,
        "warm_start_updates": 1500,
        "num_steps": 40,
        "total_timesteps": 3200,
        "beta_steps": 640,
    }
    algorithm = learner(env, **args, expert_noise=0.0)
    betas = []
    for step in range(0, 3200, 160):
        algorithm.schedule(step / 3200)
        betas.append(algorithm.beta())
    assert betas == [1.0] * 4 + [1.0, 0.75, 0.5, 0.25] + [0.0] * 12
    obs, _ = env.reset(seed=0)
    algorithm.starts[:] = True
    label = torch.full((4, 8), 0.5)
    assert torch.equal(algorithm.act(obs, label, 1.0), label)
    student = algorithm.act(obs, label, 0.0)
    assert not (student == 0.5).any()
    some = algorithm.act(obs, label, 0.5)
    assert all(bool((row == 0.5).all()) or bool((row != 0.5).all()) for row in some), "a whole action, not a part of it"
    # half of the warm start's gradient steps in half of its rollouts
    due = []
    for step in range(0, 800, 160):
        algorithm.schedule(step / 3200)
        due.append(algorithm.updates_due())
    assert due == [375, 375, 375, 375, 100]
    env.close()


def test_the_noise_is_drawn_once_an_episode_and_labels_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    env = made(n=64)
    algorithm = learner(env, BC, expert_noise=0.5, num_steps=3)
    told: list[Tensor] = []
    label = algorithm.labeler.label

    def recorded(*args: Any) -> Tensor:
        told.append(label(*args))
        return told[-1]

    monkeypatch.setattr(algorithm.labeler, "label", recorded)
    obs, _ = env.reset(seed=0)
    algorithm.on_episode_start(torch.ones(64, dtype=torch.bool))
    batch = algorithm.rollout(env, obs, EpisodeStats())
    assert torch.equal(batch.labels, torch.stack(told))

    first = algorithm.noise.clone()
    assert first.min() >= 0.0
    assert 0.8 < first.max() <= 1.0, "up to twice --expert-noise"
    algorithm.starts = torch.arange(64) < 32
    algorithm.act(batch.last_obs, batch.labels[-1], 1.0)
    assert not (algorithm.noise[:32] == first[:32]).any()
    assert torch.equal(algorithm.noise[32:], first[32:]), "these episodes go on"
    env.close()


# ---------------------------------------------------------------------------------------------------------- episodes
def test_rollouts_are_cut_into_whole_episodes() -> None:
    """Three environments with episodes of known lengths, over rollouts of seven steps."""
    lengths = [[5, 5, 4, 7], [20, 1], [7, 7, 7]]
    cutter, found = EpisodeCutter(3), []
    total = 21
    number, over = torch.zeros(total, 3, dtype=torch.int64), torch.zeros(total, 3, dtype=torch.bool)
    for i, column in enumerate(lengths):
        t = 0
        for k, length in enumerate(column):
            number[t : t + length, i] = 100 * i + k
            over[t + length - 1, i] = True
            t += length
    for s in range(0, total, 7):
        found += cutter.add(
            {"id": number[s : s + 7], "t": torch.arange(s, s + 7)[:, None].expand(7, 3)}, over[s : s + 7]
        )
    counted = {int(episode["id"][0]): len(episode["id"]) for episode in found}
    assert counted == {100 * i + k: length for i, column in enumerate(lengths) for k, length in enumerate(column)}
    for episode in found:
        assert len(episode["id"].unique()) == 1
        assert torch.equal(episode["t"].diff(), torch.ones(len(episode["t"]) - 1, dtype=torch.int64))
    assert [int(episode["t"][-1]) for episode in found] == sorted(int(episode["t"][-1]) for episode in found)


def test_episodes_that_were_broken_off_are_forgotten() -> None:
    cutter = EpisodeCutter(2)
    assert cutter.add({"x": torch.zeros(3, 2)}, torch.zeros(3, 2, dtype=torch.bool)) == []
    cutter.drop(torch.tensor([True, False]))
    over = torch.tensor([[False, False], [True, True]])
    assert sorted(len(episode["x"]) for episode in cutter.add({"x": torch.ones(2, 2)}, over)) == [2, 5]


def test_a_buffer_keeps_the_newest_and_comes_back_from_a_checkpoint() -> None:
    buffer = EpisodeBuffer(3)
    buffer.episodes.extend(
        {"x": torch.full((k,), float(k)), "b": torch.ones(k, 2, dtype=torch.uint8)} for k in (1, 2, 3, 4)
    )
    assert [len(episode["x"]) for episode in buffer.episodes] == [2, 3, 4]
    again = EpisodeBuffer(3)
    again.load_state_dict(buffer.state_dict())
    assert len(again) == 3
    for one, two in zip(buffer.episodes, again.episodes, strict=True):
        assert all(torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one)
    empty = EpisodeBuffer(3)
    empty.load_state_dict(EpisodeBuffer(3).state_dict())
    assert len(empty) == 0


def test_minibatches_are_fair_to_short_and_long_episodes() -> None:
    buffer = EpisodeBuffer(10)
    buffer.episodes.extend({"x": torch.full((k,), float(k))} for k in (5, 10, 50))
    drawn = list(buffer.minibatches(200, 4, torch.Generator().manual_seed(0)))
    assert len(drawn) == 200
    assert all(len(episodes) == 4 for episodes, _ in drawn)
    counts = torch.tensor([sum(len(e["x"]) == k for episodes, _ in drawn for e in episodes) for k in (5, 10, 50)])
    assert (counts / counts.sum() - 1 / 3).abs().max() < 0.06
    # over a group of minibatches, the steps that losses are divided by add up to those that are there
    for k in range(0, 200, 8):
        group = drawn[k : k + 8]
        assert sum(mean for _, mean in group) == pytest.approx(sum(len(e["x"]) for es, _ in group for e in es))


# ---------------------------------------------------------------------------------------------------------- the loss
def episodes_of(env: Any, lengths: list[int], oracle: Tensor | None = None) -> list[Episode]:
    g = torch.Generator().manual_seed(1)
    width = env.single_observation_space["objects"].shape[0]
    found = []
    for k, length in enumerate(lengths):
        objects = torch.randn(length, width, generator=g)
        carried = torch.arange(length) >= 2
        found.append(
            {
                "obs/objects": objects.unflatten(-1, (3, -1)).index_fill(-1, torch.tensor([0]), 1.0).flatten(1),
                "obs/joints": torch.randn(length, 25, generator=g),
                "labels": torch.rand(length, 8, generator=g) * 2 - 1,
                "carried": carried,
                "known": carried.clone(),
                "oracle": torch.full((length, 1), k % 3) if oracle is None else oracle.expand(length, -1),
            }
        )
    return found


@pytest.fixture(scope="module")
def small_env() -> Any:
    env = made(n=1, arm="held")
    yield env
    env.close()


@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_a_minibatch_is_the_sum_of_its_episodes_and_padding_is_nothing(small_env: Any, loss: str) -> None:
    algorithm = learner(small_env, loss=loss, oracle_weight=0.3)
    episodes = episodes_of(small_env, [4, 9, 6])
    together, figures = imitation_loss(algorithm.learner, episodes, 19.0, algorithm.args)
    alone = [imitation_loss(algorithm.learner, [one], 19.0, algorithm.args) for one in episodes]
    assert torch.allclose(together, torch.stack([value for value, _ in alone]).sum(), atol=1e-6)
    assert torch.allclose(figures, torch.stack([value for _, value in alone]).sum(dim=0), atol=1e-6)
    assert Figures(*figures).acting == pytest.approx((2 + 7 + 4) / 19)


@pytest.mark.parametrize(("kind", "quarter"), [("cosine", 0.8535534), ("linear", 0.75)])
def test_the_learning_rate_falls_to_zero(small_env: Any, kind: str, quarter: float) -> None:
    algorithm = learner(small_env, learning_rate=0.01, lr_schedule=kind)
    rates = []
    for progress in (0.0, 0.25, 1.0):
        algorithm.schedule(progress)
        rates.append(algorithm.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.01, 0.01 * quarter, 0.0], abs=1e-9)


def test_the_gradient_of_a_minibatch_is_bounded(small_env: Any) -> None:
    algorithm = learner(small_env, max_grad_norm=1e-3)
    algorithm.keep(episodes_of(small_env, [6, 8]))
    algorithm.optimizer = torch.optim.SGD(algorithm.learner.parameters(), lr=1.0)
    before = torch.nn.utils.parameters_to_vector(algorithm.learner.parameters()).detach().clone()
    algorithm.take_steps(1)
    after = torch.nn.utils.parameters_to_vector(algorithm.learner.parameters()).detach()
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=0.02)


@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_far_off_the_slope_of_the_huber_loss_is_1_whatever_delta(small_env: Any, delta: float) -> None:
    algorithm = learner(small_env, loss="huber", huber_delta=delta)
    last = algorithm.network.actor[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)  # the mean is 0
    episodes = episodes_of(small_env, [6])  # 4 of its actions count
    episodes[0]["labels"][:] = 3.0
    _, figures = imitation_loss(algorithm.learner, episodes, 8.0, algorithm.args)
    assert Figures(*figures).action_loss == pytest.approx(4 * (3.0 - delta / 2) / 8)


def test_actions_that_are_not_carried_out_do_not_count(small_env: Any) -> None:
    algorithm = learner(small_env)
    episodes = episodes_of(small_env, [6, 8])
    before = imitation_loss(algorithm.learner, episodes, 14.0, algorithm.args)[0]
    episodes[0]["labels"][:2] += 5.0
    assert imitation_loss(algorithm.learner, episodes, 14.0, algorithm.args)[0] == before
    episodes[0]["labels"][2] += 5.0
    assert imitation_loss(algorithm.learner, episodes, 14.0, algorithm.args)[0] > before + 0.01


@pytest.mark.parametrize("continuous", [False, True])
def test_the_read_out_teaches_the_memory_and_leaves_the_action_alone(small_env: Any, continuous: bool) -> None:
    algorithm = learner(small_env, oracle_weight=1.0)
    oracle = torch.tensor([[0.3, -2.0]]) if continuous else torch.tensor([[2]])
    algorithm.learner.readout = OracleReadout(16, oracle, 3)
    episodes = episodes_of(small_env, [6, 8], oracle)
    for episode in episodes:
        episode["carried"][:] = False  # nothing but the read-out
    loss, figures = imitation_loss(algorithm.learner, episodes, 14.0, algorithm.args)
    loss.backward()
    network = algorithm.network
    assert Figures(*figures).action_loss == 0.0
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.memory.parameters())
    assert all(p.grad is None or not p.grad.any() for p in [*network.actor.parameters(), *network.critic.parameters()])


def test_the_read_out_of_numbers_learns_their_scale() -> None:
    env = made(env_id="TakeItBack-v0", n=3)
    algorithm = learner(env, env_id="TakeItBack-v0", oracle_weight=0.3, num_steps=2)
    obs, _ = env.reset(seed=0)
    batch = algorithm.rollout(env, obs, EpisodeStats())
    algorithm.update(batch)
    mean = algorithm.learner.readout.normalizer.mean
    torch.testing.assert_close(mean.float(), batch.oracle.float().flatten(0, 1).mean(dim=0))
    env.close()


def test_an_oracle_read_out_learns_what_the_memory_holds() -> None:
    torch.manual_seed(0)
    y = torch.randn(256, 8)
    for oracle in (y[:, :1].gt(0).long(), 3.0 * y[:, :2] + 1.0):
        readout = OracleReadout(8, oracle, 2)
        readout.normalizer.update(oracle.float())
        optimizer = torch.optim.Adam(readout.parameters(), lr=0.05)
        first = readout(y, oracle)[1].mean()
        for _ in range(60):
            optimizer.zero_grad()
            readout(y, oracle)[0].mean().backward()
            optimizer.step()
        assert readout(y, oracle)[1].mean() > 0.9 > first


def test_an_oracle_of_several_classes_is_told_where_all_are_right() -> None:
    oracle = torch.tensor([[0, 1], [0, 0], [1, 0]])
    readout = OracleReadout(1, oracle, 2)
    with torch.no_grad():
        readout.linear.weight.zero_()
        # class 0, then class 1, whatever the memory holds
        readout.linear.bias.copy_(torch.tensor([9.0, 0.0, 0.0, 9.0]))
    loss, right = readout(torch.zeros(3, 1), oracle)
    assert right.tolist() == [1.0, 0.0, 0.0]
    assert loss.tolist() == pytest.approx([0.0, 4.5, 9.0], abs=1e-3), "the mean over the parts"


def test_a_set_is_told_whatever_its_order() -> None:
    oracle = torch.tensor([[0, 1], [1, 0], [0, 2]])
    readout = OracleReadout(1, oracle, 3, as_set=True)
    with torch.no_grad():
        readout.linear.weight.zero_()
        readout.linear.bias.copy_(torch.tensor([9.0, 9.0, -9.0]))  # 0 and 1, whatever the memory holds
    loss, right = readout(torch.zeros(3, 1), oracle)
    assert right.tolist() == [1.0, 1.0, 0.0]
    assert loss.tolist() == pytest.approx([0.0, 0.0, 9.0], abs=1e-3), "two errors of 9, over two members"


def test_only_targets_in_any_order_are_told_as_a_set() -> None:
    for env_id, is_set in (("BunchOfColors3-v0", True), ("SeqOfColors5-v0", True), ("ChainOfColors3-v0", False)):
        env = made(env_id=env_id, n=2)
        assert env.unwrapped.oracle_is_set == is_set
        if is_set:
            readout = learner(env, oracle_weight=0.3, oracle_as_set=True).learner.readout
            assert readout.as_set
            assert readout.linear.out_features == 9
        assert not learner(env, oracle_weight=0.3).learner.readout.as_set
        env.close()


def test_a_read_out_tells_which_targets_were_touched(small_env: Any) -> None:
    algorithm = learner(small_env, counted_weight=1.0)
    episodes = episodes_of(small_env, [6, 8])
    for episode in episodes:
        episode["carried"][:] = False  # nothing but the read-out
        episode["counted"] = torch.rand(len(episode["carried"]), 3) < 0.5
    with torch.no_grad():
        algorithm.learner.counted_readout.linear.weight.zero_()
        algorithm.learner.counted_readout.linear.bias[:] = torch.tensor([0.0, 40.0, -40.0])
    loss, figures = imitation_loss(algorithm.learner, episodes, 14.0, algorithm.args)
    counted = torch.cat([episode["counted"] for episode in episodes]).float()
    # Candidate 0 is a coin's toss; of 1 and 2 the read-out is sure, and each error costs 40.
    expected = (math.log(2.0) + 40.0 * (1.0 - counted[:, 1]).mean() + 40.0 * counted[:, 2].mean()) / 3
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert Figures(*figures).counted_loss == loss
    assert Figures(*figures).action_loss == 0.0
    algorithm.learner.counted_readout.linear.reset_parameters()
    imitation_loss(algorithm.learner, episodes, 14.0, algorithm.args)[0].backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in algorithm.network.memory.parameters())

    told, errors = torch.tensor([[3.0, -1.0], [3.0, 1.0]]), torch.tensor([[True, False], [True, False]])
    readout = CountedReadout(2, 2)
    with torch.no_grad():
        readout.linear.weight.copy_(torch.eye(2))
        readout.linear.bias.zero_()
    assert readout(told, errors)[1].tolist() == [1.0, 0.0]


def test_the_first_query_learns_to_find_the_target(small_env: Any) -> None:
    algorithm = learner(small_env, target_weight=1.0, query_sizes=(8,))
    episodes = episodes_of(small_env, [6, 8])
    for episode in episodes:
        length = len(episode["carried"])
        episode["target"] = torch.full((length,), -1)
        episode["target"][3:] = 1
        objects = episode["obs/objects"].unflatten(-1, (3, -1))
        objects[..., 0] = torch.tensor([1.0, 1.0, 0.0])  # the third object is hidden
    args = algorithm.args
    loss, figures = imitation_loss(algorithm.learner, episodes, 14.0, args)
    args.target_weight = 0.0
    without = imitation_loss(algorithm.learner, episodes, 14.0, args)[0]
    args.target_weight = 1.0
    assert Figures(*figures).aimed == pytest.approx((3 + 5) / 14)
    torch.testing.assert_close(loss - without, Figures(*figures).target_loss)
    optimizer = torch.optim.Adam(algorithm.network.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        loss, figures = imitation_loss(algorithm.learner, episodes, 14.0, args)
        loss.backward()
        optimizer.step()
    assert Figures(*figures).target_right == Figures(*figures).aimed, "it is found in all steps that have one"
    assert Figures(*figures).target_loss < 0.1
    episodes[0]["target"][5] = 2
    hidden = imitation_loss(algorithm.learner, episodes, 14.0, args)[1]
    assert hidden[8] == pytest.approx((2 + 5) / 14), "what is hidden cannot be found"
    assert hidden.isfinite().all()


@pytest.mark.parametrize("env_id", ["BunchOfColors3-v0", "ChainOfColors3-v0", "ShellGameTouch-v0"])
def test_rollouts_say_what_the_expert_goes_for_where_the_loss_asks(env_id: str) -> None:
    env = made(env_id=env_id, arm="held")
    algorithm = learner(env, BC, expert_noise=0.0, num_steps=120, target_weight=1.0, env_id=env_id)
    obs, _ = env.reset(seed=0)
    algorithm.on_episode_start(torch.ones(4, dtype=torch.bool))
    batch = algorithm.rollout(env, obs, EpisodeStats())
    target = batch.steps()["target"]
    responding = env.unwrapped.timeline.phase(torch.arange(120)) == RESPONSE
    first = batch.over.to(torch.int8).argmax(dim=0)
    seen, tcp = batch.obs["objects"].unflatten(-1, (len(env.unwrapped.objects), -1)), batch.obs["joints"][..., -7:-4]
    for i, end in enumerate(first.tolist()):
        assert end > 0
        assert (target[:end, i] == -1)[~responding[:end]].all()
        at = int(responding.nonzero()[0])
        goal = int(target[at, i])
        if env_id == "ShellGameTouch-v0":
            assert goal == 1 + int(batch.oracle[at, i])
        elif env_id == "ChainOfColors3-v0":
            # In the order shown: no candidate follows another one before that is touched.
            order = torch.unique_consecutive(target[at:end, i][target[at:end, i] >= 0]).tolist()
            assert order == batch.oracle[at, i].tolist()[: len(order)]
        else:
            assert goal in batch.oracle[at, i].tolist()
        # The expert's hand gets there.
        distance = torch.linalg.norm(seen[at:end, i, goal, 1:3] - tcp[at:end, i, :2], dim=-1)
        assert distance.min() < 0.02
    unasked = learner(env, BC, num_steps=2, env_id=env_id)
    assert (unasked.rollout(env, obs, EpisodeStats()).target == -1).all()
    env.close()


def test_episodes_kept_before_targets_were_recorded_have_none(small_env: Any) -> None:
    algorithm = learner(small_env)
    algorithm.keep(episodes_of(small_env, [6, 8]))
    state = algorithm.state_dict()
    assert "target" not in state["buffer"]["steps"]
    algorithm.load_state_dict(state)
    assert [episode["target"].tolist() for episode in algorithm.buffer.episodes] == [[-1] * 6, [-1] * 8]


def test_rollouts_say_which_targets_were_touched_where_a_read_out_asks() -> None:
    env = made(env_id="BunchOfColors3-v0", arm="held")
    sizes = {}
    for weight in (0.0, 1.0):
        algorithm = learner(env, BC, expert_noise=0.0, num_steps=70, counted_weight=weight)
        obs, _ = env.reset(seed=0)
        algorithm.on_episode_start(torch.ones(4, dtype=torch.bool))
        batch = algorithm.rollout(env, obs, EpisodeStats())
        sizes[weight] = batch.counted.shape[2]
        assert torch.equal(batch.steps()["counted"], batch.counted)
    assert sizes == {0.0: 0, 1.0: 9}
    number = batch.counted.sum(dim=2)
    assert (number[0] == 0).all()
    assert (number.amax(dim=0) >= 1).all()
    first = batch.over.to(torch.int8).argmax(dim=0)
    assert all((number[1 : int(end) + 1, i] >= number[: int(end), i]).all() for i, end in enumerate(first) if end)
    env.close()


def test_truncated_backpropagation_changes_gradients_only() -> None:
    torch.manual_seed(0)
    memory = make_memory("gru", 4, hidden_size=8)
    x = torch.randn(10, 3, 4, requires_grad=True)
    whole, cut = run_memory(memory, x, 0), run_memory(memory, x, 4)
    assert torch.allclose(whole, cut, atol=1e-6)
    (far,) = torch.autograd.grad(whole[-1].sum(), x, retain_graph=True)
    (near,) = torch.autograd.grad(cut[-1].sum(), x)
    assert far[0].any()
    assert not near[:8].any()
    assert torch.allclose(near[8:], far[8:], atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- runs
ARGV = shlex.split(
    f"--env-id {ENV} --env-kwargs arm=held response_steps=20 --num-envs 4 --num-steps 16 --total-timesteps 384 "
    "--warm-start-steps 192 --warm-start-updates 3 --updates-per-rollout 2 --batch-episodes 3 --memory-size 16 "
    "--token-size 16 --head-sizes 16 --checkpoint-every 64 --eval-every 192 --eval-episodes 2 --eval-num-envs 2 "
    "--no-video --torch-threads 1 --exact-resume --oracle-weight 0.1"
)


@pytest.mark.slow
def test_a_run_writes_its_files_and_resumes_to_the_bit(tmp_path: Path) -> None:
    # Episodes of 30 steps, and new ones at each checkpoint: these are whole only if nothing is broken off before.
    argv = [word if word != "64" else "192" for word in ARGV]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main("dagger", [*argv, "--run-dir", str(whole)]) == 0
    rows = read_progress(whole)
    assert len(rows) == 6
    assert [float(row["imitation/beta"]) for row in rows] == [1.0] * 3 + [0.0] * 3
    assert {
        "step",
        "train/success_once",
        "loss/action",
        "loss/oracle",
        "imitation/oracle_told",
        "learning_rate",
    } <= set(rows[-1])
    assert float(rows[-1]["imitation/total_updates"]) == 3 + 3 * 2
    assert float(rows[-1]["imitation/buffer_episodes"]) >= 4
    result = json.loads((whole / "final_eval.json").read_text())
    assert result["algorithm"] == "dagger"
    assert result["args"]["oracle_weight"] == 0.1
    assert result["training_steps"] == 384
    assert list(whole.glob("events.out.tfevents*")) or list(whole.glob("**/events.out.tfevents*"))

    break_off(lambda: main("dagger", [*argv, "--run-dir", str(broken)]), DAgger, "rollout", 5)
    assert Checkpoints.load_newest(broken)["step"] == 192
    assert main("dagger", ["--resume", str(broken)]) == 0
    assert_same_policy(whole, broken)
    last, other = (Checkpoints.load_newest(path)["algorithm_state"] for path in (whole, broken))
    assert torch.equal(last["buffer"]["lengths"], other["buffer"]["lengths"])
    assert last["updates"] == other["updates"] == 9

    # as any other policy
    policy = load_policy(broken / "checkpoint.pt")
    env = made(n=2)
    obs, _ = env.reset(seed=0)
    policy.on_episode_start()
    first = policy.act(obs)
    assert first.shape == (2, 8)
    env.close()


@pytest.mark.slow
def test_weights_of_fewer_objects_fit_more_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A curriculum: the policy of three colours begins the run with nine, all weights of it."""
    words = "--num-envs 2 --num-steps 4 --total-timesteps 8 --warm-start-steps 8 --warm-start-updates 0 --preset none"
    words += " --memory-size 8 --token-size 8 --head-sizes 8 --eval-every 0 --eval-episodes 2 --no-video"
    argv, first = shlex.split(words), tmp_path / "a" / "checkpoint.pt"
    assert main("dagger", [*argv, "--env-id", ENV, "--run-dir", str(tmp_path / "a")]) == 0
    argv += ["--init-from", str(first), "--run-dir", str(tmp_path / "b")]
    assert main("dagger", [*argv, "--env-id", "RememberColor9-v0", "--seed", "5"]) == 0
    before = read_policy(first, CPU)
    begun = torch.load(tmp_path / "b" / "resume-000000000000.pt", weights_only=True)["policy"]
    assert begun.keys() == before["state_dict"].keys()
    assert all(torch.equal(begun[name], value) for name, value in before["state_dict"].items())
    (nine, _) = read_policy(tmp_path / "b" / "checkpoint.pt", CPU)["network"]["obs_dim"]
    assert (nine["shape"], nine["items"]) == ([9 * 17], 9)
    argv[-1] = str(tmp_path / "c")
    assert main("dagger", [*argv, "--env-id", "TakeItBack-v0"]) == 2, "its objects have other features"
    assert "--init-from" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_behaviour_cloning_is_the_expert_all_the_time(tmp_path: Path) -> None:
    argv = [word for word in ARGV if word not in ("--exact-resume",)]
    for name in ("--warm-start-steps", "--warm-start-updates"):
        del argv[argv.index(name) : argv.index(name) + 2]
    assert (
        main("bc", [*argv, "--total-timesteps", "128", "--checkpoint-every", "0", "--run-dir", str(tmp_path / "a")])
        == 0
    )
    assert [float(row["imitation/beta"]) for row in read_progress(tmp_path / "a")] == [1.0, 1.0]
    assert json.loads((tmp_path / "a" / "final_eval.json").read_text())["algorithm"] == "bc"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--env-id MemoryLengthEasy-v0", "has no expert"),
        ("--env-id RememberColor3-v0 --num-workers 2", "--num-workers 2"),
        ("--control-mode pd_ee_delta_pose", "--control-mode pd_ee_delta_pose"),
        ("--batch-episodes 0", "--batch-episodes 0"),
        ("--bptt -1", "--bptt -1"),
        ("--expert-noise -0.1", "--expert-noise -0.1"),
        ("--huber-delta 0", "--huber-delta 0"),
        ("--oracle-as-set", "--oracle-as-set does nothing without --oracle-weight"),
        (
            "--env-id ChainOfColors3-v0 --oracle-weight 0.3 --oracle-as-set",
            "--oracle-as-set cannot be used: what has to be remembered in ChainOfColors3-v0 is no set of targets",
        ),
        (
            "--env-id RememberShapeAndColor3x2-v0 --oracle-weight 0.3 --oracle-as-set",
            "--oracle-as-set cannot be used: what has to be remembered in RememberShapeAndColor3x2-v0 is no set",
        ),
        ("--counted-weight -1", "--counted-weight -1"),
        ("--env-id TakeItBack-v0 --counted-weight 0.2", "TakeItBack-v0 has no targets"),
        ("--target-weight -1", "--target-weight -1"),
        ("--query-sizes 0", "--query-sizes (0,)"),
        ("--env-id TakeItBack-v0 --target-weight 0.2", "the expert of TakeItBack-v0 does not choose among objects"),
        ("--obs state --target-weight 0.2", "--obs state has no objects to find"),
        ("--teacher peek", "--teacher peek: Peek looks under mugs"),
        ("--image-pretraining-steps 60", "--image-pretraining-steps 60 cannot be used"),
        ("--memory-kwargs hidden_size=64", "hidden_size=64 cannot be used; use --memory-size 64"),
        ("--memory gnu", "gnu"),
        ("--memory-kwargs depth", "--memory-kwargs depth"),
        ("--network mlp", "--network mlp"),
        ("--network lstm", "--network lstm"),
        ("--warm-start-steps 200000", "--warm-start-steps 200000 is more than"),
        ("--obs rgb+joints --exact-resume", "add --checkpoint-buffer"),
    ],
)
def test_what_cannot_be_used_is_named(
    argv: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main("dagger", [*shlex.split(argv), "--num-envs", "2", "--run-dir", str(tmp_path / "a")]) == 2
    told = capfd.readouterr().err.strip().splitlines()[-1]
    assert message in told
    assert not (tmp_path / "a").exists()


def test_mistakes_can_be_ignored_in_training_alone() -> None:
    env = made(n=2)
    learner(env, ignore_mistakes=True)
    assert env.unwrapped.on_mistake == "ignore"
    env.close()
    assert DAggerArgs.default_obs == BCArgs.default_obs == ImitationArgs.default_obs == "objects+joints"


@pytest.mark.slow
def test_a_short_run_learns(tmp_path: Path) -> None:
    """After 250 gradient steps the student's actions are far nearer to the expert's than any constant action."""
    env = made(n=16, arm="held")
    algorithm = learner(
        env,
        memory_size=32,
        token_size=32,
        head_sizes=(128, 128),
        num_steps=40,
        total_timesteps=1280,
        anneal_lr=False,
        learning_rate=3e-3,
    )
    algorithm.args.warm_start_steps, algorithm.args.warm_start_updates = 640, 200
    obs, _ = env.reset(seed=0)
    for step in (0, 640):
        algorithm.schedule(step / 1280)
        batch = algorithm.rollout(env, obs, EpisodeStats())
        obs = batch.last_obs
        algorithm.network.update_normalizer(batch.obs)
        algorithm.args.updates_per_rollout = 50
        algorithm.update(batch)
    env.close()
    episodes = list(algorithm.buffer.episodes)
    labels = torch.cat([episode["labels"][episode["carried"]] for episode in episodes])
    constant = torch.nn.functional.huber_loss(labels, labels.mean(dim=0).expand_as(labels), delta=0.5) / 0.5
    with torch.no_grad():
        count = float(sum(int(episode["carried"].sum()) for episode in episodes))
        loss = imitation_loss(algorithm.learner, episodes, count, algorithm.args)[0]
    assert loss < 0.5 * constant
