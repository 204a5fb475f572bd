"""``mikasa train dt``, ``rate`` and ``iql``: what they read, what their losses are, that they learn and resume."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

import mikasa_robo
from mikasa_robo.baselines.arguments import ArgumentError
from mikasa_robo.baselines.checkpoints import load_network, load_policy, save_policy
from mikasa_robo.baselines.command import main
from mikasa_robo.baselines.dataset import DIGEST
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.imitation import replay
from mikasa_robo.baselines.iql import expectile_loss, iql_loss
from mikasa_robo.baselines.networks import ActorCritic, NetworkPolicy, RecurrentActorCritic, make_network
from mikasa_robo.baselines.offline import rewards_of, target_returns
from mikasa_robo.baselines.presets import choose_preset
from mikasa_robo.baselines.protocol import Setup
from mikasa_robo.baselines.registry import get_algorithm
from mikasa_robo.baselines.sac_network import SACNetwork
from mikasa_robo.baselines.sequence_policy import ACTION_BEFORE, RETURN_TO_GO, SequencePolicy
from mikasa_robo.baselines.warm_start import start_from
from mikasa_robo.data.dataset import Dataset
from mikasa_robo.tools import cli, collect

ENV_ID = "RememberColor3-v0"
CPU = torch.device("cpu")
SMALL = {"memory_size": 16, "token_size": 16, "head_sizes": (16,), "batch_episodes": 4}
SIZES = "--memory-size 16 --token-size 16 --head-sizes 16 --batch-episodes 4"
every_algorithm = pytest.mark.parametrize("name", ["dt", "rate", "iql"])

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "colors"
    argv = f"--env-id {ENV_ID} --arm held --out {path} --episodes 4 --no-states".split()
    assert collect.main(argv) == 0
    return path


@pytest.fixture(scope="module")
def env() -> Any:
    made = mikasa_robo.make_env(ENV_ID, 2, obs_mode="objects+joints", arm="held")
    yield made
    made.close()


def made(name: str, env: Any, folder: Path, **changes: Any) -> Any:
    kind: Any = get_algorithm(name).load()
    args = kind.args_type(env_kwargs=("arm=held",), dataset=str(folder), **{**SMALL, **changes})
    torch.manual_seed(0)
    base = env.unwrapped
    spaces = base.single_observation_space, base.single_action_space
    return kind(args, Setup(*spaces, 1, CPU, torch.Generator().manual_seed(0), DistContext(), env))


# ---------------------------------------------------------------------- what is learnt from
def test_returns_to_go_and_the_actions_before(folder: Path, env: Any) -> None:
    algorithm, other = made("dt", env, folder), made("dt", env, folder, reward="dense")
    for steps, recorded in zip(algorithm.buffer.episodes, Dataset.open(folder).episodes(), strict=True):
        assert recorded.success, "the expert"
        assert steps[RETURN_TO_GO].tolist() == [1.0] * recorded.length
        assert not steps[ACTION_BEFORE][0].any()
        assert torch.equal(steps[ACTION_BEFORE][1:], torch.from_numpy(recorded.actions[:-1]))
        assert steps["carried"].all()
        dense = other.convert(recorded, env.unwrapped, ())
        assert dense[RETURN_TO_GO][0].item() == pytest.approx(recorded.rewards.sum(), rel=1e-5)
        assert dense[RETURN_TO_GO][-1].item() == pytest.approx(recorded.rewards[-1])


def test_the_network_is_given_returns_in_units_of_the_largest(folder: Path, env: Any) -> None:
    algorithm = made("dt", env, folder, reward="dense")
    largest = max(float(steps[RETURN_TO_GO].abs().max()) for steps in algorithm.buffer.episodes)
    assert largest > 1.0, "or the test shows nothing"
    assert float(algorithm.network.return_scale) == pytest.approx(largest)


def test_success_counts_once(folder: Path) -> None:
    recorded = Dataset.open(folder).read(0)
    recorded.step_columns["success"][-3:] = True
    assert rewards_of(recorded, "success").nonzero().flatten().tolist() == [recorded.length - 3]


def test_targets_are_quantiles_of_all_episodes_and_one_that_has_ended_keeps_its_last_return() -> None:
    returns = [torch.tensor([1.0, 1.0]), torch.tensor([3.0, 2.0, 2.0]), torch.tensor([0.0])]
    assert target_returns(returns, 1.0).tolist() == [3.0, 2.0, 2.0]
    assert target_returns(returns, 0.5).tolist() == [1.0, 1.0, 1.0]


def test_targets_do_not_fall_where_only_time_outs_still_run() -> None:
    successes, time_outs = [torch.ones(n) for n in (3, 4, 5)], [torch.zeros(9)]
    assert target_returns(successes + time_outs, 0.5).tolist() == [1.0] * 9
    # Dense rewards: the last reward of a success is what is left to reach.
    assert target_returns([torch.tensor([1.5, 1.0])] * 3 + [torch.tensor([0.4, 0.3, 0.2, 0.1])], 0.5).tolist() == [
        1.5,
        1.0,
        1.0,
        1.0,
    ]


@every_algorithm
def test_a_dataset_is_required(name: str, tmp_path: Path, folder: Path) -> None:
    args_type = get_algorithm(name).load_args_type()
    for changes, message in (
        ({}, "with --dataset"),
        ({"dataset": str(tmp_path / "none")}, "is no folder"),
        ({"dataset": str(folder), "train_env_kwargs": ("on_mistake=ignore",)}, "nothing is played"),
        (
            {"dataset": str(folder), "num_workers": 2},
            "--num-workers 2 cannot be used: .* simulates nothing in training; leave it out",
        ),
        ({"dataset": str(folder), "batch_episodes": 0}, "--batch-episodes 0"),
        ({"dataset": str(folder), "total_timesteps": 3}, "3 is less than one row of the log, .* or fewer --num-steps$"),
    ):
        with pytest.raises(ArgumentError, match=message):
            args_type(**changes).check()


def test_networks_that_do_not_fit_are_refused(env: Any, folder: Path) -> None:
    with pytest.raises(ArgumentError, match="--network sequence is for"):
        made("iql", env, folder, network="sequence")
    with pytest.raises(ArgumentError, match="--network tokens cannot be used"):
        made("dt", env, folder, network="tokens")
    with pytest.raises(ArgumentError, match="--heads 3"):
        made("rate", env, folder, heads=3)
    for name in ("dt", "iql"):
        with pytest.raises(ArgumentError, match="--network-kwargs a=1: this network takes"):
            made(name, env, folder, network_kwargs=("a=1",))


@every_algorithm
@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--token-size 32", {"token_size": 32}),
        ("--query-sizes 8", {"query_sizes": (8,)}),
        ("--tcp-token", {"tcp_token": True}),
        ("--sum-token", {"sum_token": True}),
    ],
)
def test_options_for_objects_need_objects(name: str, option: str, values: dict[str, Any]) -> None:
    args = get_algorithm(name).load_args_type()(**values)
    numbers = gym.spaces.Box(-1.0, 1.0, (3,))
    with pytest.raises(ArgumentError, match=f"{option} does nothing where the observation has no objects; leave it"):
        make_network(args, Setup(numbers, numbers, 1, CPU, torch.Generator(), DistContext(), None), recurrent=True)


def test_a_run_that_begins_with_a_policy_has_its_own_targets(env: Any, folder: Path, tmp_path: Path) -> None:
    first, second = made("dt", env, folder), made("dt", env, folder, seed=2)
    first.network.set_targets(torch.full((9,), 0.25), 5.0)
    save_policy(tmp_path / "checkpoint.pt", first.network, first.args, 6)
    targets, scale = second.network.target_returns.clone(), second.network.return_scale.clone()
    start_from(second.network, second.args, tmp_path / "checkpoint.pt", CPU)
    assert torch.equal(second.network.target_returns, targets)
    assert torch.equal(second.network.return_scale, scale)
    for name, value in first.network.named_parameters():
        assert torch.equal(second.network.get_parameter(name), value), name


@pytest.mark.parametrize(
    ("name", "saved", "advice"),
    [
        ("dt", {"context": 7}, "has context 7, and this run 200; .*; add --context 7$"),
        ("dt", {"layers": 1, "heads": 2}, "has layers 1, and this run 2; .*; add --layers 1$"),
        ("rate", {"heads": 2}, "has heads 2, and this run 4; .*; add --heads 2$"),
        ("rate", {"segment": 5}, "has segment 5, and this run 10; .*; add --segment 5$"),
    ],
)
def test_a_policy_with_other_options_of_its_model_is_refused_with_the_option(
    name: str, saved: dict[str, Any], advice: str, env: Any, folder: Path, tmp_path: Path
) -> None:
    first, second = made(name, env, folder, **saved), made(name, env, folder)
    save_policy(tmp_path / "checkpoint.pt", first.network, first.args, 6)
    with pytest.raises(ArgumentError, match=advice):
        start_from(second.network, second.args, tmp_path / "checkpoint.pt", CPU)


def test_a_network_is_advised_only_where_the_algorithm_takes_it(env: Any, folder: Path, tmp_path: Path) -> None:
    def policy(network: Any, args: Any) -> Path:
        path = tmp_path / f"{args.algorithm}.pt"
        save_policy(path, network, args, 6)
        return path

    args_of = {name: get_algorithm(name).load_args_type() for name in ("ppo", "ppo-mlp", "sac")}
    dt, rate, iql = (made(name, env, folder) for name in ("dt", "rate", "iql"))
    mlp, sac = ActorCritic(3, 2, (8,)), SACNetwork(3, 2, (8,))
    saved = {each.args.algorithm: policy(each.network, each.args) for each in (dt, rate, iql)}
    saved |= {"ppo-mlp": policy(mlp, args_of["ppo-mlp"]()), "sac": policy(sac, args_of["sac"]())}
    recurrent = RecurrentActorCritic(3, 2)
    saved["ppo"] = policy(recurrent, args_of["ppo"]())
    for network, args, start, advice in (
        (
            iql.network,
            args_of["ppo"](network="tokens"),
            "dt",
            "ppo takes no network sequence, so this policy of dt cannot",
        ),
        (mlp, args_of["ppo-mlp"](), "sac", "ppo-mlp takes no network sac, so this policy of sac cannot be used"),
        (sac, args_of["sac"](), "ppo-mlp", "sac takes no network mlp, so this policy of ppo-mlp cannot be used"),
        (sac, args_of["sac"](), "ppo", "sac takes no network recurrent, so this policy of ppo cannot be used"),
        (iql.network, iql.args, "rate", "iql takes no network sequence, so this policy of rate cannot be used"),
        (dt.network, dt.args, "iql", "dt takes no network tokens, so this policy of iql cannot be used"),
        (dt.network, dt.args, "rate", "dt cannot use a policy of rate"),
        (recurrent, args_of["ppo"](), "iql", "add --network tokens"),
    ):
        with pytest.raises(ArgumentError, match=f"; {advice}"):
            start_from(network, args, saved[start], CPU)


@every_algorithm
def test_a_read_out_teaches_the_memory_what_to_hold(name: str, env: Any, folder: Path) -> None:
    algorithm = made(name, env, folder, oracle_weight=1.0, learning_rate=3e-3)
    algorithm.network.update_normalizer(algorithm.rollout(env, {}, None).obs)
    rows = [algorithm.describe_steps(algorithm.take_steps(15)) for _ in range(7)]
    assert rows[-1]["loss/oracle"] < 0.3 * rows[0]["loss/oracle"]
    assert rows[-1]["imitation/oracle_told"] > 0.8 > rows[0]["imitation/oracle_told"]
    without = made(name, env, folder)
    assert "loss/oracle" not in without.describe_steps(without.take_steps(1))


@every_algorithm
def test_episodes_for_validation_are_measured_and_not_learnt(name: str, env: Any, folder: Path) -> None:
    algorithm = made(name, env, folder, oracle_weight=1.0, validation_share=0.5, batch_episodes=1)
    every = list(made(name, env, folder).buffer.episodes)
    learnt, held = list(algorithm.buffer.episodes), list(algorithm.validation_episodes)
    assert [len(learnt), len(held)] == [2, 2]
    for ours, theirs in ((held, (every[1], every[3])), (learnt, (every[0], every[2]))):
        for one, other in zip(ours, theirs, strict=True):
            assert all(torch.equal(one[part], other[part]) for part in other), "by name"
    before = {key: value.clone() for key, value in algorithm.learner.state_dict().items()}
    found = algorithm.validate()
    assert all(torch.equal(value, before[key]) for key, value in algorithm.learner.state_dict().items())
    # All at once, and by hand: the sums over both episodes, divided by their steps.
    algorithm.args.batch_episodes = 8
    assert found == pytest.approx(algorithm.validate(), rel=1e-4)
    steps = sum(len(episode["carried"]) for episode in held)
    with torch.no_grad():
        figures = sum(algorithm.loss([episode], steps)[1] for episode in held)
    described = algorithm.describe_figures(figures.tolist())
    assert found == pytest.approx({f"validation/{key}": value for key, value in described.items()}, rel=1e-4)
    assert {"validation/loss/action", "validation/loss/oracle", "validation/imitation/oracle_told"} <= found.keys()
    row = algorithm.update(algorithm.rollout(env, {}, None))
    assert found.keys() <= row.keys(), "the log has it"
    algorithm.network.actor.append(torch.nn.Dropout(0.5))
    assert algorithm.validate() == algorithm.validate(), "without dropout, as in an evaluation"
    assert algorithm.network.training
    assert made(name, env, folder).validate() == {}


def test_a_share_for_validation_leaves_something_to_learn(folder: Path) -> None:
    for name in ("dt", "rate", "iql"):
        with pytest.raises(ArgumentError, match=r"--validation-share 1\.0.* use 0 to less than 1"):
            get_algorithm(name).load_args_type()(dataset=str(folder), validation_share=1.0).check()


def test_a_read_out_needs_a_weight_of_at_least_0(folder: Path) -> None:
    for name in ("dt", "rate", "iql"):
        with pytest.raises(ArgumentError, match="--oracle-weight -1"):
            get_algorithm(name).load_args_type()(dataset=str(folder), oracle_weight=-1.0).check()
        with pytest.raises(ArgumentError, match="--oracle-as-set does nothing without --oracle-weight"):
            get_algorithm(name).load_args_type()(dataset=str(folder), oracle_as_set=True).check()


def test_what_is_no_set_is_not_told_as_one(env: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def read_dataset(*given: Any) -> tuple[list[Any], list[Any]]:
        read.append(given)
        return [], []

    monkeypatch.setattr("mikasa_robo.baselines.offline.read_dataset", read_dataset)
    for name in ("dt", "rate", "iql"):
        with pytest.raises(ArgumentError, match=f"--oracle-as-set cannot be used: .* {ENV_ID} is no set of targets"):
            made(name, env, folder, oracle_weight=1.0, oracle_as_set=True)
    assert not read, "the episodes were read first"


@every_algorithm
def test_a_step_is_a_gradient_step_also_from_images(name: str) -> None:
    values = choose_preset("auto", ENV_ID, "rgb+joints", name)
    assert get_algorithm(name).load_args_type()(**values).batch_size == 100, "num_steps"


@every_algorithm
def test_queries_with_a_hidden_layer(name: str, env: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"--query-sizes \(0,\)"):
        get_algorithm(name).load_args_type()(dataset=str(folder), query_sizes=(0,)).check()
    network = made(name, env, folder, query_sizes=(8,)).network
    described = network.to_dict()
    assert described["query_sizes"] == [8]
    assert any(weight.shape[0] == 8 for weight in network.reading.parameters())
    assert type(network).from_dict(described).to_dict() == described
    del described["query_sizes"]  # saved before there were any
    assert type(network).from_dict(described).to_dict()["query_sizes"] == []


@every_algorithm
@pytest.mark.parametrize("option", ["tcp_token", "sum_token"])
def test_more_tokens_for_the_memory(name: str, option: str, env: Any, folder: Path) -> None:
    network, without = (made(name, env, folder, **{option: asked}).network for asked in (True, False))
    described = network.to_dict()
    assert described[option] is True
    assert type(network).from_dict(described).to_dict() == described
    assert network.trunk[0].in_features == without.trunk[0].in_features + network.token_size
    del described[option]  # saved before there was any
    assert type(network).from_dict(described).to_dict()[option] is False


# ---------------------------------------------------------------------- acting
@pytest.mark.parametrize("name", ["dt", "rate"])
def test_acting_gives_what_the_recorded_episode_gives(name: str, env: Any, folder: Path) -> None:
    """Where the policy's own actions are those of the episode, and its targets the returns-to-go."""
    algorithm = made(name, env, folder, **({"segment": 6} if name == "rate" else {}))
    network: SequencePolicy = algorithm.network
    episode = dict(algorithm.buffer.episodes[0])
    length = len(episode["labels"])
    policy = NetworkPolicy(network)
    parts = ("objects", "joints")
    acted = torch.stack(
        [policy.act({part: episode[f"obs/{part}"][t : t + 1] for part in parts})[0] for t in range(length)]
    )
    episode[ACTION_BEFORE] = torch.cat([torch.zeros_like(acted[:1]), acted[:-1]])
    with torch.no_grad():
        replayed = replay(network, [episode])
        means = network.actor(network.look(replayed.y, replayed.embedded))
    torch.testing.assert_close(acted, means.clamp(-1, 1), atol=1e-5, rtol=1e-4)
    # a new episode begins as the first did
    policy.on_episode_start()
    first = policy.act({part: episode[f"obs/{part}"][:1] for part in ("objects", "joints")})
    torch.testing.assert_close(first[0], acted[0])


