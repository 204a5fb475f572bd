"""PPO-LSTM: that memory is kept, replayed and forgotten where it should be, and what observations and actions it takes."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor
from train_helpers import run_in_two_forks

from mikasa_robo.baselines import environments, ppo_lstm, ppo_mlp
from mikasa_robo.baselines.advantages import compute_gae
from mikasa_robo.baselines.arguments import ArgumentError, CommonArgs
from mikasa_robo.baselines.checkpoints import load_network, load_policy, save_policy
from mikasa_robo.baselines.command import env_factory
from mikasa_robo.baselines.critics import last_layer
from mikasa_robo.baselines.distributed import DistContext, choose_gpu, join_processes
from mikasa_robo.baselines.distributions import Categoricals
from mikasa_robo.baselines.encoder import Encoder
from mikasa_robo.baselines.env_wrappers import GymnasiumVectorEnv, StaggeredEpisodes
from mikasa_robo.baselines.environments import make_gymnasium_env
from mikasa_robo.baselines.evaluation import evaluate
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.networks import NetworkPolicy, RecurrentActorCritic
from mikasa_robo.baselines.ppo import PPOArgs
from mikasa_robo.baselines.protocol import Setup
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout, map_tensors
from mikasa_robo.tools import cli
from mikasa_robo.tools.plot import read_progress

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_torch_thread")


class ClockEnv(gym.Env[Any, Any]):
    """Episodes of 2 to 7 steps that terminate or, if even, are truncated; shows the step, a picture and a symbol."""

    ACTIONS: dict[str, gym.Space[Any]] = {  # noqa: RUF012  a table
        "discrete": gym.spaces.Discrete(3, start=2),
        "multi-discrete": gym.spaces.MultiDiscrete([2, 3]),
        "continuous": gym.spaces.Box(np.array([0, -2], np.float32), np.array([1, 4], np.float32)),
    }

    def __init__(self, actions: str = "discrete", simple: bool = False) -> None:
        self.simple = simple
        vector = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = (
            vector
            if simple
            else gym.spaces.Dict(
                vector=vector,
                picture=gym.spaces.Box(0, 255, (16, 18, 3), np.uint8),
                small=gym.spaces.Box(0, 255, (2, 2, 1), np.uint8),
                symbols=gym.spaces.Tuple([gym.spaces.Discrete(3, start=-1), gym.spaces.MultiDiscrete([2, 4])]),
            )
        )
        self.action_space = self.ACTIONS[actions]

    def _obs(self) -> Any:
        vector = np.array([self.t, self.length, self.np_random.normal()], np.float32)
        if self.simple:
            return vector
        return {
            "vector": vector,
            "picture": np.full((16, 18, 3), 30 * self.t, np.uint8),
            "small": np.full((2, 2, 1), 255, np.uint8),
            "symbols": (self.t % 3 - 1, np.array([self.t % 2, self.t % 4])),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(2, 8))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.t += 1
        over, even = self.t >= self.length, self.length % 2 == 0
        reward = float(np.sum(action)) + self.t
        info = {"success": self.length > 4} if over else {}
        return self._obs(), reward, over and not even, over and even, info


def clocks(n: int, actions: str = "discrete", simple: bool = False) -> GymnasiumVectorEnv:
    """N of these in the form that the baselines take."""
    single = [lambda: ClockEnv(actions, simple) for _ in range(n)]
    return GymnasiumVectorEnv(SyncVectorEnv(single, autoreset_mode=AutoresetMode.SAME_STEP), horizon=7)


class EarlySuccessEnv(gym.Env[Any, Any]):
    """Episodes of four steps that succeed in the second; bounds of any kind."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Box(
        np.array([-np.inf, 3.0, -np.inf, -4.0], np.float32), np.array([np.inf, np.inf, 1.0, 4.0], np.float32)
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.action = self.t + 1, action
        return np.zeros(1, np.float32), 0.0, False, self.t == 4, {"success": self.t == 2}


