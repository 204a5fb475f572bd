"""PPO's options for the critic and the learning rate: each by hand. Warm starts and a critic that sees the state."""

from __future__ import annotations

import json
import logging
import re
import shlex
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from test_exploration import learner
from torch import nn

import mikasa_robo
from mikasa_robo.baselines import command, ppo_lstm, ppo_mlp
from mikasa_robo.baselines.arguments import ArgumentError
from mikasa_robo.baselines.checkpoints import load_network, load_policy, read_policy, save_checkpoint, save_policy
from mikasa_robo.baselines.command import parse_args
from mikasa_robo.baselines.critics import CRITIC_STATE, ValueScale, last_layer
from mikasa_robo.baselines.dagger_arguments import DAggerArgs
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.env_wrappers import PotentialShaping, ShowStateToCritic
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.networks import ActorCritic, RecurrentActorCritic
from mikasa_robo.baselines.ppo import PPOArgs, adapt_learning_rate, apply_gradients, part_loss, value_loss
from mikasa_robo.baselines.ppo_arguments import PPOMemoryArgs
from mikasa_robo.baselines.protocol import Setup
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout, ObservationPart
from mikasa_robo.baselines.token_policy import TokenPolicy
from mikasa_robo.baselines.warm_start import start_from
from mikasa_robo.core import rewards
from mikasa_robo.experts.policies import Expert
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.tools import evaluate
from mikasa_robo.tools.plot import read_progress
from mikasa_robo.tools.report import collect, write_report
from mikasa_robo.tools.runs import agent_name as agent

CPU = torch.device("cpu")
ALONE = DistContext()
MAZE = shlex.split(
    "--env-id PassiveTMaze-v0 --env-kwargs corridor_length=2 --preset none --num-envs 2 --num-steps 8 "
    "--total-timesteps 16 --num-minibatches 1 --update-epochs 1 --eval-every 0 --eval-episodes 2 --eval-num-envs 2 "
    "--no-video --torch-threads 1 --hidden-sizes 8"
)
"""A short run of PPO-MLP."""

pytestmark = pytest.mark.usefixtures("one_torch_thread")


# ---------------------------------------------------------------------- by hand
@pytest.mark.parametrize(
    ("options", "value", "unit", "loss", "gradient"),
    [
        # target 1, value of the rollout 3
        ({}, 5.0, 1.0, 8.0, 4.0),  # half of 4 squared
        ({}, 5.0, 2.0, 2.0, 1.0),  # an error of 2 units
        ({"value_loss": "huber", "huber_delta": 1.0}, 5.0, 1.0, 3.5, 1.0),  # 1 * (4 - 1/2)
        ({"value_loss": "huber", "huber_delta": 1.0}, 1.5, 1.0, 0.125, 0.5),
        (
            {"value_loss": "clipped", "value_clip": 0.5},
            2.0,
            1.0,
            1.125,
            0.0,
        ),  # it may move to 2.5 only: half of 1.5 squared
        ({"value_loss": "clipped", "value_clip": 0.5}, 5.0, 1.0, 8.0, 4.0),  # the larger of 4 and 2.5
        ({"value_loss": "clipped", "value_clip": 0.5}, 2.0, 2.0, 0.125, 0.25),  # within 1, half of 0.5 squared
    ],
)
def test_the_value_loss_by_hand(
    options: dict[str, Any], value: float, unit: float, loss: float, gradient: float
) -> None:
    values, old, target = (torch.tensor([x], requires_grad=True) for x in (value, 3.0, 1.0))
    found = value_loss(values, target.detach(), PPOArgs(**options), old.detach(), unit)
    found.sum().backward()
    assert found.item() == pytest.approx(loss)
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(gradient)