def test_the_target_return_matters(env: Any, folder: Path) -> None:
    algorithm = made("dt", env, folder)
    network = algorithm.network
    assert network.target_returns.tolist() == [1.0] * len(network.target_returns)
    obs = {part: algorithm.buffer.episodes[0][f"obs/{part}"][:1] for part in ("objects", "joints")}
    with torch.no_grad():
        first = network.step(network.normalize(obs), network.initial_state(1), torch.ones(1, dtype=torch.bool))[
            0
        ].mode()
        network.set_targets(torch.zeros(3), 1.0)
        other = network.step(network.normalize(obs), network.initial_state(1), torch.ones(1, dtype=torch.bool))[
            0
        ].mode()
    assert not torch.equal(first, other)


# ---------------------------------------------------------------------- the learning rate


def test_a_run_in_which_the_learning_rate_hardly_falls_is_warned_of(
    env: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = made("iql", env, folder, total_timesteps=2_000, num_steps=1_000)
    algorithm.schedule(0.5)  # the last time
    assert algorithm.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * algorithm.args.learning_rate)
    assert "falls once in 1000 steps" in caplog.text
    assert "in this run of 2000 steps it ends at 0.5 of --learning-rate" in caplog.text
    caplog.clear()
    made("iql", env, folder, total_timesteps=2_000, num_steps=1_000, anneal_lr=False)
    made("iql", env, folder, total_timesteps=2_000, num_steps=100)
    made("iql", env, folder, total_timesteps=1_950, num_steps=500)  # four times, the last a shorter one
    assert not caplog.text
    made("iql", env, folder, total_timesteps=2_000, num_steps=500, lr_schedule="linear")
    assert "it ends at 0.25 of --learning-rate" in caplog.text


