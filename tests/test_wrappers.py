"""The wrappers: what they change, what they must not change, and that they go together in every order."""

from __future__ import annotations

import itertools
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from mani_skill.utils.wrappers import CPUGymWrapper, RecordEpisode
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv
from task_helpers import FAMILIES, Env, random_actions
from torch import Tensor
from wrapper_helpers import GREY, Canvas

import mikasa_robo
import mikasa_robo.utils.wrappers as w
from mikasa_robo.assets.palette import COLORS
from mikasa_robo.assets.shapes import SHAPES
from mikasa_robo.catalog import CATALOG
from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.core.observations import MODES
from mikasa_robo.core.phases import PHASES
from mikasa_robo.core.rewards import maximum
from mikasa_robo.tasks.remember_color import RememberColor
from mikasa_robo.utils.wrappers.text import write_lines

N = 4
OVERLAYS: tuple[Callable[[Env], Env], ...] = (
    w.RememberColorInfoWrapper,
    w.RenderStepInfoWrapper,
    w.RenderRewardInfoWrapper,
    w.DebugRewardWrapper,
)


@pytest.fixture(scope="module")
def color() -> Iterator[Env]:
    """RememberColor3, N environments, no renderer; observes "state"."""
    env = gym.make("RememberColor3-v0", num_envs=N)
    yield env
    env.close()


@pytest.fixture(scope="module")
def another() -> Iterator[Env]:
    """The same once more, for comparisons."""
    env = gym.make("RememberColor3-v0", num_envs=N)
    yield env
    env.close()


@pytest.fixture
def restored(color: Env) -> Iterator[Env]:
    """`color` for wrappers that change its observation mode or spaces, which it gets back afterwards."""
    task = color.unwrapped
    kept = task._modes, task._obs_mode, task.obs_mode_struct, task._init_raw_obs
    yield color
    task._modes, task._obs_mode, task.obs_mode_struct, raw = kept
    task.update_obs_space(raw)


def stagger(env: Env) -> list[int]:
    """Brings the environments of a batch of N to different t, and gives these."""
    actions = random_actions(env, 7, seed=3)
    env.reset(seed=5)
    for k, action in enumerate(actions):
        env.step(action)
        if k == 2:
            env.reset(options={"env_idx": torch.tensor([1])})
        if k == 5:
            env.reset(options={"env_idx": torch.tensor([2, 3])})
    times: list[int] = env.unwrapped.elapsed_steps.tolist()
    assert times == [7, 4, 1, 1]
    return times


PAPER_NAMES = [
    "ShellGameRenderCupInfoWrapper",
    *(
        f"{family}InfoWrapper"
        for family in ("Intercept", "InterceptGrab", "RotateLenient", "RotateStrict", "TakeItBack")
    ),
    *(f"{family}InfoWrapper" for family in ("RememberColor", "RememberShape", "RememberShapeAndColor")),
    *(f"{family}InfoWrapper" for family in ("BunchOfColors", "SeqOfColors", "ChainOfColors")),
]


def test_all_wrappers_come_with_a_star() -> None:
    names: dict[str, Any] = {}
    exec("from mikasa_robo.utils.wrappers import *", names)
    assert set(w.__all__) <= set(names)
    for name in ("StateOnlyTensorToDictWrapper", "ShellGameRenderCupInfoWrapper", "RememberColorInfoWrapper"):
        assert isinstance(names[name], type), "named in the paper"
    wrappers = w.TASK_INFO_WRAPPERS
    assert [wrapper.__name__ for wrapper in wrappers if wrapper.__name__ in PAPER_NAMES] == PAPER_NAMES
    for wrapper in wrappers:
        assert names[wrapper.__name__] is wrapper
        assert issubclass(wrapper, w.TaskInfoWrapper)
        assert pickle.loads(pickle.dumps(wrapper)) is wrapper, "a worker process can be given it"


# ---------------------------------------------------------------------- observations
def test_state_becomes_a_dict(restored: Env, another: Env) -> None:
    env = w.StateOnlyTensorToDictWrapper(restored)
    obs, _ = env.reset(11)  # by place, as in the paper
    plain, _ = another.reset(seed=11)
    for action in random_actions(another, 3, seed=0):
        assert set(obs) == set(env.observation_space.spaces) == {"state"}
        assert torch.equal(obs["state"], plain)
        assert env.observation_space["state"].shape == plain.shape
        assert env.get_wrapper_attr("single_observation_space")["state"].shape == plain.shape[1:]
        (obs, *_), (plain, *_) = env.step(action), another.step(action)
    batch = ManiSkillVectorEnv(env)
    assert set(batch.single_observation_space.spaces) == {"state"}
    assert set(batch.reset(seed=0)[0]) == {"state"}


