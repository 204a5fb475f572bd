"""``mikasa record`` and ``mikasa gallery``."""

from __future__ import annotations

import io
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import imageio.v3 as imageio
import numpy as np
import odd_memories
import pytest
import torch
from PIL import Image
from tool_helpers import OWN_ID, OWN_MODULE, own_task, save_untrained
from wrapper_helpers import GREY, Canvas

from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.checkpoints import save_policy
from mikasa_robo.baselines.environments import make_gymnasium_env
from mikasa_robo.baselines.files import write_atomically
from mikasa_robo.baselines.networks import ActorCritic, RecurrentActorCritic
from mikasa_robo.baselines.registry import use_memory
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.catalog import CATALOG
from mikasa_robo.tools import cli, gallery, playing, record, record_gymnasium
from mikasa_robo.tools.playing import CheckpointPlayer, UnsuitablePolicyError, load_player, play
from mikasa_robo.tools.record import HOLD, Options
from mikasa_robo.video import VideoError, VideoWriter, tile_images, write_tiled_video, write_video

__all__ = ["own_task"]  # a fixture

DOCS = Path(__file__).parent.parent / "docs" / "gallery"
ENV_ID = "RememberColor3-v0"


@pytest.fixture(scope="module")
def canvas() -> Iterator[Any]:
    """Three environments as scripted policies want them, with a canvas for a renderer."""
    env = Canvas(gym.make(ENV_ID, num_envs=3, obs_mode=load_player("expert").settings.obs_mode), 16, 16)
    yield env
    env.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Environments are made without a renderer and get a canvas; gives the arguments they were asked for with."""
    asked: list[dict[str, Any]] = []

    def make(
        num_envs: int, render_mode: str | None, *, env_id: str, obs_mode: str, env_kwargs: dict[str, Any], **kwargs: Any
    ) -> gym.Env[Any, Any]:
        asked.append({"num_envs": num_envs, "render_mode": render_mode, **kwargs, **env_kwargs})
        return Canvas(gym.make(env_id, num_envs=num_envs, obs_mode=obs_mode), 128, 128)

    monkeypatch.setattr(playing, "make_training_env", make)
    return asked


# ---------------------------------------------------------------------- what is asked for
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--env-id", "RememberColour3-v0"],
            "--env-id RememberColour3-v0 is not registered; did you mean RememberColor3-v0",
        ),
        (["--policy", "best"], "--policy best is not a file; give a checkpoint, or one of expert, window, memoryless"),
        (["--episodes", "0"], "--episodes 0 must be from 1 to 10000"),
        (["--seed", "-1"], "--seed -1 must be from 0 to"),
        (["--size", "511"], "--size 511 must be an even number of pixels from 128 to 2048"),
        (["--overlay", "all", "step"], "--overlay all step: give all, none, or some of task, step, reward, terms"),
        (["--overlay", "step", "step"], "--overlay step step: give all"),
        (["--env-id", "PickCube-v1"], "PickCube-v1 has no expert, so no scripted policy; give a checkpoint"),
        (["--env-id", "no_such:Mine-v0"], "there is no module 'no_such'"),
        (["--policy", "peek"], "Peek looks under mugs: it needs the skill of ShellGamePush or ShellGamePick"),
        (["--env-kwargs", "delay_steps"], "--env-kwargs delay_steps is not NAME=VALUE"),
        (["--env-kwargs", "arm=held"], "--env-kwargs arm=held: use --arm held"),
        (["--env-kwargs", "sim_backend=physx_cpu"], "--env-kwargs sim_backend=physx_cpu: use --sim-backend"),
        (["--env-kwargs", "obs_mode=rgb"], "--env-kwargs obs_mode=rgb: the policy says what it sees; leave it out"),
        (["--env-kwargs", "human_render_camera_configs={}"], "the task has a camera of its own; leave it out"),
        (["--env-kwargs", "delay_stops=3"], "delay_stops"),
        (["--env-id", "InterceptSlow-v0", "--arm", "held"], "--arm held would hold the arm for the whole episode"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_made(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "videos"
    first = [] if "--env-id" in argv else ["--env-id", ENV_ID]
    assert cli.main(["record", *first, *argv, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_the_arm_can_be_held_until_a_ball_is_hidden() -> None:
    record._check_policy(Options("InterceptMediumHidden-v0", arm="held"))


@pytest.mark.parametrize("tiled", [False, True])
def test_videos_that_exist_are_kept(tiled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(ENV_ID, policy="random", episodes=2, seed=5, tiled=tiled, out=tmp_path)
    taken = options.files()[-1]
    assert taken.name == f"{ENV_ID}_random_seed{'5_tiled2' if tiled else '6'}.mp4"
    taken.write_text("mine")
    argv = ["--policy", "random", "--episodes", "2", "--seed", "5", *(["--tiled"] if tiled else [])]
    assert cli.main(["record", "--env-id", ENV_ID, *argv, "--out", str(tmp_path)]) == 2
    assert f"already contains {taken.name}; choose another folder" in capsys.readouterr().err
    assert taken.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [taken]


def test_a_bad_folder_is_named_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for command in (["record", "--env-id", ENV_ID], ["gallery"]):
        assert cli.main([*command, "--out", str(tmp_path / "file" / "videos")]) == 2
        assert f"{tmp_path / 'file'} is a file, not a folder" in capsys.readouterr().err


def test_the_videos_of_a_task_of_ones_own_are_named_without_its_module() -> None:
    options = Options("examples.point_back:PointBack-v0", policy="runs/final.pt", episodes=1)
    assert [path.as_posix() for path in options.files()] == ["videos/PointBack-v0_final_seed0.mp4"]


def test_a_checkpoint_gives_its_name_to_the_videos() -> None:
    options = Options(ENV_ID, policy="runs/final.pt", episodes=3, out=Path("there"))
    assert [path.as_posix() for path in options.files()] == [f"there/{ENV_ID}_final_seed{k}.mp4" for k in range(3)]
    assert len(replace(options, tiled=True).files()) == 1


def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.pt"
    path.write_text("nothing")
    assert cli.main(["record", "--env-id", ENV_ID, "--policy", str(path), "--out", str(tmp_path / "videos")]) == 2
    assert f"{path} is not a checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "videos").exists()


# ---------------------------------------------------------------------- playing
def test_an_episode_is_drawn_until_it_is_over(canvas: Any) -> None:
    frames = list(play(canvas, load_player("expert"), [0, 1, 2]))
    assert all(frame.images.shape == (3, 16, 16, 3) and (frame.images == GREY).all() for frame in frames)
    running = np.stack([frame.running for frame in frames])
    lengths = running.sum(axis=0) - 1  # the reset is drawn, too
    assert (running == (np.arange(len(frames))[:, None] <= lengths)).all(), "once over, an episode stays over"
    assert frames[-1].success.all()
    assert not frames[0].success.any()
    assert 10 < lengths.min() < lengths.max() == len(frames) - 1 < 60
    (last,) = play(canvas, load_player("expert"), [0, 1, 2], every=0)
    assert last.success.all()
    assert last.images.size == 0
    sparse = list(play(canvas, load_player("expert"), [0, 1, 2], every=5))
    times = {0, *range(5, len(frames), 5), *lengths.tolist()}
    assert len(sparse) == len(times), "every fifth, and the end of each episode"
    assert (sparse[-1].running == frames[-1].running).all()


def test_the_seeds_name_the_episodes(canvas: Any) -> None:
    (first,) = play(canvas, load_player("memoryless"), [7, 8, 9], every=0)
    target = canvas.unwrapped.task_state.target[:, 0].tolist()
    (_,) = play(canvas, load_player("memoryless"), [9, 7, 8], every=0)
    assert canvas.unwrapped.task_state.target[:, 0].tolist() == [target[2], *target[:2]]
    assert len(first.success) == 3


def test_each_video_shows_the_episode_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from another seed than 0 on, and where the last batch is not full. An image is as bright as its seed."""
    env = SimpleNamespace(unwrapped=None, close=lambda: None)
    played: list[list[int]] = []
    shown: dict[str, list[int]] = {}

    def film(env: Any, player: Any, seeds: list[int]) -> Iterator[Any]:
        played.append(seeds)
        n = len(seeds)
        images = [np.full((2, 2, 3), seed) for seed in seeds]
        for t in range(3):  # the first episode of a batch is over after one step
            running = np.array([t < 2, *[True] * (n - 1)])
            yield SimpleNamespace(running=running, images=images, success=np.array(seeds) % 2 == 0)

    class Noted:
        def __init__(self, path: Path, hold: int) -> None:
            self.name = path.name

        def add(self, image: Any) -> None:
            shown.setdefault(self.name, []).append(int(image.max()))

        def __enter__(self) -> Noted:
            return self

        def __exit__(self, *error: Any) -> None:
            assert error == (None, None, None)

    monkeypatch.setattr(playing, "make_player_env", lambda *_, **__: env)
    monkeypatch.setattr(playing, "play", film)
    monkeypatch.setattr("mikasa_robo.video.VideoWriter", Noted)
    player: Any = SimpleNamespace(settings=None, require_fit=lambda env: None)
    lines = list(record.record(Options(ENV_ID, episodes=5, seed=7, overlay=("none",), out=tmp_path), player))
    assert played == [[7, 8, 9], [10, 11, 12]]
    names = {seed: f"{ENV_ID}_expert_seed{seed}.mp4" for seed in range(7, 12)}
    lengths = {seed: 1 if seed in (7, 10) else 2 for seed in names}
    assert shown == {name: [seed] * (lengths[seed] + 1) for seed, name in names.items()}
    results = {seed: "no success" if seed % 2 else "success" for seed in names}
    assert lines == [f"{tmp_path / name}: {results[k]} in {lengths[k]} steps" for k, name in names.items()]