def test_a_success_in_the_middle_of_an_episode_counts() -> None:
    env = GymnasiumVectorEnv(SyncVectorEnv([EarlySuccessEnv], autoreset_mode=AutoresetMode.SAME_STEP), horizon=4)
    env.reset(seed=0)
    found = []
    for _ in range(9):
        info = env.step(torch.zeros(1, 4))[-1]
        found.append((info["success"].item(), info["episode"]["success_once"].item()))
    assert found == [*[(False, False), (True, True), (False, True), (False, True)] * 2, (False, False)]


def test_actions_keep_to_every_kind_of_bounds() -> None:
    single = EarlySuccessEnv()
    env = GymnasiumVectorEnv(SyncVectorEnv([lambda: single], autoreset_mode=AutoresetMode.SAME_STEP), horizon=4)
    env.reset(seed=0)
    for value, expected in ((-1.0, [-1.0, 3.0, -1.0, -4.0]), (1.0, [1.0, 5.0, 1.0, 4.0])):
        env.step(torch.full((1, 4), value))
        assert single.action.tolist() == expected
        assert single.action_space.contains(single.action)


def policy_for(env: GymnasiumVectorEnv, seed: int = 0) -> RecurrentActorCritic:
    """A small policy with weights of some size, so that a difference shows."""
    torch.manual_seed(seed)
    layout, action = ObservationLayout.of(env.single_observation_space), ActionLayout.of(env.single_action_space)
    policy = RecurrentActorCritic(layout, action, encoder_sizes=(16,), memory_size=8, head_sizes=(16,))
    with torch.no_grad():
        for parameter in (*policy.actor.parameters(), *last_layer(policy.critic).parameters()):
            parameter.normal_(std=0.5)
    return policy


def play(
    env: GymnasiumVectorEnv, policy: RecurrentActorCritic, steps: list[int], groups: int = 3, keep_first: bool = False
) -> list[ppo_lstm.Rollout]:
    """Rollouts of these lengths, each from where the last one ended; before them 7 steps that get episodes out of phase."""
    generator = torch.Generator().manual_seed(1)
    args = ppo_lstm.Args(num_envs=env.num_envs, encoder_sizes=(16,), lstm_size=8, head_sizes=(16,))
    setup = Setup(env.single_observation_space, env.single_action_space, env.num_envs, CPU, generator, DistContext())
    learner = ppo_lstm.PPOLSTM(args, setup)
    learner.network = policy
    staggered = StaggeredEpisodes(env, groups, 7)
    obs, _ = staggered.reset(seed=5)
    learner.on_episode_start(torch.ones(env.num_envs, dtype=torch.bool))
    batches: list[ppo_lstm.Rollout] = []
    for count in [7, *steps]:
        args.num_steps = count
        batches.append(learner.rollout(staggered, obs, EpisodeStats()))
        obs = batches[-1].last_obs
        if len(batches) == 1:
            policy.update_normalizer(batches[0].obs)
    return batches if keep_first else batches[1:]


@pytest.mark.parametrize("actions", list(ClockEnv.ACTIONS))
def test_a_replayed_rollout_gives_what_was_recorded(actions: str) -> None:
    env = clocks(6, actions)
    policy = policy_for(env)
    _, batch = play(env, policy, [9, 20])
    assert batch.starts[1:].any(dim=1).sum() >= 10, "episodes of different lengths begin all the time"
    assert isinstance(batch.state, dict)
    assert batch.state["hidden"].abs().max() > 0.01, "the rollout begins with what was remembered"
    for envs in (torch.arange(6), torch.tensor([4, 1])):
        obs = map_tensors(lambda x: x[:, envs], policy.normalize(batch.obs))  # noqa: B023
        first = map_tensors(lambda x: x[envs], batch.state)  # noqa: B023
        distribution, values, state = policy.forward_sequence(obs, first, batch.starts[:, envs])
        close: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
        torch.testing.assert_close(distribution.log_prob(batch.actions[:, envs]), batch.log_probs[:, envs], **close)
        torch.testing.assert_close(values, batch.values[:, envs], **close)
        torch.testing.assert_close(state, map_tensors(lambda x: x[envs], batch.last_state), **close)  # noqa: B023


