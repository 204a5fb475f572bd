"""Algorithms, networks and environments of the user's own, and checkpoints of former versions."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sim_helpers import ROOT

from mikasa_robo.baselines.checkpoints import (
    CheckpointError,
    Checkpoints,
    load_checkpoint,
    load_network,
    load_policy,
    read_policy,
    save_policy,
)
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.networks import ActorCritic
from mikasa_robo.baselines.ppo_lstm import Player
from mikasa_robo.baselines.ppo_mlp import Args
from mikasa_robo.baselines.registry import (
    RegistryError,
    get_algorithm,
    register_algorithm,
    register_network,
)
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.tools import cli

OLD = ROOT / "tests" / "data" / "checkpoints_1"
SMALL = shlex.split(
    "--env-id PassiveTMazeEasy-v0 --preset none --num-envs 4 --num-steps 16 --total-timesteps 256 --checkpoint-every 128 "
    "--eval-every 0 --eval-episodes 4 --eval-num-envs 2 --stagger-groups 2 --no-video --torch-threads 1 --exact-resume"
)


@pytest.fixture(autouse=True)
def as_in_a_new_process(forget: Callable[[], None]) -> Iterator[None]:
    """Nobody has imported modules of a user's own, and torch's threads are as they were."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def train(*words: str) -> int:
    """`mikasa train`, the exit status."""
    return cli.main(["train", *words])


def result(run_dir: Path) -> dict[str, Any]:
    """What a run came to."""
    content: dict[str, Any] = json.loads((run_dir / "final_eval.json").read_text())
    return content


def stop_after(steps: int, run_dir: Path, copy: Path) -> Path:
    """A copy of a finished run as it was when it had played ``steps`` steps."""
    copy.mkdir()
    shutil.copy(run_dir / f"resume-{steps:012d}.pt", copy)
    shutil.copy(run_dir / "progress.csv", copy)
    return copy