# ---------------------------------------------------------------------- implicit Q-learning
def test_all_parts_see_the_same_observations(env: Any, folder: Path) -> None:
    learner = made("iql", env, folder).learner
    for part in (learner.critic, learner.target):
        assert part.body.normalizer is learner.network.normalizer


def test_the_expectile_loss() -> None:
    errors = torch.tensor([2.0, -2.0, 0.5, 0.0])
    expected = torch.tensor([0.7 * 4, 0.3 * 4, 0.7 * 0.25, 0.0])
    torch.testing.assert_close(expectile_loss(errors, 0.7), expected)
    torch.testing.assert_close(expectile_loss(errors, 0.5), 0.5 * errors.square())


def test_the_expectile_loss_is_least_at_the_expectile() -> None:
    """Of 0 and 1 with equal weights the expectile e is where e (1 - v) = (1 - e) v, so v = e."""
    q, v = torch.tensor([0.0, 1.0]), torch.linspace(0, 1, 101)
    total = expectile_loss(q - v[:, None], 0.9).sum(dim=-1)
    assert v[total.argmin()].item() == pytest.approx(0.9)


def test_the_loss_by_hand(env: Any, folder: Path) -> None:
    """With V = 0.5, target Q = 0.8 and Q = 0.2 everywhere, each term can be worked out."""
    algorithm = made("iql", env, folder, gamma=0.9, temperature=2.0)
    learner = algorithm.learner
    for layers, value in ((learner.critic.body.critic, 0.5), *((q, 0.2) for q in learner.critic.q)):
        torch.nn.init.zeros_(layers[-1].weight)
        torch.nn.init.constant_(layers[-1].bias, value)
    for q, value in zip(learner.target.q, (0.8, 1.7), strict=True):
        torch.nn.init.zeros_(q[-1].weight)
        torch.nn.init.constant_(q[-1].bias, value)
    last = learner.network.actor[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)  # the policy's mean is 0
    episode = algorithm.buffer.episodes[0]
    length = len(episode["acted"]) - 1
    loss, figures = iql_loss(learner, [episode], 1.0, algorithm.args)
    value, q, mean, action, weight, steps, acting = figures.tolist()
    assert value == pytest.approx(length * 0.7 * 0.3**2, rel=1e-4), "the smaller of both Q counts"
    # before the last step the goal is 0.9 x 0.5, at the success 1
    assert q == pytest.approx(2 * ((length - 1) * 0.25**2 + 0.8**2), rel=1e-4)
    carried = int(episode["carried"].sum())
    assert 0 < carried < length
    assert weight == pytest.approx(carried * 2.718281828 ** (2 * 0.3), rel=1e-4)
    assert mean == pytest.approx(length * 0.5, rel=1e-4)
    squares = episode["actions"].square().mean(dim=-1)[episode["carried"]].sum().item()
    assert action == pytest.approx(2.718281828 ** (2 * 0.3) * squares, rel=1e-4), (
        "actions are weighted by their advantage"
    )
    assert loss.item() == pytest.approx(value + q + action, rel=1e-5)
    assert (steps, acting) == (length, carried)
    # the log has means over the steps that count
    assert algorithm.describe_figures((figures / 7.0).tolist()) == pytest.approx(
        {
            "loss/value": value / length,
            "loss/q": q / length,
            "iql/value": 0.5,
            "loss/action": action / carried,
            "iql/weight": 2.718281828 ** (2 * 0.3),
        },
        rel=1e-4,
    )
    algorithm.args.most_weight = 1.5
    assert iql_loss(learner, [episode], 1.0, algorithm.args)[1][4].item() == pytest.approx(1.5 * carried, rel=1e-4)