def test_an_update_starts_from_what_was_recorded() -> None:
    """In the first minibatch the policy has not moved: ratios are 1, and the value loss is that of the recorded values."""
    env = clocks(6)
    policy = policy_for(env)
    _, batch = play(env, policy, [9, 20])
    args = ppo_lstm.Args(num_envs=6, num_steps=20, num_minibatches=1, update_epochs=1)
    optimizer = torch.optim.Adam(policy.parameters())
    before = [parameter.clone() for parameter in policy.parameters()]
    row = ppo_lstm.update(policy, optimizer, batch, args, torch.Generator())
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert abs(row["loss/approx_kl"]) < 1e-7
    assert row["loss/clip_fraction"] == 0.0
    advantages, _ = compute_gae(
        batch.rewards,
        batch.values,
        batch.last_value,
        batch.final_values,
        batch.terminated,
        batch.truncated,
        args.gamma,
        args.gae_lambda,
    )
    assert row["loss/value"] == pytest.approx(0.5 * advantages.square().mean().item(), rel=1e-5)


def test_a_rollout_cut_in_two_equals_one_that_is_not() -> None:
    (whole,) = play(clocks(5), policy_for(clocks(5)), [24])
    first, second = play(clocks(5), policy_for(clocks(5)), [10, 14])
    assert not first.last_starts.all(), "the cut goes through episodes"
    for name in ("starts", "actions", "log_probs", "values", "rewards", "final_values"):
        torch.testing.assert_close(torch.cat([getattr(first, name), getattr(second, name)]), getattr(whole, name))
    torch.testing.assert_close(first.last_value, whole.values[10])
    torch.testing.assert_close(second.last_state, whole.last_state)


def test_starts_are_where_the_clock_reads_zero() -> None:
    for batch in play(clocks(7), policy_for(clocks(7)), [5, 20]):
        assert isinstance(batch.obs, dict)
        assert torch.equal(batch.starts, batch.obs["vector"][..., 0] == 0)


def test_the_gradient_through_time_stops_where_an_episode_begins() -> None:
    policy = policy_for(clocks(1, simple=True))
    obs = torch.randn(6, 1, 3, requires_grad=True)
    starts = torch.tensor([[False], [False], [True], [False], [False], [False]])
    hidden, cell = (torch.randn(1, 8, requires_grad=True) for _ in range(2))
    _, values, _ = policy.forward_sequence(obs, {"hidden": hidden, "cell": cell}, starts)
    before, *of_state = torch.autograd.grad(values[1].sum(), [obs, hidden, cell], retain_graph=True)
    assert (before.abs().sum(dim=(1, 2)) > 0).tolist() == [True, True, False, False, False, False]
    assert all(gradient.abs().sum() > 0 for gradient in of_state)
    after, *none = torch.autograd.grad(values[5].sum(), [obs, hidden, cell])
    assert (after.abs().sum(dim=(1, 2)) > 0).tolist() == [False, False, True, True, True, True]
    assert all(gradient.abs().sum() == 0 for gradient in none)


