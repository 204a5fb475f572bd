"""Rules of the environments on top of Minigrid, Memory Maze and ViZDoom, and of the pendulum that shows its velocity."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from base_helpers import make, skip_without_extra
from gymnasium.error import DependencyNotInstalled, ResetNeeded

from mikasa_base.agents.agent import play
from mikasa_base.agents.control import SwingFromVelocity
from mikasa_base.agents.minigrid import PerfectMemory
from mikasa_base.envs.velocity_only_pendulum import VelocityOnlyPendulum
from mikasa_base.factory import missing_dependency
from mikasa_base.registry import BY_NAME, ROWS

EXTRAS = {row.extra: row for row in ROWS if row.extra}


@pytest.mark.parametrize("row", EXTRAS.values(), ids=lambda row: str(row.extra))
def test_a_library_that_is_not_found_is_asked_for(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in row.requires else found(name))
    assert missing_dependency(row) == row.requires[0]
    wanted = f"{row.name} needs {row.requires[0]}, which is not installed: pip install 'mikasa-suite[{row.extra}]'"
    with pytest.raises(DependencyNotInstalled, match=re.escape(wanted)):
        gym.make(f"{row.name}-v0")


# --- MinigridMemory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["Easy", "Medium", "Hard"])
def test_the_cue_is_never_seen_with_the_two_objects(preset: str) -> None:
    """From anywhere in the corridor, facing any way."""
    env = make(f"MinigridMemory{preset}-v0")
    inner: Any = env.unwrapped._env  # type: ignore[attr-defined]
    middle = inner.height // 2
    cue, ends = (1, middle - 1), [(inner.width - 2, middle - 2), (inner.width - 2, middle + 2)]
    sights = set()
    for seed in range(5):
        env.reset(seed=seed)
        for x in range(1, inner.width - 1):
            for direction in range(4):
                inner.agent_pos, inner.agent_dir = np.array((x, middle)), direction
                sights.add((inner.agent_sees(*cue), any(inner.agent_sees(*end) for end in ends)))
    assert sights == {(False, False), (True, False), (False, True)}


def test_both_objects_are_the_cue_equally_often_and_either_side_is_right() -> None:
    env = make("MinigridMemory-v0")
    inner: Any = env.unwrapped._env  # type: ignore[attr-defined]
    kinds, sides = [], []
    env.reset(seed=0)
    for _ in range(300):
        env.reset()
        kinds.append(inner.grid.get(1, inner.height // 2 - 1).type == "key")
        sides.append(inner.success_pos[1] < inner.height // 2)
    assert np.mean(kinds) == pytest.approx(0.5, abs=0.12)
    assert np.mean(sides) == pytest.approx(0.5, abs=0.12)
    assert abs(np.corrcoef(kinds, sides)[0, 1]) < 0.2, "the side tells the cue"


def test_the_reward_falls_with_time_and_success_is_told_at_the_end() -> None:
    env = make("MinigridMemory-v0")
    played = play(env, PerfectMemory(env, np.random.default_rng(0)), 20, seed=1)
    assert played.success is not None
    assert played.success.all()
    assert played.returns == pytest.approx(1 - 0.9 * played.lengths / 605)


@pytest.mark.parametrize("right", [True, False])
def test_either_object_ends_it_and_success_is_told_of_the_right_one_alone(right: bool) -> None:
    env = make("MinigridMemory-v0")
    inner: Any = env.unwrapped._env  # type: ignore[attr-defined]
    for seed in range(4):
        env.reset(seed=seed)
        x, y = inner.success_pos if right else inner.failure_pos
        middle = inner.height // 2
        inner.agent_pos, inner.agent_dir = np.array((x, middle)), 3 if y < middle else 1
        _, reward, *rest = env.step(2)
        assert reward == (pytest.approx(1 - 0.9 / 605) if right else 0)
        assert rest == [True, False, {"success": right}]


@pytest.mark.parametrize("random_length", [True, False])
def test_the_length_of_the_corridor_differs_if_asked_for(random_length: bool) -> None:
    env = make("MinigridMemory-v0", random_length=random_length)
    inner: Any = env.unwrapped._env  # type: ignore[attr-defined]
    ends = set()
    for seed in range(20):
        env.reset(seed=seed)
        ends.add(int(inner.success_pos[0]))
    assert (len(ends) > 1) == random_length


def test_sizes_that_show_all_at_once_are_refused() -> None:
    for size, why in ((9, "integer from 11"), (12, "should be odd")):
        with pytest.raises(ValueError, match=rf"size={size} .*{why}|size={size} {why}"):
            make("MinigridMemory-v0", size=size)


def test_minigrids_own_ids_stay_as_minigrid_registered_them() -> None:
    skip_without_extra(BY_NAME["MinigridMemory"])
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import gymnasium as gym, minigrid, mikasa_base\n"
        "before = {i: s.entry_point for i, s in gym.registry.items() if i.startswith('MiniGrid')}\n"
        "gym.make('MinigridMemory-v0').close()\n"
        "assert before == {i: s.entry_point for i, s in gym.registry.items() if i.startswith('MiniGrid')}\n"
        "print(len(before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


# --- VelocityOnlyPendulum ------------------------------------------------------------------------------------------


def test_the_pendulum_is_gymnasiums() -> None:
    """State by state and cost by cost, from the same start."""
    ours = VelocityOnlyPendulum()
    theirs: Any = gym.make("Pendulum-v1").unwrapped
    obs, _ = ours.reset(seed=4)
    theirs.reset(seed=4)
    assert theirs.state == pytest.approx([ours._angle, ours._speed]), "the same numbers are drawn"
    rng = np.random.default_rng(0)
    for step in range(200):
        action = rng.uniform(-1.2, 1.2, 1).astype(np.float32)
        obs, reward, terminated, truncated, info = ours.step(action)
        their_obs, their_reward, *_ = theirs.step(2 * np.clip(action, -1, 1))
        assert obs == pytest.approx(their_obs[2:], abs=1e-5)
        assert reward == pytest.approx((1 + 2 * their_reward / 16.2736044) / 200, abs=1e-7)
        assert (terminated, truncated, info) == (False, step == 199, {})
    with pytest.raises(ResetNeeded):
        ours.step(action)


def test_two_angles_look_alike_and_the_agent_tells_them_apart() -> None:
    """At the start the velocity says nothing of the angle; the agent soon knows it to a thousandth."""
    env = VelocityOnlyPendulum()
    agent = SwingFromVelocity(env, np.random.default_rng(0))
    first = []
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        agent.begin(obs)
        env._speed = 0.5
        obs = np.array([0.5], np.float32)
        first.append((env._angle, obs))
        agent.begin(obs)
        for _ in range(60):
            obs, *_ = env.step(agent.act(obs, 0.0))
        assert agent._angle is not None
        agent.act(obs, 0.0)
        assert np.cos(agent._angle - env._angle) > 0.999
    assert np.ptp([angle for angle, _ in first]) > 3
    assert len({obs.tobytes() for _, obs in first}) == 1


@pytest.mark.parametrize("action", [0.5, np.array([np.inf], np.float32), np.zeros(2, np.float32), "left"])
def test_a_torque_that_is_none_is_named(action: Any) -> None:
    env = VelocityOnlyPendulum()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action="):
        env.step(action)


# --- ViZDoomTwoColors ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def doom() -> Iterator[Any]:
    env = make("ViZDoomTwoColors-v0", disable_env_checker=True)
    yield env.unwrapped
    env.close()


def reset_until(env: Any, good: int) -> Any:
    for seed in range(50):
        obs, _ = env.reset(seed=seed)
        if env._good == good:
            return obs
    raise AssertionError("one colour never came up")


@pytest.mark.slow
def test_the_column_has_the_good_colour_and_goes_when_it_is_time(doom: Any) -> None:
    names = {0: "TallGreenColumn", 1: "TallRedColumn"}
    for good in (0, 1):
        reset_until(doom, good)
        for step in range(47):
            columns = [thing.name for thing in doom._game.get_state().objects if thing.name in names.values()]
            assert columns == ([names[good]] if step < 45 else []), "it disappears after 45 steps"
            doom.step(0)


@pytest.mark.slow
def test_a_column_that_never_goes_stays(doom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doom, "column_steps", 0)
    doom.reset(seed=0)
    for _ in range(4):
        doom.step(0)
    assert any(thing.name.endswith("Column") for thing in doom._game.get_state().objects)


@pytest.mark.slow
@pytest.mark.parametrize("good", [0, 1])
@pytest.mark.parametrize("color", [0, 1])
def test_a_thing_heals_or_hurts_by_its_colour(doom: Any, good: int, color: int) -> None:
    """The agent is put on things of one colour, by the engine's cheats."""
    from vizdoom import GameVariable

    name = ("GreenArmor", "BlueArmor")[color]
    reset_until(doom, good)
    for _ in range(20):  # so that there is something to heal
        doom.step(0)
    before = doom._game.get_game_variable(GameVariable.HEALTH)
    assert 40 <= before <= 76
    things = [(t.name, t.position_x, t.position_y) for t in doom._game.get_state().objects if "Armor" in t.name]
    _, x, y = next(
        (n, x, y)
        for n, x, y in things
        if n == name and all(math.dist((x, y), t[1:]) > 85 for t in things if t != (n, x, y))
    )
    doom._game.send_game_command(f"warp {x:.0f} {y:.0f}")
    reward = 0.0
    while not reward:
        _, reward, *_ = doom.step(4)  # one who moves touches what is there
    assert reward == (1 if color == good else -1)
    gained = doom._game.get_game_variable(GameVariable.HEALTH) - before
    assert gained == pytest.approx(25 if color == good else -25, abs=9), "but for one bite of the acid"


