"""``--env-kwargs`` and ``--init-from`` of ``mikasa train``: what they do, and how they refuse what cannot work."""

import copy
import dataclasses
import json
import logging
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from mikasa_robo.baselines import ppo_lstm, ppo_mlp, training
from mikasa_robo.baselines.arguments import EVALUATION_SEEDS, ArgumentError, read_env_kwargs
from mikasa_robo.baselines.command import env_factory
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.networks import ActorCritic, RecurrentActorCritic
from mikasa_robo.baselines.ppo_arguments import PPOMLPArgs
from mikasa_robo.baselines.registry import ALGORITHMS
from mikasa_robo.baselines.spaces import ObservationLayout, ObservationPart
from mikasa_robo.baselines.training_envs import TrainingEnvs, require_same_spaces
from mikasa_robo.tools import cli, evaluate, report
from mikasa_robo.tools.plot import read_progress

SHORT = [
    "--num-envs",
    "4",
    "--num-steps",
    "8",
    "--num-minibatches",
    "2",
    "--total-timesteps",
    "64",
    "--update-epochs",
    "1",
]
QUIET = ["--eval-every", "0", "--eval-episodes", "4", "--eval-num-envs", "4", "--no-video", "--torch-threads", "1"]
MAZE = ["--env-id", "PassiveTMaze-v0", *SHORT, *QUIET]


def train(module: Any, run_dir: Path, *words: str) -> int:
    code: int = module.main([*words, "--run-dir", str(run_dir)])
    return code


def result(run_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "final_eval.json").read_text())
    return content


@pytest.mark.parametrize(
    ("seed", "changes", "whose"),
    [
        (2_000_000, {}, "`mikasa eval`"),
        (2_999_999, {}, "`mikasa eval`"),
        (1_000_099, {}, "--eval-seed 1000000"),
        (7, {"eval_seed": 5, "eval_episodes": 3}, "--eval-seed 5"),
        (5_000_000, {"final_eval_seed": 5_000_000}, "--final-eval-seed 5000000"),
    ],
)
def test_a_seed_of_an_evaluation_is_refused(seed: int, changes: dict[str, Any], whose: str, tmp_path: Path) -> None:
    args = dataclasses.replace(PPOMLPArgs(), seed=seed, **changes)
    with pytest.raises(
        ArgumentError, match=f"--seed {seed} cannot be used: .* of the evaluations of {whose}, which have"
    ):
        args.check()
    dataclasses.replace(args, resume=tmp_path).check()  # began before it was refused


def test_seeds_beside_those_of_evaluations_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EVALUATION_SEEDS[0] == evaluate.FIRST_SEED
    args = PPOMLPArgs()
    for seed in (999_999, 1_000_100, 1_999_999, 3_000_000):
        dataclasses.replace(args, seed=seed).check()
    monkeypatch.setenv("WORLD_SIZE", "2")  # the second process of one of ManiSkill's own tasks
    with pytest.raises(ArgumentError, match="--seed 1999940 cannot be used"):
        dataclasses.replace(args, seed=1_999_940, num_envs=64).check()


@pytest.mark.parametrize(
    ("changes", "whose"),
    [
        ({"eval_seed": 2_000_000}, "`mikasa eval`"),
        ({"eval_seed": 1_999_901}, "`mikasa eval`"),
        ({"eval_seed": 7, "final_eval_seed": 9, "eval_episodes": 3}, "--final-eval-seed 9"),
    ],
)
def test_no_policy_is_chosen_by_what_it_is_judged_by(changes: dict[str, Any], whose: str, tmp_path: Path) -> None:
    args = dataclasses.replace(PPOMLPArgs(), **changes)
    with pytest.raises(
        ArgumentError, match=f"--eval-seed {args.eval_seed} cannot be used: .* play episodes of {whose}, "
    ):
        args.check()
    dataclasses.replace(args, resume=tmp_path).check()
    dataclasses.replace(args, eval_seed=1_999_900, final_eval_seed=4_000_000).check()