def test_values_stay_the_same_when_their_scale_changes() -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    scale = ValueScale(decay=0.5)
    x = torch.randn(10, 3)
    before = scale(critic(x))
    assert torch.equal(before, critic(x)), "no statistics yet"
    scale.update(torch.tensor([0.0, 10.0, 20.0]), last_layer(critic), ALONE)
    mean, std = scale.mean_and_std()
    assert mean.item() == pytest.approx(10.0)
    assert std.item() == pytest.approx((200 / 3) ** 0.5)  # one update weighs as much as all
    torch.testing.assert_close(scale(critic(x)), before, atol=1e-5, rtol=1e-5)
    scale.update(torch.tensor([40.0, 40.0]), last_layer(critic), ALONE)
    # weights 1/4 and 1/2: the mean is (10/4 + 40/2) / (3/4) = 30, that of squares (500/3/4 + 1600/2) / (3/4) = 10100/9
    mean, std = scale.mean_and_std()
    assert mean.item() == pytest.approx(30.0)
    assert std.item() == pytest.approx((10100 / 9 - 900) ** 0.5)
    torch.testing.assert_close(scale(critic(x)), before, atol=1e-5, rtol=1e-5)


def test_a_new_critic_with_a_scale_begins_with_0_and_then_with_the_mean_of_the_targets() -> None:
    """Random values of about 1 would spoil the first targets of a task whose returns are far smaller."""
    network = ActorCritic(3, 2, hidden_sizes=(8,), normalize_returns=True)
    scale, x = network.value_scale, torch.randn(10, 3)
    assert scale is not None

    def values() -> torch.Tensor:
        return network.value_of(x, x)

    assert not values().any()
    rise = scale.update(torch.tensor([0.1, 0.2, 0.3]), last_layer(network.critic), ALONE)
    torch.testing.assert_close(values(), torch.full((10,), 0.2))
    torch.testing.assert_close(rise, torch.tensor(0.2))
    rise = scale.update(torch.tensor([0.3, 0.5]), last_layer(network.critic), ALONE)
    assert rise.item() == 0.0
    torch.testing.assert_close(values(), torch.full((10,), 0.2), msg="from then on values stay the same")