@pytest.mark.slow
def test_who_does_nothing_dies_of_the_acid(doom: Any) -> None:
    doom.reset(seed=3)
    steps, total, terminated = 0, 0.0, False
    while not terminated:
        _, reward, terminated, truncated, info = doom.step(0)
        steps, total = steps + 1, total + reward
        assert not truncated
        assert not info
    assert total == 0
    assert steps == pytest.approx(13 * 32 / 4, abs=8), "13 bites of 8 points, one every 32 tics"
    with pytest.raises(ResetNeeded):
        doom.step(0)


@pytest.mark.slow
def test_rooms_differ_and_the_colour_does_not_show_in_them(doom: Any) -> None:
    """The same room with either colour as the good one: only the column tells which."""
    from mikasa_base.adapters.vizdoom import LAYOUTS, _places, _room

    places, towards = _places(np.random.default_rng(0))
    green, red = (_room(places, towards, good) for good in (0, 1))
    visible = re.compile(r"special=\d+;arg0=\d+;|type=3[02];")
    assert green != red
    assert visible.sub("", green) == visible.sub("", red)
    assert len({str(_places(np.random.default_rng(layout))) for layout in range(LAYOUTS)}) == LAYOUTS
    goods = []
    doom.reset(seed=0)
    for _ in range(60):
        doom.reset()
        goods.append(doom._good)
    assert 15 <= sum(goods) <= 45