def test_a_checkpoint_acts_and_must_fit(
    made: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env: Any = gym.make(ENV_ID, num_envs=2)
    wanted = env.unwrapped.single_observation_space.shape[0]
    path = tmp_path / "policy.pt"
    torch.manual_seed(0)
    network = ActorCritic(wanted, 8, (16,))
    trained = ppo_mlp.Args(env_id=ENV_ID)
    save_policy(path, network, trained, 0)
    player = load_player(str(path))
    assert player.settings.obs_mode == "state"
    obs, info = env.reset(seed=0)
    assert torch.equal(player.start(env)(obs, info), network.eval().act(obs))
    (last,) = play(env, player, [0, 1], every=0)
    assert not last.running.any()
    save_policy(path, ActorCritic(wanted + 1, 8, (16,)), trained, 0)
    with pytest.raises(
        UnsuitablePolicyError, match=f"maps {wanted + 1} numbers to 8, and {ENV_ID} needs {wanted} to 8"
    ):
        load_player(str(path)).start(env)
    env.close()
    made.clear()
    argv = ["--policy", str(path), "--size", "128", "--out", str(tmp_path / "videos")]
    assert cli.main(["record", "--env-id", ENV_ID, *argv]) == 2
    assert "the policy was trained on" in capsys.readouterr().err
    assert len(made) == 1
    assert "arm" not in made[0]
    assert not (tmp_path / "videos").exists()
    own = ppo_mlp.Args(env_id=ENV_ID, env_kwargs=("arm=held", "delay_steps=7"))
    save_policy(path, ActorCritic(wanted + 1, 8, (16,)), own, 0)
    for words, arm, delay in (
        ([], "held", 7),
        (["--arm", "free"], "free", 7),
        (["--env-kwargs", "delay_steps=9"], "held", 9),
    ):
        made.clear()
        assert cli.main(["record", "--env-id", ENV_ID, *argv, *words]) == 2
        assert (made[0]["arm"], made[0]["delay_steps"]) == (arm, delay), "the policy's own, unless told otherwise"


def test_a_recurrent_checkpoint_acts_with_the_memory_of_each_episode(tmp_path: Path) -> None:
    env: Any = gym.make(ENV_ID, num_envs=2, obs_mode="objects+joints")
    layout = ObservationLayout.of(env.unwrapped.single_observation_space)
    path = tmp_path / "policy.pt"
    network = RecurrentActorCritic(layout, 8, (16,), 8, (16,))
    torch.nn.init.normal_(network.actor[-1].weight)
    trained = ppo_lstm.Args(env_id=ENV_ID, control_mode="pd_joint_delta_pos")
    save_policy(path, network, trained, 0)
    player = load_player(str(path))
    assert player.settings.obs_mode == "objects+joints"
    obs, info = env.reset(seed=0)
    act = player.start(env)
    first, second = act(obs, info), act(obs, info)
    assert not torch.equal(first, second), "it does not remember"
    assert torch.equal(player.start(env)(obs, info), first), "an episode begins with the memory of another"
    (last,) = play(env, player, [0, 1], every=0)
    assert not last.running.any()
    env.close()
    flat: Any = gym.make(ENV_ID, num_envs=2, obs_mode="joints")
    with pytest.raises(UnsuitablePolicyError, match="the policy was trained on"):
        player.start(flat)
    flat.close()


def test_a_checkpoint_that_gives_nan_is_named(
    made: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a robot task, and of another environment, whose discrete actions do not show it."""
    monkeypatch.setattr(odd_memories.NaN, "broken_at", 1)
    use_memory("odd_memories:NaN")
    named, own = ["--memory", "odd_memories:NaN"], {"memory": "odd_memories:NaN"}
    for env_id, obs in ((ENV_ID, "objects+joints"), ("MemoryLengthEasy-v0", None)):
        env: Any = gym.make(ENV_ID, num_envs=1, obs_mode=obs) if obs else make_gymnasium_env(1, None, env_id=env_id)
        unwrapped = env.unwrapped
        layout = ObservationLayout.of(unwrapped.single_observation_space)
        action = ActionLayout.of(unwrapped.single_action_space)
        env.close()
        path, out = tmp_path / f"{env_id}.pt", tmp_path / env_id
        save_policy(
            path, RecurrentActorCritic(layout, action, (16,), 8, (16,), **own), ppo_lstm.Args(env_id=env_id, **own), 0
        )
        words = ["--env-id", env_id, "--policy", str(path), "--episodes", "1", "--size", "128", "--out", str(out)]
        assert cli.main(["record", *words, *named]) == 2
        assert (
            capsys.readouterr()
            .err.splitlines()[-1]
            .startswith(f"{path}: the network gives NaN at step 1 of the episodes")
        )
        assert not [*out.glob("*.mp4")]


# ---------------------------------------------------------------------- tasks of others
def test_a_task_of_ones_own_is_recorded_by_its_module(
    own_task: str, made: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = save_untrained(tmp_path / "policy.pt", OWN_ID, 40, OWN_MODULE, sim_backend="physx_cpu")
    argv = ["record", "--episodes", "1", "--size", "128", "--out", str(tmp_path / "videos")]
    assert cli.main([*argv, "--env-id", OWN_ID, "--policy", str(policy)]) == 2
    assert f"add --env-id {own_task}" in capsys.readouterr().err
    assert cli.main([*argv, "--env-id", own_task, "--policy", str(policy)]) == 0
    assert [path.name for path in (tmp_path / "videos").iterdir()] == [f"{OWN_ID}_policy_seed0.mp4"]
    assert made[0]["sim_backend"] == "physx_cpu", "as the policy was trained"
    assert cli.main([*argv, "--env-id", own_task]) == 0, "its row names the expert"
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{tmp_path}/videos/{OWN_ID}_expert_seed0.mp4: success")
    assert made[1]["sim_backend"] == "auto"


def test_a_task_of_maniskill_is_recorded_with_the_overlays_that_fit(
    made: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = save_untrained(tmp_path / "policy.pt", "PickCube-v1", 42)
    argv = ["record", "--env-id", "PickCube-v1", "--policy", str(policy), "--size", "128", "--episodes", "1"]
    for overlay in ("task", "terms"):
        assert cli.main([*argv, "--overlay", overlay, "--out", str(tmp_path / "none")]) == 2
        said = f"--overlay {overlay} is for MIKASA's tasks; for PickCube-v1 use step, reward or none"
        assert said in capsys.readouterr().err
    assert cli.main([*argv, "--arm", "held", "--out", str(tmp_path / "none")]) == 2
    assert "--arm held is for MIKASA's tasks" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert cli.main([*argv, "--out", str(tmp_path / "videos")]) == 0
    (path,) = (tmp_path / "videos").iterdir()
    assert capsys.readouterr().out == f"{path}: no success in 50 steps\n"
    film = imageio.imread(path).astype(int)
    assert len(film) == 51 + HOLD
    assert (np.abs(film[:, :16, :40] - GREY) > 60).mean() > 0.5, "the step is written at the top"
    assert (np.abs(film[:, -16:, :40] - GREY) > 60).mean() > 0.5, "and the reward at the bottom"
    assert "pose" not in made[-1]["human_render_camera_configs"], "the camera is the task's own"


# ---------------------------------------------------------------------- environments that are not robot tasks
def test_a_base_environment_is_recorded_to_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["record", "--env-id", "MemoryCardsEasy-v0", "--policy", "random", "--overlay", "none", "--episodes", "2"]
    assert cli.main([*argv, "--size", "128", "--seed", "3", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    for seed, line in zip((3, 4), said, strict=True):
        path = tmp_path / f"MemoryCardsEasy-v0_random_seed{seed}.mp4"
        env = gym.make("MemoryCardsEasy-v0", render_mode="rgb_array")
        env.reset(seed=seed)
        generator, images, total = np.random.default_rng(seed), [env.render()], 0.0
        over = False
        while not over:
            action = generator.integers([env.action_space.n])[0]  # type: ignore[attr-defined]
            _, reward, terminated, truncated, _ = env.step(action)
            over, total = terminated or truncated, total + float(reward)
            images.append(env.render())
        assert line == f"{path}: return {total:.2f} in {len(images) - 1} steps"
        film = imageio.imread(path).astype(int)
        assert len(film) == len(images) + record_gymnasium.HOLD
        height, width = np.asarray(images[0]).shape[:2]
        for t in (0, 1, len(images) - 1):  # the last one is of this episode, not of the next
            scaled = film[t][:: film.shape[1] // height, :: film.shape[2] // width][:height, :width]
            assert np.abs(scaled - np.asarray(images[t]).astype(int)).mean() < 8, t
        env.close()


def test_a_checkpoint_plays_a_base_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env_id = "MemoryLengthEasy-v0"
    env = gym.make(env_id)
    layout, action = ObservationLayout.of(env.observation_space), ActionLayout.of(env.action_space)
    policy = tmp_path / "policy.pt"
    torch.manual_seed(0)
    save_policy(policy, RecurrentActorCritic(layout, action, (16,), 8, (16,)), ppo_lstm.Args(env_id=env_id), 0)
    argv = ["record", "--policy", str(policy), "--episodes", "3", "--tiled", "--size", "128"]
    assert cli.main([*argv, "--env-id", env_id, "--out", str(tmp_path / "a")]) == 0
    (path,) = (tmp_path / "a").iterdir()
    assert capsys.readouterr().out.splitlines()[-1] == f"{path}: 3 episodes"
    assert len(imageio.imread(path)) == 12 + record_gymnasium.HOLD
    longer = ["--env-kwargs", "memory_length=20"]
    assert cli.main([*argv, *longer, "--env-id", env_id, "--out", str(tmp_path / "longer")]) == 0
    (path,) = (tmp_path / "longer").iterdir()
    assert len(imageio.imread(path)) == 22 + record_gymnasium.HOLD
    assert cli.main([*argv, "--env-id", "MemoryCardsEasy-v0", "--out", str(tmp_path / "b")]) == 2
    assert f"{policy} was trained on {env_id}, which has other observations" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_the_folders_of_two_runs_give_two_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env_id = "MemoryLengthEasy-v0"
    env = make_gymnasium_env(1, None, env_id=env_id)
    layout, action = ObservationLayout.of(env.single_observation_space), ActionLayout.of(env.single_action_space)
    for name in ("run.1", "run.2"):
        (tmp_path / name).mkdir()
        network = RecurrentActorCritic(layout, action, (16,), 8, (16,))
        save_policy(tmp_path / name / "checkpoint.pt", network, ppo_lstm.Args(env_id=env_id), 0)
        argv = ["record", "--env-id", env_id, "--policy", str(tmp_path / name), "--episodes", "1", "--size", "128"]
        assert cli.main([*argv, "--out", str(tmp_path / "videos")]) == 0
        assert f"policy: {tmp_path / name / 'checkpoint.pt'}" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "videos").iterdir()} == {f"{env_id}_run.{k}_seed0.mp4" for k in (1, 2)}
    assert cli.main([*argv, "--out", str(tmp_path / "videos")]) == 2
    assert f"already contains {env_id}_run.2_seed0.mp4" in capsys.readouterr().err, "before anything is played"


class Blind(gym.Env[Any, Any]):
    """An environment that nobody can see."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space: gym.spaces.Space[Any] = gym.spaces.Discrete(2)


class Switches(Blind):
    """An environment with actions of a kind that no policy has."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    action_space: gym.spaces.Space[Any] = gym.spaces.MultiBinary(3)

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(2, np.float32), {}


class Undrawn(Switches):
    """An environment whose pictures need a package that is missing."""

    action_space = gym.spaces.Discrete(2)

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled("pygame is not installed")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--env-id", "Switches-v0"], "--env-id Switches-v0 cannot be recorded: the action space MultiBinary(3)"),
        (["--env-id", "Undrawn-v0"], "--env-id Undrawn-v0 cannot be recorded: pygame is not installed"),
        (
            ["--policy", "expert"],
            "--policy expert: MemoryLengthEasy-v0 is not a robot task and has no expert; use random",
        ),
        (["--arm", "held"], "--arm held is for robot tasks; leave it out for MemoryLengthEasy-v0"),
        (["--sim-backend", "physx_cpu"], "--sim-backend physx_cpu is for robot tasks"),
        (["--overlay", "task"], "--overlay task is for MIKASA's robot tasks; for MemoryLengthEasy-v0 use step, reward"),
        (["--env-id", "Blind-v0"], "--env-id Blind-v0 has no render_mode='rgb_array', so it cannot be recorded"),
    ],
)
def test_what_a_base_environment_does_not_take_is_named(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in (Blind, Switches, Undrawn):
        gym.registry.pop(f"{kind.__name__}-v0", None)
        gym.register(f"{kind.__name__}-v0", lambda kind=kind, **kwargs: kind(), max_episode_steps=3)
    out = tmp_path / "videos"
    first = ["--env-id", "MemoryLengthEasy-v0", "--policy", "random", "--out", str(out)]
    assert cli.main(["record", *first, *argv]) == 2
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert [line for line in said[:-1] if "..." not in line] == [], "no library's warning beside it"
    assert not out.exists()
    for kind in (Blind, Switches, Undrawn):
        del gym.registry[f"{kind.__name__}-v0"]


def test_scripted_policies_do_not_need_what_training_needs(tmp_path: Path) -> None:
    """The extra `train`, but for what writes the video."""
    code = (
        "import sys\n"
        "for name in ('tensorboard', 'wandb', 'torch.utils.tensorboard'):\n"
        "    sys.modules[name] = None\n"
        "from mikasa_robo.tools import playing, record, expert, gallery, record_gymnasium\n"
        "playing.load_player('expert')\n"
        "from mikasa_robo.tools.cli import main\n"
        "sys.exit(main(['record', '--env-id', 'MemoryLengthEasy-v0', '--policy', 'random', '--episodes', '1']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------- files
def picture(shade: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full((64, 96, 3), shade, dtype=np.uint8)


def test_a_video_is_there_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with VideoWriter(path, hold=20) as video:
        for shade in (0, 100, 200):
            video.add(picture(shade))
        assert not path.exists()
    assert list(tmp_path.iterdir()) == [path]
    film = imageio.imread(path)
    assert film.shape == (3 + 20, 64, 96, 3)
    means = film.mean(axis=(1, 2, 3))
    assert np.abs(means - [0, 100, *[200] * 21]).max() < 6


def test_a_video_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def images() -> Iterator[Any]:
        yield picture(0)
        raise RuntimeError("the policy failed")

    with pytest.raises(RuntimeError, match="the policy failed"):
        write_video(tmp_path / "a.mp4", images())
    assert not list(tmp_path.iterdir())


def noise(images: int) -> Iterator[Any]:
    """Images that a codec cannot make small."""
    rng = np.random.default_rng(0)
    return (rng.integers(0, 256, (64, 96, 3), dtype=np.uint8) for _ in range(images))


def test_a_video_that_the_disk_has_no_room_for_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("mine")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # of ffmpeg, which begins in here
    try:
        with pytest.raises(VideoError, match=r"the video .*/a\.mp4 could not be written: .* disk is full"):
            write_video(path, noise(40))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_video_that_record_could_not_write_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mikasa_robo.video._count_frames", lambda path: 3)
    argv = ["record", "--env-id", "MemoryLengthEasy-v0", "--policy", "random", "--episodes", "1", "--size", "128"]
    assert cli.main([*argv, "--out", str(tmp_path / "a")]) == 2
    assert re.search(r"the video .*\.mp4 could not be written: the file holds 3 of \d+ frames", capsys.readouterr().err)
    assert not list((tmp_path / "a").iterdir())


@pytest.mark.parametrize("more", [0, 40])
def test_a_video_whose_ffmpeg_is_killed_is_an_error(tmp_path: Path, more: int) -> None:
    """After the last image, or before others, which then meet a broken pipe."""

    def film() -> None:
        with VideoWriter(tmp_path / "a.mp4") as video:
            for image in noise(40):
                video.add(image)
            process = video._writer._writer._write_gen.gi_frame.f_locals["p"]
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            for image in noise(more):
                video.add(image)

    with pytest.raises(VideoError, match="ffmpeg ended"):
        film()
    assert not list(tmp_path.iterdir())


def test_a_video_that_is_cut_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing tells how ffmpeg ended."""
    video = VideoWriter(tmp_path / "a.mp4")
    for image in noise(40):
        video.add(image)
    close = video._writer._writer.close

    def cut() -> None:
        close()
        os.truncate(video._writer.path, video._writer.path.stat().st_size - 100)

    monkeypatch.setattr(video._writer._writer, "close", cut)
    with pytest.raises(VideoError, match="the file holds 0 of 40 frames"):
        video.finish()
    monkeypatch.undo()
    video.discard()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["clip", "clip.webm", "clip.gif"])
def test_a_video_is_an_mp4_by_its_name_too(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} cannot be written: .* end with \.mp4"):
        write_video(tmp_path / name, [picture(0)])
    assert not list(tmp_path.iterdir())


def test_a_video_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no ffmpeg")

    monkeypatch.setattr("imageio.v2.get_writer", fails)
    with pytest.raises(RuntimeError, match="no ffmpeg"):
        write_video(tmp_path / "a.mp4", [picture(0)])
    assert not list(tmp_path.iterdir())


def test_a_video_takes_the_name_of_another_file_only_where_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        write_video(path, [picture(0)], overwrite=False)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]
    write_video(path, [picture(0), picture(100)])
    assert len(imageio.imread(path)) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_its_name_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*paths: Any) -> None:
        raise PermissionError("not here")

    target = tmp_path / "a.json"
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)  # a process that dies here would leave an empty file
        write_atomically(target, b"one", overwrite=False)
    monkeypatch.setattr("os.link", fail)  # as where there are no hard links
    write_atomically(tmp_path / "b.json", b"two", overwrite=False)
    with pytest.raises(FileExistsError):
        write_atomically(target, b"three", overwrite=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.json": b"one", "b.json": b"two"}


def test_an_environment_that_is_not_shown_keeps_its_last_image(tmp_path: Path) -> None:
    both, first = np.array([True, True]), np.array([True, False])
    frames = [(np.stack([picture(a), picture(b)]), show) for a, b, show in ((0, 50, both), (100, 150, first))]
    write_tiled_video(tmp_path / "a.mp4", frames, hold=3)
    film = imageio.imread(tmp_path / "a.mp4").astype(int)
    assert film.shape == (2 + 3, 64, 192, 3)
    left, right = film[:, :, :90].mean(axis=(1, 2, 3)), film[:, :, 102:].mean(axis=(1, 2, 3))
    assert np.abs(left - [0, *[100] * 4]).max() < 6
    assert np.abs(right - 50).max() < 6


def test_tiles_go_row_by_row() -> None:
    tiled = tile_images(np.stack([picture(shade) for shade in (10, 20, 30)]))
    assert tiled.shape == (128, 192, 3)
    assert [tiled[y, x, 0] for y, x in ((0, 0), (0, 96), (64, 0), (64, 96))] == [10, 20, 30, 0]
    assert (tiled[:64, :96] == 10).all()


# ---------------------------------------------------------------------- the gallery
def test_the_gallery_has_every_family() -> None:
    families = {row.family for row in CATALOG.values()}
    assert set(gallery.scenes()) == families
    assert all(CATALOG[env_id].family == family for family, (env_id, _) in gallery.scenes().items())
    assert {path.name for path in DOCS.iterdir()} == {f"{family}.webp" for family in families}
    for path in DOCS.iterdir():
        assert path.stat().st_size < gallery.LIMIT == 300_000
        with Image.open(path) as image:
            assert image.size == (256, 256)
            assert image.info["loop"] == 0, "for ever"
            assert 8 < getattr(image, "n_frames", 1) < 120


def test_a_picture_loops_at_the_right_speed_and_keeps_to_the_limit() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (6, 256, 256, 3), dtype=np.uint8)
    file = gallery.encode(list(noise), [100] * 5 + [1500])
    assert len(file) < gallery.LIMIT
    with Image.open(io.BytesIO(file)) as image:
        assert getattr(image, "n_frames", 1) == 6
        times = []
        for k in range(6):
            image.seek(k)
            image.load()
            times.append(image.info["duration"])
        assert times == [100] * 5 + [1500]
        assert image.info["loop"] == 0
    flat = gallery.encode([picture(0), picture(255)], [100, 100])
    assert len(flat) < 2000


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--family", "RememberColour"], "--family RememberColour: no such family; use some of ShellGame"),
        (["--size", "10"], "--size 10 must be a number of pixels from 64 to 1024"),
        (["--env-id", "PickCube-v1"], "--env-id PickCube-v1 has no expert"),
        (["--env-id", "RememberColor3-v0", "--family", "ShellGame"], "--family and --env-id exclude each other"),
    ],
)
def test_a_wrong_option_of_the_gallery_is_named(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gallery", *argv, "--out", str(tmp_path / "new")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------------- the commands
def test_each_episode_has_a_video_as_long_as_itself(
    made: list[dict[str, Any]], canvas: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "--episodes",
        "5",
        "--size",
        "128",
        "--overlay",
        "step",
        "--arm",
        "held",
        "--out",
        str(tmp_path / "a" / "b"),
    ]
    assert cli.main(["record", "--env-id", ENV_ID, *argv]) == 0
    (asked,) = made
    assert asked["num_envs"] == 3, "two batches, as even as may be"
    assert (asked["render_mode"], asked["arm"]) == ("rgb_array", "held")
    assert asked["human_render_camera_configs"]["width"] == 128
    files = [tmp_path / "a" / "b" / f"{ENV_ID}_expert_seed{k}.mp4" for k in range(5)]
    assert sorted(files[0].parent.iterdir()) == files, "and nothing else"
    lengths = np.concatenate(
        [
            np.stack([frame.running for frame in play(canvas, load_player("expert"), seeds)]).sum(axis=0)
            for seeds in ([0, 1, 2], [3, 4, 5])
        ]
    )
    films = [imageio.imread(path).astype(int) for path in files]
    assert [len(film) for film in films] == [length + HOLD for length in lengths[:5]]
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{path}: success in {n - 1} steps" for path, n in zip(files, lengths[:5], strict=True)]
    for film in films:
        assert film.shape[1:] == (128, 128, 3)
        assert (np.abs(film[:, :16, :40] - GREY) > 60).mean() > 0.5, "the step is written at the top"
        assert np.abs(film[:, 64:] - GREY).max() < 20, "and nothing at the bottom"


def test_tiles_stand_still_once_their_episode_is_over(
    made: list[dict[str, Any]], canvas: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--episodes", "3", "--tiled", "--size", "128", "--overlay", "step", "--out", str(tmp_path)]
    assert cli.main(["record", "--env-id", ENV_ID, *argv]) == 0
    (path,) = tmp_path.iterdir()
    assert path.name == f"{ENV_ID}_expert_seed0_tiled3.mp4"
    assert capsys.readouterr().out == f"{path}: 3 of 3 episodes with success\n"
    film = imageio.imread(path).astype(int)
    ends = np.stack([frame.running for frame in play(canvas, load_player("expert"), [0, 1, 2])]).sum(axis=0) - 1
    assert film.shape == (ends.max() + 1 + HOLD, 256, 256, 3)
    corners = [(0, 0), (0, 128), (128, 0)]
    for end, (y, x) in zip(ends, corners, strict=True):
        text = film[:, y : y + 16, x : x + 70]
        change = np.abs(np.diff(text, axis=0)).max(axis=(1, 2, 3))
        assert change[end - 1] > 40, "the step number changes up to the end"
        assert change[end + 1 :].max(initial=0) < 40, "and not afterwards"


@pytest.mark.render
def test_record_and_gallery_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--env-id", ENV_ID, "--episodes", "1", "--size", "128", "--seed", "3", "--out", str(tmp_path)]
    assert cli.main(["record", *argv]) == 0
    (path,) = tmp_path.iterdir()
    assert capsys.readouterr().out.startswith(f"{path}: success in ")
    film = imageio.imread(path).astype(int)
    cue, response = film[1, 64:100, 40:], film[-25, 64:100, 40:]
    assert np.abs(cue - response).mean() > 2, "something happens"
    assert cli.main(["record", *argv]) == 2, "a second time it is taken"

    monkeypatch.setattr(gallery, "EVERY", 9)
    monkeypatch.setattr(gallery, "SEEDS", 2)
    folder = tmp_path / "gallery"
    old = folder / "ShellGame.webp"
    folder.mkdir()
    old.write_bytes(b"old")
    assert cli.main(["gallery", "--family", "ShellGame", "--size", "64", "--out", str(folder)]) == 0
    assert list(folder.iterdir()) == [old]
    with Image.open(old) as image:
        assert image.size == (64, 64)
        assert getattr(image, "n_frames", 1) >= 3


def test_a_policy_that_draws_gets_the_seeds_of_its_episodes_and_nan_is_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mikasa collect` and `record` begin episodes in the same way."""
    asked: list[Any] = []
    policy = SimpleNamespace(
        on_episode_start=lambda: asked.append("start"),
        seed_episodes=asked.append,
        act=lambda obs: obs + 1.0,
        require_no_nan=lambda: asked.append("no NaN"),
    )
    monkeypatch.setattr(playing, "make_policy", lambda checkpoint, network: policy)
    player = CheckpointPlayer(save_untrained(tmp_path / "p.pt", "RememberColor3-v0", 65, obs="state"))
    act = player.begin(seeds=[3, 4])
    assert torch.equal(act(torch.zeros(2, 1)), torch.ones(2, 1))
    assert asked == ["start", [3, 4], "no NaN"]
    asked.clear()
    player.begin()
    assert asked == ["start"], "there are no seeds to tell"