def test_the_goal_has_the_value_of_the_step_after(env: Any, folder: Path) -> None:
    """Also where another episode follows in the minibatch."""
    algorithm = made("iql", env, folder, gamma=0.9)
    critic, episodes = algorithm.learner.critic, list(algorithm.buffer.episodes)[:2]
    expected = 0.0
    with torch.no_grad():
        critic.body.critic[-1].weight *= 1000.0  # so that each step has another value
        for episode in episodes:
            seen = critic.read([episode], 0)
            values, q = critic.values(seen), critic.q_values(seen[:-1], episode["actions"][:-1])
            later = values[1:].masked_fill(episode["terminal"][:-1], 0.0)
            assert (later - values[:-1]).abs().mean() > 0.1
            expected += (q - (episode["rewards"][:-1] + 0.9 * later)).square().sum().item()
    found = iql_loss(algorithm.learner, episodes, 1.0, algorithm.args)[1][1].item()
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_end_of_an_episode_ends_the_return(env: Any, folder: Path) -> None:
    """Also a time limit: the value of what is observed there is never learnt, and with a clock it would be made up."""
    algorithm = made("iql", env, folder)
    recorded = Dataset.open(folder).read(0)
    assert recorded.terminated
    steps = algorithm.convert(recorded, env.unwrapped, ("joints",))
    assert steps["terminal"].nonzero().flatten().tolist() == [recorded.length - 1]
    assert (~steps["acted"]).nonzero().flatten().tolist() == [recorded.length]
    assert len(steps["obs/joints"]) == recorded.length + 1
    object.__setattr__(recorded, "terminated", False)
    limited = algorithm.convert(recorded, env.unwrapped, ("joints",))
    assert torch.equal(limited["terminal"], steps["terminal"])