def test_a_truncated_episode_bootstraps_from_its_last_observation_with_the_memory_it_had() -> None:
    env = clocks(6, simple=True)
    policy = policy_for(env)
    first, batch = play(env, policy, [20], keep_first=True)
    obs = batch.obs
    assert isinstance(obs, Tensor)
    cut = batch.truncated.nonzero()
    assert len(cut) > 5
    assert torch.equal(batch.final_values != 0, batch.truncated)
    # Seen once more by the side: the episode's own observations, one after another, then the last, which no row holds.
    told: dict[tuple[int, int], Tensor] = {}
    with torch.no_grad():
        again = StaggeredEpisodes(clocks(6, simple=True), 3, 7)
        again.reset(seed=5)
        for action in first.actions:
            again_obs, *_ = again.step(action)
        assert torch.equal(again_obs, obs[0])
        for t in range(20):
            _, _, _, cuts, info = again.step(batch.actions[t])
            for i in cuts.nonzero().squeeze(1).tolist():
                told[t, i] = info["final_observation"][i]
        checked = 0
        for t, i in cut.tolist():
            began = [s for s in range(t + 1) if batch.starts[s, i]]
            if not began:
                continue
            state = policy.initial_state(1)
            no = torch.tensor([False])
            for s in range(began[-1], t + 1):
                _, _, state = policy.step(policy.normalize(obs[s, i][None]), state, no)
            kept = policy.step(policy.normalize(told[t, i][None]), state, no)[1].item()
            wiped = policy.step(policy.normalize(told[t, i][None]), policy.initial_state(1), no)[1].item()
            assert batch.final_values[t, i].item() == pytest.approx(kept, abs=1e-5)
            assert abs(kept - wiped) > 1e-4, "or the comparison shows nothing"
            checked += 1
    assert checked > 3
    # ... and the advantage is made of it.
    advantages, _ = compute_gae(
        batch.rewards, batch.values, batch.last_value, batch.final_values, batch.terminated, batch.truncated, 0.9, 0.8
    )
    expected = batch.rewards + 0.9 * batch.final_values - batch.values
    torch.testing.assert_close(advantages[batch.truncated], expected[batch.truncated])


def test_a_policy_forgets_at_the_start_of_an_episode_only() -> None:
    policy = policy_for(clocks(4, "continuous", simple=True))
    player = NetworkPolicy(policy)
    obs = torch.randn(4, 3)
    first = player.act(obs)
    second = player.act(obs)
    player.on_episode_start()
    assert torch.equal(player.act(obs), first)
    assert not torch.equal(second, first)


# ---------------------------------------------------------------------- observations and actions
def test_mixed_observations_become_one_vector_and_pictures() -> None:
    env = clocks(3)
    obs, _ = env.reset(seed=0)
    assert isinstance(obs, dict)
    assert list(obs) == ["vector", "picture", "small", "symbols.0", "symbols.1"]
    torch.manual_seed(0)
    encoder = Encoder(ObservationLayout.of(env.single_observation_space), normalize_obs=True)
    ready = encoder.normalize(obs)
    assert isinstance(ready, dict)
    assert ready["picture"].dtype == torch.uint8, "pictures stay bytes until they are encoded"
    numbers = ready["all numbers"]
    assert numbers.shape == (3, 3 + 4 + 3 + 2 + 4)
    assert numbers[:, 3:7].eq(1.0).all(), "255 of 255"
    assert numbers[0, 7:].tolist() == [1, 0, 0, 1, 0, 1, 0, 0, 0]  # symbols -1, 0 and 0 as one-hot codes
    features = encoder.encode(ready)
    brighter = encoder.encode({**ready, "picture": ready["picture"] + 200})
    assert features.shape == (3, encoder.features)
    assert not torch.equal(features, brighter)
    layout = ObservationLayout.of(env.single_observation_space)
    assert ObservationLayout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    with pytest.raises(ValueError, match=r"'a' is a Text"):
        ObservationLayout.of(gym.spaces.Dict(a=gym.spaces.Text(3)))


