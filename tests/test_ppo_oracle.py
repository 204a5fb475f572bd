"""PPO whose memory is told what to hold: what the read-out is shown, what its loss changes, and that runs go on with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv
from torch import Tensor
from train_helpers import assert_same_policy, run_in_two_processes

import mikasa_robo
from mikasa_robo.baselines import command, ppo_lstm
from mikasa_robo.baselines.arguments import ArgumentError
from mikasa_robo.baselines.checkpoints import read_policy
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.env_wrappers import StaggeredEpisodes
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.ppo_arguments import PPOMemoryArgs
from mikasa_robo.baselines.ppo_lstm import PPOMemory
from mikasa_robo.baselines.protocol import Setup
from mikasa_robo.core.phases import CUE
from mikasa_robo.tools.plot import read_progress

N, S = 6, 70

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def learner(env: Any, **changes: Any) -> Any:
    small = {"memory": "gru", "memory_size": 16, "encoder_sizes": (16,), "head_sizes": (16,), "num_minibatches": 2}
    args = PPOMemoryArgs(num_envs=N, num_steps=S, network="recurrent", **{**small, "oracle_weight": 0.5, **changes})
    torch.manual_seed(0)
    spaces = env.single_observation_space, env.single_action_space
    return PPOMemory(args, Setup(*spaces, N, torch.device("cpu"), torch.Generator(), DistContext(), env))


@pytest.fixture(scope="module")
def env() -> Any:
    """Three groups of environments, so that some episodes are cut short."""
    task = mikasa_robo.make_env("RememberColor3-v0", N, obs_mode="objects+joints")
    staggered = StaggeredEpisodes(ManiSkillVectorEnv(task, record_metrics=True), 3, 60)
    yield staggered
    staggered.close()


def played(env: Any, algorithm: Any) -> Any:
    algorithm.schedule(0.5)
    obs, _ = env.reset(seed=0)
    algorithm.on_episode_start(torch.ones(N, dtype=torch.bool))
    batch = algorithm.rollout(env, obs, EpisodeStats())
    algorithm.network.update_normalizer(batch.obs)
    return batch


def test_the_oracle_is_that_of_the_environments_after_a_curriculum() -> None:
    tasks = [ManiSkillVectorEnv(mikasa_robo.make_env("RememberColor3-v0", N, obs_mode="objects+joints")) for _ in "ab"]
    env = StaggeredEpisodes(tasks[0], 1, 60)
    teacher = learner(env).teacher
    assert teacher.task is tasks[0].unwrapped
    env.replace(tasks[1], 1, 60)
    assert teacher.task is tasks[1].unwrapped
    for task in tasks:
        task.close()


def test_targets_in_any_order_are_told_as_a_set(env: Any) -> None:
    bunch = ManiSkillVectorEnv(mikasa_robo.make_env("BunchOfColors3-v0", N, obs_mode="objects+joints"))
    assert learner(StaggeredEpisodes(bunch, 1, 60), oracle_as_set=True).teacher.readout.as_set
    bunch.close()
    with pytest.raises(ArgumentError, match="--oracle-as-set cannot be used: what has to be remembered in "):
        learner(env, oracle_as_set=True)
    with pytest.raises(ArgumentError, match="--oracle-as-set does nothing without --oracle-weight"):
        PPOMemoryArgs(oracle_as_set=True).check()


def test_a_rollout_holds_what_each_step_can_know(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = learner(env)
    oracles: list[Tensor] = []
    known: list[Tensor] = []
    step = env.step

    def logged_step(action: Any) -> Any:
        info = env.unwrapped.get_info()
        oracles.append(info["oracle_info"].clone())
        known.append(info["phase"] != CUE)
        return step(action)

    monkeypatch.setattr(env, "step", logged_step)
    batch = played(env, algorithm)
    starts = batch.starts[1:].any(dim=1).sum()
    assert starts >= 3, "episodes end, some of them cut short"
    assert torch.equal(batch.oracle, torch.stack(oracles))
    assert torch.equal(batch.known, torch.stack(known))
    assert batch.oracle.shape == (S, N, 1)
    assert not batch.known[batch.starts].any(), "an episode begins with the cue"
    assert batch.known.any()
    assert learner(env, oracle_weight=0.0).rollout(env, batch.last_obs, EpisodeStats()).oracle is None


def test_the_read_out_learns_with_the_memory_and_leaves_the_actor_to_ppo(env: Any) -> None:
    algorithm = learner(env, learning_rate=3e-3, anneal_lr=False, target_kl=0.0, update_epochs=2)
    batch = played(env, algorithm)
    # No advantage and no error of the critic: whatever changes, the read-out has changed.
    batch.rewards.zero_()
    batch.final_values.zero_()
    batch.values.zero_()
    batch.last_value.zero_()
    algorithm.args.value_coef, algorithm.args.normalize_advantages = 0.0, False
    before = {name: value.clone() for name, value in algorithm.network.state_dict().items()}
    rows = [algorithm.update(batch) for _ in range(30)]
    assert rows[-1]["loss/oracle_told"] > 0.8 > rows[0]["loss/oracle_told"]
    assert rows[-1]["loss/oracle"] < 0.5 * rows[0]["loss/oracle"]
    after = algorithm.network.state_dict()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"memory", "trunk"}
    without = learner(env, oracle_weight=0.0)
    assert not {"loss/oracle", "loss/oracle_told"} & without.update(played(env, without)).keys()


def test_what_a_step_adds_to_the_loss_does_not_depend_on_how_many_are_known(env: Any) -> None:
    teacher = learner(env).teacher
    torch.manual_seed(0)
    y, oracle = torch.randn(4, 3, 16), torch.randint(3, (4, 3, 1))
    known = torch.zeros(4, 3, dtype=torch.bool)
    known[1:, :2] = True
    errors = teacher.readout(y[known], oracle[known])[0]
    loss, figures = teacher.loss(y, oracle, known, count=24)
    assert loss.item() == pytest.approx(0.5 * errors.sum().item() / 24)
    assert figures[2].item() == 6 / 24
    assert teacher.describe(figures[None])["loss/oracle"] == pytest.approx(errors.mean().item())
    parts = [teacher.loss(y[:, i : i + 1], oracle[:, i : i + 1], known[:, i : i + 1], 24)[0] for i in range(3)]
    assert sum(parts).item() == pytest.approx(loss.item()), "as a minibatch is computed in parts"


def test_while_the_critic_warms_up_the_read_out_learns_and_the_memory_stays(env: Any) -> None:
    """The read-out is new at a warm start: the gradients of one that knows nothing would spoil the memory."""
    algorithm = learner(env, value_warmup_steps=500, total_timesteps=1000)
    batch = played(env, algorithm)
    algorithm.schedule(0.0)
    before = {name: value.clone() for name, value in algorithm.network.state_dict().items()}
    rows = [algorithm.update(batch) for _ in range(30)]
    assert rows[-1]["loss/oracle"] < 0.9 * rows[0]["loss/oracle"]
    after = algorithm.network.state_dict()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith(("critic", "value")) for name in changed), changed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--env-id MemoryLengthEasy-v0 --oracle-weight 0.1", "--oracle-weight 0.1 is for the robot tasks"),
        ("--oracle-weight -1", "--oracle-weight -1"),
        ("--oracle-weight 0.1 --num-workers 2", "leave --num-workers out"),
    ],
)
def test_what_cannot_be_used_is_named(
    argv: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--num-envs", "4", "--num-minibatches", "1", "--run-dir", str(tmp_path / "a")]
    assert command.main("ppo", [*shlex.split(argv), *words]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "a").exists()


RUN = shlex.split(
    "--env-id RememberColor3-v0 --obs objects+joints --preset none --env-kwargs response_steps=5 --num-envs 2 "
    "--num-steps 16 --num-minibatches 1 --update-epochs 2 --stagger-groups 1 --eval-every 0 --eval-episodes 2 "
    "--eval-num-envs 2 --no-video --torch-threads 1 --sim-backend physx_cpu --network tokens --memory gru --memory-size 16 "
    "--token-size 16 --query-sizes 16 --oracle-weight 0.3 --total-timesteps 128 --checkpoint-every 64 --exact-resume "
    "--keep-checkpoints 9"
)


def test_a_run_with_a_read_out_is_resumed_exactly(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    for folder in (whole, part):
        assert command.main("ppo", [*RUN, "--run-dir", str(folder)]) == 0
    for name in ("resume-000000000128.pt", "final_eval.json"):  # as if it had been broken off at step 64
        (part / name).unlink()
    saved = torch.load(part / "resume-000000000064.pt", weights_only=True)
    assert "linear.weight" in saved["algorithm_state"]["teacher"]["readout"]
    assert command.main("ppo", ["--resume", str(part)]) == 0
    assert_same_policy(whole, part)
    assert not any("readout" in name for name in read_policy(whole / "checkpoint.pt")["state_dict"])
    assert float(read_progress(whole)[-1]["loss/oracle"]) > 0.0


def test_two_processes_teach_what_one_does_with_twice_the_environments(tmp_path: Path) -> None:
    """The read-out's gradients come from the steps of both processes, and both have the same read-out."""
    argv = shlex.split(
        "--env-id RememberColor3-v0 --obs objects+joints --preset none --env-kwargs response_steps=5 --num-steps 32 "
        "--num-minibatches 1 --update-epochs 2 --target-kl 0 --stagger-groups 1 --eval-every 0 --eval-episodes 2 "
        "--eval-num-envs 2 --no-video --torch-threads 1 --sim-backend physx_cpu --lstm-size 16 --oracle-weight 0.3 "
        "--total-timesteps 128"
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert ppo_lstm.main([*argv, "--num-envs", "2", "--run-dir", str(one)]) == 0
    run_in_two_processes("-m", "mikasa_robo.baselines.ppo_lstm", *argv, "--num-envs", "1", "--run-dir", str(two))
    weights, others = (read_policy(folder / "checkpoint.pt")["state_dict"] for folder in (one, two))
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, atol=1e-5, rtol=1e-5, msg=lambda m: f"{name}: {m}")  # noqa: B023
    rows, other_rows = read_progress(one), read_progress(two)
    assert [float(row["step"]) for row in rows] == [64.0, 128.0]
    for figure in ("loss/oracle", "loss/oracle_told", "loss/value"):
        found = [float(row[figure]) for row in other_rows]
        assert found == pytest.approx([float(row[figure]) for row in rows], rel=1e-4), figure
