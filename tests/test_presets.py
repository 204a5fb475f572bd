"""Presets: which one a task gets, what it sets, and that the published runs of PPO-MLP had just these options."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.arguments import ArgumentError, CommonArgs, read_kwargs
from mikasa_robo.baselines.command import parse_args
from mikasa_robo.baselines.environments import make_training_env
from mikasa_robo.baselines.presets import PRESETS, STATE_BY_FAMILY, choose_preset
from mikasa_robo.catalog import CATALOG
from mikasa_robo.tools.sweep_plan import read_plan
from mikasa_robo.tools.sweep_rows import read_csv

RESULTS = Path(__file__).parents[1] / "docs/results/robot-learning"
FIRST = {spec.family: spec.id for spec in reversed(list(CATALOG.values()))}
"""The first ID of each family."""
NOT_COMPARED = {"run_dir", "variant", "preset", "eval_every", "checkpoint_every", "torch_threads", "video"}
"""Arguments that do not change what is learnt."""


def parsed(*argv: str) -> ppo_mlp.Args:
    return parse_args(ppo_mlp.Args, argv, "mikasa train ppo-mlp")


@pytest.mark.parametrize("args_type", [ppo_mlp.Args, ppo_lstm.Args])
@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_can_be_used(name: str, args_type: type[CommonArgs]) -> None:
    for env_id in ("RememberColor3-v0", *FIRST.values()):
        args_type(**choose_preset(name, env_id, None, args_type.algorithm)).check()


@pytest.mark.parametrize("name", list(PRESETS))
def test_no_preset_sets_the_noise_of_continuous_actions_outside_robot_tasks(name: str) -> None:
    """Elsewhere actions may be discrete, and these options are refused there."""
    for env_id in ("MemoryLengthEasy-v0", "CartPole-v1"):
        assert not {"init_log_std", "final_log_std"} & set(choose_preset(name, env_id, None, "ppo-mlp"))


def test_auto_chooses_the_preset_by_the_task_and_its_observations() -> None:
    def chosen(env_id: str, obs: str | None = None) -> dict[str, Any]:
        return choose_preset("auto", env_id, obs, "ppo-mlp")

    assert chosen("RememberColor3-v0") == {}, "PPO-MLP on state keeps its defaults"
    for obs in (None, "state"):
        assert chosen("RotateStrictPos-v0", obs) == STATE_BY_FAMILY["RotateStrict"]
    assert chosen("RotateStrictPos-v0", "objects+joints") == {}
    assert chosen("RememberColor3-v0", "rgb+joints") == PRESETS["robo-pictures"].values("ppo-mlp")
    assert chosen("MemoryLengthEasy-v0") == PRESETS["base-diagnostic"].values("ppo-mlp")
    assert chosen("BalletEasy-v0") == PRESETS["base-complex"].values("ppo-mlp")
    assert choose_preset("auto", "PickCube-v1", None, "ppo") == PRESETS["robo-numbers"].values("ppo") != {}
    assert choose_preset("auto", "CartPole-v1", None, "ppo") == {}, "the defaults are for rewards that come late"
    with pytest.raises(ArgumentError, match="--preset x is not known"):
        choose_preset("x", "", None, "ppo-mlp")


def test_the_options_of_a_family_are_for_ppo_mlp_alone() -> None:
    for env_id in FIRST.values():
        for algorithm in ("ppo-lstm", "ppo", "sac", "dagger"):
            assert choose_preset("robo-state", env_id, None, algorithm) == PRESETS["robo-numbers"].values(algorithm)
    assert set(STATE_BY_FAMILY) < set(FIRST)


@pytest.mark.parametrize(
    "family", [family for family, values in STATE_BY_FAMILY.items() if "train_env_kwargs" in values]
)
def test_training_environments_of_a_preset_can_be_made(family: str) -> None:
    for spec in CATALOG.values():
        if spec.family == family:
            kwargs = read_kwargs(parsed("--env-id", spec.id).train_env_kwargs, "--train-env-kwargs")
            make_training_env(
                1,
                None,
                env_id=spec.id,
                reward_mode="normalized_dense",
                control_mode="pd_joint_delta_pos",
                sim_backend="physx_cpu",
                env_kwargs=kwargs,
            ).close()


def test_options_on_the_command_line_take_precedence(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mikasa_robo.baselines"):
        args = parsed("--env-id", "InterceptMedium-v0", "--num-steps", "64")
        assert (args.num_steps, args.final_log_std) == (64, -2.5)
        assert "head_start=[0,1]" in caplog.text
        assert args.curriculum_share == 0.6
        assert "in the first 60% of the steps; evaluations play the task itself" in caplog.text
        caplog.clear()
        args = parsed("--env-id", "InterceptMedium-v0", "--train-env-kwargs", "head_start=1")
        assert (args.train_env_kwargs, args.curriculum_share) == (("head_start=1",), 1.0)
        assert parsed("--env-id", "InterceptMedium-v0", "--preset", "none").train_env_kwargs == ()
        assert not caplog.text
    # Where the arguments of the preset go, so does its share, but not one that the user gives.
    for argv in (["--env-kwargs", "head_start=0.5"], ["--train-env-kwargs"]):
        args = parsed("--env-id", "InterceptMedium-v0", *argv)
        assert (args.train_env_kwargs, args.curriculum_share) == ((), 1.0)
    args = parsed("--env-id", "InterceptMedium-v0", "--train-env-kwargs", "head_start=1", "--curriculum-share", "0.3")
    assert args.curriculum_share == 0.3
    # what the task is given holds in training, too
    for given, kept in {'reward_scales={"reach":2}': (), "start_counted=1": ('reward_scales={"reach":10}',)}.items():
        assert parsed("--env-id", "BunchOfColors3-v0", "--env-kwargs", given).train_env_kwargs == kept


@pytest.mark.usefixtures("forget")
def test_a_preset_leaves_out_what_the_chosen_network_does_not_take(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody asked for these two together, so nobody is told to leave one of them out."""
    preset = STATE_BY_FAMILY["SeqOfColors"]
    assert preset["normalize_returns"]
    with caplog.at_level(logging.INFO, "mikasa_robo.baselines"):
        args = parsed("--env-id", "SeqOfColors3-v0", "--network", "toy_learners:toy-linear")
    assert (args.normalize_returns, args.fine_inputs, args.num_steps) == (False, 0.0, preset["num_steps"])
    assert "--network toy-linear does not take --normalize-returns and --fine-inputs of the preset" in caplog.text
    assert parsed("--env-id", "SeqOfColors3-v0").normalize_returns
    # What the user asks for stays, and PPO refuses it.
    assert parsed(
        "--env-id", "SeqOfColors3-v0", "--network", "toy_learners:toy-linear", "--normalize-returns"
    ).normalize_returns


