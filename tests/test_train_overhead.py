"""What training simulates besides the steps that it learns from, and what a resumed run continues with."""

from __future__ import annotations

import importlib
import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from sim_helpers import ROOT
from train_helpers import break_off

from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.arguments import CommonArgs
from mikasa_robo.baselines.checkpoints import Checkpoints, load_checkpoint, save_checkpoint
from mikasa_robo.baselines.environments import UNKNOWN_HORIZON
from mikasa_robo.baselines.evaluation import EvaluationPlan, plan_evaluations
from mikasa_robo.tools.plot import read_progress

# 12 updates of 64 steps, a checkpoint after each second one
ARGV = shlex.split(
    "--env-id PassiveVisualMatchEasy-v0 --preset none --num-envs 4 --num-steps 16 --total-timesteps 768 --seed 3 "
    "--num-minibatches 2 --update-epochs 2 --stagger-groups 3 --checkpoint-every 128 --eval-episodes 4 --eval-num-envs 2 "
    "--no-video --torch-threads 1"
)
SIZES = {ppo_lstm: ["--lstm-size", "16"], ppo_mlp: ["--hidden-sizes", "16"]}


@pytest.fixture(scope="module")
def overhead() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("train_overhead")


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize(("num_envs", "trained"), [(64, 303_104), (1024, 327_680), (4096, 524_288)])
def test_all_but_three_per_cent_of_the_simulated_steps_are_learnt_from(
    overhead: Any, num_envs: int, trained: int
) -> None:
    row = overhead.measure(num_envs, overhead.Args(total_timesteps=300_000))
    envs, learnt, thrown, evaluated, resets, final, share, held = row
    assert [int(x) for x in (envs, learnt, thrown, resets)] == [num_envs, trained, 0, 1]
    assert int(final) >= 100 * 60
    assert 0 < int(evaluated) <= 0.026 * trained
    assert float(share.rstrip("%")) <= 3.0
    assert held == "yes"


def test_exact_resume_resets_at_each_checkpoint_and_loses_no_step_either(overhead: Any) -> None:
    row = overhead.measure(64, overhead.Args(total_timesteps=40_960, exact_resume=True, eval_every=0))
    assert row[1:5] == ("40960", "0", "0", "1")
    row = overhead.measure(2048, overhead.Args(total_timesteps=524_288, exact_resume=True, eval_every=200_000))
    assert row[1:5] == ("524288", "0", str(2 * 100 * 60), "4"), "at the start and at all checkpoints but the last"
    assert row[-1] == "yes"


@pytest.mark.parametrize(
    ("args", "horizon", "plan"),
    [
        (CommonArgs(), 60, EvaluationPlan(120_000, 50, 100, 50, 60)),
        (CommonArgs(), 180, EvaluationPlan(194_400, 27, 100, 27, 180)),
        (CommonArgs(total_timesteps=200_000), 1000, EvaluationPlan(400_000, 10, 100, 10, 1000)),
        (CommonArgs(eval_num_envs=20), 60, EvaluationPlan(144_000, 50, 100, 20, 60)),
        (CommonArgs(), UNKNOWN_HORIZON, EvaluationPlan(100_000, 50, 100, 50, UNKNOWN_HORIZON)),
        # what the user chose
        (CommonArgs(eval_every=1000), 60, EvaluationPlan(1000, 100, 100, 50, 60)),
        (CommonArgs(eval_every=0), 60, EvaluationPlan(0, 100, 100, 50, 60)),
        (CommonArgs(eval_episodes=200), 60, EvaluationPlan(480_000, 200, 200, 50, 60)),
        (CommonArgs(eval_every=1000, eval_episodes=7), 60, EvaluationPlan(1000, 7, 7, 7, 60)),
    ],
)
def test_evaluations_fit_their_share_of_the_steps_unless_the_user_chooses(
    args: CommonArgs, horizon: int, plan: EvaluationPlan
) -> None:
    assert plan_evaluations(args, horizon) == plan


def interrupted(module: Any, run_dir: Path, *more: str) -> dict[str, Any]:
    """A run that breaks off in update 8; returns its newest checkpoint, that of update 6."""
    words = [*ARGV, *SIZES[module], "--run-dir", str(run_dir), *more]
    break_off(lambda: module.main(words), module, "update", 7)
    saved = Checkpoints.load_newest(run_dir)
    assert saved["step"] == 6 * 64
    return saved


@pytest.mark.parametrize("module", [ppo_mlp, ppo_lstm])
def test_a_resumed_run_continues_with_all_that_was_learnt(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    saved = interrupted(module, run_dir, "--eval-every", "64")
    seen: list[dict[str, Any]] = []
    algorithm = module.PPOLSTM if module is ppo_lstm else module.PPOMLP
    rollout = algorithm.rollout

    def watch(self: Any, env: Any, obs: Any, stats: Any) -> Any:
        if not seen:
            copied = {name: value.clone() for name, value in self.network.state_dict().items()}
            moments = [{k: v.clone() for k, v in s.items()} for s in self.optimizer.state_dict()["state"].values()]
            state = {"weights": copied, "moments": moments, "generator": self.generator.get_state()}
            seen.append({**state, "lr": self.optimizer.param_groups[0]["lr"], "episodes": list(stats.episodes)})
        return rollout(self, env, obs, stats)

    monkeypatch.setattr(algorithm, "rollout", watch)
    assert module.main(["--resume", str(run_dir)]) == 0
    (start,) = seen
    for name, value in saved["policy"].items():  # the statistics of the normaliser among them
        assert torch.equal(start["weights"][name], value), name
    for moments, kept in zip(start["moments"], saved["algorithm_state"]["optimizer"]["state"].values(), strict=True):
        assert all(torch.equal(moments[name], value) for name, value in kept.items())
    assert torch.equal(start["generator"], saved["generator"])
    assert start["episodes"] == saved["episodes"]
    assert start["lr"] == pytest.approx(3e-4 * 0.5)
    rows = read_progress(run_dir)
    assert [int(float(row["step"])) for row in rows] == list(range(64, 769, 64))
    best = max(float(row["eval/success_once"]) for row in rows)
    final = load_checkpoint(run_dir / "resume-000000000768.pt", "mikasa/run/2")
    assert final["best_score"] == pytest.approx(best)
    assert final["updates"] == 12


def test_a_checkpoint_of_an_earlier_version_can_be_resumed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    saved = interrupted(ppo_mlp, run_dir)
    del saved["args"]["exact_resume"]  # its runs were exact, and had numbers for what is chosen by default now
    saved["args"] |= {"eval_every": 256, "eval_episodes": 4}
    save_checkpoint(run_dir / "resume-000000000384.pt", saved)
    assert ppo_mlp.main(["--resume", str(run_dir)]) == 0
    evaluated = [int(float(row["step"])) for row in read_progress(run_dir) if row["eval/return"]]
    assert evaluated == [512, 768]


def test_the_speed_of_a_run_is_over_its_whole_wall_time(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert ppo_mlp.main([*ARGV, *SIZES[ppo_mlp], "--eval-every", "64", "--run-dir", str(run_dir)]) == 0
    rows = [{name: float(value or "nan") for name, value in row.items()} for row in read_progress(run_dir)]
    for row in rows:
        assert row["steps_per_second"] == pytest.approx(row["step"] / row["wall_time_s"])
    for before, row in itertools.pairwise(rows):
        assert row["other_s"] > 0
        parts = row["rollout_s"] + row["update_s"] + row["other_s"]
        assert parts == pytest.approx(row["wall_time_s"] - before["wall_time_s"])