def test_the_prompt_is_in_the_dict() -> None:
    env = w.StateOnlyTensorToDictWrapper(gym.make("RotateLenientPos-v0", num_envs=N))
    obs, info = env.reset(0)
    assert set(obs) == set(env.observation_space.spaces) == {"state", "prompt"}
    assert torch.equal(obs["prompt"], info["prompt"])
    assert env.observation_space["prompt"].shape == (N, 1)
    only = w.ObservationModeWrapper(env, "prompt")
    assert set(only.reset(0)[0]) == set(only.observation_space.spaces) == {"prompt"}
    env.close()


@pytest.mark.parametrize("mode", ["joints", "state", "objects", "oracle+state", "state+objects+joints+oracle"])
def test_a_mode_that_is_chosen_later_is_the_same_mode(restored: Env, mode: str) -> None:
    env = w.ObservationModeWrapper(restored, mode)
    made: Env = gym.make("RememberColor3-v0", num_envs=N, obs_mode=mode)
    made = w.StateOnlyTensorToDictWrapper(made) if mode == "state" else made
    assert env.observation_space == made.observation_space
    assert env.get_wrapper_attr("single_observation_space") == made.get_wrapper_attr("single_observation_space")
    obs, expected = env.reset(seed=2)[0], made.reset(seed=2)[0]
    for action in random_actions(made, 2, seed=1):
        assert set(obs) == set(expected) == set(env.observation_space.spaces)
        for name, value in obs.items():
            assert value.dtype == torch.float32
            assert torch.equal(value, expected[name])
            assert value.shape == env.observation_space[name].shape
        obs, expected = env.step(action)[0], made.step(action)[0]
    again = w.StateOnlyTensorToDictWrapper(w.ObservationModeWrapper(env, "joints"))
    assert {name: value.shape for name, value in again.reset()[0].items()} == {"joints": (N, 25)}
    made.close()


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("rgb+joint", r"'joint' is not known; join any of " + ", ".join(MODES)),
        ("state_dict", r"which only gymnasium.make can choose; join any of " + ", ".join(MODES)),
        ("joints+rgb", r"obs_mode='joints\+rgb' needs images, .*render_backend='[cg]pu'"),
        ("prompt", "no prompt"),
    ],
)
def test_a_mode_that_cannot_be_had_changes_nothing(restored: Env, mode: str, message: str) -> None:
    space = restored.observation_space
    with pytest.raises(ValueError, match=message):
        w.ObservationModeWrapper(restored, mode)
    assert restored.observation_space == space
    assert isinstance(restored.reset(seed=0)[0], Tensor)


def test_a_mode_of_maniskill_s_layout_is_refused() -> None:
    env: Env = gym.make("RememberColor3-v0", num_envs=1, obs_mode="joints", obs_layout="maniskill")
    with pytest.raises(ValueError, match="obs_layout='maniskill': make the task with obs_layout='flat' to wrap it"):
        w.ObservationModeWrapper(env, "joints+time")
    env.close()


@pytest.mark.render
def test_pictures_can_be_chosen_later_and_fail() -> None:
    env: Env = gym.make("RememberColor3-v0", num_envs=2, obs_mode="rgb", robot_uids="panda_wristcam")
    assert env.reset(seed=0)[0]["rgb"].shape == (2, 128, 128, 6)
    env = w.CameraShutdownWrapper(w.ObservationModeWrapper(env, "joints+rgb+depth"), n_initial_steps=0)
    obs, _ = env.reset(seed=0)
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in obs.items()}
    assert shapes == {
        "joints": ((2, 25), torch.float32),
        "rgb": ((2, 128, 128, 6), torch.uint8),
        "depth": ((2, 128, 128, 2), torch.int16),
    }
    for name, space in env.observation_space.spaces.items():
        assert (space.shape, space.dtype) == (obs[name].shape, obs[name].numpy().dtype)
    for part in (obs["rgb"][..., :3], obs["rgb"][..., 3:], obs["depth"][..., :1], obs["depth"][..., 1:]):
        assert part.float().std() > 1, "each camera sees something"
    after = env.step(torch.zeros(2, 8))[0]
    assert not after["rgb"].any()
    assert not after["depth"].any()
    assert after["joints"].any()
    env.close()