def test_nothing_is_made_with_the_seed_of_an_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(ppo_mlp, tmp_path / "run", *MAZE, "--seed", "2000000") == 2
    assert "--seed 2000000 cannot be used: training would play episodes of the evaluations" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_words_become_arguments() -> None:
    words = ["arm=held", "delay_steps=20", "goal_radius=0.05", "flag=true", "sizes=[1, 2]", "text=a=b"]
    read = {"arm": "held", "delay_steps": 20, "goal_radius": 0.05, "flag": True, "sizes": [1, 2], "text": "a=b"}
    assert read_env_kwargs(words) == read


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["arm"], "--env-kwargs arm is not NAME=VALUE"),
        (["1a=3"], "is not NAME=VALUE"),
        (["obs_mode=rgb"], "use --obs"),
        (["num_workers=2"], "--env-kwargs num_workers=2: use --num-workers if the command has it, or leave it out"),
        (["render_mode=human"], "the command sets render_mode itself"),
        (["arm=held", "arm=free"], "arm is given twice"),
    ],
)
def test_words_that_cannot_be_used_are_named(words: list[str], hint: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=hint):
        read_env_kwargs(words)
    assert train(ppo_mlp, tmp_path / "run", *MAZE, "--env-kwargs", *words) == 2
    assert not (tmp_path / "run").exists()