def test_actions_reach_the_environment_within_their_space() -> None:
    env = clocks(2, "continuous", simple=True)
    env.reset(seed=0)
    _, reward, *_ = env.step(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    assert (reward - 1).tolist() == [0 - 2, 1 + 4], "-1 and 1 are the bounds"
    env = clocks(2, "discrete", simple=True)
    env.reset(seed=0)
    assert (env.step(torch.tensor([[0], [2]]))[1] - 1).tolist() == [2, 4]  # the space starts at 2


def test_categorical_samples_have_their_frequencies_and_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=generator)
    distribution = Categoricals(logits.expand(20_000, 5), (2, 3))
    actions = distribution.sample(torch.rand(20_000, 2, generator=generator))
    expected = torch.stack([logits[:2].softmax(0)[i] * logits[2:].softmax(0)[j] for i in range(2) for j in range(3)])
    found = torch.bincount(actions[:, 0] * 3 + actions[:, 1], minlength=6) / 20_000
    torch.testing.assert_close(found, expected, atol=0.015, rtol=0)  # four standard deviations
    every = torch.tensor([[i, j] for i in range(2) for j in range(3)])
    one = Categoricals(logits.expand(6, 5), (2, 3))
    torch.testing.assert_close(one.log_prob(every).exp(), expected)
    torch.testing.assert_close(one.entropy()[0], -(expected * expected.log()).sum())
    assert Categoricals(torch.zeros(1, 3), (3,)).sample(torch.tensor([[1.0 - 1e-8]])).item() == 2


def test_the_adapter_tells_of_the_episode_that_ended() -> None:
    env = clocks(8, simple=True)
    obs, _ = env.reset(seed=3)
    assert isinstance(obs, Tensor)
    lengths, returns = obs[:, 1].clone(), torch.zeros(8)
    ended = 0
    for _ in range(12):
        obs, reward, ends, cuts, info = env.step(torch.zeros(8, 1, dtype=torch.long))
        assert isinstance(obs, Tensor)
        returns += reward
        over = ends | cuts
        for i in over.nonzero().squeeze(1).tolist():
            assert info["final_observation"][i, :2].tolist() == [lengths[i], lengths[i]]
            assert info["episode"]["episode_len"][i] == lengths[i]
            assert info["episode"]["return"][i] == returns[i]
            assert info["success"][i] == (lengths[i] > 4)
            assert bool(cuts[i]) == (lengths[i] % 2 == 0)
            lengths[i], returns[i] = obs[i, 1], 0.0
            ended += 1
        assert (obs[over, 0] == 0).all()
    assert ended > 10
    with pytest.raises(ValueError, match="SAME_STEP"):
        GymnasiumVectorEnv(SyncVectorEnv([ClockEnv]), 7)


@pytest.mark.parametrize(
    "env_id",
    ["MemoryLengthEasy-v0", "MemoryCardsEasy-v0", "NumpadContinuousEasy-v0", "MortarMayhemEasy-v0", "CartPole-v1"],
)
@pytest.mark.parametrize("module", [ppo_mlp, ppo_lstm])
def test_any_small_environment_trains_through_the_command_line(module: Any, env_id: str, tmp_path: Path) -> None:
    """Vectors, discrete ones, continuous actions, pictures, and an environment of Gymnasium's own."""
    steps = 24 if env_id.startswith("Mortar") else 64
    argv = f"--env-id {env_id} --preset none --num-envs 2 --num-steps {steps // 2} --total-timesteps {steps} --no-video"
    more = (
        "--num-minibatches 2 --update-epochs 1 --eval-episodes 2 --eval-num-envs 2 --stagger-groups 2 --torch-threads 1"
    )
    assert module.main([*argv.split(), *more.split(), "--run-dir", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "final_eval.json").read_text())
    assert result["training_steps"] == steps
    assert np.isfinite(result["final"]["return"])
    assert 1 <= result["final"]["length"] <= 500
    policy = load_policy(tmp_path / "run" / "checkpoint.pt")
    env = make_gymnasium_env(2, None, env_id=env_id)
    played = evaluate(policy, env, episodes=2, first_seed=2_000_000, device=CPU)
    assert played.summary()["return"] == result["final"]["return"], "what was evaluated is what was saved"


