"""`mikasa eval` and `mikasa report`, on short runs in a small task without a simulator and in one of mikasa_base."""

from __future__ import annotations

import base64
import csv
import dataclasses
import functools
import hashlib
import html
import json
import math
import os
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_ppo_mlp import ReachEnv, small
from tool_helpers import OWN_ID, OWN_MODULE, own_task, save_untrained

from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.arguments import CommonArgs
from mikasa_robo.baselines.checkpoints import CheckpointError, save_policy
from mikasa_robo.baselines.environments import make_gymnasium_env
from mikasa_robo.baselines.evaluation import Evaluation
from mikasa_robo.baselines.networks import ActorCritic, NetworkPolicy, RecurrentActorCritic
from mikasa_robo.baselines.registry import get_algorithm
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.statistics import wilson_interval
from mikasa_robo.tools import report as report_module
from mikasa_robo.tools.checkpoint import read_checkpoint
from mikasa_robo.tools.env_ids import OptionError
from mikasa_robo.tools.evaluate import (
    FIRST_SEED,
    Args,
    default_output,
    describe,
    evaluate_checkpoints,
    figures,
    summarize,
    write_new,
)
from mikasa_robo.tools.evaluate import main as eval_main
from mikasa_robo.tools.html import as_code, as_text, to_html
from mikasa_robo.tools.intervals import aggregate, bootstrap_interval, standard_error
from mikasa_robo.tools.plot import read_column, read_progress
from mikasa_robo.tools.report import (
    _line_label,
    _steps,
    _steps_label,
    collect,
    learning_curve,
    line_colours,
    read_curves,
    write_report,
)
from mikasa_robo.tools.report import main as report_main
from mikasa_robo.tools.runs import settings_that_differ

__all__ = ["own_task"]  # a fixture

Factory = Callable[[int, str | None], Any]


