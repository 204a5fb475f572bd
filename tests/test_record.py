"""``mikasa record`` and ``mikasa gallery``."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from PIL import Image
from wrapper_helpers import GREY, Canvas

import mikasa_robo
from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.checkpoints import save_policy
from mikasa_robo.baselines.networks import ActorCritic, RecurrentActorCritic
from mikasa_robo.baselines.spaces import ObservationLayout
from mikasa_robo.catalog import CATALOG
from mikasa_robo.tools import cli, gallery
from mikasa_robo.tools.record import HOLD, Options, Player, UnsuitablePolicyError, Video, play

DOCS = Path(__file__).parent.parent / "docs" / "gallery"
ENV_ID = "RememberColor3-v0"


@pytest.fixture(scope="module")
def canvas() -> Iterator[Any]:
    """Three environments as scripted policies want them, with a canvas for a renderer."""
    env = Canvas(gym.make(ENV_ID, num_envs=3, obs_mode=Player("expert").obs_mode), 16, 16)
    yield env
    env.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Environments are made without a renderer and get a canvas; gives the arguments they were asked for with."""
    asked: list[dict[str, Any]] = []

    def make(env_id: str, num_envs: int, *, obs_mode: str, **kwargs: Any) -> gym.Env[Any, Any]:
        asked.append({"num_envs": num_envs, **kwargs})
        return Canvas(gym.make(env_id, num_envs=num_envs, obs_mode=obs_mode), 128, 128)

    monkeypatch.setattr(mikasa_robo, "make_env", make)
    return asked


# ---------------------------------------------------------------------- what is asked for
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--env-id", "RememberColour3-v0"], "--env-id RememberColour3-v0: there is no such task"),
        (["--policy", "best"], "--policy best: is no file; give a checkpoint or one of expert, forgetful, memoryless"),
        (["--episodes", "0"], "--episodes 0 must be at least 1"),
        (["--seed", "-1"], "--seed -1 must be at least 0"),
        (["--size", "511"], "--size 511 must be an even number of pixels from 128 to 2048"),
        (["--overlay", "all", "step"], "--overlay all step: give all, none or some of task, step, reward, terms"),
        (["--overlay", "step", "step"], "--overlay step step: give all"),
        (["--env-id", "InterceptSlow-v0", "--arm", "held"], "--arm held would hold the arm for ever"),
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