# ---------------------------------------------------------------------- text
def test_text_is_written_into_its_block_only() -> None:
    picture = np.full((512, 512, 3), GREY, dtype=np.uint8)
    end = write_lines(picture, ["step 12 of 60", "phase: cue"], "top", start=20)
    changed = (picture != GREY).any(axis=2)
    rows, columns = np.nonzero(changed)
    assert (rows.min(), rows.max()) == (20, end - 1)
    assert columns.min() == 0
    assert columns.max() < 200
    assert changed[20:end, : columns.max() + 1].mean() > 0.99, "one dark block"
    white = picture[..., 0] > 250
    assert 100 < white.sum() < changed.sum() / 4, "letters are brighter than all else, and few"
    below = np.full_like(picture, GREY)
    assert write_lines(below, ["step 12 of 60", "phase: cue"], "bottom", start=20) == end
    assert (below[512 - end : 492] == picture[20:end]).all()


def test_letters_are_high_enough_to_read() -> None:
    for height, least in ((512, 10), (256, 7), (128, 7)):
        picture = np.full((height, 512, 3), GREY, dtype=np.uint8)
        write_lines(picture, ["HHHH"], "top")
        rows = np.nonzero((picture[..., 0] > 200).any(axis=1))[0]
        assert rows.max() - rows.min() + 1 >= least, height


def test_long_lines_are_broken_and_nothing_is_lost() -> None:
    colors = " ".join(COLORS)
    wide, narrow = (np.full((512, width, 3), GREY, dtype=np.uint8) for width in (1200, 128))
    one = write_lines(wide, [colors], "top")
    assert write_lines(narrow, [colors], "top") > 2.5 * one
    ink = [int((picture[..., 0] > 200).sum()) for picture in (wide, narrow)]
    assert ink[0] == pytest.approx(ink[1], rel=0.05), "as many letters"
    assert not (narrow[:, -2:, 0] > 200).any(), "none beyond the edge"


def test_text_leaves_the_robot_in_sight() -> None:
    """It stands in the middle of the image; a block of text stays at the left of it."""
    for size in (512, 1024):
        picture = np.full((size, size, 3), GREY, dtype=np.uint8)
        write_lines(picture, [f"target colours: {', '.join(COLORS)}", "outcome: success"], "top")
        assert np.nonzero((picture != GREY).any(axis=(0, 2)))[0].max() < 0.4 * size


def test_text_that_does_not_fit_ends_at_the_edge() -> None:
    picture = np.full((64, 64, 3), GREY, dtype=np.uint8)
    assert write_lines(picture, ["line"] * 20, "top") == 64
    assert write_lines(picture, ["line"], "bottom", start=64) == 64
    assert write_lines(picture, [], "top", start=7) == 7


# ---------------------------------------------------------------------- overlays
def test_overlays_change_nothing_but_the_pictures(color: Env, another: Env) -> None:
    env = Canvas(color)
    for wrapper in OVERLAYS:
        env = wrapper(env)
    (obs, _), (plain, _) = env.reset(seed=4), another.reset(seed=4)
    for action in random_actions(another, 4, seed=2):
        assert not torch.equal(env.render(), Canvas(color).render())
        result, expected = env.step(action), another.step(action)
        for got, want in zip(result[:4], expected[:4], strict=True):
            assert torch.equal(got, want)
        assert set(result[4]) == set(expected[4])
        assert torch.equal(obs, plain)
        obs, plain = result[0], expected[0]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_overlays_go_together_in_every_order(color: Env, order: tuple[int, ...]) -> None:
    """Each picture is that of the overlays one by one, put below one another: none covers another."""
    stagger(color)
    stacked: Env = Canvas(color)
    for k, index in enumerate(order):
        stacked = OVERLAYS[index](stacked)
        if k == 1:  # others in between
            stacked = gym.wrappers.TransformReward(w.InitialZeroActionWrapper(stacked), float)
    pictures = stacked.render()
    assert (pictures.shape, pictures.dtype) == ((N, 512, 512, 3), torch.uint8)
    whole = (pictures != GREY).any(dim=3).sum(dim=(1, 2))
    single = torch.zeros_like(whole)
    for wrapper in OVERLAYS:
        single += (wrapper(Canvas(color)).render() != GREY).any(dim=3).sum(dim=(1, 2))
    assert torch.equal(whole, single)