def test_training_and_evaluation_have_the_arguments(tmp_path: Path) -> None:
    assert train(ppo_mlp, tmp_path / "run", *MAZE, "--env-kwargs", "corridor_length=2") == 0
    final = result(tmp_path / "run")
    assert final["final"]["length"] == 3  # a corridor of 2 and the choice; without the argument it is 11
    assert final["args"]["env_kwargs"] == ["corridor_length=2"]
    out = tmp_path / "eval.json"
    checkpoint = str(tmp_path / "run" / "checkpoint.pt")
    assert evaluate.main(["--checkpoint", checkpoint, "--episodes", "3", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["summary"]["length"]["mean"] == 3


def test_only_training_has_the_arguments_of_a_curriculum(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["--env-kwargs", "corridor_length=2", "--train-env-kwargs", "corridor_length=4"]
    assert train(ppo_mlp, run, *MAZE, *words) == 0
    final = result(run)
    assert final["final"]["length"] == 3
    assert final["args"]["env_kwargs"] == ["corridor_length=2"]
    assert final["args"]["train_env_kwargs"] == ["corridor_length=4"]
    lengths = [float(row["train/length"]) for row in read_progress(run) if row["train/length"]]
    assert lengths
    assert set(lengths) == {5.0}, "training plays the longer corridor"
    assert train(ppo_mlp, tmp_path / "plain", *MAZE, "--env-kwargs", "corridor_length=2") == 0
    assert report.main([str(run), str(tmp_path / "plain"), "--out", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "PassiveTMaze-v0 corridor_length=2" in text
    assert "ppo-mlp (trained with corridor_length=4)" in text
    out = tmp_path / "eval.json"
    checkpoint = str(run / "checkpoint.pt")
    assert evaluate.main(["--checkpoint", checkpoint, "--episodes", "3", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["summary"]["length"]["mean"] == 3, "a later evaluation does so, too"


def test_a_curriculum_ends_and_training_plays_the_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    words = ["--env-kwargs", "corridor_length=2", "--train-env-kwargs", "corridor_length=4", "--stagger-groups", "1"]
    share = ["--total-timesteps", "256", "--curriculum-share", "0.4"]  # 102.4 of 256 steps, and a rollout has 32
    with caplog.at_level(logging.INFO, "mikasa_robo.baselines"):
        assert train(ppo_mlp, run, *MAZE, *words, *share) == 0
    assert "step 128: training now plays the task itself" in caplog.text
    lengths = {float(row["step"]): float(row["train/length"]) for row in read_progress(run) if row["train/length"]}
    assert {length for step, length in lengths.items() if step <= 128} == {5.0}
    assert {length for step, length in lengths.items() if step > 128} == {3.0}
    assert report.main([str(run), "--out", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "ppo-mlp (trained with corridor_length=4 for 40 % of the steps)" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train-env-kwargs", "corridor_length=4", "--curriculum-share", "0"], "use a value above 0, at most 1"),
        (["--train-env-kwargs", "corridor_length=4", "--curriculum-share", "1.5"], "use a value above 0, at most 1"),
        (["--curriculum-share", "0.5"], "--curriculum-share 0.5 needs a curriculum; add --train-env-kwargs"),
    ],
)
def test_a_share_that_cannot_be_used_is_named(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(ppo_mlp, tmp_path / "run", *MAZE, *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("curriculum_share", 0.5), ("critic_obs", "state"), ("success_worth", 2.0), ("potential_shaping", True)],
)
def test_an_option_of_other_algorithms_is_refused(name: str, value: Any) -> None:
    """The command line does not offer it, and `train` would read it."""
    args = ALGORITHMS["dagger"].load_args_type()(env_id="RememberColor3-v0", **{name: value})
    with pytest.raises(ArgumentError, match=rf"dagger has no option {name} \(given: {value}\); leave it out"):
        args.check()


def test_environments_are_closed_once_where_those_of_the_task_cannot_be_made() -> None:
    args = ppo_mlp.Args(
        env_id="PassiveTMaze-v0", num_envs=2, curriculum_share=0.5, train_env_kwargs=("corridor_length=4",)
    )
    made: list[Any] = []

    def easier(num_envs: int, render_mode: str | None) -> Any:
        made.append(env_factory(args)(num_envs, render_mode))
        made[0].close = lambda: closed.append(True)
        return made[0]

    def task(num_envs: int, render_mode: str | None) -> Any:
        raise RuntimeError("no memory")

    closed: list[bool] = []
    envs = TrainingEnvs(args, task, easier, DistContext())
    assert not envs.advance(args.total_timesteps // 2 - 1)
    with pytest.raises(RuntimeError, match="no memory"):
        envs.advance(args.total_timesteps // 2)
    envs.close()
    assert closed == [True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["arm"], "--train-env-kwargs arm is not NAME=VALUE"),
        (["render_mode=human"], "--train-env-kwargs render_mode=human: the command sets render_mode itself"),
        (["corridor_length=0"], "with --train-env-kwargs corridor_length=0: "),
    ],
)
def test_arguments_of_a_curriculum_that_cannot_be_used_are_named(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(ppo_mlp, tmp_path / "run", *MAZE, "--train-env-kwargs", *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_curriculum_may_not_change_what_is_observed() -> None:
    args = ppo_mlp.Args(env_id="RememberColor3-v0", train_env_kwargs=("n=4", "delay_steps=9"))
    made = [SimpleNamespace(single_action_space=1, single_observation_space=size) for size in (3, 4)]
    envs = [SimpleNamespace(unwrapped=env) for env in made]
    with pytest.raises(ArgumentError, match=r"--train-env-kwargs n=4 delay_steps=9: the single_observation_space"):
        require_same_spaces(args, *envs)
    require_same_spaces(args, envs[0], envs[0])
    with pytest.raises(
        ArgumentError, match=r"--train-env-kwargs n=4 delay_steps=9: give train\(\) a train_env_factory"
    ):
        ppo_mlp.train(args, env_factory(args))


def test_longer_episodes_than_those_of_the_table_are_played_to_their_end(tmp_path: Path) -> None:
    assert train(ppo_lstm, tmp_path / "run", *MAZE, "--preset", "none", "--env-kwargs", "corridor_length=40") == 0
    assert result(tmp_path / "run")["final"]["length"] == 41


def test_a_result_names_the_revision_that_the_run_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"

    def provenance(command: Any) -> dict[str, Any]:
        return {"git": {"revision": "a later one" if run_dir.exists() else "that of the code", "dirty": False}}

    monkeypatch.setattr(training, "provenance", provenance)
    assert train(ppo_mlp, run_dir, *MAZE) == 0
    assert result(run_dir)["git"]["revision"] == "that of the code"


def test_a_report_keeps_tasks_with_other_arguments_apart(tmp_path: Path) -> None:
    for length in ("2", "3"):
        assert train(ppo_mlp, tmp_path / "runs" / length, *MAZE, "--env-kwargs", f"corridor_length={length}") == 0
    collection = report.collect([tmp_path / "runs"])
    assert {run.env_id for run in collection.runs} == {f"PassiveTMaze-v0 corridor_length={n}" for n in "23"}
    assert not collection.problems


def test_a_robot_task_has_the_arguments() -> None:
    args = ppo_mlp.Args(env_id="RememberColor3-v0", env_kwargs=("arm=held", "delay_steps=3"), sim_backend="physx_cpu")
    env: Any = env_factory(args)(2, None)
    assert env.unwrapped.arm == "held"
    assert env.unwrapped.timeline.delay == 3
    env.close()


@pytest.mark.parametrize(
    ("algorithm", "idle", "owner"),
    [
        ("ppo-mlp", {"gsde_interval": 4}, {"exploration": "gsde"}),
        ("ppo", {"noise_correlation": 0.5}, {"exploration": "smooth"}),
        ("ppo-lstm", {"value_clip": 0.5}, {"value_loss": "clipped"}),
        ("ppo-mlp", {"huber_delta": 0.5}, {"value_loss": "huber"}),
        ("ppo-mlp", {"desired_kl": 0.02}, {"lr_schedule": "kl-adaptive"}),
        ("dagger", {"huber_delta": 1.0, "loss": "mse"}, {"loss": "huber"}),
        ("rate", {"huber_delta": 1.0, "loss": "mse"}, {"loss": "huber"}),
        ("sac", {"expert_ratio": 0.25}, {"expert_steps": 1000}),
        ("sac", {"expert_noise": 0.1}, {"expert_steps": 1000}),
        ("dagger", {"warm_start_updates": 900, "warm_start_steps": 0}, {"warm_start_steps": 7680}),
        ("dagger", {"expert_noise": 0.1, "warm_start_steps": 0}, {"warm_start_steps": 7680}),
        (
            "dagger",
            {"image_pretraining_steps": 500, "image_pretraining_updates": 0},
            {"image_pretraining_updates": 100},
        ),
        ("dagger", {"lr_schedule": "linear", "anneal_lr": False}, {"anneal_lr": True}),
        ("rate", {"lr_schedule": "linear", "anneal_lr": False}, {"anneal_lr": True}),
        ("ppo-mlp", {"exact_resume": True, "checkpoint_every": 0}, {"checkpoint_every": 1000}),
        ("ppo-mlp", {"keep_checkpoints": 9, "checkpoint_every": 0}, {"checkpoint_every": 1000}),
        ("ppo-mlp", {"wandb_project": "x"}, {"track": True}),
        ("ppo-mlp", {"wandb_mode": "online"}, {"track": True}),
    ],
)
def test_an_option_without_the_one_that_it_belongs_to_is_refused(
    algorithm: str, idle: dict[str, Any], owner: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))  # --track asks for it
    args_class = ALGORITHMS[algorithm].load_args_type()
    needed = {"dataset": str(tmp_path)} if algorithm == "rate" else {}
    name, value = next(iter(idle.items()))
    (belongs_to,) = owner
    words = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
    options = f"{words} does nothing without --{belongs_to.replace('_', '-')}"
    with pytest.raises(ArgumentError, match=options):
        args_class(**needed, **idle).check()
    args_class(**needed, **{**idle, **owner}).check()
    args_class(**needed, **idle, resume=tmp_path).check()  # a run of an earlier version may have begun with it


@pytest.mark.parametrize("algorithm", ["dagger", "bc", "dt", "rate", "iql"])
def test_noise_is_refused_where_no_action_is_sampled(algorithm: str, tmp_path: Path) -> None:
    args_class = ALGORITHMS[algorithm].load_args_type()
    needed = {} if algorithm == "dagger" else {"dataset": str(tmp_path)}
    with pytest.raises(
        ArgumentError, match=f"--init-log-std -1.0 does nothing in {algorithm}, which takes the most likely"
    ):
        args_class(**needed, init_log_std=-1.0).check()
    args_class(**needed, init_log_std=-1.0, resume=tmp_path).check()  # a run of an earlier version


@pytest.mark.parametrize("rate", [1e-6, 0.05])
def test_an_adaptive_learning_rate_begins_within_its_bounds(rate: float) -> None:
    args_class = ALGORITHMS["ppo-mlp"].load_args_type()
    with pytest.raises(ArgumentError, match=f"--learning-rate {rate:g}.*use 1e-05 to 0.01 with kl-adaptive"):
        args_class(lr_schedule="kl-adaptive", learning_rate=rate).check()
    args_class(learning_rate=rate).check()


@pytest.mark.parametrize(("env_id", "word"), [("RememberColor3-v0", "colour=3"), ("PassiveTMaze-v0", "colour=3")])
def test_arguments_that_a_task_does_not_take_are_named_before_there_is_a_run(
    env_id: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(ppo_mlp, tmp_path / "run", "--env-id", env_id, *SHORT, *QUIET, "--env-kwargs", word) == 2
    assert "colour" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("module", [ppo_mlp, ppo_lstm])
def test_a_run_begins_with_the_policy_of_another(module: Any, tmp_path: Path) -> None:
    assert train(module, tmp_path / "a", *MAZE, "--env-kwargs", "corridor_length=2") == 0
    first = tmp_path / "a" / "checkpoint.pt"
    assert train(module, tmp_path / "b", *MAZE, "--seed", "5", "--init-from", str(first)) == 0
    before = torch.load(first, weights_only=True)["state_dict"]
    begun = torch.load(tmp_path / "b" / "resume-000000000000.pt", weights_only=True)["policy"]
    assert begun.keys() == before.keys()
    assert all(torch.equal(begun[name], before[name]) for name in before)
    after = torch.load(tmp_path / "b" / "checkpoint.pt", weights_only=True)["state_dict"]
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_a_policy_that_does_not_fit_is_refused_before_there_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(ppo_mlp, tmp_path / "a", *MAZE) == 0
    first = str(tmp_path / "a" / "checkpoint.pt")
    for module, words, hint in (
        (ppo_mlp, ["--hidden-sizes", "8"], "has hidden_sizes [64, 64], and this run [8]"),
        (ppo_mlp, ["--env-id", "MemoryLength-v0"], "both need the same network, and observations of the same sizes"),
        (ppo_lstm, [], "has network mlp, and this run lstm"),
        (ppo_mlp, ["--init-from", str(tmp_path / "none.pt")], "there is no such file"),
    ):
        capsys.readouterr()
        assert train(module, tmp_path / "b", *MAZE, "--init-from", first, *words) == 2
        assert hint in capsys.readouterr().err
        assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
# On a CPU nothing is recorded as a CUDA graph, but results are copied all the same.
@pytest.mark.parametrize(
    ("policy", "cuda_graphs"),
    [(ActorCritic(5, 2), True), (RecurrentActorCritic(5, 2), False)],
    ids=["mlp-graphs", "lstm"],
)
def test_a_compiled_policy_computes_the_same(policy: Any, cuda_graphs: bool) -> None:
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters["stats"]
    before = counted["unique_graphs"]
    compiled = copy.deepcopy(policy)
    compiled.compile_parts(cuda_graphs)
    assert compiled.state_dict().keys() == policy.state_dict().keys()
    generator = torch.Generator().manual_seed(0)
    for steps, n in ((6, 8), (6, 3)):
        obs = torch.randn((steps, n, 5), generator=generator)
        starts = torch.rand((steps, n), generator=generator) < 0.2
        for one in (policy, compiled):
            one.zero_grad()
            if isinstance(one, ActorCritic):
                log_prob, _, value = one.evaluate(obs, obs[..., :2])
            else:
                distribution, value, _ = one.forward_sequence(obs, one.initial_state(n), starts)
                log_prob = distribution.log_prob(obs[..., :2])
            (log_prob.mean() + value.mean()).backward()
        for a, b in zip(policy.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)
    assert counted["unique_graphs"] > before, "nothing was compiled"
    torch._dynamo.reset()


def test_a_compiled_policy_sees_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler: what is around the compiled functions passes on all that they are called with."""
    monkeypatch.setattr(torch, "compile", lambda function, mode=None: function)
    layout = ObservationLayout((ObservationPart("rgb", "image", (32, 32, 3)),))
    policy = ActorCritic(layout, 2, (8,))
    compiled = copy.deepcopy(policy)
    compiled.compile_parts(cuda_graphs=True)
    obs = {"rgb": torch.randint(256, (3, 32, 32, 3), dtype=torch.uint8)}
    torch.testing.assert_close(compiled.evaluate(obs, torch.zeros(3, 2)), policy.evaluate(obs, torch.zeros(3, 2)))


@pytest.mark.parametrize(
    ("algorithm", "device", "used"),
    [("iql", None, "cuda:0"), ("iql", "cpu", "cpu"), ("ppo-mlp", None, "cpu"), ("dagger", None, "cpu")],
)
def test_where_nothing_is_played_the_networks_are_where_evaluations_are(
    algorithm: str, device: str | None, used: str
) -> None:
    """One environment of training is simulated on the CPU, and many of an evaluation on the GPU."""
    args = ALGORITHMS[algorithm].load_args_type()(device=device)
    env, many = (SimpleNamespace(device=torch.device(name)) for name in ("cpu", "cuda:0"))
    eval_env = SimpleNamespace(unwrapped=many)
    assert training.network_device(args, env, eval_env) == torch.device(used)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_graphs_want_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(ppo_mlp, tmp_path / "run", *MAZE, "--compile", "cuda-graphs") == 2
    assert "--compile cuda-graphs needs a GPU" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_without_a_compiler_compiling_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert train(ppo_mlp, tmp_path / "run", *MAZE, "--compile", "on") == 2
    assert "--compile on needs a C++ compiler" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_base_class_hides_a_default_of_another(algorithm: str) -> None:
    """A dataclass repeats the fields of its bases, so the order of two bases can bring back a default that one changed."""
    kind = ALGORITHMS[algorithm].load_args_type()
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            assert field.default == getattr(kind, field.name), field.name


@pytest.mark.parametrize("algorithm", ["ppo-mlp", "ppo-lstm", "sac", "dagger", "bc", "dt", "rate", "iql"])
def test_the_help_says_how_the_learning_rate_falls(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", algorithm, "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    told = text.partition("--anneal-lr, --no-anneal-lr ")[2].partition("(default")[0]
    if algorithm in ("ppo-mlp", "ppo-lstm", "sac"):
        assert told.startswith("Decrease the learning rate linearly to 0 over the run")
    else:
        assert told.startswith("Decrease the learning rate to 0 over the run, as --lr-schedule says.")
    assert "oracle-weight" not in told