def test_the_target_moves_slowly(env: Any, folder: Path) -> None:
    algorithm = made("iql", env, folder, target_rate=0.25)
    slow, fast = (next(iter(part.q.parameters())) for part in (algorithm.learner.target, algorithm.learner.critic))
    assert torch.equal(slow, fast)
    before = slow.clone()
    with torch.no_grad():
        fast += 1.0
    algorithm.after_step()
    torch.testing.assert_close(slow, before + 0.25)
    assert not any(weight.requires_grad for weight in algorithm.learner.target.parameters())


# ---------------------------------------------------------------------- runs
@pytest.mark.slow
@every_algorithm
def test_training_learns(name: str, env: Any, folder: Path) -> None:
    algorithm = made(name, env, folder, learning_rate=3e-3)
    algorithm.network.update_normalizer(algorithm.rollout(env, {}, None).obs)
    figures = [algorithm.describe_steps(algorithm.take_steps(12)) for _ in range(6)]
    assert figures[-1]["loss/action"] < 0.5 * figures[0]["loss/action"]
    if name == "iql":
        assert figures[-1]["loss/q"] < 0.5 * figures[0]["loss/q"]


def weights(run: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_network(run / "checkpoint.pt").state_dict()
    return found


@pytest.mark.slow
@every_algorithm
def test_a_resumed_run_ends_with_the_same_weights(name: str, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    argv = f"--env-id {ENV_ID} --env-kwargs arm=held --dataset {folder} --run-dir {run}".split()
    steps = "--total-timesteps 6 --num-steps 2 --checkpoint-every 2 --keep-checkpoints 9 --eval-episodes 1 --no-video"
    steps += " --oracle-weight 0.3"
    assert main(name, [*argv, *steps.split(), *SIZES.split()]) == 0
    result = json.loads((run / "final_eval.json").read_text())
    assert result["training_steps"] == 6
    with (run / "progress.csv").open() as file:
        assert [row["imitation/total_updates"] for row in csv.DictReader(file)] == ["2.0", "4.0", "6.0"]
    expected = weights(run)
    policy = load_policy(run)
    assert policy.network.to_dict() == load_network(run).to_dict()

    # as if it had been killed after four gradient steps
    (run / "final_eval.json").unlink()
    (run / "checkpoint.pt").unlink()
    (run / "resume-000000000006.pt").unlink()
    assert main(name, ["--resume", str(run), "--env-id", ENV_ID]) == 0
    resumed = weights(run)
    assert all(torch.equal(value, resumed[key]) for key, value in expected.items())
    assert json.loads((run / "final_eval.json").read_text())["final"] == result["final"]
    out = tmp_path / "eval.json"
    words = f"eval --checkpoint {run} --episodes 1 --out {out}"
    assert cli.main(words.split()) == 0
    assert json.loads(out.read_text())


def test_a_run_does_not_go_on_with_another_dataset(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(folder, data)
    argv = f"--env-id {ENV_ID} --env-kwargs arm=held --dataset {data} --run-dir {run} --oracle-weight 0.3".split()
    steps = "--total-timesteps 2 --num-steps 1 --checkpoint-every 1 --keep-checkpoints 9 --eval-episodes 1 --no-video"
    assert main("iql", [*argv, *steps.split(), *SIZES.split()]) == 0
    for name in ("final_eval.json", "checkpoint.pt", "resume-000000000002.pt"):  # as if it had been killed
        (run / name).unlink()
    shutil.rmtree(data)
    words = f"--env-id {ENV_ID} --arm held --out {data} --episodes 4 --no-states --start 4"
    assert collect.main(words.split()) == 0
    capsys.readouterr()
    assert main("iql", ["--resume", str(run), "--env-id", ENV_ID]) == 2
    assert f"--dataset {data} has other episodes than when the run began" in capsys.readouterr().err
    shutil.rmtree(data)
    shutil.copytree(folder, data)
    assert (
        collect.main(f"--env-id {ENV_ID} --arm held --out {data} --episodes 4 --no-states --format minari".split()) == 0
    )
    assert main("iql", ["--resume", str(run), "--env-id", ENV_ID]) == 0  # another format changes no episode


@every_algorithm
def test_each_algorithm_tells_which_episodes_it_learns_from(name: str, env: Any, folder: Path) -> None:
    algorithm = made(name, env, folder)
    state = algorithm.state_dict()
    algorithm.load_state_dict(state)
    algorithm.load_state_dict({key: value for key, value in state.items() if key != DIGEST})  # of an older run
    with pytest.raises(ArgumentError, match="other episodes than when the run began"):
        algorithm.load_state_dict({**state, DIGEST: "0" * 64})


def test_sparse_rewards_are_not_taken_for_dense_ones(env: Any, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "data")
    path = tmp_path / "data" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["info"]["env_kwargs"]["reward_mode"] = "sparse"  # as a checkpoint that was trained with it records
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArgumentError, match=r"--reward dense: --dataset .* has sparse rewards; use --reward success"):
        made("dt", env, tmp_path / "data", reward="dense")
    made("dt", env, tmp_path / "data")