# ---------------------------------------------------------------------- algorithms and networks from outside
def test_an_algorithm_from_outside_trains_resumes_and_is_evaluated(
    tmp_path: Path, forget: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train("toy_learners:toy-search", *SMALL, "--noise", "0.5", "--run-dir", str(run)) == 0
    found = result(run)
    assert (found["algorithm"], found["args"]["algorithm_module"]) == ("toy-search", "toy_learners")
    assert found["args"]["noise"] == 0.5
    assert np.isfinite(found["final"]["return"])

    checkpoint = run / "checkpoint.pt"
    evaluated = ["eval", "--checkpoint", str(checkpoint), "--episodes", "4", "--out", str(tmp_path / "eval.json")]
    forget()
    assert cli.main(evaluated) == 2
    assert "add --algorithm toy_learners:toy-search" in capsys.readouterr().err
    assert "toy_learners" not in sys.modules, "a checkpoint imports nothing"
    assert cli.main([*evaluated, "--algorithm", "toy_learners:toy-search"]) == 0
    summary = json.loads((tmp_path / "eval.json").read_text())["summary"]
    assert summary["return"]["mean"] == pytest.approx(found["final"]["return"])

    forget()
    resumed = stop_after(128, run, tmp_path / "resumed")
    assert train("toy-search", "--resume", str(resumed)) == 2
    assert "there is no algorithm 'toy-search'" in capsys.readouterr().err
    assert train("toy_learners:toy-search", "--resume", str(resumed)) == 0
    one, two = (load_network(path / "checkpoint.pt").state_dict() for path in (run, resumed))
    assert all(torch.equal(two[name], value) for name, value in one.items())


@pytest.mark.parametrize(
    ("algorithm", "network", "size"), [("ppo-mlp", "toy-linear", "gain=0.5"), ("ppo-lstm", "toy-gru", "size=6")]
)
def test_a_network_from_outside_trains_resumes_and_is_evaluated(
    algorithm: str, network: str, size: str, tmp_path: Path, forget: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run, named = tmp_path / "run", f"toy_learners:{network}"
    words = ["--network", named, "--network-kwargs", size, "--num-minibatches", "2", "--update-epochs", "2"]
    assert train(algorithm, *SMALL, *words, "--run-dir", str(run)) == 0
    payload = read_policy(run / "checkpoint.pt")
    assert (payload["network_name"], payload["network_module"]) == (network, "toy_learners")
    name, _, value = size.partition("=")
    assert payload["network"][name] == float(value)

    forget()
    resumed = stop_after(128, run, tmp_path / "resumed")
    assert train(algorithm, "--resume", str(resumed)) == 2
    assert f"add --network {named}" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=f"add --network {named}"):
        load_policy(run / "checkpoint.pt")
    assert "toy_learners" not in sys.modules
    assert train(algorithm, "--resume", str(resumed), "--network", named) == 0
    one, two = (load_network(path / "checkpoint.pt").state_dict() for path in (run, resumed))
    assert all(torch.equal(two[name], value) for name, value in one.items())

    forget()
    evaluated = [
        "eval",
        "--checkpoint",
        str(run / "checkpoint.pt"),
        "--episodes",
        "4",
        "--out",
        str(tmp_path / "e.json"),
    ]
    assert cli.main([*evaluated, "--network", named]) == 0
    summary = json.loads((tmp_path / "e.json").read_text())["summary"]
    assert summary["return"]["mean"] == pytest.approx(result(run)["final"]["return"])


def test_a_network_from_outside_begins_with_the_noise_that_is_asked_for(tmp_path: Path) -> None:
    for name, words, log_std in (("as-made", [], -0.5), ("asked", ["--init-log-std", "-2"], -2.0)):
        words = [
            "--network",
            "toy_learners:toy-linear",
            "--env-id",
            "NumpadContinuousEasy-v0",
            "--keep-checkpoints",
            "3",
            *words,
        ]
        assert train("ppo-mlp", *SMALL, *words, "--run-dir", str(tmp_path / name)) == 0
        begun = torch.load(tmp_path / name / "resume-000000000000.pt", weights_only=True)["policy"]
        assert begun["log_std"].tolist() == [log_std] * len(begun["log_std"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nothing", "there is no algorithm 'nothing'; use one of ppo-mlp, ppo-lstm"),
        ("no_such_module:x", "there is no module 'no_such_module'"),
        ("a:b:c", "'a:b:c' is not an algorithm: write 'NAME' or 'module:NAME'"),
        ("toy_learners:nothing", "there is no algorithm 'nothing'"),
        ("ppo-mlp --network nothing", "there is no network 'nothing'; use one of mlp, lstm"),
        ("ppo-mlp --network lstm", "--network lstm is recurrent, and ppo-mlp needs one without memory"),
        (
            "ppo-lstm --num-minibatches 2 --network mlp",
            "--network mlp is not recurrent, and ppo-lstm needs a recurrent one",
        ),
        ("ppo-mlp --network-kwargs size=3", "--network-kwargs size=3: this network takes --hidden-sizes instead"),
        ("ppo-mlp --network toy_learners:toy-linear --hidden-sizes 3", "--hidden-sizes 3 does nothing with --network"),
        ("ppo-mlp --network toy_learners:toy-linear --network-kwargs sise=3", "--network-kwargs sise=3: .*'sise'"),
        ("ppo-mlp --env-id no_such_module:X-v0", "there is no module 'no_such_module'"),
    ],
)
def test_a_wrong_name_is_named_with_the_fix(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    algorithm, *more = words.split()
    assert train(algorithm, *SMALL, *more, "--run-dir", str(tmp_path / "run")) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_a_name_is_registered_once() -> None:
    register_algorithm("toy-a", "module:A")
    register_algorithm("toy-a", "module:A")
    with pytest.raises(RegistryError, match="'toy-a' is taken by module:A"):
        register_algorithm("toy-a", "module:B")
    with pytest.raises(RegistryError, match="is not 'module:Class'"):
        register_network("toy-a", "module.A")
    with pytest.raises(RegistryError, match="'a:b' is not a name"):
        register_network("a:b", "module:A")
    assert get_algorithm("toy-a").module == "module"
    assert get_algorithm("ppo-mlp").module is None


# ---------------------------------------------------------------------- checkpoints of version 1
@pytest.mark.parametrize("algorithm", ["ppo_mlp", "ppo_lstm"])
def test_a_policy_of_version_1_plays_as_it_did(algorithm: str, tmp_path: Path) -> None:
    old, out = OLD / algorithm, tmp_path / "eval.json"
    words = ["eval", "--checkpoint", str(old / "checkpoint.pt"), "--episodes", "4", "--out", str(out)]
    assert cli.main(words) == 0
    content = json.loads(out.read_text())
    final = json.loads((old / "final_eval.json").read_text())["final"]
    assert content["summary"]["return"]["mean"] == pytest.approx(final["return"])
    assert content["summary"]["length"]["mean"] == final["length"]
    obs = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    assert load_policy(old / "checkpoint.pt").act(obs).shape == (5, 1)


@pytest.mark.parametrize("algorithm", ["ppo_mlp", "ppo_lstm"])
def test_a_run_of_version_1_continues_with_what_it_had_learnt(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to the bit: the episodes after a checkpoint begin in another way."""
    old, name = OLD / algorithm, algorithm.replace("_", "-")
    run = stop_after(128, old, tmp_path / "run")
    saved = load_checkpoint(run / "resume-000000000128.pt", "mikasa/run/1")
    trained: Any = get_algorithm(name).load()
    first: list[Any] = []
    rollout = trained.rollout

    def watch(self: Any, *args: Any) -> Any:
        if not first:
            moments = [{k: v.clone() for k, v in m.items()} for m in self.optimizer.state_dict()["state"].values()]
            first.append(({k: v.clone() for k, v in self.network.state_dict().items()}, moments))
        return rollout(self, *args)

    monkeypatch.setattr(trained, "rollout", watch)
    assert train(name, "--resume", str(run)) == 0
    ((weights, moments),) = first
    found = {name.replace("memory.lstm.", "lstm."): value for name, value in weights.items()}
    assert all(torch.equal(found[name], value) for name, value in saved["policy"].items())
    for loaded, kept in zip(moments, saved["optimizer"]["state"].values(), strict=True):
        assert all(torch.equal(loaded[name], value) for name, value in kept.items())
    before, after = (load_network(path / "checkpoint.pt").state_dict() for path in (old, run))
    for name, value in before.items():
        if not name.startswith("normalizer"):  # Adam's steps are of one size, and there are a few
            torch.testing.assert_close(after[name], value, atol=0.02, rtol=0.0)
    assert result(run)["training_steps"] == result(old)["training_steps"]


def test_image_weights_of_version_1_are_found(tmp_path: Path) -> None:
    space = gym.spaces.Dict(rgb=gym.spaces.Box(0, 255, (16, 16, 3), np.uint8), joints=gym.spaces.Box(-1, 1, (2,)))
    network = ActorCritic(ObservationLayout.of(space), 2, (8,))
    save_policy(tmp_path / "new.pt", network, Args(), step=0)
    payload = read_policy(tmp_path / "new.pt")
    parts = [{**p, "kind": "picture" if p["kind"] == "image" else p["kind"]} for p in payload["network"]["obs_dim"]]
    assert "picture" in {part["kind"] for part in parts}
    old: dict[str, Any] = {
        "format": "mikasa/ppo-mlp/1",
        "env_id": "RememberColor3-v0",
        "step": 0,
        "args": {},
        "network": {**payload["network"], "obs_dim": parts},
        "state_dict": {name.replace("images.", "pictures."): value for name, value in network.state_dict().items()},
    }
    assert any(name.startswith("pictures.") for name in old["state_dict"])
    torch.save(old, tmp_path / "old.pt")
    obs = {"rgb": torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8), "joints": torch.randn(3, 2)}
    assert torch.equal(load_policy(tmp_path / "old.pt").act(obs), network.act(obs))
    for name in ("old.pt", "new.pt"):
        words = ["--init-from", str(tmp_path / name), "--env-id", "PassiveTMazeEasy-v0"]
        assert train("ppo-mlp", *SMALL, "--num-minibatches", "2", *words, "--run-dir", str(tmp_path / "run")) == 2


# ---------------------------------------------------------------------- environments of the user's own, and ManiSkill's
ROBOT = shlex.split(
    "--preset none --num-envs 4 --num-steps 16 --num-minibatches 2 --update-epochs 1 --total-timesteps 128 "
    "--checkpoint-every 64 --stagger-groups 2 --eval-every 0 --eval-episodes 4 --eval-num-envs 4 --no-video "
    "--torch-threads 1 --sim-backend physx_cpu"
)


def test_a_task_of_the_user_s_own_trains_resumes_and_is_evaluated(
    tmp_path: Path, forget: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    env_id = "examples.point_back:PointBack-v0"
    assert train("ppo-mlp", *ROBOT, "--env-id", env_id) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("PointBack-v0__ppo-mlp__1__")
    found = result(run)
    assert (found["env_id"], found["args"]["env_module"]) == ("PointBack-v0", "examples.point_back")
    payload = read_policy(run / "checkpoint.pt")
    assert (payload["env_id"], payload["env_module"]) == ("PointBack-v0", "examples.point_back")

    forget()
    resumed = stop_after(64, run, tmp_path / "resumed")
    assert train("ppo-mlp", "--resume", str(resumed)) == 2
    assert f"add --env-id {env_id}" in capsys.readouterr().err
    assert "examples.point_back" not in sys.modules
    assert train("ppo-mlp", "--resume", str(resumed), "--env-id", "RememberColor3-v0") == 2
    assert "--env-id RememberColor3-v0 differs from PointBack-v0" in capsys.readouterr().err
    assert train("ppo-mlp", "--resume", str(resumed), "--env-id", env_id) == 0

    forget()
    evaluated = ["eval", "--checkpoint", str(run / "checkpoint.pt"), "--episodes", "2", "--out", "eval.json"]
    assert cli.main([*evaluated, "--env-id", env_id]) == 0
    assert json.loads(Path("eval.json").read_text(encoding="utf-8"))["env_id"] == "PointBack-v0"


@pytest.mark.parametrize("algorithm", ["ppo-mlp", "ppo-lstm"])
def test_a_task_of_maniskill_trains_and_is_evaluated_on_the_batched_cpu(algorithm: str, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "eval.json"
    assert train(algorithm, *ROBOT, "--env-id", "PickCube-v1", "--run-dir", str(run)) == 0
    final = result(run)["final"]
    assert final["length"] == 50, "ManiSkill's own time limit"
    assert 0 < final["return"] < 50
    assert final["success_once"] == 0.0
    assert cli.main(["eval", "--checkpoint", str(run / "checkpoint.pt"), "--episodes", "4", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["summary"]["return"]["mean"] == pytest.approx(final["return"], rel=1e-5)


@pytest.mark.parametrize(
    "words", ["--control-mode nothing", "--obs state_dict", "--env-id PushCube-v1 --env-kwargs colour=3"]
)
def test_what_a_task_of_maniskill_refuses_is_named(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*ROBOT, "--env-id", "PickCube-v1", *words.split(), "--run-dir", str(tmp_path / "run")]
    assert train("ppo-mlp", *argv) == 2
    message = capsys.readouterr().err
    assert words.split()[-1].partition("=")[0] in message
    assert "Cube-v1" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", [KeyError("5039"), FileNotFoundError("info_pick_v0.json"), EOFError("no answer")])
def test_a_task_of_maniskill_whose_files_are_not_there_is_named(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(env_id: str, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr("mikasa_robo.sim.env.make", make)
    argv = [*ROBOT, "--env-id", "TurnFaucet-v1", "--run-dir", str(tmp_path / "run")]
    assert train("ppo-mlp", *argv) == 2
    message = capsys.readouterr().err
    assert f"ManiSkill cannot make TurnFaucet-v1 ({type(error).__name__}: {error})" in message
    assert "mani_skill.utils.download_asset NAME`, where NAME is TurnFaucet-v1" in message
    assert not (tmp_path / "run").exists()


def test_a_refusal_of_weights_and_biases_is_one_sentence_and_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class UsageError(Exception):
        pass

    logged_in, rows = False, []

    def init(name: str, dir: str, config: dict[str, Any], **options: Any) -> Any:
        (Path(dir) / "wandb").mkdir()
        if not logged_in:
            raise UsageError("api_key not configured (no-tty).\ncall wandb.login(key=[your_api_key])")
        return SimpleNamespace(log=lambda row, step: rows.append(step), finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, errors=SimpleNamespace(Error=UsageError)))
    run = tmp_path / "run"
    argv = [*SMALL, "--num-minibatches", "2", "--track", "--run-dir", str(run)]
    assert train("ppo-mlp", *argv, "--wandb-mode", "online") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "--track --wandb-mode online: Weights & Biases cannot start (api_key not configured (no-tty)); "
        "run `wandb login`, or use --wandb-mode offline"
    )
    assert not run.exists()
    logged_in = True
    assert train("ppo-mlp", *argv, "--wandb-mode", "online") == 0, "the same command"
    assert rows == [64, 128, 192, 256]
    # A run to continue keeps all that it has.
    logged_in = False
    resumed = stop_after(128, run, tmp_path / "resumed")
    kept = {path.name for path in resumed.iterdir()}
    assert train("ppo-mlp", "--resume", str(resumed)) == 2
    assert kept <= {path.name for path in resumed.iterdir()}


# ---------------------------------------------------------------------- checkpoints of others
def test_what_a_checkpoint_names_is_not_imported(
    tmp_path: Path, forget: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    own, network = "examples.point_back:PointBack-v0", "toy_learners:toy-linear"
    args = Args(env_id=own, network=network)
    policy = tmp_path / "checkpoint.pt"
    save_policy(policy, ActorCritic(2, 1, (4,)), args, step=0)
    assert cli.main(["eval", "--checkpoint", str(policy), "--out", str(tmp_path / "eval.json")]) == 2
    assert f"add --env-id {own}" in capsys.readouterr().err
    payload = read_policy(policy)
    assert (payload["env_id"], payload["env_module"]) == ("PointBack-v0", "examples.point_back")
    run = {"algorithm": "ppo-mlp", "world_size": 1}
    for number, changes in enumerate(({"env_id": own}, {"network": network})):
        folder = tmp_path / str(number)
        folder.mkdir()
        Checkpoints(folder, 1).save(0, {**run, "args": Args(**changes).to_dict()})
        assert train("ppo-mlp", "--resume", str(folder)) == 2
        ((option, named),) = changes.items()
        assert f"add --{option.replace('_', '-')} {named}" in capsys.readouterr().err
    assert not {"toy_learners", "examples.point_back"} & sys.modules.keys()


def test_a_file_that_is_not_a_usable_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = torch.load(OLD / "ppo_mlp" / "checkpoint.pt", weights_only=True)
    no_step = {name: value for name, value in good.items() if name != "step"}
    for content, problem in (
        (None, "holds neither checkpoint.pt nor best.pt"),
        (no_step, "lacks step"),
        ({**good, "args": {**good["args"], "from_the_future": 1}}, "has no argument from_the_future"),
        ({**good, "state_dict": {}}, "does not fit the network 'mlp'"),
        ({**good, "network": {"width": 3}}, "does not fit the network 'mlp'"),
    ):
        path = tmp_path
        if content is not None:
            path = tmp_path / "checkpoint.pt"
            torch.save(content, path)
        assert cli.main(["eval", "--checkpoint", str(path), "--out", str(tmp_path / "eval.json")]) == 2
        assert f"{path}" in (message := capsys.readouterr().err)
        assert problem in message
    with pytest.raises(FileNotFoundError, match=r"nothing\.pt: there is no such file; name one"):
        load_policy(tmp_path / "nothing.pt")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert train("ppo-mlp", *SMALL, "--init-from", str(empty), "--run-dir", str(tmp_path / "run")) == 2
    assert f"--init-from {empty} holds neither checkpoint.pt nor best.pt" in capsys.readouterr().err


def test_a_run_that_diverges_ends_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverge(*_: Any) -> None:
        raise FloatingPointError("a loss is infinite or NaN; use a smaller --learning-rate")

    monkeypatch.setattr("mikasa_robo.baselines.training.train", diverge)
    assert train("ppo-mlp", *SMALL, "--run-dir", str(tmp_path / "run")) == 1
    assert capsys.readouterr().err.endswith("use a smaller --learning-rate\n")


# ---------------------------------------------------------------------- former names
@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("checkpoints", "load_recurrent_policy", "checkpoints.load_network"),
        ("checkpoints", "Policy", "policy_network.PolicyNetwork"),
        ("dagger", "OracleReadout", "readouts.OracleReadout"),
        ("environments", "StaggeredEpisodes", "env_wrappers.StaggeredEpisodes"),
        ("checkpoints", "PPO_MLP", "checkpoints.PPO_MLP_1"),
        ("environments", "make_env", "environments.make_training_env"),
        ("environments", "LONGEST", "environments.UNKNOWN_HORIZON"),
        ("networks", "ObservationNormalizer", "encoder.ObservationNormalizer"),
        ("spaces", "map_obs", "spaces.map_tensors"),
        ("team", "Team", "distributed.DistContext"),
        ("team", "join_team", "distributed.join_processes"),
        ("team", "team_size", "distributed.world_size"),
        ("training", "Setting", "protocol.Setup"),
        ("training", "Learner", "protocol.Algorithm"),
        ("training", "parse_args", "command.parse_args"),
        ("training", "env_factory", "command.env_factory"),
    ],
)
def test_former_names_still_work(module: str, old: str, new: str) -> None:
    home, _, name = new.partition(".")
    package = "mikasa_robo.baselines"
    expected = getattr(importlib.import_module(f"{package}.{home}"), name)
    with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated; use {package}.{new}"):
        assert getattr(importlib.import_module(f"{package}.{module}"), old) is expected


@pytest.mark.parametrize(
    ("thing", "old", "new"),
    [
        (Args(seed=3), "plain", "to_dict"),
        (Args, "parse_plain", "from_dict"),
        (Args(run_dir=Path("here")), "resolved_run_dir", "default_run_dir"),
        (ActorCritic(3, 2), "plain", "to_dict"),
        (ObservationLayout, "parse", "from_dict"),
        (ObservationLayout.from_dict(3), "plain", "to_dict"),
        (ObservationLayout.from_dict(3), "pictures", "images"),
        (ActionLayout, "parse", "from_dict"),
        (ActionLayout.from_dict([2, 3]), "plain", "to_dict"),
        (DistContext(), "leads", "is_main"),
        (DistContext(), "rows", "own"),
    ],
)
def test_former_names_of_methods_still_work(thing: Any, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"\w\.{old} is deprecated; use \w+\.{new}"):
        found = getattr(thing, old)
    assert found == getattr(thing, new)


def test_the_former_gradient_step_is_that_of_ppo() -> None:
    sys.modules.pop("mikasa_robo.baselines.losses", None)
    with pytest.warns(DeprecationWarning, match=r"losses is deprecated; use mikasa_robo\.baselines\.ppo"):
        losses = importlib.import_module("mikasa_robo.baselines.losses")
    torch.manual_seed(0)
    network, obs, actions = ActorCritic(3, 2, (4,)), torch.randn(6, 3), torch.randn(6, 2)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    args, dist = Args(value_coef=0.7), DistContext()
    log_prob, entropy, value = network.evaluate(obs, actions)
    advantages, returns = torch.randn(6), torch.randn(6)
    recorded = losses.Recorded(log_prob.detach() - 0.1, advantages, returns)
    before = network.actor[0].weight.clone()
    step = losses.ppo_step(network, optimizer, log_prob, entropy, value, recorded, 6, args, dist)
    assert not torch.equal(network.actor[0].weight, before)
    row = losses.summarize_losses([step], value.detach(), returns)
    standardized = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    assert row["loss/policy"] == pytest.approx(-(standardized * np.exp(0.1)).mean().item(), abs=1e-5)
    assert row["loss/value"] == pytest.approx((value - returns).square().mean().item() / 2)
    assert row["loss/approx_kl"] == pytest.approx(np.exp(0.1) - 1.1, abs=1e-6)
    far = losses.Recorded(log_prob.detach() - 2.0, advantages, returns)
    assert losses.ppo_step(network, optimizer, log_prob, entropy, value, far, 6, args, dist) is None


def test_former_scripts_still_play_policies(tmp_path: Path) -> None:
    obs = torch.randn(3, 2)
    policy = load_policy(OLD / "ppo_mlp" / "checkpoint.pt")
    assert torch.equal(policy.act(obs), policy.network.act(obs))
    with pytest.warns(DeprecationWarning, match="network"):
        assert policy.action_dim == 1
    network = load_network(OLD / "ppo_lstm" / "checkpoint.pt")
    with pytest.warns(DeprecationWarning, match="NetworkPolicy"):
        player = Player(network)
    first = player.act(obs)
    player.begin()
    assert torch.equal(player.act(obs), first)


def test_a_policy_is_the_same_whichever_way_the_package_was_imported(tmp_path: Path) -> None:
    """Run as `python -m baselines.ppo_mlp`, classes exist twice; a checkpoint goes by names."""
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]);"
        "from baselines.checkpoints import load_policy, save_policy; from baselines.networks import RecurrentActorCritic;"
        "from baselines.ppo_lstm import Args; from mikasa_robo.baselines.checkpoints import load_policy as other;"
        "save_policy(sys.argv[2], RecurrentActorCritic(2, 1, (8,), 4, (8,)), Args(), 0)"
    ).replace("save_policy(sys.argv[2]", "from pathlib import Path; save_policy(Path(sys.argv[2])")
    code += "; x = torch.ones(1, 2); assert torch.equal(load_policy(sys.argv[2]).act(x), other(sys.argv[2]).act(x))"
    path = tmp_path / "policy.pt"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert read_policy(path)["algorithm"] == "ppo-lstm"