def test_each_environment_has_its_own_text(color: Env) -> None:
    times = stagger(color)
    env = w.RenderStepInfoWrapper(Canvas(color))
    texts = [lines[0] for lines in env.lines()]
    assert texts == [f"step {t} of 60 ({PHASES[0 if t < 5 else 1 if t < 10 else 2]})" for t in times]
    pictures = env.render()
    assert torch.equal(pictures[2], pictures[3]), "the same t"
    assert not torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[1], pictures[2])


def test_the_length_of_an_episode_is_its_limit() -> None:
    env: Env = gym.make("RememberColor3-v0", num_envs=1, max_episode_steps=20)
    wrapped = w.RenderStepInfoWrapper(env)
    wrapped.reset(seed=0)
    assert wrapped.lines() == [["step 0 of 20 (cue)"]]
    env.close()


@pytest.mark.parametrize("as_array", [True, False])
@pytest.mark.parametrize(("height", "width"), [(128, 128), (512, 640)])
def test_pictures_keep_their_kind(color: Env, as_array: bool, height: int, width: int) -> None:
    canvas = Canvas(color, height, width, as_array=as_array)
    before, pictures = canvas.render(), w.RenderStepInfoWrapper(canvas).render()
    assert type(pictures) is type(before)
    assert (pictures.shape, pictures.dtype) == (before.shape, before.dtype)
    assert bool((pictures != before).any())
    assert bool((before == GREY).all()), "the pictures of others are left alone"


def test_pictures_that_are_tiled_already_are_refused(color: Env) -> None:
    with pytest.raises(ValueError, match="got 1 images for 4 environments: put it inside"):
        w.RenderStepInfoWrapper(Canvas(color, flat=True)).render()


@pytest.mark.gpu
@pytest.mark.gpu_physics
def test_pictures_stay_on_their_device() -> None:
    env: Env = gym.make("RememberColor3-v0", num_envs=N, sim_backend="physx_cuda")
    overlaid = Canvas(env)
    for wrapper in OVERLAYS:
        overlaid = wrapper(overlaid)
    overlaid.reset(seed=0)
    overlaid.step(torch.zeros(N, 8, device=env.unwrapped.device))
    assert overlaid.render().device == env.unwrapped.device
    env.close()


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def hundredfold(reward: Any) -> Any:
    return 100 * reward


def test_the_reward_is_that_of_the_step_and_its_sum_that_of_the_episode(color: Env) -> None:
    env = w.RenderRewardInfoWrapper(gym.wrappers.TransformReward(color, hundredfold))
    env.reset(seed=1)
    assert {line for (line,) in env.lines()} == {"reward 0.000 (sum 0.00)"}
    total = torch.zeros(N)
    for k, action in enumerate(random_actions(color, 6, seed=4)):
        if k == 3:
            env.reset(options={"env_idx": torch.tensor([0, 2])})
            total[[0, 2]] = 0
            shown = torch.tensor([numbers(line)[1] for (line,) in env.lines()])
            assert torch.allclose(shown, total, atol=0.006)
        reward = env.step(action)[1]
        total += reward
        shown = torch.tensor([numbers(line) for (line,) in env.lines()])
        assert torch.allclose(shown, torch.stack([reward, total], dim=1), atol=0.006)
    assert len(set(total.tolist())) == N
    saved = color.unwrapped.get_state_dict()
    assert int(saved["task"]["elapsed_steps"].min()) > 0
    env.reset(options={"reset_to_env_states": {"env_states": saved}})
    assert {line for (line,) in env.lines()} == {"reward 0.000 (sum 0.00)"}, "an episode that begins in a later state"