@pytest.mark.slow
def test_the_engine_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = make("ViZDoomTwoColors-v0", disable_env_checker=True)
    env.reset(seed=0)
    folder = Path(env.unwrapped._folder.name)  # type: ignore[attr-defined]
    assert folder.exists()
    assert Path.cwd() == tmp_path
    env.close()
    assert not folder.exists()
    assert not list(tmp_path.iterdir())


# --- MemoryMaze ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_maze_is_as_long_as_the_table_says_and_frames_its_ball() -> None:
    env = make("MemoryMaze-v0", disable_env_checker=True)
    obs, _ = env.reset(seed=0)
    inner: Any = env.unwrapped._env  # type: ignore[attr-defined]
    assert inner.control_timestep() == pytest.approx(0.25)
    # The limit is short of a whole number of steps by a thousandth of a second, so that rounding adds none.
    assert (inner._time_limit + 1e-3) / inner.control_timestep() == pytest.approx(BY_NAME["MemoryMaze"].steps[""])
    frame = {tuple(pixel) for pixel in np.concatenate([obs[0], obs[-1], obs[:, 0], obs[:, -1]]).tolist()}
    assert len(frame) == 1, "the frame has one colour, that of the ball"
    assert len(np.unique(obs)) > 20
    with pytest.raises(ValueError, match="action=6"):
        env.step(6)
    env.close()


@pytest.mark.slow
def test_a_larger_maze_takes_longer_and_has_more_balls() -> None:
    env = make("MemoryMaze11x11-v0", disable_env_checker=True)
    env.reset(seed=0)
    inner: Any = env.unwrapped._env  # type: ignore[attr-defined]
    assert (inner._time_limit + 1e-3) / inner.control_timestep() == pytest.approx(BY_NAME["MemoryMaze"].steps["11x11"])
    assert len(inner.task._targets) == 4
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MemoryMaze-v0", "ViZDoomTwoColors-v0"])
def test_a_closed_environment_asks_for_a_reset_and_can_be_reset(name: str) -> None:
    env = make(name, disable_env_checker=True).unwrapped
    env.close()
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    env.close()
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=1)
    env.step(0)
    env.close()


@pytest.mark.slow
def test_memory_maze_says_how_to_draw_where_it_cannot() -> None:
    skip_without_extra(BY_NAME["MemoryMaze"])
    code = "import gymnasium, mikasa_base\ngymnasium.make('MemoryMaze-v0')"
    for platform in ("no-such-platform", "osmesa"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "MUJOCO_GL": platform},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            assert platform == "osmesa", "osmesa may be installed"
            continue
        last = done.stderr.strip().splitlines()[-1]
        assert "DependencyNotInstalled" in last
        assert f"MUJOCO_GL={platform}" in last
        assert "libegl1" in last


def test_sizes_of_memory_maze() -> None:
    with pytest.raises(ValueError, match="size=10 should be 9, 11, 13 or 15"):
        make("MemoryMaze-v0", size=10)