def test_a_saved_policy_remembers_as_the_one_that_was_saved(tmp_path: Path) -> None:
    policy = policy_for(clocks(1))
    save_policy(tmp_path / "lstm.pt", policy, ppo_lstm.Args(), step=0)
    loaded, saved = load_policy(tmp_path / "lstm.pt"), NetworkPolicy(policy)
    assert type(loaded.network).__name__ == "RecurrentActorCritic"
    for seed in (0, 1):
        obs, _ = clocks(4).reset(seed=seed)
        assert torch.equal(loaded.act(obs), saved.act(obs))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--num-envs 12 --num-minibatches 5", r"--num-minibatches 5 .* environments, 12; use 4"),
        ("--lstm-size 0", "--lstm-size 0 .* at least 1"),
        ("--encoder-sizes 0", r"--encoder-sizes \(0,\) .* at least 1"),
        ("--preset mine", "--preset mine is not known; use auto, none or one of robo-numbers"),
        ("--env-id MemoryLengthEasy-v0 --obs rgb", "--obs rgb is for robot tasks; .* leave it out"),
        (
            "--env-id MemoryLengthEasy-v0 --reward-mode sparse",
            "--reward-mode sparse is for robot tasks, and MemoryLengthEasy-v0 is none; leave it out",
        ),
        ("--env-id CartPole-v1 --sim-backend physx_cpu", "--sim-backend physx_cpu is for robot tasks"),
        (
            "--env-id CartPole-v1 --no-train-to-horizon",
            "--no-train-to-horizon is for robot tasks, and CartPole-v1 is none; leave it out",
        ),
        ("--env-id RememberColor3-v0 --obs state_dict", "--obs state_dict gives nested observations"),
        ("--env-id RememberColor3-v0 --obs objekts", "cannot make --env-id RememberColor3-v0: .*objekts"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_made(
    argv: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ppo_lstm.main(argv.split()) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_the_command_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "ppo-lstm", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for args_type in (CommonArgs, PPOArgs, ppo_lstm.Args, ppo_mlp.Args):
        (body,) = ast.parse(inspect.getsource(args_type)).body
        assert isinstance(body, ast.ClassDef)
        for statement, following in itertools.pairwise(body.body):
            if isinstance(statement, ast.AnnAssign) and not re.search(
                "ClassVar|Suppress", ast.unparse(statement.annotation)
            ):
                name = ast.unparse(statement.target)
                told = following.value if isinstance(following, ast.Expr) else None
                assert isinstance(told, ast.Constant), f"{name} has no docstring"
                if args_type is not ppo_mlp.Args:
                    assert f"--{name.replace('_', '-')}" in shown


# ---------------------------------------------------------------------- several processes
TRAINED: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo-mlp": (ppo_mlp, {}),
    "ppo-lstm": (ppo_lstm, {}),
    "gsde": (ppo_mlp, {"exploration": "gsde", "normalize_returns": True, "value_loss": "clipped", "gsde_interval": 5}),
    "smooth": (ppo_lstm, {"exploration": "smooth", "lr_schedule": "kl-adaptive", "separate_grad_norms": True}),
}
"""Algorithms with options."""


def train_all(folder: Path, num_envs: int) -> None:
    """All of them with ``num_envs`` environments a process, in the processes that were started together, else in this."""
    with join_processes() as dist:
        for name, (module, options) in TRAINED.items():
            actions = "continuous" if options else "discrete"
            args = module.Args(
                env_id="Clock",
                num_envs=num_envs,
                num_steps=12,
                num_minibatches=2,
                update_epochs=2,
                target_kl=0.0,
                total_timesteps=96,
                stagger_groups=2,
                eval_every=0,
                eval_episodes=2,
                eval_num_envs=2,
                video=False,
                run_dir=folder / name,
                torch_threads=1,
                max_grad_norm=1e9,
                **options,
            )
            module.train(args, lambda n, render_mode: clocks(n, actions), dist=dist)  # noqa: B023  used at once


def test_two_processes_learn_what_one_does_with_twice_the_environments(tmp_path: Path) -> None:
    """The gradients of all steps are alike, or the weights that they led to would not be."""
    train_all(tmp_path / "one", 4)
    run_in_two_forks(lambda: train_all(tmp_path / "two", 2))
    for algorithm in TRAINED:
        one, two = (load_network(tmp_path / name / algorithm / "checkpoint.pt").state_dict() for name in ("one", "two"))
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, atol=1e-5, rtol=1e-5, msg=lambda m: f"{algorithm} {name}: {m}")  # noqa: B023
        rows, others = (read_progress(tmp_path / name / algorithm) for name in ("two", "one"))
        assert [float(row["step"]) for row in rows] == [48.0, 96.0], "one process writes"
        for row, other in zip(rows, others, strict=True):
            assert float(row["loss/value"]) == pytest.approx(float(other["loss/value"]), rel=1e-4)


