"""`mikasa attack`: what it refuses, what it keeps, what its table says; once, slowly, that an attacker can learn at all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tool_helpers import OWN_ID, own_task

from mikasa_robo.baselines.arguments import CommonArgs
from mikasa_robo.baselines.checkpoints import load_network
from mikasa_robo.catalog import CATALOG
from mikasa_robo.experts.chance import chance
from mikasa_robo.statistics import lowest_difference, wilson_interval
from mikasa_robo.tools import attack as module
from mikasa_robo.tools.attack import Args, main, plan, training_args
from mikasa_robo.tools.attack_table import (
    AT_CHANCE,
    FIND,
    Row,
    markdown,
    read_reference,
    read_rows,
    verdict,
    write_row,
)
from mikasa_robo.tools.env_ids import OptionError

__all__ = ["own_task"]  # a fixture

COLOR, INTERCEPT = "RememberColor3-v0", "InterceptSlow-v0"
REPOSITORY = Path(__file__).parents[1]


def row(successes: int = 100, episodes: int = 300, env_id: str = COLOR, **values: Any) -> Row:
    """A row of the table, by default one at chance."""
    usual: dict[str, Any] = {
        "attacker": "ppo",
        "arm": "held",
        "obs": "objects+joints+time",
        "env_kwargs": "",
        "steps": 50_000,
        "seed": 1,
        "trained": 53_248,
        "num_envs": 64,
        "sim_backend": "physx_cpu_batched",
        "reward_mode": "normalized_dense",
        "failures": episodes - successes,
        "first_seed": 2_000_000,
        "version": "1",
        "commit": "abc",
        "seconds": 1.5,
    }
    return Row(env_id=env_id, episodes=episodes, successes=successes, **{**usual, **values})


Trainer = Callable[[CommonArgs, Sequence[str]], dict[str, Any]]


class FakeTrainer:
    """Notes what is trained, and succeeds in as many episodes as it was told."""

    def __init__(self, rate: float = 1 / 3) -> None:
        self.rate = rate
        self.runs: list[CommonArgs] = []
        self.error: BaseException | None = None
        """Raised by the second run."""

    def __call__(self, args: CommonArgs, command: Sequence[str]) -> dict[str, Any]:
        self.runs.append(args)
        if self.error is not None and len(self.runs) == 2:
            raise self.error
        assert args.run_dir is not None
        args.run_dir.mkdir(parents=True)
        (args.run_dir / "final_eval.json").write_text(json.dumps(list(command)))
        final = {"first_seed": args.final_eval_seed, "episodes": args.eval_episodes, "success_once": self.rate}
        return {
            "training_steps": args.total_timesteps,
            "wall_time_s": 2.0,
            "final": {**final, "fail_once": 1 - self.rate},
            "git": {"revision": "0123456789abcdef", "dirty": True},
        }


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> FakeTrainer:
    fake = FakeTrainer()
    monkeypatch.setattr(module, "run_training", fake)
    return fake


# ---------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--env-id RememberColor4-v0", "RememberColor4-v0"),
        ("--env-id CartPole-v1", "--env-id CartPole-v1 has no expert"),
        ("--env-id all RememberColor3-v0", "leave the others out"),
        ("--env-id RememberColor3-v0 RememberColor3-v0", "names something twice"),
        ("--env-id RememberColor3-v0 --teacher memory", "--teacher memory is not known; use some of expert"),
        ("--env-id RememberColor3-v0 --episodes 0", "--episodes 0 must be from 1"),
        ("--env-id RememberColor3-v0 --seeds 1 1", "--seeds 1 1 names something twice"),
        ("--env-id RememberColor3-v0 --seeds -1", "--seed -1 cannot be used"),
        ("--env-id RememberColor3-v0 --ppo-steps 100", "--ppo-steps 100 is less than one rollout of 4096 steps"),
        ("--env-id RememberColor3-v0 --obs object", "'object' is not known"),
        ("--env-id RememberColor3-v0 --obs state_dict", "shows hidden objects"),
        ("--env-id RememberColor3-v0 --env-kwargs arm=free", "use --arm"),
        ("--env-id RememberColor3-v0 --env-kwargs obs_mode=state", "use --obs"),
        ("--env-id RememberColor3-v0 --sim-backend bullet", "--sim-backend bullet"),
        ("--env-id RememberColor3-v0 --reference missing.csv", "--reference missing.csv"),
        ("--env-id RememberColor3-v0 --out /proc/attack", "--out /proc/attack"),
    ],
)
def test_what_cannot_be_used_is_named_and_nothing_is_trained(
    words: str, message: str, trainer: FakeTrainer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = [] if "--out" in words else ["--out", str(tmp_path / "out")]
    assert main([*words.split(), *out]) == 2
    assert message in capsys.readouterr().err
    assert not trainer.runs
    assert not (tmp_path / "out").exists()


def test_one_file_cannot_be_the_results_and_the_table(
    trainer: FakeTrainer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results, link = tmp_path / "a.csv", tmp_path / "link.csv"
    results.write_text("hours of training")
    link.symlink_to(results)
    words = ["--env-id", COLOR, "--out", str(tmp_path / "out"), "--csv", str(results)]
    for option, path in (("--markdown", results), ("--markdown", link), ("--reference", results)):
        assert main([*words, option, str(path)]) == 2
        assert f"{option} {path} is the same file as --csv; name another one" in capsys.readouterr().err
    assert results.read_text() == "hours of training"
    assert not trainer.runs


def test_a_task_of_ones_own_without_an_expert_is_refused(
    own_task: str,
    trainer: FakeTrainer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert main(["--env-id", own_task, "--attacker", "ppo", "--out", str(tmp_path)]) == 0
    assert trainer.runs[0].env_id == OWN_ID
    table = (tmp_path / "attack.md").read_text()
    assert f"| `{OWN_ID}` | held | objects+joints+time | - | 33.3 (28 to 39) | - |" in table
    from mikasa_robo import catalog

    monkeypatch.setitem(catalog._TABLE, OWN_ID, dataclasses.replace(CATALOG[OWN_ID], skill=None))
    assert main(["--env-id", OWN_ID, "--out", str(tmp_path / "other")]) == 2
    assert f"--env-id {OWN_ID} has no expert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kept", "words", "message"),
    [
        ({}, ["--episodes", "100"], "has results of 300 episodes; use as many, or another --csv"),
        ({}, ["--reward-mode", "sparse"], "has results with normalized_dense"),
        ({"env_id": "Gone-v0"}, [], "has Gone-v0, which is not registered"),
    ],
)
def test_results_that_cannot_be_compared_do_not_get_into_one_table(
    kept: dict[str, Any],
    words: list[str],
    message: str,
    trainer: FakeTrainer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    write_row(tmp_path / "attack.csv", row(**kept))
    assert main(["--env-id", COLOR, "--out", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err
    assert not trainer.runs


@pytest.mark.parametrize(
    ("kept", "words", "message"),
    [
        ({"num_envs": 32}, [], "--num-envs 64: {csv} has the result of {run}, trained in 32 environments; use as many"),
        (
            {"sim_backend": "physx_cuda"},
            ["--sim-backend", "physx_cpu"],
            "--sim-backend physx_cpu: {csv} has the result of {run}, trained with physx_cuda; use that, or another --csv",
        ),
        (
            {"sim_backend": "-"},
            ["--sim-backend", "physx_cpu"],
            "--sim-backend physx_cpu: {csv} has the result of {run}, and does not say with which simulator; leave",
        ),
    ],
)
def test_a_result_of_other_settings_is_not_taken_for_one_of_these(
    kept: dict[str, Any],
    words: list[str],
    message: str,
    trainer: FakeTrainer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "attack.csv"
    write_row(path, row(**kept))
    before = path.read_bytes()
    command = ["--attacker", "ppo", "--out", str(tmp_path), *words]
    assert main(["--env-id", COLOR, *command]) == 2
    run = f"{COLOR} ppo, arm held, 50,000 steps, seed 1"
    assert message.format(csv=path, run=run) in capsys.readouterr().err
    assert not trainer.runs
    assert path.read_bytes() == before
    # It stays in the table beside runs that are asked for.
    assert main(["--env-id", "ShellGamePush-v0", *command]) == 0
    assert [run.env_id for run in trainer.runs] == ["ShellGamePush-v0"]
    assert len(read_rows(path)) == 2


def test_results_of_the_same_settings_are_kept_and_auto_takes_any_simulator(
    trainer: FakeTrainer, tmp_path: Path
) -> None:
    path = tmp_path / "attack.csv"
    for backend, words in (
        ("physx_cuda", []),
        ("-", ["--sim-backend", "auto"]),
        ("physx_cpu_batched", ["--sim-backend", "physx_cpu"]),  # which it stands for with several environments
        ("physx_cpu", ["--sim-backend", "cpu", "--num-envs", "1"]),
    ):
        path.unlink(missing_ok=True)
        write_row(path, row(sim_backend=backend, num_envs=1 if backend == "physx_cpu" else 64))
        assert main(["--env-id", COLOR, "--attacker", "ppo", "--out", str(tmp_path), *words]) == 0
    assert not trainer.runs


def test_a_file_from_before_there_was_a_column_of_the_simulator_is_read(tmp_path: Path) -> None:
    path = tmp_path / "attack.csv"
    write_row(path, row())
    path.write_text(path.read_text().replace("sim_backend,", "").replace("physx_cpu_batched,", ""))
    (found,) = read_rows(path).values()
    assert found == row(sim_backend="-")
    assert set(write_row(path, row(seed=2)).values()) == set(read_rows(path).values()) == {found, row(seed=2)}


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", None])
def test_another_file_is_no_table_of_results(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "attack.csv"
    if text is None:
        write_row(path, row())
        path.write_text(path.read_text().replace(",300,100,", ",300,400,"))
    else:
        path.write_text(text)
    with pytest.raises(OptionError, match=r"no table of `mikasa attack`.*name another file"):
        read_rows(path)


# ---------------------------------------------------------------------- what is trained
def test_attackers_are_trained_without_memory_and_with_the_arm_held() -> None:
    args = Args(env_id=(COLOR, INTERCEPT), seeds=(1, 2), episodes=50, env_kwargs=("on_mistake=ignore",))
    attacks = list(plan(args, args.env_id))
    assert [attack.attacker for attack in attacks[::2]] == ["ppo", "dagger-expert", "dagger-posture"] * 2
    assert {attack.arm for attack in attacks if attack.env_id == COLOR} == {"held"}
    assert {attack.arm for attack in attacks if attack.env_id == INTERCEPT} == {"free"}, "it has no step to hold it in"
    assert [attack.seed for attack in attacks] == [1, 2] * 6
    for attack in attacks:
        made: Any = training_args(attack, args, Path("run"))
        made.check()
        held = ("arm=held",) if attack.env_id == COLOR else ()
        assert made.env_kwargs == ("on_mistake=ignore", *held)
        assert (made.obs, made.seed, made.total_timesteps) == ("objects+joints+time", attack.seed, attack.steps)
        assert (made.final_eval_seed, made.eval_episodes, made.run_dir) == (2_000_000, 50, Path("run"))
        if attack.attacker == "ppo":
            assert (made.algorithm, made.network_name) == ("ppo-mlp", "mlp")
        else:
            assert (made.algorithm, made.memory) == ("dagger", "none")
            assert made.teacher == attack.attacker.removeprefix("dagger-")


def test_results_are_kept_and_only_what_is_missing_is_trained(
    trainer: FakeTrainer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--env-id", COLOR, "ShellGamePush-v0", "--attacker", "ppo", "--out", str(tmp_path)]
    assert main(words) == 0
    rows = read_rows(tmp_path / "attack.csv")
    assert [run.env_id for run in trainer.runs] == [COLOR, "ShellGamePush-v0"]
    assert {(found.env_id, found.successes, found.failures, found.commit) for found in rows.values()} == {
        (COLOR, 100, 200, "0123456789+"),
        ("ShellGamePush-v0", 100, 200, "0123456789+"),
    }
    assert "not above chance" in capsys.readouterr().out
    assert main([*words, "--seeds", "1", "2", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("not trained yet") == 2
    assert len(trainer.runs) == 2
    assert main([*words, "--seeds", "1", "2"]) == 0
    assert [run.seed for run in trainer.runs] == [1, 1, 2, 2]
    assert capsys.readouterr().out.count("kept (commit 0123456789+)") == 2
    assert (
        "| `RememberColor3-v0` | held | objects+joints+time | 33.3 | 33.3 (30 to 37) | not above chance |"
        in (tmp_path / "attack.md").read_text()
    ), "600 episodes of two runs"
    assert "Runs play the same episodes" in (tmp_path / "attack.md").read_text()

    command = json.loads((tmp_path / f"{COLOR}__ppo__held__objects+joints+time__50000__1/final_eval.json").read_text())
    assert command == ["mikasa", "attack", *words]


def test_the_line_of_a_run_has_the_verdict_of_its_level_in_the_table(
    trainer: FakeTrainer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_row(tmp_path / "attack.csv", row(130))
    words = ["--env-id", COLOR, "--attacker", "ppo", "--out", str(tmp_path), "--dry-run", "--seeds"]
    assert main([*words, "1"]) == 0
    assert f"seed 1: success 43.3% of 300 episodes, {FIND} (ppo)" in capsys.readouterr().out
    assert main([*words, *map(str, range(1, 51))]) == 0
    assert f"seed 1: success 43.3% of 300 episodes, {AT_CHANCE}" in capsys.readouterr().out, "one of 50 is lucky"
    for seed in range(2, 51):
        write_row(tmp_path / "attack.csv", row(100, seed=seed))
    assert main([*words, "1"]) == 0
    assert f"seed 1: success 43.3% of 300 episodes, {AT_CHANCE}" in capsys.readouterr().out
    assert not trainer.runs


def test_an_interrupted_attack_keeps_what_is_finished(trainer: FakeTrainer, tmp_path: Path) -> None:
    words = ["--env-id", COLOR, "--out", str(tmp_path), "--csv", str(tmp_path / "new" / "results.csv")]
    trainer.error = KeyboardInterrupt()
    assert main(words) == 130
    assert [found.attacker for found in read_rows(tmp_path / "new" / "results.csv").values()] == ["ppo"]
    left = tmp_path / f"{COLOR}__dagger-expert__held__objects+joints+time__20000__1"
    left.mkdir()
    (left / "checkpoint.pt").write_text("of the run that was interrupted")
    assert main(words) == 0
    assert len(read_rows(tmp_path / "new" / "results.csv")) == 3
    assert trainer.runs[2].run_dir == left.with_name(f"{left.name}__attempt-2"), "it is not overwritten"


def test_the_others_go_on_where_a_run_fails(
    trainer: FakeTrainer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trainer.error = FloatingPointError("a loss is infinite")
    assert main(["--env-id", COLOR, "--out", str(tmp_path)]) == 1
    assert "dagger-expert, arm held, 20,000 steps, seed 1: a loss is infinite" in capsys.readouterr().err
    assert {found.attacker for found in read_rows(tmp_path / "attack.csv").values()} == {"ppo", "dagger-posture"}


def test_rows_are_read_as_they_were_written_and_in_the_order_of_the_catalog(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "attack.csv"
    written = [
        row(env_id="ChainOfColors3-v0"),
        row(seed=2),
        row(),
        row(env_kwargs="delay_steps=20 n=3"),
        row(arm="free"),
    ]
    for each in written:
        found = write_row(path, each)
    assert found == read_rows(path) == {each.attack: each for each in written}
    assert list(read_rows(path).values())[-1].env_id == "ChainOfColors3-v0"
    again = dataclasses.replace(row(), successes=101)
    assert write_row(path, again)[again.attack].successes == 101
    assert len(read_rows(path)) == len(written)
    assert [each.name for each in path.parent.iterdir()] == ["attack.csv"]


# ---------------------------------------------------------------------- what it means
def test_the_verdict_is_about_chance_at_a_level_for_many_comparisons() -> None:
    assert verdict([row(100)]) == verdict([row(0)]) == AT_CHANCE
    assert wilson_interval(120, 300)[0] > 1 / 3 > wilson_interval(120, 300, 0.999)[0]
    assert verdict([row(120)]) == AT_CHANCE, "0.4 happens by luck in a table of a hundred cells"
    assert verdict([row(150)]) == f"{FIND} (ppo)"
    assert verdict([row(100), row(150, seed=2, attacker="dagger-posture")]) == f"{FIND} (dagger-posture)"
    level = 1 - 0.001 / 50
    assert wilson_interval(130, 300, 0.999)[0] > 1 / 3 > wilson_interval(130, 300, level)[0]
    assert verdict([row(130)]) != AT_CHANCE
    assert verdict([row(130, seed=seed) for seed in range(50)]) == AT_CHANCE, "the best of 50 is lucky"
    assert verdict([row(130)], of=50) == AT_CHANCE, "nor is one of them a find by itself"
    assert verdict([row(300, obs="state+time")]) == "above chance, but told the cue: ppo"


def test_chance_is_that_of_the_task_with_its_arguments() -> None:
    assert verdict([row(100, env_id="RememberColor9-v0", env_kwargs="delay_steps=20 n=3")]) == AT_CHANCE
    assert verdict([row(100, env_kwargs="n=9")]) == f"{FIND} (ppo)", "a third is much where one of nine is right"
    sizes = row(env_id="RememberShapeAndColor3x2-v0", env_kwargs="shapes=5 colors=3")
    assert sizes.chance == pytest.approx(1 / 15)
    # Who may try again succeeds without a memory, and so does who finds all but one target touched.
    assert verdict([row(300, env_kwargs="on_mistake=ignore")]) == "-"
    for words in ("start_counted=2", "start_counted=[0, 2] delay_steps=20"):
        assert row(40, env_id="BunchOfColors3-v0", env_kwargs=words).chance is None
    assert row(env_kwargs="on_mistake=fail").chance == row().chance == pytest.approx(1 / 3)
    text = markdown([row(300, env_kwargs="on_mistake=ignore")], {COLOR: (97, 300)})
    assert (
        f"| `{COLOR}` on_mistake=ignore | held | objects+joints+time | - | 100.0 (99 to 100) | - |" in text.splitlines()
    )


def test_where_no_chance_is_known_the_script_is_the_bound() -> None:
    assert chance(CATALOG[INTERCEPT]) is None
    one = row(156, env_id=INTERCEPT, arm="free")
    assert verdict([one]) == "-"
    assert verdict([one], (156, 300)) == "no better than the script"
    assert verdict([dataclasses.replace(one, successes=270)], (156, 300)) == "above the script: a find (ppo)"
    # Newcombe (1998), table II, row (a), method 10
    assert lowest_difference((56, 70), (48, 80)) == pytest.approx(0.0524, abs=5e-5)


def test_the_table_shows_the_largest_budget_and_every_case() -> None:
    rows = [
        row(90),
        row(150, steps=500_000, trained=503_808),
        row(300, attacker="dagger-posture", arm="free", steps=20_000, trained=23_040),
        row(60, env_kwargs="n=5"),
        row(160, env_id=INTERCEPT, arm="free"),
    ]
    text = markdown(rows, {INTERCEPT: (156, 300), COLOR: (97, 300)})
    assert text.count("\n| `") == 4
    head = "| ID | arm | observation | chance | dagger-posture | ppo | |"
    obs = "objects+joints+time"
    for line in (
        head,
        f"| `{INTERCEPT}` | free | {obs} | 52.0 (script) | - | 53.3 (48 to 59) | no better than the script |",
        f"| `{COLOR}` | held | {obs} | 33.3 | - | 50.0 (44 to 56) | {FIND} (ppo) |",
        f"| `{COLOR}` n=5 | held | {obs} | 20 | - | 20.0 (16 to 25) | {AT_CHANCE} |",
        f"| `{COLOR}` | free | {obs} | 33.3 | 100.0 (99 to 100) | - | {FIND} (dagger-posture) |",
    ):
        assert line in text.splitlines()
    assert "dagger-posture 23,040; ppo 53,248 or 503,808" in text
    assert "Training runs a cell: 1." in text, "not 2, where one of two runs had a smaller budget"


def test_the_reference_is_that_of_the_script_without_memory(tmp_path: Path) -> None:
    found = read_reference(REPOSITORY / "docs" / "results" / "memory_need.csv")
    assert found.keys() >= {INTERCEPT, "TakeItBack-v0", "RotateLenientPos-v0"}
    assert all(0 <= successes <= episodes for successes, episodes in found.values())
    head = "env_id,run,successes,episodes\n"
    for text in ("a\n1\n", f"{head}{COLOR},memoryless\n", f"{head}{COLOR},memoryless,0,0\n"):
        (tmp_path / "other.csv").write_text(text)
        with pytest.raises(OptionError, match="no CSV of benchmarks/memory_need"):
            read_reference(tmp_path / "other.csv")


def test_the_published_table_is_that_of_the_published_results() -> None:
    """If not: run `mikasa attack` once more, as docs/results/README.md has it. It trains only what is missing."""
    results = REPOSITORY / "docs" / "results"
    rows = read_rows(results / "attack.csv")
    assert rows
    assert markdown(rows.values(), read_reference(results / "memory_need.csv")) == (results / "attack.md").read_text()


@pytest.mark.slow
def test_an_attacker_that_is_told_the_cue_learns_the_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Else success at chance would say nothing about the tasks."""
    small = {"token_size": 32, "head_sizes": (128, 128), "memory_size": 64}
    few = {"batch_episodes": 16, "warm_start_updates": 350, "updates_per_rollout": 120}
    monkeypatch.setattr(module, "IMITATION", small | few)
    words = (
        "--env-id ShellGameTouch-v0 --attacker dagger --teacher expert --obs objects+joints+time+oracle --num-envs 32"
    )
    words += " --env-kwargs cue_steps=1 response_steps=40 --dagger-steps 3840 --episodes 32"
    assert main([*words.split(), "--out", str(tmp_path)]) == 0
    (found,) = read_rows(tmp_path / "attack.csv").values()
    assert found.trained == 3840
    assert wilson_interval(found.successes, found.episodes, 0.99)[0] > 1 / 3, found.successes
    assert "above chance, but told the cue: dagger-expert" in capsys.readouterr().out
    (file,) = tmp_path.glob("*/checkpoint.pt")
    network = load_network(file)
    assert network.initial_state(2) == {}, "it has nothing to remember with"