@pytest.mark.parametrize("tiled", [False, True])
def test_videos_that_exist_are_kept(tiled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(ENV_ID, policy="random", episodes=2, seed=5, tiled=tiled, out=tmp_path)
    taken = options.files()[-1]
    assert taken.name == f"{ENV_ID}_random_seed{'5_tiled2' if tiled else '6'}.mp4"
    taken.write_text("mine")
    argv = ["--policy", "random", "--episodes", "2", "--seed", "5", *(["--tiled"] if tiled else [])]
    assert cli.main(["record", "--env-id", ENV_ID, *argv, "--out", str(tmp_path)]) == 2
    assert f"holds {taken} already: choose another folder" in capsys.readouterr().err
    assert taken.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [taken]


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
    frames = list(play(canvas, Player("expert"), [0, 1, 2]))
    assert all(frame.pictures.shape == (3, 16, 16, 3) and (frame.pictures == GREY).all() for frame in frames)
    running = np.stack([frame.running for frame in frames])
    lengths = running.sum(axis=0) - 1  # the reset is drawn, too
    assert (running == (np.arange(len(frames))[:, None] <= lengths)).all(), "once over, an episode stays over"
    assert frames[-1].success.all()
    assert not frames[0].success.any()
    assert 10 < lengths.min() < lengths.max() == len(frames) - 1 < 60
    (last,) = play(canvas, Player("expert"), [0, 1, 2], every=0)
    assert last.success.all()
    assert last.pictures.size == 0
    sparse = list(play(canvas, Player("expert"), [0, 1, 2], every=5))
    times = {0, *range(5, len(frames), 5), *lengths.tolist()}
    assert len(sparse) == len(times), "every fifth, and the end of each episode"
    assert (sparse[-1].running == frames[-1].running).all()


def test_the_seeds_name_the_episodes(canvas: Any) -> None:
    (first,) = play(canvas, Player("memoryless"), [7, 8, 9], every=0)
    target = canvas.unwrapped.task_state.target[:, 0].tolist()
    (_,) = play(canvas, Player("memoryless"), [9, 7, 8], every=0)
    assert canvas.unwrapped.task_state.target[:, 0].tolist() == [target[2], *target[:2]]
    assert len(first.success) == 3


def test_a_checkpoint_acts_and_must_fit(
    made: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env: Any = gym.make(ENV_ID, num_envs=2)
    wanted = env.unwrapped.single_observation_space.shape[0]
    path = tmp_path / "policy.pt"
    torch.manual_seed(0)
    network = ActorCritic(wanted, 8, (16,))
    trained = ppo_mlp.Args(env_id=ENV_ID).plain()
    save_policy(path, network, env_id=ENV_ID, step=0, args=trained)
    player = Player(str(path))
    assert player.obs_mode == "state"
    obs, info = env.reset(seed=0)
    assert torch.equal(player.begin(env)(obs, info), network.eval().act(obs))
    (last,) = play(env, player, [0, 1], every=0)
    assert not last.running.any()
    save_policy(path, ActorCritic(wanted + 1, 8, (16,)), env_id=ENV_ID, step=0, args=trained)
    with pytest.raises(UnsuitablePolicyError, match=f"maps {wanted + 1} numbers to 8, {ENV_ID} needs {wanted} to 8"):
        Player(str(path)).begin(env)
    env.close()
    made.clear()
    argv = ["--policy", str(path), "--size", "128", "--out", str(tmp_path / "videos")]
    assert cli.main(["record", "--env-id", ENV_ID, *argv]) == 2
    assert "it was trained on another task" in capsys.readouterr().err
    assert len(made) == 1
    assert "arm" not in made[0]
    assert not (tmp_path / "videos").exists()
    own = ppo_mlp.Args(env_id=ENV_ID, env_kwargs=("arm=held", "delay_steps=7")).plain()
    save_policy(path, ActorCritic(wanted + 1, 8, (16,)), env_id=ENV_ID, step=0, args=own)
    for words, arm in (([], "held"), (["--arm", "free"], "free")):
        made.clear()
        assert cli.main(["record", "--env-id", ENV_ID, *argv, *words]) == 2
        assert (made[0]["arm"], made[0]["delay_steps"]) == (arm, 7), "the policy's own, unless told otherwise"


def test_a_recurrent_checkpoint_acts_with_the_memory_of_each_episode(tmp_path: Path) -> None:
    env: Any = gym.make(ENV_ID, num_envs=2, obs_mode="objects+joints")
    layout = ObservationLayout.of(env.unwrapped.single_observation_space)
    path = tmp_path / "policy.pt"
    network = RecurrentActorCritic(layout, 8, (16,), 8, (16,))
    torch.nn.init.normal_(network.actor[-1].weight)
    trained = ppo_lstm.Args(env_id=ENV_ID, control_mode="pd_joint_delta_pos").plain()
    save_policy(path, network, env_id=ENV_ID, step=0, args=trained)
    player = Player(str(path))
    assert player.obs_mode == "objects+joints"
    obs, info = env.reset(seed=0)
    act = player.begin(env)
    first, second = act(obs, info), act(obs, info)
    assert not torch.equal(first, second), "it does not remember"
    assert torch.equal(player.begin(env)(obs, info), first), "an episode begins with the memory of another"
    (last,) = play(env, player, [0, 1], every=0)
    assert not last.running.any()
    env.close()
    flat: Any = gym.make(ENV_ID, num_envs=2, obs_mode="joints")
    with pytest.raises(UnsuitablePolicyError, match="trained on another task"):
        player.begin(flat)
    flat.close()


# ---------------------------------------------------------------------- files
def picture(shade: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full((64, 96, 3), shade, dtype=np.uint8)


def test_a_video_is_there_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    video = Video(path)
    for shade in (0, 100, 200):
        video.add(picture(shade))
    assert not path.exists()
    video.finish()
    video.discard()
    assert list(tmp_path.iterdir()) == [path]
    film = imageio.imread(path)
    assert film.shape == (3 + 20, 64, 96, 3)
    means = film.mean(axis=(1, 2, 3))
    assert np.abs(means - [0, 100, *[200] * 21]).max() < 6


def test_a_video_never_takes_the_name_of_another_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    video = Video(path)
    video.add(picture(0))
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        video.finish()
    video.discard()
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------- the gallery
def test_the_gallery_has_every_family() -> None:
    families = {row.family for row in CATALOG.values()}
    assert set(gallery.SCENES) == families
    assert all(CATALOG[env_id].family == family for family, (env_id, _) in gallery.SCENES.items())
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
        (["--family", "RememberColour"], "--family RememberColour: use some of ShellGame"),
        (["--size", "10"], "--size 10 must be a number of pixels from 64 to 1024"),
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
            np.stack([frame.running for frame in play(canvas, Player("expert"), seeds)]).sum(axis=0)
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
    ends = np.stack([frame.running for frame in play(canvas, Player("expert"), [0, 1, 2])]).sum(axis=0) - 1
    assert film.shape == (ends.max() + 1 + HOLD, 256, 256, 3)
    corners = [(0, 0), (128, 0), (0, 128)]
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