def reach(args: CommonArgs) -> Factory:
    return ReachEnv


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three finished runs, of the seeds 1 to 3."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        args = small(
            env_id="RememberColor3-v0",  # known to gym, and never made
            run_dir=folder / f"seed-{seed}",
            seed=seed,
            total_timesteps=1920,
            eval_every=640,
            final_eval_seed=FIRST_SEED,
            torch_threads=1,
            video=False,
        )
        ppo_mlp.train(args, ReachEnv)
    return folder


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a short run with an LSTM in an environment of mikasa_base."""
    folder = tmp_path_factory.mktemp("recurrent") / "run"
    args = ppo_lstm.Args(
        env_id="MemoryLengthEasy-v0",
        run_dir=folder,
        total_timesteps=256,
        num_envs=8,
        num_steps=16,
        eval_episodes=5,
        eval_num_envs=5,
        torch_threads=1,
        video=False,
    )
    ppo_lstm.train(args, functools.partial(make_gymnasium_env, env_id=args.env_id))
    return folder / "checkpoint.pt"


def checkpoints(runs: Path, *seeds: int) -> tuple[Path, ...]:
    return tuple(runs / f"seed-{seed}" / "checkpoint.pt" for seed in seeds)


def final(runs: Path, seed: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((runs / f"seed-{seed}" / "final_eval.json").read_text())
    return content


# ---- mikasa eval --------------------------------------------------------------------------------------------------------


def test_the_episodes_are_the_same_whatever_the_number_of_environments(runs: Path, tmp_path: Path) -> None:
    found = []
    for num_envs in (7, 25, 100):
        out = tmp_path / f"{num_envs}.json"
        evaluate_checkpoints(Args(checkpoints(runs, 1), num_envs=num_envs, out=out), make_factory=reach)
        found.append(json.loads(out.read_text())["runs"][0]["episodes"])
    for other in found[1:]:
        # To a rounding error: a product of matrices may round differently for another number of rows.
        assert other["returns"] == pytest.approx(found[0]["returns"], rel=1e-5)
        for name in ("success_once", "success_at_end", "fail_once", "lengths"):
            assert other[name] == found[0][name]
    assert len(found[0]["returns"]) == 100
    assert len(set(found[0]["returns"])) > 50, "different episodes, or the comparison shows little"


def test_the_revision_is_read_before_anything_is_played(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def provenance(command: Any) -> dict[str, Any]:
        order.append("provenance")
        return {"git": None}

    def noted(args: CommonArgs) -> Factory:
        order.append("environments")
        return ReachEnv

    monkeypatch.setattr("mikasa_robo.baselines.loggers.provenance", provenance)
    evaluate_checkpoints(Args(checkpoints(runs, 1), episodes=2, out=tmp_path / "e.json"), make_factory=noted)
    assert order == ["provenance", "environments"]


def test_it_plays_what_the_final_evaluation_of_training_played(runs: Path, tmp_path: Path) -> None:
    content = evaluate_checkpoints(Args(checkpoints(runs, 2), out=tmp_path / "e.json"), make_factory=reach)
    (entry,) = content["runs"]
    for metric in ("success_once", "success_at_end", "return", "length"):
        assert entry["summary"][metric] == pytest.approx(final(runs, 2)["final"][metric], rel=1e-5)
    assert entry["seed"] == 2
    assert entry["training_steps"] == 1920
    assert content["seeds"] == {"first": 2_000_000, "episodes": 100, "rule": "episode k has the seed first + k"}
    assert {"command", "versions", "git", "hardware"} <= set(content)
    told = content["summary"]
    assert told["over"] == "episodes"
    assert told["success_once"]["interval"] == "Wilson"
    assert told["success_once"]["low"] == pytest.approx(entry["summary"]["success_low"])
    assert told["return"]["low"] < told["return"]["mean"] < told["return"]["high"]


def test_sampled_actions_are_those_of_the_episode(runs: Path, recurrent: Path, tmp_path: Path) -> None:
    """Gaussian and categorical ones, without and with a memory."""
    (feed_forward,) = checkpoints(runs, 1)
    for path, factory in ((feed_forward, reach), (recurrent, None)):
        found = []
        for num_envs, sampled in ((7, True), (20, True), (20, False)):
            out = tmp_path / f"{path.parent.name}-{num_envs}-{sampled}.json"
            args = Args((path,), episodes=20, num_envs=num_envs, sample_actions=sampled, out=out)
            found.append(evaluate_checkpoints(args, make_factory=factory))
        assert [content["actions"] for content in found] == ["sampled", "sampled", "most likely"]
        first, again, other = (content["runs"][0]["episodes"] for content in found)
        assert again["returns"] == pytest.approx(first["returns"], rel=1e-5), "whatever the number of environments"
        assert other["returns"] != pytest.approx(first["returns"], rel=1e-5)
        assert ", sampled actions" in describe(found[0])
        assert ", sampled actions" not in describe(found[2])
        names = [f"{path.parent.name}-20-{sampled}.json" for sampled in (True, False)]
        reported = {run.algorithm for run in collect([tmp_path / name for name in names]).runs}
        assert reported == {found[0]["algorithm"], f"{found[0]['algorithm']} (sampled actions)"}, "not one policy's two"


def test_actions_are_sampled_with_the_spread_of_the_policy() -> None:
    network = ActorCritic(3, 2, (8,))
    with torch.no_grad():
        network.log_std.copy_(torch.tensor([-1.0, -3.0]))
    obs, n = torch.ones(1, 3).expand(4000, 3), 4000
    policy = NetworkPolicy(network, sampled=True)
    policy.on_episode_start()
    with pytest.raises(RuntimeError, match="4000 environments and seeds for 0; call seed_episodes"):
        policy.act(obs)
    policy.seed_episodes(range(n))
    actions = torch.stack([policy.act(obs), policy.act(obs)])
    expected = NetworkPolicy(network).act(obs[:1])
    assert actions[0].std(dim=0).tolist() == pytest.approx([math.exp(-1.0), math.exp(-3.0)], rel=0.05)
    assert (actions[0].mean(dim=0) - expected[0]).abs().max() < 0.03
    # each step has noise of its own, which is not what an environment with the same seed draws
    noise = (actions - expected) * (-network.log_std).exp()
    drawn = torch.stack([torch.randn(2, generator=torch.Generator().manual_seed(seed)) for seed in range(n)])
    for a, b in ((noise[0], noise[1]), (noise[0], drawn), (noise[0, :, :1], noise[0, :, 1:])):
        assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.06


def test_actions_are_sampled_where_their_noise_was_learned(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = Args(checkpoints(runs, 1), episodes=2, num_envs=2, sample_actions=True)
    for name, learns in (("ppo-lstm", True), ("sac", True), ("dagger", False), ("bc", False), ("iql", False)):
        assert getattr(get_algorithm(name).load(), "samples_actions", False) == learns
    evaluate_checkpoints(args, make_factory=reach)
    assert [file.name for file in tmp_path.iterdir()] == ["eval-RememberColor3-v0-ppo-mlp-sampled.json"]
    monkeypatch.setattr(ppo_mlp.PPOMLP, "samples_actions", False)
    args.out = Path("other.json")
    with pytest.raises(OptionError, match=r"--sample-actions: .* was trained by ppo-mlp, which learns no noise"):
        evaluate_checkpoints(args, make_factory=reach)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ppo_mlp.PPOMLP, "make_policy", lambda network: network)
    with pytest.raises(OptionError, match=r"ppo-mlp plays .* by its own ActorCritic"):
        evaluate_checkpoints(args, make_factory=reach)
    assert not Path("other.json").exists()


def test_each_figure_of_an_evaluation_is_its_own() -> None:
    result = Evaluation(0, [True, True], [True, False], [False, False], [1.0, 4.0], [3, 6], tells_success=True)
    summary, expected = result.summary(), {"success_once": 1.0, "success_at_end": 0.5, "fail_once": 0.0}
    expected |= {"return": 2.5, "length": 4.5}
    assert {name: summary[name] for name in expected} == expected
    assert figures(result, "success_once") == [1.0, 1.0]
    assert figures(result, "success_at_end") == [1.0, 0.0]
    assert figures(result, "return") == [1.0, 4.0]
    assert figures(result, "length") == [3.0, 6.0]


def test_runs_with_equal_success_have_the_interval_of_the_episodes_of_one() -> None:
    half = [True] * 5 + [False] * 5
    run = Evaluation(0, half, half, [False] * 10, [1.0] * 10, [2] * 10, tells_success=True)
    found = summarize([run, run, run])["success_once"]
    assert found["interval"] == "Wilson"
    assert (found["low"], found["high"]) == pytest.approx(wilson_interval(5, 10)), "they play the same ten episodes"


def test_runs_with_different_success_have_the_interval_of_their_means() -> None:
    """Not that of all their episodes, which says nothing about other seeds."""
    rates = (0.0, 0.5, 1.0)
    runs = []
    for rate in rates:
        flags = [k < 40 * rate for k in range(40)]
        runs.append(Evaluation(0, flags, flags, [False] * 40, [rate] * 40, [2] * 40, tells_success=True))
    told = summarize(runs)
    for metric in ("success_once", "success_at_end", "return"):
        found, wanted = told[metric], bootstrap_interval(rates)
        assert wanted is not None
        assert found["interval"] == "bootstrap"
        assert (found["mean"], found["low"], found["high"]) == (wanted.value, wanted.low, wanted.high)
        assert found["standard_error"] == pytest.approx(0.5 / math.sqrt(3))


def test_the_protocol_of_the_paper(runs: Path, tmp_path: Path) -> None:
    args = Args(checkpoints(runs, 1, 2, 3), protocol="paper", out=tmp_path / "paper.json")
    content = evaluate_checkpoints(args, make_factory=reach)
    assert [len(entry["episodes"]["returns"]) for entry in content["runs"]] == [16, 16, 16]
    means = [entry["summary"]["return"] for entry in content["runs"]]
    told = content["summary"]["return"]
    assert content["summary"]["over"] == "training runs"
    assert told["mean"] == pytest.approx(statistics.fmean(means))
    assert told["standard_error"] == pytest.approx(statistics.stdev(means) / math.sqrt(3))
    assert min(means) <= told["low"] <= told["mean"] <= told["high"] <= max(means)
    assert f"return: {told['mean']:.2f} ± {told['standard_error']:.2f}" in describe(content)


def test_a_policy_with_memory_is_played_in_mikasa_base(recurrent: Path, tmp_path: Path) -> None:
    found = []
    for num_envs in (4, 9):
        out = tmp_path / f"{num_envs}.json"
        argv = ["--checkpoint", str(recurrent), "--episodes", "9", "--num-envs", str(num_envs), "--out", str(out)]
        assert eval_main(argv) == 0
        found.append(json.loads(out.read_text()))
    first, second = (content["runs"][0]["episodes"] for content in found)
    assert first["returns"] == second["returns"]
    assert first["lengths"] == second["lengths"]
    assert set(first["returns"]) == {-1.0, 1.0}, "both outcomes, or the comparison shows little"
    assert found[0]["algorithm"] == "ppo-lstm"
    assert "success_once" not in found[0]["summary"], "MemoryLength tells no success"
    assert found[0]["command"].startswith("mikasa eval --checkpoint")


def test_a_policy_is_played_in_another_task_than_it_learnt(
    recurrent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cue of MemoryLengthEasy is 10 steps old."""
    monkeypatch.chdir(tmp_path)
    words = ["--checkpoint", str(recurrent), "--episodes", "5"]
    assert eval_main(words) == 0
    assert eval_main([*words, "--env-kwargs", "memory_length=30"]) == 0
    shown = capsys.readouterr().out
    assert "MemoryLengthEasy-v0 ppo-lstm, 1 x 5 episodes, with memory_length=30 unlike in training" in shown
    usual, longer = (
        json.loads(Path(f"eval-MemoryLengthEasy-v0-ppo-lstm{end}.json").read_text(encoding="utf-8"))
        for end in ("", "-changed")
    )
    lengths = [set(content["runs"][0]["episodes"]["lengths"]) for content in (usual, longer)]
    assert lengths == [{11}, {31}]
    assert "changed_env_kwargs" not in usual
    assert longer["changed_env_kwargs"] == longer["settings"]["env_kwargs"] == ["memory_length=30"]
    assert longer["runs"][0]["args"]["env_kwargs"] == []
    # In a report they are two tasks.
    found = collect([tmp_path])
    assert not found.problems
    assert {(run.env_id, run.algorithm) for run in found.runs} == {
        ("MemoryLengthEasy-v0", "ppo-lstm"),
        ("MemoryLengthEasy-v0 memory_length=30", "ppo-lstm (learnt with no arguments)"),
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("memory_length", "--env-kwargs memory_length is not NAME=VALUE"),
        ("sim_backend=physx_cpu", "--env-kwargs sim_backend=physx_cpu: use --sim-backend"),
        ("render_mode=human", "--env-kwargs render_mode=human: the command sets render_mode itself; leave it out"),
        ("memory_lenght=3", "as memory_lenght=3: its arguments are num_envs, memory_length, num_bits"),
        ("num_bits=3", "does not fit MemoryLengthEasy-v0 as it is now: the policy maps "),
    ],
)
def test_what_no_policy_can_play_is_refused(
    word: str,
    message: str,
    recurrent: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert eval_main(["--checkpoint", str(recurrent), "--episodes", "5", "--env-kwargs", word]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (1, 2), "protocol": "paper"}, r"--checkpoint names 2: --protocol paper takes 3"),
        ({"seeds": (1, 2, 3), "protocol": "paper", "episodes": 100}, r"--episodes 100: --protocol paper plays 16"),
        ({"seeds": (1, 1)}, r"both were trained with the seed 1"),
        ({"seeds": ()}, r"--checkpoint names no file"),
        ({"seeds": (1,), "episodes": 0}, r"--episodes 0 .* at least 1"),
        ({"seeds": (1,), "num_envs": 0}, r"--num-envs 0 .* at least 1"),
        (
            {"seeds": (1,), "env_kwargs": ("reward_mode=sparse",)},
            r"reward_mode=sparse: a checkpoint has its own; leave",
        ),
        ({"seeds": (1,), "out": Path("nowhere/e.json")}, r"there is no folder nowhere"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    changes: dict[str, Any], message: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = Args(checkpoints(runs, *changes.pop("seeds")), **changes)
    with pytest.raises(OptionError, match=message):
        evaluate_checkpoints(args, make_factory=reach)
    assert not list(tmp_path.iterdir())


def test_different_tasks_are_not_averaged(runs: Path, recurrent: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has env_id RememberColor3-v0, and .* has MemoryLengthEasy-v0"):
        evaluate_checkpoints(Args((*checkpoints(runs, 1), recurrent), out=tmp_path / "e.json"), make_factory=reach)


def test_different_memories_and_settings_are_not_averaged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    env = make_gymnasium_env(1, None, env_id="MemoryLengthEasy-v0")
    layout, action = ObservationLayout.of(env.single_observation_space), ActionLayout.of(env.single_action_space)
    network, args_type = RecurrentActorCritic(layout, action, (8,), 8, (8,)), get_algorithm("ppo").load().args_type
    changes: tuple[dict[str, Any], ...] = (
        {"memory": "gru"},
        {"memory": "lstm"},
        {"memory": "gru", "variant": "mine"},
        {"memory": "gru", "init_from": "p"},
        {"memory": "gru", "env_kwargs": ("memory_length=5",)},
        {"memory": "gru", "obs": "joints"},
        {"memory": "gru", "control_mode": "pd_ee_delta_pose"},
        {"memory": "gru", "reward_mode": "sparse"},
        {"memory": "gru", "sim_backend": "physx_cpu"},
    )
    paths = []
    for seed, changed in enumerate(changes):
        paths.append(tmp_path / f"{seed}.pt")
        save_policy(paths[-1], network, args_type(env_id="MemoryLengthEasy-v0", seed=seed, **changed), step=0)
    for other, message in (
        (1, r"has memory gru, and .*1\.pt has lstm; evaluate them one by one"),
        (2, r"has variant None, and .*2\.pt has mine; evaluate"),
        (3, r"has name ppo gru, and .*3\.pt has ppo gru \(warm start\); evaluate"),
        (4, r"has env_kwargs \(\), and .*4\.pt has \('memory_length=5',\); evaluate"),
        (5, r"has obs None, and .*5\.pt has joints; evaluate"),
        (6, r"has control_mode pd_joint_delta_pos, and .*6\.pt has pd_ee_delta_pose; evaluate"),
        (7, r"has reward_mode normalized_dense, and .*7\.pt has sparse; evaluate"),
        (8, r"has sim_backend auto, and .*8\.pt has physx_cpu; evaluate"),
    ):
        with pytest.raises(OptionError, match=message):
            evaluate_checkpoints(Args((paths[0], paths[other]), out=tmp_path / "e.json"))
    assert not (tmp_path / "e.json").exists()


def test_arguments_in_which_averaged_policies_differ_are_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = checkpoints(runs, 1, 2)
    evaluate_checkpoints(Args((first, second), episodes=2, out=tmp_path / "same.json"), make_factory=reach)
    assert "differ" not in capsys.readouterr().err
    checkpoint, other = read_checkpoint(second), tmp_path / "other.pt"
    longer = dataclasses.replace(checkpoint.args, total_timesteps=3840)
    save_policy(other, checkpoint.load_network(torch.device("cpu")), longer, step=3840)
    evaluate_checkpoints(Args((first, other), episodes=2, out=tmp_path / "longer.json"), make_factory=reach)
    told = "the checkpoints differ in total_timesteps; they are averaged all the same"
    assert told in capsys.readouterr().err.splitlines()


def test_a_backend_is_for_robot_tasks(recurrent: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--sim-backend foo is for robot tasks, and MemoryLengthEasy-v0 is none"):
        evaluate_checkpoints(Args((recurrent,), sim_backend="foo", out=tmp_path / "e.json"))


def test_no_file_is_overwritten_and_no_code_is_run(runs: Path, tmp_path: Path) -> None:
    kept = tmp_path / "mine.json"
    kept.write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine.json exists; name another"):
        evaluate_checkpoints(Args(checkpoints(runs, 1), out=kept), make_factory=reach)
    with pytest.raises(CheckpointError, match=r"mine.json is not a checkpoint"):
        evaluate_checkpoints(Args((kept,), out=tmp_path / "e.json"), make_factory=reach)
    assert kept.read_text() == "mine"
    assert eval_main(["--checkpoint", str(tmp_path / "nothing.pt"), "--out", str(tmp_path / "e.json")]) == 2


def test_what_plays_is_what_was_hashed(runs: Path, tmp_path: Path) -> None:
    """Training replaces the file of a policy while others are evaluated."""
    (first,) = checkpoints(runs, 1)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(first.read_bytes())
    few = {"episodes": 4, "num_envs": 4}
    expected = evaluate_checkpoints(Args((path,), out=tmp_path / "a.json", **few), make_factory=reach)["runs"][0]

    def replaced(args: CommonArgs) -> Factory:
        payload = torch.load(path, weights_only=True)
        for value in payload["state_dict"].values():
            value.fill_(1)
        torch.save(payload, path)
        return ReachEnv

    found = evaluate_checkpoints(Args((path,), out=tmp_path / "b.json", **few), make_factory=replaced)["runs"][0]
    assert found["sha256"] == expected["sha256"]
    assert found["episodes"] == expected["episodes"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() != found["sha256"]


def test_a_name_that_is_taken_in_the_meantime_loses_no_result(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "e.json"

    def slow(args: CommonArgs) -> Factory:
        out.write_text("mine")
        return ReachEnv

    content = evaluate_checkpoints(Args(checkpoints(runs, 1), episodes=2, num_envs=2, out=out), make_factory=slow)
    assert out.read_text() == "mine"
    assert json.loads((tmp_path / "e-2.json").read_text()) == content
    assert f"the result is in {tmp_path / 'e-2.json'}" in capsys.readouterr().err
    # two files have the same number
    (tmp_path / "e-3.png").touch()
    assert write_new(out, {".json": b"{}", ".png": b"image"}) == tmp_path / "e-4.json"
    assert (tmp_path / "e-4.png").read_bytes() == b"image"


def test_a_result_that_cannot_be_written_where_it_should_goes_elsewhere(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, spare = tmp_path / "out", tmp_path / "spare"
    args = Args(checkpoints(runs, 1), episodes=2, num_envs=2, out=out / "e.json")

    class Removes(ReachEnv):
        def reset(self, **kwargs: Any) -> Any:
            shutil.rmtree(out, ignore_errors=True)
            return super().reset(**kwargs)

    monkeypatch.setattr("tempfile.gettempdir", lambda: str(spare))
    out.mkdir()
    with pytest.raises(OptionError, match=r"e\.json cannot be written \(No such file or directory\), and neither can"):
        evaluate_checkpoints(args, make_factory=lambda trained: Removes)
    assert "success once: " in capsys.readouterr().out
    out.mkdir()
    spare.mkdir()
    evaluate_checkpoints(args, make_factory=lambda trained: Removes)
    assert json.loads((spare / "e.json").read_text())["env_id"] == "RememberColor3-v0"
    assert f"the result is in {spare / 'e.json'}" in capsys.readouterr().err


def test_a_reward_that_is_no_number_loses_no_evaluation(runs: Path, tmp_path: Path) -> None:
    class NaNs(ReachEnv):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, torch.where(self.elapsed_steps == 3, math.nan, reward), *rest

    out = tmp_path / "e.json"
    evaluate_checkpoints(Args(checkpoints(runs, 1), episodes=4, num_envs=4, out=out), make_factory=lambda trained: NaNs)
    content = json.loads(out.read_text())
    assert math.isnan(content["summary"]["return"]["mean"])
    assert content["summary"]["return"]["standard_error"] is content["summary"]["return"]["low"] is None
    assert content["summary"]["success_once"]["low"] is not None
    assert "return: nan" in describe(content)


def test_all_checkpoints_are_checked_before_one_is_played(runs: Path, tmp_path: Path) -> None:
    class NeverPlayed(ReachEnv):
        def reset(self, **kwargs: Any) -> Any:
            raise AssertionError("an episode was begun")

    good, other = checkpoints(runs, 1, 2)
    content = torch.load(other, weights_only=True)
    next(iter(content["state_dict"].values())).fill_(math.inf)
    torch.save(content, tmp_path / "inf.pt")
    with pytest.raises(CheckpointError, match=r"inf\.pt.*finite"):
        evaluate_checkpoints(
            Args((good, tmp_path / "inf.pt"), episodes=2, num_envs=2, out=tmp_path / "e.json"),
            make_factory=lambda trained: NeverPlayed,
        )


def test_the_default_name_of_a_result_has_no_folder() -> None:
    """An ID may have a namespace."""
    assert default_output("my/Task-v0", "ppo") == Path("eval-my-Task-v0-ppo.json")


def test_a_task_of_ones_own_is_evaluated_once_its_module_is_named(
    own_task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_untrained(tmp_path / "policy.pt", OWN_ID, 40, OWN_MODULE, env_kwargs=("response_steps=2",))
    argv = ["--checkpoint", str(path), "--episodes", "2", "--out", str(tmp_path / "e.json")]
    assert eval_main(argv) == 2
    assert f"add --env-id {own_task}" in capsys.readouterr().err
    assert OWN_MODULE not in sys.modules, "a checkpoint is not trusted to name what is imported"
    assert eval_main([*argv, "--env-id", "RememberColor3-v0"]) == 2
    assert f"{path} was trained on {OWN_ID}" in capsys.readouterr().err
    assert eval_main([*argv, "--env-id", own_task]) == 0
    content = json.loads((tmp_path / "e.json").read_text())
    assert content["env_id"] == OWN_ID
    assert content["runs"][0]["episodes"]["lengths"] == [12, 12]
    (run,) = collect([tmp_path / "e.json"]).runs
    assert run.env_id == f"{OWN_ID} response_steps=2"


def test_the_backend_is_that_of_training_unless_another_is_asked_for(runs: Path, tmp_path: Path) -> None:
    asked = []

    def factory(args: CommonArgs) -> Factory:
        asked.append(args.sim_backend)
        return ReachEnv

    few = {"episodes": 1, "num_envs": 1}
    evaluate_checkpoints(Args(checkpoints(runs, 1), out=tmp_path / "a.json", **few), make_factory=factory)
    told = Args(checkpoints(runs, 1), out=tmp_path / "b.json", sim_backend="physx_cpu", **few)
    assert evaluate_checkpoints(told, make_factory=factory)["settings"]["sim_backend"] == "physx_cpu"
    assert asked == ["auto", "physx_cpu"]
    told_by_itself = json.loads((tmp_path / "a.json").read_text())["settings"]["sim_backend"]
    assert told_by_itself == "physx_cpu", "what auto stood for, so that others can play the same"


# ---- mikasa report ------------------------------------------------------------------------------------------------------


def cells(report: Path, start: str) -> list[str]:
    """Those of the one row of a table that starts so."""
    (line,) = (line for line in report.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_report_of_three_runs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    assert report_main([str(runs), "--out", str(out)]) == 0
    row = cells(out / "report.md", "`RememberColor3-v0`")
    returns = [final(runs, seed)["final"]["return"] for seed in (1, 2, 3)]
    assert row[:5] == ["`RememberColor3-v0`", "ppo-mlp", "3", "100", "1,920"]
    assert row[8] == f"{statistics.fmean(returns):.2f} ± {statistics.stdev(returns) / math.sqrt(3):.2f}"
    with (out / "runs.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(line["return"]) for line in sorted(table, key=lambda line: line["seed"])] == pytest.approx(returns)
    for line in table:
        result = final(runs, int(line["seed"]))
        assert (line["source"], line["steps"], line["episodes"]) == ("training", "1920", "100")
        assert float(line["wall_time_s"]) == result["wall_time_s"]
        assert float(line["length"]) == result["final"]["length"]
    for name in ("curves-success.png", "curves-return.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert name in (out / "report.md").read_text()
    assert "## Problems" not in (out / "report.md").read_text()
    assert report_main([str(runs), "--out", str(out)]) == 2
    assert "already contains report.md, report.html, runs.csv" in capsys.readouterr().err


EMPTY = ("meta", "img", "br")


class Tags(HTMLParser):
    """The tags of a page: how often each occurs, and where its images come from."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.open: list[str] = []
        self.images: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        if tag not in EMPTY:
            self.open.append(tag)
        self.images += [value for name, value in attrs if (tag, name) == ("img", "src") and value]

    def handle_endtag(self, tag: str) -> None:
        assert tag in EMPTY or self.open.pop() == tag


def test_the_html_report_is_one_file_with_the_same_tables_and_figures(runs: Path, tmp_path: Path) -> None:
    collection = collect([runs])
    collection.problems.append((tmp_path / "<b>odd & bold", "<b>broken"))
    out = tmp_path / "report"
    write_report(collection, out)
    page = (out / "report.html").read_text()
    tags = Tags(page)
    assert not tags.open
    assert tags.count["table"] == 2
    assert tags.count["tr"] == 2 + 2
    assert not tags.count["b"]
    assert "odd &amp; bold" in page
    assert "<td>&lt;b&gt;broken</td>" in page
    figures = [(out / f"curves-{name}.png").read_bytes() for name in ("success", "return")]
    assert [base64.b64decode(image.partition("base64,")[2]) for image in tags.images] == figures
    for cell in cells(out / "report.md", "`RememberColor3-v0`")[1:]:
        assert f">{cell}<" in page
    assert "http" not in page.replace("<!doctype html>", ""), "nothing is loaded"


def test_runs_that_are_equal_have_an_interval_that_says_something(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bootstrap over equal runs has no width: 0 successes in 300 episodes would be "0.0% to 0.0%"."""
    collection = collect([runs])
    collection.runs = [
        dataclasses.replace(run, scores={**run.scores, "success_once": 0.0, "return": 1.5}) for run in collection.runs
    ]
    row = cells(write_report(collection, tmp_path / "equal"), "`RememberColor3-v0`")
    high = wilson_interval(0, 100)[1]
    assert row[5:7] == ["0.0% ± 0.0%", f"0.0% to {high:.1%}†"]
    assert row[8:10] == ["1.50 ± 0.00", "-"]
    text = (tmp_path / "equal" / "report.md").read_text()
    assert "† All runs have the same success; the interval is Wilson's over the episodes of one run." in text


def test_runs_without_success_have_the_interval_beside_their_return(runs: Path, tmp_path: Path) -> None:
    collection = collect([runs])
    for run in collection.runs:
        run.scores["success_once"] = run.scores["success_at_end"] = math.nan
    row = cells(write_report(collection, tmp_path / "report"), "`RememberColor3-v0`")
    assert row[5:8] == ["-", "-", "-"]
    interval = bootstrap_interval([run.scores["return"] for run in collection.runs])
    assert interval is not None
    assert row[9] == f"{interval.low:.2f} to {interval.high:.2f}"


def test_what_is_unfinished_or_broken_is_listed_with_what_it_lacks(runs: Path, tmp_path: Path) -> None:
    for name in ("whole", "unfinished", "torn", "lacking", "listed", "curveless", "twin"):
        shutil.copytree(runs / ("seed-2" if name == "whole" else "seed-1"), tmp_path / "runs" / name)
    (tmp_path / "runs" / "unfinished" / "final_eval.json").unlink()
    (tmp_path / "runs" / "torn" / "final_eval.json").write_text('{"env_id": "Rem')
    content = final(runs, 1)
    del content["seed"]
    (tmp_path / "runs" / "lacking" / "final_eval.json").write_text(json.dumps(content))
    (tmp_path / "runs" / "listed" / "final_eval.json").write_text(json.dumps({**final(runs, 1), "args": ["seed"]}))
    (tmp_path / "runs" / "curveless" / "progress.csv").unlink()
    (tmp_path / "runs" / "other.json").write_text("{}")
    collection = collect([tmp_path / "runs", tmp_path / "runs" / "other.json", tmp_path / "runs" / "whole"])
    assert sorted(run.seed for run in collection.runs) == [1, 2]
    problems = {path.name: why for path, why in collection.problems}
    assert "no final_eval.json; progress.csv ends at step 1,920; continue it with --resume" in problems["unfinished"]
    assert "final_eval.json cannot be read" in problems["torn"]
    assert "lacks 'seed'" in problems["lacking"]
    assert problems["listed"].startswith("broken")
    assert "not in the curves" in problems["curveless"]
    assert "not counted: RememberColor3-v0, ppo-mlp, seed 1" in problems["twin"]
    (tmp_path / "runs" / "list.json").write_text("[1, 2]")
    assert not [path for path, _ in collect([tmp_path / "runs"]).problems if path.name == "list.json"]
    assert "its format is None" in str(collect([tmp_path / "runs" / "list.json"]).problems)
    assert "other.json" not in problems, "a JSON file of something else is nobody's business, unless it is named"
    assert (
        "its format is None" in dict(collect([tmp_path / "runs" / "other.json"]).problems)[tmp_path / "runs/other.json"]
    )
    report = write_report(collection, tmp_path / "report")
    for name, why in problems.items():
        assert cells(report, f"`{tmp_path / 'runs' / name}`")[1] == why


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"success_once": 1.5}, "broken: it has success_once 1.5, which no evaluation has"),
        ({"success_at_end": -1.0}, "broken: it has success_at_end -1, which"),
        ({"episodes": 0}, "broken: it has 0 episodes, which"),
        ({"success_once": math.nan}, "broken: it has success_once nan, which"),
        ({"return": -math.inf}, "broken: it has return -inf, which"),
        ({"episodes": 10**400}, "broken: it has over 1,000,000,000,000,000 episodes, which"),
    ],
)
def test_impossible_numbers_are_a_problem(changes: dict[str, Any], message: str, runs: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        shutil.copytree(runs / f"seed-{seed}", tmp_path / "runs" / str(seed))
        content = final(runs, seed)
        content["final"] |= {"success_once": 1.0} | changes
        (tmp_path / "runs" / str(seed) / "final_eval.json").write_text(json.dumps(content))
    report = write_report(collect([tmp_path / "runs"]), tmp_path / "report")
    for seed in (1, 2):
        assert cells(report, f"`{tmp_path / 'runs' / str(seed)}`")[1].startswith(message)
    assert "No finished run was found." in report.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training_steps": 10**400}, "broken: it has over 1,000,000,000,000,000 training steps, which"),
        ({"seed": -1}, "broken: it has -1 as its seed, which"),
        ({"env_id": " "}, "broken: its env_id is empty"),
    ],
)
def test_one_broken_run_leaves_the_report_of_the_others(
    changes: dict[str, Any], message: str, runs: Path, tmp_path: Path
) -> None:
    for seed in (1, 2):
        shutil.copytree(runs / f"seed-{seed}", tmp_path / "runs" / str(seed))
    (tmp_path / "runs" / "2" / "final_eval.json").write_text(json.dumps(final(runs, 2) | changes))
    collection = collect([tmp_path / "runs"])
    collection.keep(["RememberColor3-v0"])
    report = write_report(collection, tmp_path / "report")
    assert [run.seed for run in collection.runs] == [1]
    assert cells(report, f"`{tmp_path / 'runs' / '2'}`")[1].startswith(message)


def test_runs_behind_links_count(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copytree(runs / "seed-1", tmp_path / "runs" / "here")
    (tmp_path / "runs" / "there").symlink_to(runs / "seed-2", target_is_directory=True)
    (tmp_path / "runs" / "again").symlink_to(runs / "seed-2", target_is_directory=True)
    (tmp_path / "runs" / "here" / "loop").symlink_to(tmp_path / "runs", target_is_directory=True)
    collection = collect([tmp_path / "runs"])
    assert sorted(run.seed for run in collection.runs) == [1, 2]
    assert collection.problems == []


def test_a_broken_run_neither_replaces_another_nor_is_replaced(runs: Path, tmp_path: Path) -> None:
    """All are of one seed, and the longest of such runs counts: here the longest that is not broken."""
    for name, steps, success in (("shorter", 1000, -1.0), ("good", 2000, 0.5), ("longer", 3000, 1.5)):
        shutil.copytree(runs / "seed-1", tmp_path / name)
        content = final(runs, 1)
        content["final"] |= {"success_once": success}
        (tmp_path / name / "final_eval.json").write_text(json.dumps(content | {"training_steps": steps}))
    collection = collect([tmp_path])
    assert [run.path.name for run in collection.runs] == ["good"]
    assert {path.name: why for path, why in collection.problems} == {
        "shorter": "broken: it has success_once -1, which no evaluation has",
        "longer": "broken: it has success_once 1.5, which no evaluation has",
    }


def test_of_runs_of_one_seed_the_longest_counts(runs: Path, tmp_path: Path) -> None:
    for name, steps, episodes in (("short", 1000, 100), ("long", 3000, 50), ("long-and-sure", 3000, 100)):
        shutil.copytree(runs / "seed-1", tmp_path / name)
        content = final(runs, 1)
        content["final"] |= {"episodes": episodes}
        (tmp_path / name / "final_eval.json").write_text(json.dumps(content | {"training_steps": steps}))
    shutil.copytree(runs / "seed-2", tmp_path / "another")
    collection = collect([tmp_path])
    assert sorted(run.path.name for run in collection.runs) == ["another", "long-and-sure"]
    assert sorted(path.name for path, _ in collection.problems) == ["long", "short"]
    assert all("is already in" in why and "long-and-sure" in why for _, why in collection.problems)


def test_a_folder_that_is_not_utf_8_is_in_the_report(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/runs/bad\xff")
    shutil.copytree(runs / "seed-1", folder)
    shutil.copytree(runs / "seed-2", f"{folder}2")
    os.unlink(f"{folder}2/final_eval.json")
    assert report_main([str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0
    assert "bad\\udcff2" in capsys.readouterr().out
    assert "bad\\udcff," in (tmp_path / "report" / "runs.csv").read_text()
    assert "bad\\udcff2" in (tmp_path / "report" / "report.html").read_text()


def test_a_report_that_fails_leaves_nothing(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(report_module, "to_html", fail)
    with pytest.raises(ZeroDivisionError):
        write_report(collect([runs]), tmp_path / "report")
    assert not list(tmp_path.iterdir())


def test_the_texts_of_others_are_only_texts_in_a_report(runs: Path, tmp_path: Path) -> None:
    hostile = (
        "![x](http://a.org/x.png) [y](http://a.org) <http://a.org> | *b*\n# h `c` _d_ ppo_mlp ![z](curves-return.png)"
    )
    collection = collect([runs])
    collection.runs = [dataclasses.replace(run, algorithm=hostile, env_id=hostile) for run in collection.runs]
    collection.problems.append((tmp_path / "a|b`c", hostile))
    report = write_report(collection, tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    tags = Tags(page)
    assert not {"a", "em", "code", "h1"} & {tag for tag, n in tags.count.items() if n > (tag == "h1")}
    assert len(tags.images) == 2, "the curves"
    assert all(image.startswith("data:") for image in tags.images)
    assert tags.count["tr"] == 2 + 2
    shown = " ".join(hostile.split())
    assert page.count(f"<td>{html.escape(shown, quote=False)}</td>") == 3, "task, algorithm and problem"
    assert "ppo_mlp" in report.read_text()
    assert as_code("a b") == "`a b`"
    assert as_text("a\x1b[2Jb\udcff") == r"a?\[2Jb\\udcff"
    # and where a report does not escape them
    tags = Tags(to_html(f"# t\n\n{hostile.splitlines()[0]}\n\n[u]: http://a.org\n[u] ![v][u]", tmp_path / "report"))
    assert not tags.images
    assert not tags.count["a"]


def test_curves_of_evaluations_and_of_training_are_not_averaged(runs: Path, tmp_path: Path) -> None:
    finished = collect([runs]).runs
    one = dataclasses.replace(finished[0], path=tmp_path)
    lines = list(csv.DictReader((finished[0].path / "progress.csv").open(newline="")))
    kept = [name for name in lines[0] if not name.startswith("eval/")]
    with (tmp_path / "progress.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, kept, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    for group, kind in ((finished, "eval"), ([one, *finished[1:]], "train"), ([one], "train")):
        expected = [read_column(read_progress(run.path), f"{kind}/return") for run in group]
        assert read_curves(group, "return") == (kind, expected)
    cloned = dataclasses.replace(one, learner="bc")
    assert read_curves([cloned], "return")[1] == [], "the expert plays its training episodes"
    assert read_curves([dataclasses.replace(finished[0], learner="bc")], "return")[0] == "eval"
    assert "1\N{NO-BREAK SPACE}run, training)" in _line_label("ppo-mlp", 1, "train").replace("\n", " ")


def test_steps_that_are_not_played_are_not_called_environment_steps(runs: Path) -> None:
    played = collect([runs]).runs[0]
    learnt = dataclasses.replace(played, learner="iql", steps=10_000)
    cloned = dataclasses.replace(played, learner="bc", steps=40_960, args={"dataset": "data"})
    assert (played.unit, learnt.unit, cloned.unit) == ("environment steps", "gradient steps", "steps without play")
    assert _steps([learnt, learnt]) == "0 (10,000 gradient steps)"
    assert _steps([played]) == f"{played.steps:,}"
    assert _steps_label({"iql": learnt.unit, "dt": "gradient steps"}) == "gradient steps"
    assert _steps_label({"iql": learnt.unit, "ppo": played.unit}) == "environment steps; gradient steps of iql"


def test_evaluations_stand_beside_the_training_runs(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "paper.json"
    args = Args(checkpoints(runs, 1, 2, 3), protocol="paper", out=file)
    told = evaluate_checkpoints(args, make_factory=reach)["summary"]["return"]
    report = write_report(collect([file]), tmp_path / "report")
    row = cells(report, "`RememberColor3-v0`")
    assert row[2:4] == ["3", "16"]
    assert row[8] == f"{told['mean']:.2f} ± {told['standard_error']:.2f}"
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["report.html", "report.md", "runs.csv"]


def test_an_argument_that_older_runs_lack_differs_where_it_is_switched_on() -> None:
    older = {"learning_rate": 1e-3, "seed": 1}
    off: Any
    for off in (False, None, 0, []):
        assert settings_that_differ([older, older | {"new": off, "seed": 2}]) == []
    for on in (True, 0.3, ["a"]):
        assert settings_that_differ([older, older | {"new": on}]) == ["new"]
    assert settings_that_differ([older | {"new": False}, older | {"new": True}]) == ["new"]
    assert settings_that_differ([older | {"new": None}, older | {"new": 0}]) == ["new"], "both told something"


def test_a_report_says_in_what_runs_differ_and_what_cannot_be_averaged(runs: Path, tmp_path: Path) -> None:
    for seed, (env_id, rate) in enumerate([("A-v0", 1e-3), ("A-v0", 1e-4), ("B-v0", 1e-3), ("B-v0", 1e-3)]):
        folder = tmp_path / "runs" / str(seed)
        shutil.copytree(runs / "seed-1", folder)
        content = final(runs, 1) | {"env_id": env_id, "seed": seed}
        content["args"] |= {"learning_rate": rate, "seed": seed}
        content["final"] |= {"success_once": seed / 4}
        content["dataset_sha256"] = "b" if env_id == "A-v0" and seed else "a"
        (folder / "final_eval.json").write_text(json.dumps(content))
    collection = collect([tmp_path / "runs"])
    text = write_report(collection, tmp_path / "report").read_text()
    assert "Runs of ppo-mlp on `A-v0` differ in dataset_sha256, learning_rate. They are averaged all the same." in text
    assert "on `B-v0` differ" not in text
    row = cells(tmp_path / "report" / "report.md", "ppo-mlp | 2")
    assert row[2] == "2"
    assert row[3].startswith("37.5%")  # the mean of 0, 1/4, 1/2, 3/4
    collection.runs = [run for run in collection.runs if run.seed]
    text = write_report(collection, tmp_path / "fewer").read_text()
    assert "no mean over its 2 tasks, because there is a different number of runs for each (1, 2)" in text


def test_a_report_of_some_tasks(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "seed-1", tmp_path / "runs" / "a")
    shutil.copytree(runs / "seed-2", tmp_path / "runs" / "b")
    file = tmp_path / "runs" / "b" / "final_eval.json"
    file.write_text(json.dumps(final(runs, 2) | {"env_id": "examples.point_back:PointBack-v0"}))
    argv = [str(tmp_path / "runs"), "--out", str(tmp_path / "report"), "--env-id"]
    assert report_main([*argv, "ShellGameTouch-v0"]) == 2
    assert "there is no finished run of this task; there are runs of PointBack-v0, Rem" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()
    assert report_main([*argv, "examples.point_back:PointBack-v0"]) == 0
    assert cells(tmp_path / "report" / "report.md", "`")[0] == "`PointBack-v0`"


def test_nothing_found_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert report_main([str(tmp_path / "empty"), "--out", str(tmp_path / "report")]) == 1
    assert "contains no run and no evaluation" in capsys.readouterr().out
    assert report_main([str(tmp_path / "nowhere"), "--out", str(tmp_path / "other")]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err


def test_a_learning_curve_is_the_mean_of_interpolated_runs() -> None:
    steps, means, errors = learning_curve([([10, 20, 40], [0.0, 1.0, 1.0]), ([5, 15, 30], [0.0, 1.0, 0.0])])
    assert steps == [10, 15, 20, 30], "all steps between the latest first and the earliest last one"
    # at 10: 0 and 1/2; at 15: 1/2 and 1; at 20: 1 and 2/3; at 30: 1 and 0
    assert means == pytest.approx([1 / 4, 3 / 4, 5 / 6, 1 / 2])
    # of two numbers it is half their difference
    assert errors == pytest.approx([1 / 4, 1 / 4, 1 / 6, 1 / 2])
    assert math.isnan(learning_curve([([1, 2], [0.0, 1.0])])[2][0])
    # a run that has no number at a step has no part in the others
    steps, means, errors = learning_curve([([1, 2], [0.0, math.nan]), ([1, 2], [1.0, 1.0])])
    assert (steps, means[0]) == ([1, 2], 0.5)
    assert errors[0] == pytest.approx(0.5)
    assert math.isnan(means[1])
    assert math.isnan(errors[1])


def test_intervals() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, 200).tolist()
    error = standard_error(values)
    interval = bootstrap_interval(values)
    assert error is not None
    assert interval is not None
    # The bootstrap of a mean of 200 numbers is nearly normal; 2000 resamples tell a quantile to about 5 %.
    assert interval.low == pytest.approx(interval.value - 1.96 * error, abs=0.15 * error)
    assert interval.high == pytest.approx(interval.value + 1.96 * error, abs=0.15 * error)
    assert bootstrap_interval(values) == interval
    assert bootstrap_interval([1.0]) is None
    assert standard_error([1.0]) is None
    # Runs are resampled within a task: tasks that no seed matters to leave no doubt, however much they differ.
    mean, middle = aggregate(np.array([[0.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.5, 1.0]]))
    assert (mean.low, mean.value, mean.high) == pytest.approx((0.375,) * 3)
    assert middle.value == pytest.approx(0.25)  # of the middle half: 0, 0, 1/2, 1/2
    with pytest.raises(ValueError, match=r"hold 1 runs; give at least 2"):
        aggregate(np.ones((1, 3)))


def test_the_generator_of_numpy_is_left_as_it_was() -> None:
    np.random.seed(7)  # noqa: NPY002
    expected = np.random.random(3)  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    bootstrap_interval([1.0, 2.0, 3.0])
    assert np.random.random(3).tolist() == expected.tolist()  # noqa: NPY002


def test_a_missing_rliable_is_named_with_the_extra(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(extra: str, *names: str) -> None:
        raise ModuleNotFoundError(f"pip install 'mikasa-suite[{extra}]'")

    monkeypatch.setattr(report_module, "require_modules", missing)
    assert report_main([str(runs), "--out", str(tmp_path / "report")]) == 2
    assert "mikasa-suite[report]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_weak_tasks_are_marked_in_a_report() -> None:
    from mikasa_robo.tools.report import is_weak

    assert is_weak("InterceptSlow-v0")
    assert is_weak("InterceptSlow-v0 speed=fast")
    assert not is_weak("InterceptFastHidden-v0")
    assert not is_weak("RememberColor3-v0")
    assert not is_weak("CartPole-v1")


def test_a_variant_has_one_colour_in_all_panels() -> None:
    near, far = "smooth (trained with head_start=[0,1])", "smooth (trained with head_start=[0,2])"
    colours = line_colours({"A-v0": [near, "gsde"], "B-v0": [far], "C-v0": ["smooth"]})
    assert colours[near] == colours[far] == colours["smooth"] != colours["gsde"]
    # in one panel they are told apart
    colours = line_colours({"A-v0": [near, far], "B-v0": ["smooth"]})
    assert len({colours[near], colours[far], colours["smooth"]}) == 3
    many = line_colours({"A-v0": [f"variant-{i}" for i in range(12)]})
    assert len(set(many.values())) == 12