@pytest.mark.parametrize(("sweep", "settings"), [("state", "state-ppo"), ("state-largest", "state-largest")])
def test_the_published_runs_had_the_options_of_the_sweep_and_its_presets(sweep: str, settings: str) -> None:
    runs = {(run.task, run.seed): run.args for run in read_plan(RESULTS / f"{sweep}.toml").runs}
    published = [(row.env_id, row.seed) for row in read_csv(RESULTS / f"{sweep}.csv")]
    assert published
    for task, seed in published:
        result = RESULTS / settings / (f"{task}.json" if seed == 1 else f"{task}-seed-{seed}.json")
        then = json.loads(result.read_text())["args"]
        if then["sim_backend"] == "physx_cpu":
            then["sim_backend"] = "auto"  # the same on the machines of these runs, which had no GPU
        today = runs[task, seed]
        assert today is not None
        assert then["seed"] == seed
        for name in then.keys() & today.keys() - NOT_COMPARED:
            assert then[name] == today[name], f"{task}, seed {seed}: {name}"


def test_every_family_has_a_published_run_of_its_first_task() -> None:
    tasks = {run.task for run in read_plan(RESULTS / "state.toml").runs}
    assert {row.env_id for row in read_csv(RESULTS / "state.csv") if row.seed == 1} == tasks
    assert tasks == {*FIRST.values(), "InterceptMedium-v0", "InterceptGrabMedium-v0"}


def test_the_largest_tasks_have_the_options_of_the_first_ones_of_their_families() -> None:
    first = {run.task: run.args for run in read_plan(RESULTS / "state.toml").runs if run.seed == 1}
    largest = {CATALOG[run.task].family: run for run in read_plan(RESULTS / "state-largest.toml").runs}
    assert largest.keys() == FIRST.keys() - {"TakeItBack"}  # of the 32 it has one only, which is in state.toml
    for family, run in largest.items():
        theirs, ours = first[FIRST[family]], run.args
        assert run.task != FIRST[family]
        assert theirs is not None
        assert ours is not None
        steps = "total_timesteps"
        more_steps = family == "ShellGame" or family.startswith("Remember")
        assert ours[steps] > theirs[steps] if more_steps else ours[steps] == theirs[steps], family
        for name in theirs.keys() - NOT_COMPARED - {"env_id", steps}:
            assert ours[name] == theirs[name], f"{run.task}: {name}"