# ---------------------------------------------------------------------- learning
@pytest.mark.slow
def test_memory_is_what_it_learns_with(tmp_path: Path) -> None:
    """A bit has to be kept for three steps: with memory the return is near 1, without it near 0."""
    returns = {}
    for module, extra in ((ppo_lstm, ["--lstm-size", "32"]), (ppo_mlp, [])):
        run_dir = tmp_path / module.Args.algorithm
        argv = "--env-id MemoryShort-v0 --preset base-diagnostic --num-steps 32 --total-timesteps 16384 --eval-every 0"
        gym.register("MemoryShort-v0", "mikasa_base.envs.memory_length:MemoryLength", kwargs={"memory_length": 3})
        gym.registry["MemoryShort-v0"].max_episode_steps = 4
        status = module.main([*argv.split(), *extra, "--torch-threads", "1", "--no-video", "--run-dir", str(run_dir)])
        del gym.registry["MemoryShort-v0"]
        assert status == 0
        returns[module.Args.algorithm] = json.loads((run_dir / "final_eval.json").read_text())["final"]["return"]
    assert returns["ppo-lstm"] >= 0.95
    assert abs(returns["ppo-mlp"]) <= 0.3  # three standard deviations of 100 episodes


@pytest.mark.slow
def test_objects_train_on_a_robot_task(tmp_path: Path) -> None:
    _train_on_robot("objects+joints", tmp_path)


@pytest.mark.slow
@pytest.mark.render
def test_pictures_train_on_a_robot_task(tmp_path: Path) -> None:
    _train_on_robot("rgb+joints", tmp_path)


def _train_on_robot(obs: str, tmp_path: Path) -> None:
    argv = "--env-id RememberColor3-v0 --reward-mode sparse --num-envs 2 --num-steps 16 --num-minibatches 2 --no-video"
    more = "--update-epochs 1 --total-timesteps 64 --stagger-groups 2 --eval-episodes 2 --eval-num-envs 2 --preset none"
    run_dir = tmp_path / "run"
    assert ppo_lstm.main([*argv.split(), *more.split(), "--obs", obs, "--run-dir", str(run_dir)]) == 0
    result = json.loads((run_dir / "final_eval.json").read_text())
    assert 1 <= result["final"]["length"] <= 60
    assert 0.0 <= result["final"]["success_once"] <= 1.0
    policy = load_network(run_dir / "checkpoint.pt")
    assert {part.name for part in policy.layout.parts} == set(obs.split("+"))


