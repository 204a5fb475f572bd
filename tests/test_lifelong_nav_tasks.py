"""Mazes as tasks: what is cloned and how it is played, the networks, and learners whose network has two levels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from lifelong_helpers import NAV, Played, register_tiny_mazes, same

from mikasa_lifelong import command
from mikasa_lifelong.arguments import RunArgs
from mikasa_lifelong.catalog import STREAMS, TASKS
from mikasa_lifelong.errors import LifelongError
from mikasa_lifelong.learners.registry import LEARNERS
from mikasa_lifelong.learners.subspace import Span
from mikasa_lifelong.nav.demonstrator import demonstrate
from mikasa_lifelong.nav.game import STATE, NavGame
from mikasa_lifelong.nav.kinematics import MAX_TURN
from mikasa_lifelong.nav.mazes import MAZES
from mikasa_lifelong.nav.task import EVALUATION_SEED, CrossMaze, Steps, env_actions, policy_inputs
from mikasa_lifelong.nets.goals import NEAR, Flat, Hierarchical
from mikasa_lifelong.nets.heads import KeysTurn
from mikasa_lifelong.nets.model import to_tensors
from mikasa_lifelong.stream import Batch

pytestmark = pytest.mark.usefixtures("one_torch_thread")
TOWN: dict[str, Any] = {"demonstrations": 6, "goal_steps": 15.0, "offset_steps": 5}


@pytest.fixture(scope="module", autouse=True)
def mazes() -> None:
    register_tiny_mazes()


@pytest.fixture(scope="module")
def steps() -> Steps:
    return CrossMaze("SimpleTownOXO", **TOWN).dataset(1)


# ---- tasks
def test_the_streams_are_those_of_the_release() -> None:
    nav = {name: row.tasks for name, row in STREAMS.items() if TASKS[row.tasks[0]].world == "nav"}
    assert {"ST1", "ST2", "AT1", "AT2", "AR1", "AR2"} <= set(nav)
    assert nav["AR1"] == ("AmazeVilleLOOX", "AmazeVilleHXOX", "AmazeVilleLXOX", "AmazeVilleHXOX")
    assert nav["AT2"][2:] == ("AmazeVilleLXOX", "AmazeVilleLXOO")
    assert nav["ST1"] == ("SimpleTownBase", "SimpleTownOXO", "SimpleTownBase", "SimpleTownOOX")
    for row in TASKS.values():
        assert row.world != "nav" or row.kwargs["maze"] in MAZES


def test_a_policy_reads_the_observation_and_acts_in_the_maze() -> None:
    game = NavGame(5, "AmazeVilleLOOX", "depth")
    game.begin_seeded(range(5))
    game.step(np.array([[1, 0, 0, 0, 1, 0.3]] * 5))
    obs: Any = game.observe()
    inputs = policy_inputs(obs)
    assert {name: value.shape for name, value in inputs.items()} == {
        "view": (5, 128),
        "position": (5, 3),
        "goal": (5, 3),
    }
    np.testing.assert_array_equal(inputs["goal"], obs[:, STATE["goal"]])
    np.testing.assert_allclose(inputs["view"][:, 0], np.cos(game.bodies.heading), atol=1e-6)
    assert 0 <= inputs["view"][:, 7:].min() < inputs["view"][:, 7:].max() <= 1
    later = obs.copy()
    later[:, STATE["timestep"]] += 7
    for name, value in policy_inputs(later).items():
        np.testing.assert_array_equal(value, inputs[name], "it has no clock")
    assert env_actions(np.ones((1, 6), np.float32)).tolist() == [[1, 1, 1, 1, 1, np.float32(MAX_TURN)]]


class Straight:
    """Turns to the goal and runs, whatever is in the way."""

    def on_episode_start(self) -> None: ...

    def act(self, obs: Batch) -> Any:
        way = obs["goal"] - obs["position"]
        turn = np.arctan2(way[:, 1], way[:, 0]) - np.arctan2(obs["view"][:, 1], obs["view"][:, 0])
        turn = (turn + np.pi) % (2 * np.pi) - np.pi
        actions = np.zeros((len(turn), 6), np.float32)
        actions[:, 0], actions[:, 5] = 1, np.clip(turn / MAX_TURN, -1, 1)
        return actions


class Idle(Straight):
    """Stands still."""

    def act(self, obs: Batch) -> Any:
        return np.zeros((len(obs["goal"]), 6), np.float32)


def test_an_evaluation_plays_the_maze() -> None:
    base, walls = (CrossMaze(maze, **TOWN) for maze in ("SimpleTownBase", "SimpleTownOXX"))
    open_way, closed_way = base.evaluate(Straight(), 30), walls.evaluate(Straight(), 30)
    assert open_way.successes > 15
    assert open_way.successes > closed_way.successes
    assert base.evaluate(Straight(), 30) == open_way, "episodes are always the same"
    assert base.evaluate(Idle(), 5).successes == 0
    assert base.evaluate(Idle(), None).trials == 100


def test_an_evaluation_has_episodes_of_its_own() -> None:
    class Looks(Idle):
        """Keeps what it saw first."""

        def act(self, obs: Batch) -> Any:
            self.first = getattr(self, "first", obs)
            return super().act(obs)

    task, policy = CrossMaze("SimpleTownOXO", **TOWN), Looks()
    task.evaluate(policy, 4)
    for j in range(4):
        obs, _ = gym.make("SimpleTownOXO-v0").reset(seed=EVALUATION_SEED + j)
        for name in ("position", "goal"):
            np.testing.assert_array_equal(policy.first[name][j], obs[STATE[name]])
    shown = demonstrate("SimpleTownOXO", 6, seed=0)
    begins = shown.obs[np.cumsum([0, *shown.lengths[:-1]])][:, STATE["position"]]
    assert not (policy.first["position"][:, None] == begins).all(axis=2).any(), "nobody has shown them"


def test_goals_are_places_that_the_episode_comes_to(steps: Steps) -> None:
    shown = demonstrate("SimpleTownOXO", 6, seed=0)
    assert len(steps) == shown.lengths.sum()
    rng = np.random.default_rng(0)
    rows = rng.integers(len(steps), size=400)
    batch = steps.draw(rows, rng)
    track, episode = shown.obs[:, STATE["position"]], np.repeat(np.arange(6), shown.lengths)
    ahead = []
    for i, row in enumerate(rows):
        rest = track[row:][episode[row:] == episode[row]]
        assert (batch["goal"][i] == rest).all(axis=1).any()
        reach = np.abs(rest - (batch["position"][i] + batch["offset"][i])).max(axis=1) < 1e-5
        later = np.flatnonzero(reach)
        assert len(later)
        assert later[0] <= 7, "3 to 7 steps, or fewer at the end"
        ahead.append(int(np.flatnonzero((batch["goal"][i] == rest).all(axis=1))[0]))
    np.testing.assert_array_equal(batch["position"], track[rows])
    turned = env_actions(np.concatenate([batch["keys"], batch["turn"]], axis=1))
    np.testing.assert_allclose(turned, shown.actions[rows], atol=1e-6)
    again = steps.draw(rows, np.random.default_rng(0))
    assert not np.array_equal(again["goal"], batch["goal"]), "goals are drawn anew"
    assert 5 < np.mean(ahead) < 15, "of 15 steps on average, as far as the episode goes"


def test_stored_steps_are_drawn_as_before(steps: Steps) -> None:
    rows = np.array([40, 3, 3, 100])
    few = steps.take(rows)
    assert len(few) == 4
    assert len(few.ends) == len(np.unique(np.searchsorted(steps.ends, rows))) < len(steps.ends)
    one, other = steps.draw(rows, np.random.default_rng(2)), few.draw(np.arange(4), np.random.default_rng(2))
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name])
    twice = few.take(np.array([3]))
    np.testing.assert_array_equal(twice.draw(np.array([0]), np.random.default_rng(2))["view"], one["view"][3:])
    assert steps.numbers_per_item == 128 + 6 + 3


# ---- networks
def test_keys_and_turn() -> None:
    head = KeysTurn(6)
    torch.manual_seed(0)
    outputs, keys, turn = torch.randn(8, head.size), torch.randint(2, (8, 5)).float(), torch.rand(8, 1)
    batch = {"keys": keys, "turn": turn}
    std = torch.exp(-2 + 3 * torch.sigmoid(outputs[:, 6]))
    expected = torch.distributions.Bernoulli(logits=outputs[:, :5]).log_prob(keys).sum(1)
    expected = expected + torch.distributions.Normal(outputs[:, 5], std).log_prob(turn[:, 0])
    torch.testing.assert_close(head.log_prob(outputs, batch), expected)
    brier = (outputs[:, :5].sigmoid() - keys).square().sum(1) + (outputs[:, 5] - turn[:, 0]).square()
    torch.testing.assert_close(head.error(outputs, batch), brier)
    actions = head.mode(outputs)
    assert torch.equal(actions[:, :5], (outputs[:, :5] >= 0).float())
    assert actions[:, 5].abs().max() <= 1


@pytest.fixture
def network() -> Hierarchical:
    torch.manual_seed(0)
    return Hierarchical(CrossMaze("SimpleTownOXO", **TOWN).signature, 8, 0.1)


def test_the_levels_do_not_depend_on_each_other(network: Hierarchical, steps: Steps) -> None:
    batch = to_tensors(steps.draw(np.arange(50), np.random.default_rng(0)))
    outputs = network(batch)
    moved = network({**batch, "position": batch["position"] + 3.0})
    assert torch.equal(outputs[:, 7:], moved[:, 7:]), "the low level does not know where it is"
    assert not torch.equal(outputs[:, :7], moved[:, :7])
    low = KeysTurn(6).log_prob(outputs[:, 7:], batch).mean()
    gradients = torch.autograd.grad(low, list(network.high.parameters()), allow_unused=True, retain_graph=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    torch.testing.assert_close(network.level_errors(outputs, batch).sum(0), network.error(outputs, batch))
    named = [name for name, _ in network.named_parameters()]
    assert sorted(named) == sorted(n for level in network.levels for n in named if n.startswith(level))


def test_in_play_the_low_level_is_told_by_the_high_one(network: Hierarchical, steps: Steps) -> None:
    data = steps.draw(np.arange(50), np.random.default_rng(0))
    seen = to_tensors({name: data[name] for name in ("view", "position", "goal")})
    for logit in (9.0, -9.0):  # the goal is far, and near
        with torch.no_grad():
            network.high.head.weight[6], network.high.head.bias[6] = 0.0, logit
        outputs = network(seen)
        told = outputs[:, :3] if logit > 0 else seen["goal"] - seen["position"]
        assert torch.equal(network({**seen, "offset": told}), outputs)
    far = torch.tensor([[0.0, 0, 0], [0, NEAR + 0.1, 0]])
    probe = {"position": torch.zeros(2, 3), "goal": far, "offset": torch.zeros(2, 3)}
    probe |= {"view": torch.zeros(2, 128), "keys": torch.zeros(2, 5), "turn": torch.zeros(2, 1)}
    outputs = torch.zeros(2, 14)
    outputs[:, 6] = 5.0
    assert network.log_prob(outputs, probe)[0] < network.log_prob(outputs, probe)[1] - 4


@pytest.mark.slow
@pytest.mark.parametrize(("network", "steps"), [("gcbc", 400), ("hgcbc", 400)])
def test_cloning_reaches_goals(network: str, steps: int) -> None:
    changes = {"stream": "ST1", "network": network, "steps": steps, "batch_size": 64, "hidden_size": 128}
    played = Played("sequential", stages=0, **changes)
    task = played.stream.tasks[0]
    untrained = task.evaluate(played.learner.policy(0), 20)
    played.stage(0)
    assert untrained.successes < 5
    assert task.evaluate(played.learner.policy(0), 50).successes >= 30


# ---- learners
@pytest.mark.parametrize("learner", ["pnn", "hispo", "er", "ewc", "ftn"])
def test_learners_with_two_levels(learner: str) -> None:
    played = Played(learner, **NAV)
    assert isinstance(played.learner.model, Hierarchical)
    if learner in ("pnn", "hispo", "ftn"):
        for k in range(3):
            for later in range(k + 1, 3):
                assert torch.equal(played.outputs[later][k], played.outputs[k][k]), (k, later)
    # A learner that is given a state in the middle of a stage goes on to the bit.
    one, other = (Played(learner, stages=0, **NAV) for _ in range(2))
    one.learner.load(played.states[1])
    one.learner.begin(2, one.setup.data(2))
    one.learner.step()
    other.learner.load(one.learner.state())
    for _ in range(2):
        assert one.learner.step() == other.learner.step()
    done = one.learner.end()
    other.learner.load(one.learner.state())
    while not done:
        done = one.learner.end()
        assert other.learner.end() == done
    assert same(one.learner.state(), other.learner.state())
    assert same(one.learner.state(), played.states[2])


def test_each_level_has_a_column_and_adapters() -> None:
    pnn = Played("pnn", stages=2, **NAV).learner
    assert [len(adapters) for adapters in pnn.laterals] == [0, 6]
    assert pnn.laterals[1][2].U.weight.shape[0] == 7
    assert pnn.laterals[1][5].U.weight.shape[0] == KeysTurn(6).size
    groups = pnn.trained_parameters()
    assert sum(len(group) for group in groups) == len([*pnn.columns[1].parameters(), *pnn.laterals[1].parameters()])


def test_each_level_keeps_an_anchor_by_itself() -> None:
    hispo = Played("hispo", stages=2, threshold=0.0, **NAV).learner
    high, low = hispo.spans
    names = [set(span.anchors[0]) for span in (high, low)]
    assert all(name.startswith("high.") for name in names[0])
    assert names[0] | names[1] == {name for name, _ in hispo.model.named_parameters()}
    span = Span({"w": torch.ones(2)})
    for error, kept in ((0.89, 2), (0.91, 1)):
        span.grow()
        span.found = {"old": (1.0, torch.ones(1)), "new": (error, torch.full((2,), 0.5))}
        alpha = span.choose(0.1)
        assert len(span.anchors) == len(alpha) == kept
        span.anchors = span.anchors[:1]


def test_the_networks_are_for_mazes() -> None:
    with pytest.raises(
        LifelongError, match=r"--network hgcbc is for tasks of nav; split-digits is of digits: use residual"
    ):
        RunArgs(stream="split-digits", network="hgcbc").completed()
    args = RunArgs(stream="AT1", protocol="paper").completed()
    assert (args.network, args.steps, args.hidden_size) == ("hgcbc", 100_000, 256)
    assert Flat.trunks == ("trunk",)
    assert RunArgs(stream="AT1", learner="pnn", network="gcbc").completed().network == "gcbc"


def test_the_command_learns_a_stream_of_mazes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # slow on a busy disk
    monkeypatch.setattr("mikasa_lifelong.nav.game.MAX_STEPS", 20)
    words = "--stream tiny-nav --learner er --steps 2 --checkpoints 1 --episodes 2 --hidden-size 6 --timed-forwards 3"
    assert command.main(["run", *words.split(), "--run-dir", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "final_eval.json").read_text())
    assert result["lifelong"]["tasks"] == list(STREAMS["tiny-nav"].tasks)
    assert "er" in LEARNERS