@pytest.mark.parametrize("module", [ppo_mlp, ppo_lstm])
def test_a_clipped_loss_does_not_hold_a_new_critic_back(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --normalize-returns its values rise to the mean of the targets before the first gradient step."""
    moved: list[torch.Tensor] = []

    def watched(values: torch.Tensor, targets: torch.Tensor, args: Any, old: torch.Tensor, unit: Any) -> torch.Tensor:
        moved.append((values.detach() - old).abs().max())
        return value_loss(values, targets, args, old, unit)

    monkeypatch.setattr("mikasa_robo.baselines.ppo.value_loss", watched)
    algorithm, env = learner(module, normalize_returns=True, value_loss="clipped", update_epochs=1, num_minibatches=1)
    obs, _ = env.reset(seed=5)
    batch = algorithm.rollout(env, obs, EpisodeStats())
    batch.rewards += 5.0
    algorithm.network.update_normalizer(batch.obs)
    algorithm.update(batch)
    assert len(moved) == 1
    assert moved[0] < 1e-4


@pytest.mark.parametrize("kind", ["mlp", "recurrent", "tokens"])
def test_the_values_of_a_new_critic_are_small_and_differ(kind: str) -> None:
    """Without a scale a critic begins with small random weights."""
    torch.manual_seed(0)
    layout = ObservationLayout((ObservationPart("", "vector", (3,)),))
    x, starts = torch.randn(100, 3), torch.ones(100, dtype=torch.bool)
    if kind == "mlp":
        values = ActorCritic(3, 2).value_of(x, x)
    else:
        network = (RecurrentActorCritic if kind == "recurrent" else TokenPolicy)(layout, 2)
        values = network.step(
            network.normalize({"": x} if kind == "tokens" else x), network.initial_state(100), starts
        )[1]
    values = values.detach()
    assert 0 < float(values.std()) < 0.05
    assert float(values.abs().max()) < 0.1


def test_the_learning_rate_follows_the_divergence_within_its_bounds() -> None:
    args = PPOArgs(lr_schedule="kl-adaptive", desired_kl=0.01)
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=3e-4)

    def rate(kl: float, done: int, start: float = 3e-4) -> float:
        optimizer.param_groups[0]["lr"] = start
        adapt_learning_rate(optimizer, torch.tensor([0.0, 0.0, 0.0, kl, 0.0]), done, args, ALONE)
        return float(optimizer.param_groups[0]["lr"])

    assert rate(0.021, 1) == pytest.approx(2e-4)
    assert rate(0.004, 1) == pytest.approx(4.5e-4)
    assert rate(0.015, 1) == rate(0.006, 1) == 3e-4, "between half of it and twice"
    assert rate(0.0, 0) == 3e-4, "before the first minibatch nothing has moved"
    assert rate(1.0, 1, 1.2e-5) == 1e-5
    assert rate(0.0, 1, 9e-3) == 1e-2
    args.lr_schedule = "linear"
    assert rate(1.0, 1) == 3e-4


class Parts(nn.Module):
    """An actor and a critic of one weight each."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)


@pytest.mark.parametrize(
    ("separate", "warming", "actor", "critic"),
    [(False, False, 0.6, 0.8), (True, False, 1.0, 1.0), (False, True, None, 1.0)],
)
def test_gradients_are_limited_together_apart_or_of_the_critic_alone(
    separate: bool, warming: bool, actor: float | None, critic: float
) -> None:
    network = Parts()
    weights = network.actor.weight, network.critic.weight
    for weight, gradient in zip(weights, (3.0, 4.0), strict=True):
        weight.grad = torch.full((1, 1), gradient)
    before = network.actor.weight.item()
    args = PPOArgs(max_grad_norm=1.0, separate_grad_norms=separate)
    apply_gradients(network, torch.optim.SGD(network.parameters(), lr=1.0), args, ALONE, warming)
    found = [None if weight.grad is None else pytest.approx(weight.grad.item(), rel=1e-4) for weight in weights]
    assert found == [actor, critic]
    assert (network.actor.weight.item() == before) == warming


def test_while_the_critic_warms_up_the_loss_is_its_own() -> None:
    evaluated = tuple(torch.tensor([x], requires_grad=True) for x in (-1.0, 2.0, 3.0))
    old, advantages, returns = (torch.tensor([x]) for x in (-1.1, 1.0, 1.0))
    args = PPOArgs(value_coef=0.5, entropy_coef=0.1)
    loss, _ = part_loss(evaluated, old, advantages, returns, 1, args, warming=True)
    assert loss.item() == pytest.approx(0.5 * 0.5 * 4.0)
    spaces = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Box(-1.0, 1.0, (2,))
    algorithm = ppo_mlp.PPOMLP(
        ppo_mlp.Args(total_timesteps=100_000, value_warmup_steps=20_000),
        Setup(*spaces, 4, CPU, torch.Generator(), ALONE),
    )
    phases = []
    for progress in (0.0, 0.19, 0.2, 1.0):
        algorithm.schedule(progress)
        phases.append(algorithm.warming)
    assert phases == [True, True, False, False]


# ---------------------------------------------------------------------- a critic that sees the state
def test_only_the_critic_sees_its_state() -> None:
    torch.manual_seed(0)
    layout = ObservationLayout((ObservationPart("", "vector", (3,)), ObservationPart(CRITIC_STATE, "vector", (2,))))
    network = RecurrentActorCritic(layout, 2, (8,), 8, (8,))
    obs: Any = {"": torch.randn(5, 3), CRITIC_STATE: torch.randn(5, 2)}
    starts = torch.ones(5, dtype=torch.bool)

    def step(one: Any) -> tuple[Any, Any, Any]:
        return network.step(network.normalize(one), network.initial_state(5), starts)

    actions, values, state = step(obs)
    other = step({**obs, CRITIC_STATE: torch.randn(5, 2)})
    assert torch.equal(other[0].mode(), actions.mode())
    assert torch.equal(other[2]["hidden"], state["hidden"])
    assert (other[1] != values).all()
    without = step(obs[""])  # as in an evaluation
    assert torch.equal(without[0].mode(), actions.mode())
    assert without[1].isnan().all()
    again = RecurrentActorCritic.from_dict(network.to_dict())
    again.load_state_dict(network.state_dict())
    assert again.layout.width == 3
    (weights,) = torch.autograd.grad(values.sum(), [next(network.memory.parameters())])
    assert weights.any(), "what is remembered is worth something to the critic too"


def test_a_critic_that_sees_numbers_beside_an_actor_of_images_is_described_as_it_is() -> None:
    layout = ObservationLayout(
        (ObservationPart("rgb", "image", (32, 32, 3)), ObservationPart(CRITIC_STATE, "vector", (2,)))
    )
    for network in (
        RecurrentActorCritic(layout, 2, (8,), 8, (8,)),
        TokenPolicy(layout, 2, memory_size=8, head_sizes=(8,)),
    ):
        again = type(network).from_dict(network.to_dict())
        again.load_state_dict(network.state_dict())
        assert again.critic_encoder is not None
        assert again.critic_encoder.normalizer is not None


def test_the_statistics_of_a_new_critic_begin_before_its_first_update() -> None:
    layout = ObservationLayout((ObservationPart("", "vector", (3,)), ObservationPart(CRITIC_STATE, "vector", (2,))))
    network = RecurrentActorCritic(layout, 2, (8,), 8, (8,))
    obs: Any = {"": torch.randn(50, 3), CRITIC_STATE: 7.0 + torch.randn(50, 2)}
    assert network.critic_encoder is not None
    own, critics = network.normalizer, network.critic_encoder.normalizer
    assert own is not None
    assert critics is not None
    for _ in range(2):  # once is enough
        network.begin_normalizers(obs)
        assert critics.count == 50
    torch.testing.assert_close(critics.mean.float(), obs[CRITIC_STATE].mean(dim=0))
    assert own.count == 0, "the actor's own go on as the policy had them"


@pytest.mark.slow
def test_the_last_observation_of_an_episode_has_its_own_state() -> None:
    """Those of the finished episode, not of the next one: compared with a task whose observation is the state."""
    from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

    made: list[Any] = [
        mikasa_robo.make_env("RememberColor3-v0", 2, obs_mode=mode, response_steps=3)
        for mode in ("objects+joints", "state")
    ]
    shown, plain = ManiSkillVectorEnv(ShowStateToCritic(made[0])), ManiSkillVectorEnv(made[1])
    space = shown.single_observation_space
    obs, _ = shown.reset(seed=3)
    state, _ = plain.reset(seed=3)
    assert set(space.spaces) == set(obs) == {"objects", "joints", CRITIC_STATE}
    ended = False
    for _ in range(made[0].unwrapped.horizon + 2):
        assert torch.equal(obs[CRITIC_STATE], state)
        action = torch.full((2, 8), 0.3)
        obs, _, _, cuts, info = shown.step(action)
        state, _, _, _, other = plain.step(action)
        if cuts.any():
            ended = True
            assert torch.equal(info["final_observation"][CRITIC_STATE], other["final_observation"])
    assert ended
    for env in (shown, plain):
        env.close()


# ---------------------------------------------------------------------- warm starts
RUN = shlex.split(
    "--env-id RememberColor3-v0 --obs objects+joints --preset none --env-kwargs response_steps=5 --num-envs 2 "
    "--num-steps 24 --total-timesteps 144 --num-minibatches 1 --update-epochs 1 --stagger-groups 1 --eval-every 0 "
    "--eval-episodes 2 --eval-num-envs 2 --no-video --torch-threads 1 --sim-backend physx_cpu --network tokens "
    "--memory gru --memory-size 16 --token-size 16"
)


@pytest.fixture(scope="module")
def imitated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of DAgger, of the network that `RUN` has."""
    env: Any = mikasa_robo.make_env("RememberColor3-v0", 1, obs_mode="objects+joints")
    layout = ObservationLayout.of(env.unwrapped.single_observation_space, len(env.unwrapped.objects))
    env.close()
    torch.manual_seed(3)
    network = TokenPolicy(layout, 8, memory="gru", memory_size=16, token_size=16, head_sizes=(16,))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    args = DAggerArgs(memory_size=16, token_size=16, head_sizes=(16,))
    path = tmp_path_factory.mktemp("dagger") / "checkpoint.pt"
    save_policy(path, network, args, 1234)
    return path


@pytest.mark.slow
def test_ppo_goes_on_from_imitation_with_a_new_critic(imitated: Path, tmp_path: Path) -> None:
    """First the critic alone, which sees the state. Evaluations and reports of the policy are as those of others."""
    run_dir = tmp_path / "runs" / "a"
    words = ["--init-from", str(imitated), "--head-sizes", "16", "--value-warmup-steps", "96", "--critic-obs", "state"]
    # Longer than the episode: a rollout spans the end of one and the begin of another.
    assert (
        command.main(
            "ppo", [*RUN, *words, "--checkpoint-every", "48", "--keep-checkpoints", "9", "--run-dir", str(run_dir)]
        )
        == 0
    )
    first, warm, last = (
        torch.load(run_dir / f"resume-{step:012d}.pt", weights_only=True)["policy"] for step in (0, 96, 144)
    )
    before = torch.load(imitated, weights_only=True)["state_dict"]
    own = [name for name in before if not name.startswith(("critic", "log_std", "normalizer"))]
    assert len(own) > 10
    assert all(torch.equal(first[name], before[name]) and torch.equal(warm[name], before[name]) for name in own)
    assert any(not torch.equal(last[name], before[name]) for name in own)
    critic = [name for name in first if name.startswith("critic.")]
    assert all(not torch.equal(first[name], warm[name]) for name in critic)
    assert first["critic.0.weight"].shape != before["critic.0.weight"].shape
    assert torch.equal(first["log_std"], torch.full((8,), -0.5)), "the noise of imitation was never learned"

    result = json.loads((run_dir / "final_eval.json").read_text())
    assert result["init_from"] == {
        "path": str(imitated),
        "algorithm": "dagger",
        "env_id": DAggerArgs().env_id,
        "training_steps": 1234,
    }
    out = tmp_path / "eval.json"
    assert evaluate.main(["--checkpoint", str(run_dir), "--episodes", "2", "--out", str(out)]) == 0
    policy = load_policy(run_dir)
    env = mikasa_robo.make_env("RememberColor3-v0", 2, obs_mode="objects+joints")
    obs, _ = env.reset(seed=0)
    policy.on_episode_start()
    assert policy.act(obs).shape == (2, 8), "the observations of the actor are enough"
    env.close()
    collection = collect([tmp_path / "runs"])
    assert [run.algorithm for run in collection.runs] == ["ppo gru (warm start)"]
    pytest.importorskip("rliable")
    text = write_report(collection, tmp_path / "report").read_text()
    assert "began with a policy: dagger on RememberColor3-v0, 1,234 steps" in text


def test_a_policy_older_than_an_option_of_its_network_can_be_gone_on_with(imitated: Path, tmp_path: Path) -> None:
    payload = read_policy(imitated)
    assert payload["network"].pop("query_sizes") == []
    assert payload["network"].pop("tcp_token") is False
    assert payload["network"].pop("sum_token") is False
    old = tmp_path / "checkpoint.pt"
    save_checkpoint(old, payload)
    args = DAggerArgs(memory_size=16, token_size=16, head_sizes=(16,))
    layout = ObservationLayout.from_dict(payload["network"]["obs_dim"])
    network = TokenPolicy.from_args(layout, ActionLayout.from_dict(payload["network"]["action_dim"]), args)
    start_from(network, args, old, torch.device("cpu"))
    assert all(torch.equal(value, payload["state_dict"][name]) for name, value in network.state_dict().items())
    deep = TokenPolicy.from_dict({**payload["network"], "query_sizes": [8]})
    with pytest.raises(ArgumentError, match=r"has query_sizes \[\], and this run \[8\]"):
        start_from(deep, args, old, torch.device("cpu"))
    other = TokenPolicy.from_dict({**payload["network"], "tcp_token": True})
    with pytest.raises(ArgumentError, match=r"has tcp_token False, and this run True; .*; add --no-tcp-token"):
        start_from(other, args, old, torch.device("cpu"))


@pytest.mark.parametrize(
    ("algorithm", "kept"), [("bc", False), ("dagger", False), ("iql", False), ("ppo", True), ("sac", True)]
)
def test_a_critic_and_noise_that_were_never_trained_are_not_gone_on_with(
    algorithm: str, kept: bool, imitated: Path, tmp_path: Path
) -> None:
    payload = {**read_policy(imitated), "algorithm": algorithm}
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, payload)
    args = PPOMemoryArgs(network="tokens", memory="gru", memory_size=16, token_size=16, head_sizes=(16,))
    network = TokenPolicy.from_dict(payload["network"])
    start_from(network, args, path, torch.device("cpu"))
    same = {name: torch.equal(value, payload["state_dict"][name]) for name, value in network.state_dict().items()}
    assert same["critic.0.weight"] == same["log_std"] == kept
    assert all(same[name] for name in same if not name.startswith(("critic", "log_std", "value_scale")))


@pytest.mark.slow
def test_a_policy_of_another_shape_is_refused_with_the_option_that_fits(
    imitated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, hint in (
        (
            [],
            "has head_sizes [16], and this run [128]; both need the same network, and observations of the same sizes; "
            "add --head-sizes 16",
        ),
        (
            ["--network", "recurrent", "--token-size", "64"],  # the default, which is as good as none
            "has network tokens, and this run recurrent; both need the same network, and "
            "observations of the same sizes; add --network tokens",
        ),
    ):
        capsys.readouterr()
        argv = [*RUN, "--init-from", str(imitated), *words, "--run-dir", str(tmp_path / "run")]
        assert command.main("ppo", argv) == 2
        assert hint in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--critic-obs state", "--critic-obs state is for the robot tasks of `mikasa list`; leave it out"),
        ("--success-worth 4", "--success-worth 4 is for robot tasks, and MemoryLengthEasy-v0 is not one; leave it out"),
    ],
)
def test_options_for_robot_tasks_are_refused_elsewhere(
    option: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = f"--env-id MemoryLengthEasy-v0 --preset none {option} --num-envs 8 --run-dir"
    assert command.main("ppo-lstm", [*argv.split(), str(tmp_path / "run")]) == 2
    assert hint in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("reward_mode", ["normalized_dense", "dense"])
def test_potential_shaping_pays_for_changes_and_events_alone(reward_mode: str) -> None:
    """The discounted rewards of an episode add up to its events and the potential at its end, whatever lies between."""
    gamma, worth, n = 0.9, 2.0, 4
    made = gym.make(
        "SeqOfColors3-v0",
        num_envs=n,
        obs_mode="objects",
        sim_backend="physx_cpu",
        reward_mode=reward_mode,
        start_counted=2,
    )
    env = PotentialShaping(made, gamma, worth)
    task = env.unwrapped
    unit = rewards.maximum(task.reward_scales) if reward_mode == "normalized_dense" else 1.0
    obs, info = env.reset(seed=0)
    expert = Expert(make_skill("SeqOfColors3-v0", task))
    expert.reset()
    earned, events, potential = torch.zeros(3, n).unbind()
    running = torch.ones(n, dtype=torch.bool)
    for t in range(task.horizon):
        obs, reward, terminated, _, info = env.step(expert.act(obs, info))
        terms = info["reward_terms"]
        now = sum(terms[name] for name in task.reward_scales if name != "progress")
        full = sum(weight for name, weight in task.reward_scales.items() if name != "progress")
        event = terms["progress"] + info["success"] * worth * rewards.maximum(task.reward_scales)
        earned += running * gamma**t * reward
        events += running * gamma**t * event / unit
        potential = torch.where(running, gamma ** (t + 1) * torch.where(info["success"], full, now) / unit, potential)
        running &= ~terminated
    assert not running.any(), "the expert succeeds"
    torch.testing.assert_close(earned, events + potential)
    assert (events > 0).all()
    env.reset(options={"env_idx": torch.tensor([1])})
    assert (env._potential == 0).tolist() == [False, True, False, False]
    env.close()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--potential-shaping"], "add --success-worth 1"),
        (
            ["--potential-shaping", "--success-worth", "1", "--reward-mode", "sparse"],
            "leave out --reward-mode sparse, or add --no-potential-shaping",
        ),
        (["--potential-shaping", "--success-worth", "1", "--num-workers", "2"], "leave --num-workers out"),
        (
            [
                "--env-id",
                "PickCube-v1",
                "--obs",
                "state",
                "--env-kwargs",
                "--potential-shaping",
                "--success-worth",
                "1",
            ],
            "is for the robot tasks of `mikasa list`",
        ),
    ],
)
def test_shaping_is_refused_where_it_cannot_be(
    words: list[str], hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main("ppo", [*RUN, *words, "--run-dir", str(tmp_path / "run")]) == 2
    assert hint in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_ppo_trains_with_potential_shaping(tmp_path: Path) -> None:
    """A policy that never moves far earns almost nothing, where the plain reward pays it in every step."""
    returns = {}
    for name, words in {"plain": [], "shaped": ["--potential-shaping", "--success-worth", "1"]}.items():
        assert command.main("ppo", [*RUN, *words, "--run-dir", str(tmp_path / name)]) == 0
        returns[name] = [
            abs(float(row["train/return"])) for row in read_progress(tmp_path / name) if row["train/return"]
        ]
    assert 0 < max(returns["shaped"]) < min(returns["plain"])


def test_a_new_scale_leaves_the_values_of_the_policy_as_they_were(tmp_path: Path) -> None:
    """A run with --normalize-returns can begin with one without; the other way round its critic is new."""
    a, b, c = (tmp_path / name for name in "abc")
    assert ppo_mlp.main([*MAZE, "--run-dir", str(a)]) == 0
    assert ppo_mlp.main([*MAZE, "--normalize-returns", "--init-from", str(a), "--run-dir", str(b)]) == 0
    assert ppo_mlp.main([*MAZE, "--init-from", str(b), "--seed", "2", "--run-dir", str(c)]) == 0
    begun = [torch.load(path / "resume-000000000000.pt", weights_only=True)["policy"] for path in (b, c)]
    trained = [load_network(path / "checkpoint.pt").state_dict() for path in (a, b)]
    assert torch.equal(begun[0]["critic.0.weight"], trained[0]["critic.0.weight"])
    assert not torch.equal(begun[1]["critic.0.weight"], trained[1]["critic.0.weight"])
    assert torch.equal(begun[1]["actor.0.weight"], trained[1]["actor.0.weight"])


@pytest.mark.parametrize("exploration", ["gaussian", "state-dependent"])
def test_the_noise_of_a_policy_goes_on_or_begins_anew(
    exploration: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = shlex.split(
        "--env-id RememberColor3-v0 --env-kwargs response_steps=5 --num-envs 2 --num-steps 8 --total-timesteps 16 "
        "--num-minibatches 1 --update-epochs 1 --eval-every 0 --eval-episodes 2 --eval-num-envs 2 --no-video "
        f"--torch-threads 1 --hidden-sizes 8 --exploration {exploration}"
    )
    first, kept, new = (tmp_path / name for name in ("first", "kept", "new"))
    assert ppo_mlp.main([*argv, "--init-log-std", "-1", "--run-dir", str(first)]) == 0
    again = [*argv, "--init-log-std", "-2", "--init-from", str(first), "--seed", "2"]
    assert ppo_mlp.main([*again, "--run-dir", str(kept)]) == 0
    assert ppo_mlp.main([*again, "--reset-noise", "--run-dir", str(new)]) == 0
    trained = load_network(first / "checkpoint.pt").state_dict()
    begun = [torch.load(path / "resume-000000000000.pt", weights_only=True)["policy"] for path in (kept, new)]
    noise = [name for name in trained if name.startswith(("log_std", "std_head."))]
    assert noise
    assert all(torch.equal(begun[0][name], trained[name]) for name in noise)
    bias = noise[-1]  # of a state-dependent noise: the last layer's
    assert not torch.allclose(begun[1][bias], trained[bias], atol=0.5)
    assert all(torch.equal(run["actor.0.weight"], trained["actor.0.weight"]) for run in begun)
    assert ppo_mlp.main([*argv, "--reset-noise", "--run-dir", str(tmp_path / "none")]) == 2
    assert "--reset-noise True cannot be used; use it with --init-from only" in capsys.readouterr().err


def test_a_report_tells_variants_and_warm_starts_apart() -> None:
    told = [
        agent("ppo-mlp", {"variant": "gsde"}),
        agent("ppo-mlp", {"init_from": "a.pt", "variant": None}),
        agent("ppo", {"memory": "gru", "variant": "x", "init_from": "a.pt"}),
        agent("ppo-lstm", {"memory": "lstm"}),
        agent("sac", {"expert_steps": 0, "dataset": None}),
        agent("sac", {"expert_steps": 9}),
        agent("sac", {"dataset": "d", "variant": "rlpd"}),
        agent("bc", {"dataset": "d"}),
    ]
    assert told[:4] == ["gsde", "ppo-mlp (warm start)", "x (warm start)", "ppo-lstm"]
    assert told[4:] == ["sac", "sac (with an expert)", "rlpd (with an expert)", "bc"]


def test_the_bound_of_noise_that_depends_on_the_state_goes_on_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    argv = shlex.split(
        "--env-id RememberColor3-v0 --env-kwargs response_steps=5 --num-envs 2 --num-steps 8 --total-timesteps 32 "
        "--num-minibatches 1 --update-epochs 1 --eval-every 0 --eval-episodes 2 --eval-num-envs 2 --no-video "
        "--torch-threads 1 --hidden-sizes 8 --exploration state-dependent"
    )
    first = tmp_path / "first"
    assert ppo_mlp.main([*argv, "--final-log-std", "-3", "--run-dir", str(first)]) == 0
    bound = load_network(first / "checkpoint.pt").state_dict()["std_head.cap"]
    told = {"goes on": [], "lifted": ["--reset-noise"], "new": ["--final-log-std", "-2"]}
    caps = {}
    for name, words in told.items():
        caplog.clear()
        with caplog.at_level(logging.INFO, "mikasa_robo.baselines"):
            run = tmp_path / name
            assert ppo_mlp.main([*argv, *words, "--init-from", str(first), "--seed", "2", "--run-dir", str(run)]) == 0
        assert ("actions stays below -1.75, as in that run" in caplog.text) == (name == "goes on")
        caps[name] = load_network(run / "checkpoint.pt").state_dict()["std_head.cap"]
    assert caps["goes on"] == bound == -1.75
    assert caps["lifted"] == 1.0  # as far as the head goes
    assert caps["new"] == -1.25


# ---------------------------------------------------------------------- fine inputs


def test_a_policy_with_fine_inputs_is_saved_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, fine, more = (tmp_path / name for name in ("plain", "fine", "more"))
    assert ppo_mlp.main([*MAZE, "--run-dir", str(plain)]) == 0
    assert ppo_mlp.main([*MAZE, "--fine-inputs", "0.2", "--run-dir", str(fine)]) == 0
    assert "fine_inputs" not in read_policy(plain / "checkpoint.pt")["network"], "as checkpoints were before"
    network = load_network(fine / "checkpoint.pt")
    assert isinstance(network, ActorCritic)
    assert network.fine_inputs == 0.2
    inputs = {
        path: load_network(path / "checkpoint.pt").state_dict()["actor.0.weight"].shape[1] for path in (plain, fine)
    }
    assert inputs[fine] == 2 * inputs[plain]
    again = ["--seed", "2", "--run-dir", str(more)]
    for start, words, message in (
        (fine, [], "has fine_inputs 0.2, and this run None; .*; add --fine-inputs 0.2"),
        (plain, ["--fine-inputs", "0.2"], "has fine_inputs None, and this run 0.2; .*; add --fine-inputs 0.0"),
        (fine, ["--fine-inputs", "0.2", "--hidden-sizes", "9"], r"has hidden_sizes \[8\].*; add --hidden-sizes 8$"),
        (plain, ["--no-normalize-obs"], "has normalize_obs True, and this run False; .*; add --normalize-obs$"),
    ):
        assert ppo_mlp.main([*MAZE, *words, "--init-from", str(start), *again]) == 2
        assert re.search(message, capsys.readouterr().err)
        assert not more.exists()
    assert ppo_mlp.main([*MAZE, "--fine-inputs", "0.2", "--init-from", str(fine), *again]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--fine-inputs -1", "--fine-inputs -1.0 .* use a positive number"),
        ("--fine-inputs 0.2 --no-normalize-obs", "--fine-inputs 0.2 needs the running standard deviation"),
        ("--fine-inputs 0.2 --env-id RememberColor3-v0 --env-kwargs --obs rgb", "needs vectors in the observation"),
    ],
)
def test_fine_inputs_that_cannot_be_used_are_refused(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ppo_mlp.main([*MAZE, *words.split(), "--run-dir", str(tmp_path / "run")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "fine_inputs"),
    [("", 0.2), ("--no-normalize-obs", 0.0), ("--fine-inputs 0.1", 0.1)],
)
def test_a_preset_has_no_fine_inputs_where_nothing_is_normalised(words: str, fine_inputs: float) -> None:
    argv = ["--env-id", "ChainOfColors3-v0", *words.split()]
    args = parse_args(ppo_mlp.Args, argv, "mikasa train ppo-mlp")
    args.check()
    assert args.fine_inputs == fine_inputs
    with pytest.raises(ArgumentError, match=r"--fine-inputs 0\.2 needs the running standard deviation"):
        parse_args(ppo_mlp.Args, [*argv[:2], "--no-normalize-obs", "--fine-inputs", "0.2"], "").check()
