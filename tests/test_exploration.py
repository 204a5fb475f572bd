"""Exploration: that each kind of noise has the probability that an update computes for it, and is resumed with the run."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ppo_lstm import clocks
from torch import Tensor
from train_helpers import assert_same_policy, break_off

from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.checkpoints import load_network, read_policy
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.distributions import Gaussian, StateNoise
from mikasa_robo.baselines.exploration import NoiseSource, StdHead
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.networks import ActorCritic
from mikasa_robo.baselines.protocol import Setup
from mikasa_robo.tools.plot import read_progress

CPU = torch.device("cpu")
KINDS = ["gaussian", "state-dependent", "gsde", "smooth"]
SIZES: dict[Any, dict[str, Any]] = {
    ppo_mlp: {"hidden_sizes": (16,)},
    ppo_lstm: {"encoder_sizes": (16,), "lstm_size": 8, "head_sizes": (16,)},
}

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def learner(module: Any, n: int = 6, **changes: Any) -> tuple[Any, Any]:
    """An algorithm whose actor and standard deviations differ from state to state, and its environment."""
    env = clocks(n, "continuous", simple=True)
    values = {"num_envs": n, "num_steps": 20, "num_minibatches": 1, "update_epochs": 1, **SIZES[module], **changes}
    torch.manual_seed(0)
    spaces = env.single_observation_space, env.single_action_space
    setup = Setup(*spaces, n, CPU, torch.Generator().manual_seed(1), DistContext())
    algorithm = (ppo_mlp.PPOMLP if module is ppo_mlp else ppo_lstm.PPOLSTM)(module.Args(**values), setup)
    with torch.no_grad():
        for name, parameter in algorithm.network.named_parameters():
            if name.startswith(("actor", "std_head")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm, env


# ---------------------------------------------------------------------- distributions
def test_the_noise_of_gsde_has_its_probability_by_hand() -> None:
    features, log_stds = torch.tensor([[3.0, -1.0]]), torch.tensor([[0.5, 1.0], [2.0, 0.25]]).log()
    found = StateNoise(torch.zeros(1, 2), features, log_stds)
    # component 0: (0.5 * 3)^2 + (2 * -1)^2 = 6.25; component 1: 3^2 + 0.25^2 = 9.0625; each by H = 2
    assert found.log_std.exp().square()[0].tolist() == pytest.approx([6.25 / 2, 9.0625 / 2], rel=1e-5)
    e = torch.tensor([[[1.0, 0.0], [1.0, 2.0]]])
    assert found.sample(e)[0].tolist() == pytest.approx([(1.5 - 2.0) / math.sqrt(2), -0.5 / math.sqrt(2)])
    action = torch.tensor([[1.0, -2.0]])
    expected = torch.distributions.Normal(0.0, torch.tensor([3.125, 4.53125]).sqrt()).log_prob(action).sum()
    assert found.log_prob(action).item() == pytest.approx(expected.item(), rel=1e-5)
    samples = StateNoise(torch.zeros(20_000, 2), features.expand(20_000, 2), log_stds).sample(
        torch.randn(20_000, 2, 2, generator=torch.Generator().manual_seed(0))
    )
    torch.testing.assert_close(samples.var(dim=0), torch.tensor([3.125, 4.53125]), rtol=0.05, atol=0)


def test_smooth_noise_is_conditioned_by_hand_and_keeps_its_spread() -> None:
    plain = Gaussian(torch.tensor([[1.0]]), torch.tensor([0.5]).log())
    given = plain.given(torch.tensor([[2.0]]), 0.6)
    assert given.mean.item() == pytest.approx(1.0 + 0.6 * 0.5 * 2.0)
    assert given.log_std.exp().item() == pytest.approx(0.5 * 0.8)
    assert torch.equal(
        plain.given(torch.tensor([[2.0]]), 0.0).log_prob(torch.ones(1, 1)), plain.log_prob(torch.ones(1, 1))
    )

    network = ActorCritic(3, 2, (8,), init_log_std=math.log(0.5))
    source = NoiseSource(network, torch.Generator().manual_seed(0), DistContext(), "smooth", correlation=0.6)
    n = 4000
    distribution = network.action_distribution(torch.zeros(n, 3))
    actions, log_probs, carried = zip(*(source.act(distribution, n) for _ in range(3)), strict=True)
    noise = [(action - distribution.mode()) / 0.5 for action in actions]
    assert torch.allclose(carried[2], noise[1], atol=1e-5), "what is recorded is the noise of the step before"
    for one in noise:
        assert one.std().item() == pytest.approx(1.0, abs=0.03), "at the first step too"
    assert (noise[1] * noise[2]).mean().item() == pytest.approx(0.6, abs=0.05)
    # Two steps in a row: the product of conditional densities is the joint density, whose covariance is known.
    joint = torch.distributions.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]))
    pairs = torch.stack([noise[1], noise[2]], dim=-1)
    first = torch.distributions.Normal(0.0, 1.0).log_prob(noise[1]).sum(dim=-1) - 2 * math.log(0.5)
    whole = joint.log_prob(pairs).sum(dim=-1) - 4 * math.log(0.5)
    torch.testing.assert_close(first + log_probs[2], whole, atol=1e-3, rtol=1e-4)


def test_after_a_reset_smooth_noise_begins_as_it_does_in_a_new_run() -> None:
    """So a run that goes on draws what one draws that is resumed where episodes begin."""
    network = ActorCritic(3, 2, (8,))
    distribution = network.action_distribution(torch.zeros(4, 3))
    used, new = (NoiseSource(network, torch.Generator().manual_seed(7), DistContext(), "smooth") for _ in range(2))
    used.act(distribution, 4)
    used.reset()
    used.generator.manual_seed(7)
    for one, other in zip(used.act(distribution, 4), new.act(distribution, 4), strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_a_capped_standard_deviation_can_narrow_and_not_widen() -> None:
    head = StdHead(2, 1, -0.5)
    x = torch.zeros(1, 2)
    assert head(x).item() == pytest.approx(-0.5, abs=1e-5)
    for cap, sign, moves in ((-1.0, 1.0, True), (-1.0, -1.0, False), (0.0, -1.0, True)):
        head.cap.fill_(cap)
        head.zero_grad()
        found = head(x)
        assert found.item() == pytest.approx(min(-0.5, cap), abs=1e-5)
        (sign * found).sum().backward()  # gradient descent lowers it where the sign is positive
        assert head.linear.bias.grad is not None
        assert bool(head.linear.bias.grad.abs() > 0) == moves


def test_the_cap_of_a_standard_deviation_is_saved_and_may_be_missing() -> None:
    network = ActorCritic(3, 2, hidden_sizes=(8,), exploration="state-dependent")
    network.limit_log_std(-2.5)
    saved = network.state_dict()
    again = ActorCritic.from_dict(network.to_dict())
    again.load_state_dict(saved)
    seen = torch.randn(4, 3)
    assert again.action_distribution(again.normalize(seen)).log_std.max().item() == pytest.approx(-2.5)
    older = ActorCritic.from_dict(network.to_dict())
    older.load_state_dict({name: value for name, value in saved.items() if name != "std_head.cap"})
    assert older.action_distribution(older.normalize(seen)).log_std.max().item() > -1.0


# ---------------------------------------------------------------------- rollouts and updates
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("module", [ppo_mlp, ppo_lstm])
def test_an_update_begins_with_the_probabilities_that_the_rollout_recorded(module: Any, kind: str) -> None:
    algorithm, env = learner(module, exploration=kind, gsde_interval=3)
    obs, _ = env.reset(seed=5)
    algorithm.on_episode_start(torch.ones(6, dtype=torch.bool))
    batch = algorithm.rollout(env, obs, EpisodeStats())
    before = [parameter.clone() for name, parameter in algorithm.network.named_parameters() if "std" in name]
    row = algorithm.update(batch)
    assert abs(row["loss/approx_kl"]) < 1e-6
    assert row["loss/clip_fraction"] == 0.0
    assert row["loss/action_std"] > 0
    after = [parameter for name, parameter in algorithm.network.named_parameters() if "std" in name]
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)), "the noise is learned"
    if kind == "smooth":
        wrong = ppo_mlp.Rollout(**{**vars(batch), "carried": None}) if module is ppo_mlp else None
        assert wrong is None or abs(algorithm.update(wrong)["loss/approx_kl"]) > 1e-3, "or the test shows nothing"


def test_gsde_keeps_its_random_function_for_an_interval() -> None:
    network = ActorCritic(3, 2, (8,), exploration="gsde")
    source = NoiseSource(network, torch.Generator().manual_seed(0), DistContext(), "gsde", interval=3)
    distribution = network.action_distribution(torch.ones(4, 3))
    actions: list[Tensor] = [source.act(distribution, 4)[0] for _ in range(7)]
    assert [torch.equal(a, b) for a, b in itertools.pairwise(actions)] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    source.reset()
    assert not torch.equal(source.act(distribution, 4)[0], actions[-1])
    # The processes of a run share out the rows of one stream.
    parts = [
        NoiseSource(network, torch.Generator().manual_seed(0), DistContext(rank, 2), "gsde").act(
            network.action_distribution(torch.ones(2, 3)), 2
        )[0]
        for rank in (0, 1)
    ]
    torch.testing.assert_close(torch.cat(parts), actions[0])


# ---------------------------------------------------------------------- runs
ARGV = shlex.split(
    "--env-id NumpadContinuousEasy-v0 --preset none --num-envs 4 --num-steps 10 --total-timesteps 320 --num-minibatches 2 "
    "--update-epochs 1 --stagger-groups 2 --checkpoint-every 160 --eval-every 0 --eval-episodes 2 --eval-num-envs 2 "
    "--no-video --torch-threads 1 --exact-resume --normalize-returns --lr-schedule kl-adaptive --separate-grad-norms"
)
SMALL = {ppo_mlp: ["--hidden-sizes", "8"], ppo_lstm: ["--lstm-size", "8", "--encoder-sizes", "8", "--head-sizes", "8"]}


@pytest.mark.parametrize(("module", "kind"), [(ppo_mlp, "gsde"), (ppo_lstm, "smooth"), (ppo_mlp, "state-dependent")])
def test_a_run_resumes_to_the_bit(module: Any, kind: str, tmp_path: Path) -> None:
    """With the scale of values and the adaptive learning rate, which are part of the checkpoint too."""
    argv = [*ARGV, *SMALL[module], "--exploration", kind]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert module.main([*argv, "--run-dir", str(whole)]) == 0
    break_off(lambda: module.main([*argv, "--run-dir", str(broken)]), module, "update", 6)
    assert module.main(["--resume", str(broken)]) == 0
    assert_same_policy(whole, broken)
    assert "value_scale.moments" in read_policy(whole / "checkpoint.pt")["state_dict"]
    rates = [{row["step"]: row["learning_rate"] for row in read_progress(path)} for path in (whole, broken)]
    assert rates[0] == rates[1]
    assert len(set(rates[0].values())) > 1, "the rate has changed"
    network = load_network(whole / "checkpoint.pt")
    assert network.exploration == ("gaussian" if kind == "smooth" else kind)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--env-id MemoryLengthEasy-v0 --exploration gsde", "--exploration gsde is for continuous actions"),
        (
            "--env-id NumpadContinuousEasy-v0 --exploration gsde --network toy_learners:toy-linear",
            "does not take --explor",
        ),
        (
            "--env-id NumpadContinuousEasy-v0 --normalize-returns --network toy_learners:toy-linear",
            "--normalize-returns",
        ),
        (
            "--env-id NumpadContinuousEasy-v0 --fine-inputs 1 --network toy_learners:toy-linear",
            "not take --fine-inputs",
        ),
        (
            "--env-id MemoryLengthEasy-v0 --init-log-std -1",
            "--init-log-std -1.0 does nothing with the discrete actions of MemoryLengthEasy-v0; leave it out",
        ),
        ("--env-id CartPole-v1 --final-log-std -2", "--final-log-std -2.0 does nothing with the discrete actions"),
        ("--gsde-interval 0", "--gsde-interval 0 .* at least 1"),
        ("--noise-correlation 1", "--noise-correlation 1.0 .* below 1"),
        ("--exploration state-dependent --init-log-std 2", "--init-log-std 2.0 .* -5 to 1"),
        ("--value-clip 0", "--value-clip 0.0 .* above 0"),
        ("--value-warmup-steps 600000", "--value-warmup-steps 600000 .* never learns"),
    ],
)
@pytest.mark.usefixtures("forget")
def test_what_cannot_be_used_is_named(
    argv: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ppo_mlp.main([*argv.split(), "--num-envs", "4", "--run-dir", str(tmp_path / "run")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()