def test_the_terms_are_those_that_make_up_the_reward(color: Env) -> None:
    env = w.DebugRewardWrapper(color)
    stagger(env)
    reward = env.step(random_actions(color, 1, seed=5)[0])[1]
    scales = color.unwrapped.reward_scales
    for lines, expected in zip(env.lines(), (reward * maximum(scales)).tolist(), strict=True):
        assert [line.split(":")[0] for line in lines] == [*scales, "success"]
        assert sum(numbers(line)[0] for line in lines) == pytest.approx(expected, abs=0.005 * len(lines))
        assert lines[0].endswith("of 1")
    assert len({tuple(lines) for lines in env.lines()}) > 1, "of each environment by itself"


# ---------------------------------------------------------------------- task info
def degrees(angles: Tensor) -> list[str]:
    return [f"{round(math.degrees(angle)):+d}°" for angle in angles.tolist()]


def expected_facts(family: str, task: Any) -> dict[str, list[str]]:
    """What is said of the target, from the oracle alone."""
    oracle = task.oracle(task.task_state)
    color = ["red", "lime", "blue", "yellow", "magenta", "cyan", "maroon", "olive (orange)", "teal"]
    colors = [", ".join(color[k] for k in row) for row in oracle.long().tolist()]
    if family == "ShellGame":
        return {"ball under": [f"the robot's {('left', 'centre', 'right')[k]} mug" for k in oracle[:, 0].tolist()]}
    if family.startswith("Intercept"):
        return {"ball began with": [f"({v[0]:.2f}, {v[1]:.2f}) m/s" for v in oracle.tolist()]}
    if family.startswith("Rotate"):
        return {"turn by": degrees(task.prompt(task.task_state)[:, 0])}
    if family == "TakeItBack":
        return {"cube started at": [f"({p[0]:.2f}, {p[1]:.2f}) m" for p in oracle.tolist()]}
    if family == "RememberColor":
        return {"target colour": colors}
    if family == "RememberShape":
        return {"target shape": [SHAPES[k] for k in oracle[:, 0].tolist()]}
    if family == "RememberShapeAndColor":
        shapes = ("cube", "sphere", "t_shape", "cross", "torus")
        return {
            "target shape": [shapes[k] for k in oracle[:, 0].tolist()],
            "target colour": [color[k] for k in oracle[:, 1].tolist()],
        }
    if family in ("BunchOfColors", "SeqOfColors", "ChainOfColors"):
        return {"target colours": colors}
    return {}


@pytest.mark.parametrize("env_id", FAMILIES)
def test_every_family_tells_target_phase_mistakes_and_outcome(env_id: str) -> None:
    family = CATALOG[env_id].family
    base: Env = gym.make(env_id, num_envs=N)
    env: Env = w.with_task_info(Canvas(base))
    task = base.unwrapped
    assert type(env).task_class is type(task)
    env.reset(seed=8)
    env.step(random_actions(base, 1, seed=6)[0])
    state = task.task_state
    if "mistaken" in vars(state):
        state.mistaken[1] = True
    told = [dict(line.split(": ", 1) for line in lines) for lines in env.lines()]
    for name, texts in expected_facts(family, task).items():
        assert [facts[name] for facts in told] == texts
    info = task.evaluate()
    assert [facts["phase"] for facts in told] == [PHASES[phase] for phase in info["phase"].tolist()]
    assert len({tuple(lines) for lines in env.lines()}) > 1, "the environments differ"
    mistakes = [facts.get("mistake") for facts in told]
    if "mistaken" in vars(state):
        assert mistakes == ["no", "yes", "no", "no"]
        assert [facts["outcome"] for facts in told] == ["-", "failure", "-", "-"]
    else:
        assert mistakes == [None] * N
    flags = [set(facts["flags"].split(", ")) - {"-"} for facts in told]
    for name in ("static", "at_rest", "lifted"):
        if name in info:
            assert [name.replace("_", " ") in up for up in flags] == info[name].tolist()
    assert not torch.equal(env.render(), Canvas(base).render())
    others = [wrapper for wrapper in w.TASK_INFO_WRAPPERS if not isinstance(task, wrapper.task_class)]
    assert len(others) == len(w.TASK_INFO_WRAPPERS) - 1
    with pytest.raises(TypeError, match=f"is for .*, not for {type(task).__name__}"):
        others[0](base)
    base.close()