# ---------------------------------------------------------------------- GPUs of several processes
@pytest.mark.parametrize(
    ("visible", "local_rank", "count", "gpu"),
    [
        (None, 0, 8, 0),
        (None, 7, 8, 7),
        ("3", 0, 1, 0),  # one process a node, on the GPU that the user chose
        ("2,5", 1, 2, 1),
        ("GPU-8f2a41c9,MIG-5c7e1b20", 1, 2, 1),
        ("", 3, 0, None),
    ],
)
def test_a_process_takes_the_visible_gpu_of_its_local_rank(
    visible: str | None, local_rank: int, count: int, gpu: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"LOCAL_RANK": str(local_rank)} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    before = dict(environ)
    assert choose_gpu(environ, count) == gpu
    assert environ == before
    # ... and so does the process, which leaves the variable as it is
    chosen: list[int] = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in {**environ, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name, result in (("init_process_group", None), ("destroy_process_group", None)):
        monkeypatch.setattr(torch.distributed, name, lambda *_, result=result, **__: result)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with join_processes() as dist:
        assert (dist.rank, dist.size, dist.gpu, dist.is_main) == (1, 2, gpu, False)
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    assert chosen == ([] if gpu is None else [gpu])


def test_more_processes_than_gpus_are_refused() -> None:
    message = r"process 1 of this machine has no GPU: 1 visible \(CUDA_VISIBLE_DEVICES=3\); use --nproc-per-node=1"
    with pytest.raises(ArgumentError, match=message):
        choose_gpu({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "3"}, 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments with which an environment was to be made. None is made."""
    arguments: dict[str, Any] = {}

    def make(env_id: str, **kwargs: Any) -> Any:
        arguments.update(kwargs)
        raise ValueError("enough")

    monkeypatch.setattr(gym, "make", make)
    return arguments


@pytest.mark.filterwarnings("ignore:physics runs on the CPU")
@pytest.mark.parametrize(
    ("backend", "library", "simulated_on"),
    [("auto", True, "physx_cuda:1"), ("auto", False, "auto"), ("physx_cpu", True, "physx_cpu")],
)
def test_the_simulator_takes_the_gpu_of_its_process(
    backend: str,
    library: bool,
    simulated_on: str,
    asked: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "library.so"
    if library:
        file.touch()
    monkeypatch.setattr("mikasa_robo.sim.backend.library_file", lambda: file)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    args = ppo_mlp.Args(sim_backend=backend)
    with pytest.raises(ValueError, match="enough"):
        env_factory(args, DistContext(1, 2, gpu=1))(4, None)
    assert asked["sim_backend"] == simulated_on


@pytest.mark.parametrize(("device", "drawn_on"), [("cuda", "sapien_cuda:1"), ("cpu", None)])
def test_the_gpu_of_the_process_draws_if_it_can(
    device: str, drawn_on: str | None, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "drawing_device", lambda: device)
    args = ppo_mlp.Args(sim_backend="physx_cpu", obs="rgb+joints")
    with pytest.raises(ValueError, match="enough"):
        env_factory(args, DistContext(1, 2, gpu=1))(4, None)
    assert asked.get("render_backend") == drawn_on


def test_processes_share_out_environments_and_transitions() -> None:
    n, steps = 3, 4
    both = [DistContext(rank, 2) for rank in (0, 1)]
    chosen = torch.randperm(2 * n, generator=torch.Generator().manual_seed(0))[:4]
    parts = [dist.own_envs(chosen, n) for dist in both]
    assert sorted([*parts[0].tolist(), *(parts[1] + n).tolist()]) == sorted(chosen.tolist())
    numbers = torch.randperm(2 * n * steps, generator=torch.Generator().manual_seed(0))[:9]
    found = []
    for dist in both:
        own = dist.own_transitions(numbers, n)
        found += [(t * 2 * n + dist.rank * n + e) for t, e in zip((own // n).tolist(), (own % n).tolist(), strict=True)]
    assert sorted(found) == sorted(numbers.tolist())
    alone = DistContext()
    assert alone.own_envs(chosen, n) is chosen
    assert alone.own_transitions(numbers, n) is numbers