def test_colours_that_were_touched_are_named() -> None:
    base: Env = gym.make("ChainOfColors3-v0", num_envs=2)
    env = w.ChainOfColorsInfoWrapper(base)
    env.reset(seed=0)
    state = base.unwrapped.task_state
    first, second = state.target[1, :2].tolist()
    state.counted[1, [first, second]] = True
    texts = [lines[1] for lines in env.lines()]
    names = [f"{name} (orange)" if name == "olive" else name for name in COLORS]
    assert texts == ["touched: 0 of 3 (-)", f"touched: 2 of 3 ({names[first]}, {names[second]})"]
    base.close()


def test_a_task_that_tells_no_facts_shows_its_oracle(color: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RememberColor, "overlay_facts", MemoryEnv.overlay_facts)
    env = w.TaskInfoWrapper(color)
    env.reset(seed=0)
    oracle = color.unwrapped.oracle(color.unwrapped.task_state)[:, 0].tolist()
    assert [lines[0] for lines in env.lines()] == [f"oracle: {k}" for k in oracle]


def test_a_wrapper_of_one_s_own_may_tell_other_facts(color: Env) -> None:
    class Mine(w.TaskInfoWrapper):
        def facts(self, state: Any) -> dict[str, list[str]]:
            return {"number": [str(i) for i in range(N)]}

    env = Mine(color)
    env.reset(seed=0)
    assert [lines[0] for lines in env.lines()] == [f"number: {i}" for i in range(N)]


# ---------------------------------------------------------------------- actions and cameras
class Spy(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the last action."""

    action: Any = None

    def step(self, action: Any) -> Any:
        self.action = action
        return self.env.step(action)


@pytest.mark.parametrize("as_array", [True, False])
def test_the_first_actions_are_zero_in_each_environment_by_its_own_time(color: Env, as_array: bool) -> None:
    spy = Spy(color)
    env = w.InitialZeroActionWrapper(spy, n_initial_steps=4)
    assert stagger(color) == [7, 4, 1, 1]
    given = torch.full((N, 8), 0.5)
    for waiting in ([False, False, True, True], [False, False, True, True], [False, False, True, True], [False] * 4):
        env.step(given.numpy() if as_array else given)
        assert torch.equal((spy.action == 0).all(dim=1), torch.tensor(waiting))
        assert bool((spy.action[~torch.tensor(waiting)] == 0.5).all())
    assert bool((given == 0.5).all()), "the caller's own actions are left alone"
    with pytest.raises(TypeError, match="the action is a list"):
        env.step([[0.0] * 8] * N)


@pytest.mark.parametrize("steps", [-1, 1.5, True, None])
@pytest.mark.parametrize("wrapper", [w.InitialZeroActionWrapper, w.CameraShutdownWrapper])
def test_a_number_of_steps_is_a_whole_number(color: Env, wrapper: Any, steps: Any) -> None:
    with pytest.raises(ValueError, match=f"n_initial_steps={re.escape(repr(steps))} must be a whole number"):
        wrapper(color, n_initial_steps=steps)


class FakeCameras(gym.ObservationWrapper[Any, Any, Any]):
    """Adds pictures to the observations of ``joints``, flat and nested, without drawing them."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        task: Any = self.unwrapped
        task.update_obs_space(self.observation(task._init_raw_obs))

    def observation(self, observation: Any) -> Any:
        picture = torch.full((N, 4, 4, 6), 9, dtype=torch.uint8)
        textures = {"depth": torch.full((N, 4, 4, 1), 7, dtype=torch.int16), "Color": torch.full((N, 4, 4, 4), 5.0)}
        nested = {"base_camera": textures}
        return {**observation, "rgb": picture, "sensor_data": nested}


def lit(obs: Any) -> list[list[bool]]:
    """In which environments there are pictures: flat, nested, and a texture as the renderer gives it."""
    found = []
    for picture in (obs["rgb"], *obs["sensor_data"]["base_camera"].values()):
        rows = picture.flatten(1)
        assert bool((rows.bool().all(dim=1) == rows.bool().any(dim=1)).all())
        found.append(rows.bool().all(dim=1).tolist())
    return found


def test_cameras_fail_in_exactly_the_environments_that_are_past_a_step(restored: Env) -> None:
    inner = FakeCameras(w.ObservationModeWrapper(restored, "joints"))
    env = w.CameraShutdownWrapper(inner, n_initial_steps=3)
    assert lit(env.reset(seed=0)[0]) == [[True] * N] * 3
    stagger(env)  # t is 7, 4, 1, 1
    for on in ([False, False, True, True], [False, False, True, True], [False] * N):
        obs, *_ = env.step(torch.zeros(N, 8))
        assert lit(obs) == [on] * 3
        assert obs["joints"].abs().sum(dim=1).min() > 1, "nothing else is blanked"
        assert {name: value.dtype for name, value in obs.items() if name != "sensor_data"} == {
            "joints": torch.float32,
            "rgb": torch.uint8,
        }
    assert lit(env.reset(options={"env_idx": torch.tensor([3])})[0]) == [[False, False, False, True]] * 3


def test_cameras_may_fail_where_nobody_asks_for_images(restored: Env) -> None:
    """A wrapper around this one may have changed the mode to one tensor."""
    inner: Any = FakeCameras(w.ObservationModeWrapper(restored, "joints"))
    env = w.CameraShutdownWrapper(inner, n_initial_steps=1)
    inner.observation = lambda observation: observation["joints"]
    env.reset(seed=0)
    for _ in range(3):
        assert env.step(torch.zeros(N, 8))[0].shape == (N, 25)


def test_cameras_fail_before_an_automatic_reset_and_not_after_it(restored: Env) -> None:
    inner = w.CameraShutdownWrapper(FakeCameras(w.ObservationModeWrapper(restored, "joints")), n_initial_steps=3)
    env = ManiSkillVectorEnv(inner, record_metrics=True)
    env.reset(seed=0)
    for _ in range(8):
        env.step(torch.zeros(N, 8))
    restored.unwrapped.task_state.mistaken[2] = True  # this episode ends with the next step
    obs, _, terminated, _, infos = env.step(torch.zeros(N, 8))
    assert terminated.tolist() == [False, False, True, False]
    assert lit(obs) == [[False, False, True, False]] * 3
    assert lit(infos["final_observation"]) == [[False] * N] * 3


def test_cameras_need_pictures(color: Env) -> None:
    with pytest.raises(ValueError, match="obs_mode='state' has no images to blank"):
        w.CameraShutdownWrapper(color)
    env = gym.make("RememberColor3-v0", num_envs=1, obs_mode="objects+time")
    with pytest.raises(ValueError, match=r"obs_mode='objects\+joints\+time' has no images to blank"):
        w.CameraShutdownWrapper(env)
    env.close()


def test_wrappers_say_that_workers_have_the_simulation() -> None:
    env = mikasa_robo.make_env("RememberColor3-v0", 1, num_workers=1)
    try:
        with pytest.raises(TypeError, match="make the environment without num_workers"):
            w.RenderStepInfoWrapper(env)
    finally:
        env.close()


# ---------------------------------------------------------------------- with the wrappers of others
@pytest.mark.parametrize("outside", [False, True])
def test_a_recording_shows_the_overlays_it_wraps(color: Env, tmp_path: Path, outside: bool) -> None:
    """RecordEpisode within ManiSkillVectorEnv; overlays outside of the recording leave it, and the steps, alone."""
    shape = (160, 224)
    inner: Env = Canvas(color, *shape)
    recorded = RecordEpisode(
        inner if outside else w.RenderStepInfoWrapper(w.RenderRewardInfoWrapper(inner)),
        str(tmp_path),
        save_trajectory=False,
        max_steps_per_video=9,
    )
    env = ManiSkillVectorEnv(w.DebugRewardWrapper(recorded) if outside else recorded)
    env.reset(seed=0)
    for k, action in enumerate(random_actions(color, 4, seed=7)):
        if k == 2:
            color.unwrapped.task_state.mistaken[3] = True  # an automatic reset of one environment
        _, _, terminated, _, _ = env.step(action)
        assert terminated.tolist() == [False, False, False, k == 2]
    assert color.unwrapped.elapsed_steps.tolist() == [4, 4, 4, 1]
    # ManiSkill fills columns
    corners = [(y, x) for x in (0, shape[1]) for y in (0, shape[0])]
    tiles = [recorded.render_images[-1][y : y + shape[0], x : x + shape[1]] for y, x in corners]
    written = [int((tile != GREY).any(axis=2).sum()) for tile in tiles]
    assert (max(written) == 0) if outside else (min(written) > 1000), "every tile has its own text"
    if not outside:
        top = [tile[: shape[0] // 2] for tile in tiles]
        assert (top[0] == top[1]).all(), "both at step 4"
        assert (top[0] != top[3]).any(), "one at step 4, one at step 1"
        assert (tiles[0] != tiles[1]).any(), "another reward"
    recorded.flush_video(verbose=False)
    assert imageio.imread(tmp_path / "0.mp4").shape == (5, 2 * shape[0], 2 * shape[1], 3)


def test_wrappers_work_within_the_unbatched_view_and_around_it() -> None:
    base: Env = gym.make("RememberColor3-v0", num_envs=1, obs_mode="joints")
    base.unwrapped.render_mode = "rgb_array"  # CPUGymWrapper asks; the canvas draws
    inside = CPUGymWrapper(w.RenderRewardInfoWrapper(w.RememberColorInfoWrapper(Canvas(base))))
    around = w.RenderRewardInfoWrapper(w.RememberColorInfoWrapper(CPUGymWrapper(Canvas(base))))
    pictures = []
    for env in (inside, around):
        env.reset(seed=3)
        obs, reward, *_ = env.step(env.action_space.sample() * 0)
        assert obs["joints"].shape == (25,)
        assert np.ndim(reward) == 0
        pictures.append(np.asarray(env.render()).reshape(512, 512, 3))
    assert (pictures[0] == pictures[1]).all()
    assert (pictures[0] != GREY).any()
    base.close()


def test_a_wrapped_environment_is_made_again_from_its_spec() -> None:
    for wrap in (
        w.StateOnlyTensorToDictWrapper,
        w.RenderStepInfoWrapper,
        lambda env: w.ObservationModeWrapper(env, "joints+oracle"),
        lambda env: w.UnbatchWrapper(w.InitialZeroActionWrapper(env, 2)),
    ):
        env: Env = wrap(gym.make("RememberColor3-v0"))
        again: Env = gym.make(env.spec)
        assert type(again) is type(env)
        seen, repeated = (each.reset(seed=3)[0] for each in (env, again))
        if not isinstance(seen, dict):
            seen, repeated = {"": seen}, {"": repeated}
        assert seen.keys() == repeated.keys()
        assert all(np.array_equal(seen[name], repeated[name]) for name in seen)
        if isinstance(env, w.UnbatchWrapper):
            assert again.get_wrapper_attr("n_initial_steps") == 2
        env.close()
        again.close()


def test_what_changes_batched_observations_does_not_go_around_the_unbatched_view() -> None:
    env = w.UnbatchWrapper(gym.make("RememberColor3-v0"))
    for wrap in (w.StateOnlyTensorToDictWrapper, lambda inner: w.ObservationModeWrapper(inner, "joints")):
        with pytest.raises(
            TypeError, match="UnbatchWrapper inside takes the batch axis off: put UnbatchWrapper outside"
        ):
            wrap(env)
    env.close()


def test_the_unbatched_view_passes_gymnasiums_own_check() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that the bounds of an observation are infinite
        check_env(w.UnbatchWrapper(gym.make("RememberColor3-v0")), skip_render_check=True)


# ---------------------------------------------------------------------- the paper's examples
@pytest.mark.render
@pytest.mark.parametrize("number", [1, 2])
def test_the_papers_examples_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (Path(__file__).parent.parent / "examples" / f"paper_code_{number}.py").read_text()
    for line in ("num_envs, seed = 512, 123", "env = StateOnlyTensorToDictWrapper(env)", "in tqdm(range(89)):"):
        assert source.count(line) == 1
    assert 'obs_mode="rgb", render_mode="all"' in source
    monkeypatch.chdir(tmp_path)
    short = source.replace("= 512, 123", "= 2, 123").replace("range(89)", "range(1)")
    names: dict[str, Any] = {}
    exec(compile(short, f"paper_code_{number}.py", "exec"), names)
    assert names["obs"]["rgb"].shape == (2, 128, 128, 6)
    if number == 2:
        film = imageio.imread(tmp_path / "videos" / "demo_remember-color-9" / "0.mp4").astype(int)
        assert film.shape == (2, 512, 2 * (512 + 128), 3)
        for x in (0, 640):
            for block in (film[:, :90, x : x + 90], film[:, -90:, x : x + 90]):
                assert (block > 230).all(axis=3).sum() > 300, "white letters at the top and at the bottom"
                assert (block < 70).all(axis=3).sum() > 3000, "on a dark ground"
