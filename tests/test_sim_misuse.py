"""Wrong use gives one clear error before anything is built; state mode needs no Vulkan and keeps quiet."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import sapien.physx
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils.common import flatten_state_dict
from sim_helpers import NO_VULKAN, assert_identical, pick_cube, run_python

from mikasa_robo.sim import make_arguments, render
from mikasa_robo.sim.backend import BATCHED, checked_env_idx, choose_sim_backend
from mikasa_robo.sim.env import make
from mikasa_robo.sim.make_arguments import choose_render_backend
from mikasa_robo.sim.materials import UndrawnMaterial
from mikasa_robo.sim.physx import GpuApiMisuse
from mikasa_robo.sim.render import RenderingUnavailableError
from mikasa_robo.tensors import take_rows

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

CASES: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    # what was asked for: error, and words that name the thing, the value and the way out
    "backend": ({"sim_backend": "physx_tpu"}, ValueError, ("sim_backend", "'physx_tpu'", "'auto'", "'physx_cpu'")),
    "zero envs": ({"num_envs": 0}, ValueError, ("num_envs=0", "at least 1")),
    "negative envs": ({"num_envs": -1}, ValueError, ("num_envs=-1", "at least 1")),
    "boolean envs": ({"num_envs": True}, ValueError, ("num_envs=True", "whole number")),
    "half an env": ({"num_envs": 2.5}, ValueError, ("num_envs=2.5", "whole number")),
    "envs in words": ({"num_envs": "8"}, ValueError, ("num_envs='8'", "whole number")),
    "no threads": ({"sim_threads": 0}, ValueError, ("sim_threads=0", "from 1 to")),
    "boolean threads": ({"sim_threads": True}, ValueError, ("sim_threads=True", "whole number")),
    "pictures of one scene": (
        {"parallel_in_single_scene": True, "render_mode": "rgb_array"},
        ValueError,
        ("parallel_in_single_scene=True", "sim_backend='physx_cuda'", "render_mode=None"),
    ),
    "pictures without a renderer": (
        {"obs_mode": "rgb", "render_backend": "none"},
        ValueError,
        ("obs_mode='rgb'", "render_backend='none'", "'auto'"),
    ),
    "video without a renderer": (
        {"render_mode": "rgb_array", "render_backend": None},
        ValueError,
        ("render_mode='rgb_array'", "render_backend=None", "'auto'"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_error_before_anything_is_built(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the environment was being built before its arguments were checked")

    monkeypatch.setattr(BaseEnv, "__init__", built)
    asked, kind, words = CASES[case]
    with pytest.raises(kind) as error:
        make("PickCube-v1", **{"num_envs": 2, "obs_mode": "state", **asked})
    assert error.type is kind
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("name", ["cuda", "gpu", "physx_cuda", "physx_cuda:1"])
def test_cuda_without_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"needs a CUDA device.*use sim_backend='auto' or 'physx_cpu'") as error:
        make("PickCube-v1", num_envs=2, sim_backend=name)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize(
    ("asked", "num_envs", "cuda", "chosen"),
    [
        ("auto", 1, True, "physx_cpu"),
        ("auto", 2, True, "physx_cuda"),
        ("auto", 1, False, "physx_cpu"),
        ("auto", 64, False, "physx_cpu"),
        ("physx_cpu", 64, True, "physx_cpu"),
        ("cpu", 64, True, "cpu"),
        ("physx_cpu_batched", 1, True, "physx_cpu_batched"),
        ("physx_cuda:1", 1, True, "physx_cuda:1"),
    ],
)
def test_the_backend_that_is_chosen(asked: str, num_envs: int, cuda: bool, chosen: str) -> None:
    assert choose_sim_backend(asked, num_envs, cuda_available=cuda) == chosen


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where PhysX's library for GPUs would be. It is not there, but a GPU is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return tmp_path / ".sapien" / "physx" / sapien.physx.version() / "libPhysXGpu_64.so"


def test_auto_asks_torch(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.parent.mkdir(parents=True)
    library.touch()
    assert choose_sim_backend("auto", 64) == "physx_cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_sim_backend("auto", 64) == "physx_cpu"


def test_auto_downloads_nothing_and_says_so(library: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"physics runs on the CPU because .*libPhysXGpu_64.so is missing.*'physx_cuda'"
    ):
        assert choose_sim_backend("auto", 2) == "physx_cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_sim_backend("auto", 1) == "physx_cpu"
        assert choose_sim_backend("physx_cuda", 2) == "physx_cuda"
    assert not library.parent.exists(), "nothing is made"


@pytest.mark.parametrize(
    ("there", "problem", "words"),
    [
        (False, "no network", ("could not be downloaded", "unpack https://", "physx-precompiled/releases/download")),
        (True, "no CUDA 13", ("could not be loaded", "remove ")),
        (True, "libcuda.so: cannot open", ("could not be loaded", "link its libcuda.so.1 as libcuda.so")),
    ],
)
def test_a_library_that_cannot_be_had_is_named_with_the_fix(
    there: bool, problem: str, words: tuple[str, ...], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enable() -> None:
        raise OSError(problem)

    if there:
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.setattr(sapien.physx, "enable_gpu", enable)
    with pytest.raises(RuntimeError) as error:
        make("PickCube-v1", num_envs=2, obs_mode="state", sim_backend="physx_cuda")
    for word in (*words, problem, "sim_backend='physx_cuda'", "'physx_cpu'"):
        assert word in str(error.value)


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets whether there is CUDA, and the devices that can draw."""

    def set_to(cuda: bool, *devices: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(
            render, "rendering_problem", lambda device="cpu": None if device in devices else f"no {device}"
        )
        monkeypatch.setattr(make_arguments, "refuse_fork", lambda what: None)

    return set_to


@pytest.mark.parametrize(
    ("asked", "cuda", "devices", "gpu_physics", "chosen"),
    [
        ("auto", True, ("cuda", "cpu"), False, "gpu"),
        ("auto", True, ("cuda", "cpu"), True, "gpu"),
        pytest.param(
            *("auto", True, ("cpu",), False, "cpu"),  # a container without the GPU's Vulkan driver
            marks=pytest.mark.filterwarnings("ignore:the CPU draws images"),
        ),
        ("auto", False, ("cpu",), False, "cpu"),
        ("cpu", True, ("cuda", "cpu"), False, "cpu"),
        ("sapien_cuda:1", True, ("cuda:1",), False, "sapien_cuda:1"),
        ("gpu", True, ("cuda",), False, "gpu"),
    ],
)
def test_what_draws(
    asked: str, cuda: bool, devices: tuple[str, ...], gpu_physics: bool, chosen: str, drawing: Callable[..., None]
) -> None:
    drawing(cuda, *devices)
    assert choose_render_backend(asked, "rgb", None, True, gpu_physics) == chosen


def test_without_pictures_nothing_is_tried(drawing: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """To try a device takes seconds."""
    drawing(True)
    monkeypatch.setattr(render, "rendering_problem", lambda device="cpu": pytest.fail("a device was tried"))
    for asked, chosen in (("auto", "none"), ("none", "none"), (None, "none"), ("gpu", "gpu")):
        assert choose_render_backend(asked, "state", None, False) == chosen


@pytest.mark.parametrize(
    ("asked", "cuda", "devices", "gpu_physics", "problem"),
    [
        ("auto", True, (), False, "no cuda"),
        ("auto", True, ("cpu",), True, "no cuda"),  # the CPU cannot draw what a GPU simulates
        ("auto", False, (), False, "no cpu"),
        ("gpu", True, ("cpu",), False, "no cuda"),
        ("gpu", False, ("cpu",), False, "no cuda"),
        ("cpu", True, ("cuda",), False, "no cpu"),
    ],
)
def test_what_cannot_draw_is_refused(
    asked: str, cuda: bool, devices: tuple[str, ...], gpu_physics: bool, problem: str, drawing: Callable[..., None]
) -> None:
    drawing(cuda, *devices)
    with pytest.raises(RenderingUnavailableError, match=rf"obs_mode='rgb' needs pictures, .*\({problem}\)") as error:
        choose_render_backend(asked, "rgb", None, True, gpu_physics)
    assert ("render_backend='cpu'" in str(error.value)) is (devices == ("cpu",))


@pytest.mark.filterwarnings("ignore:the CPU draws images because SAPIEN cannot draw on the GPU")
@pytest.mark.parametrize(
    ("devices", "obs_mode", "chosen"),
    [
        (("cuda", "cpu"), "rgb", ("physx_cuda", "gpu")),
        (("cpu",), "rgb", ("physx_cpu", "cpu")),  # what a GPU simulates only a GPU can draw
        (("cpu",), "state", ("physx_cuda", "none")),
    ],
)
def test_by_default_what_simulates_can_be_drawn(
    devices: tuple[str, ...],
    obs_mode: str,
    chosen: tuple[str, str],
    drawing: Callable[..., None],
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def built(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(kwargs["sim_backend"], kwargs["render_backend"])

    library.parent.mkdir(parents=True)
    library.touch()
    drawing(True, *devices)
    monkeypatch.setattr(sapien.physx, "enable_gpu", lambda: None)
    monkeypatch.setattr(BaseEnv, "__init__", built)
    told = pytest.warns(UserWarning, match="physics runs on the CPU too") if chosen[0] == "physx_cpu" else nullcontext()
    with told, pytest.raises(AssertionError) as error:
        make("PickCube-v1", num_envs=2, obs_mode=obs_mode)
    assert error.value.args == chosen


@pytest.mark.parametrize("name", ["physx_cpu", "cpu", "auto"])
def test_every_name_of_the_cpu_takes_many_envs(name: str) -> None:
    if name == "auto" and torch.cuda.is_available():
        pytest.skip("auto is CUDA here")
    env = make("PickCube-v1", num_envs=2, sim_backend=name, obs_mode="state")
    assert env.backend.sim_backend == BATCHED
    assert env.device.type == "cpu"
    env.close()


def test_an_unknown_task_names_close_ones() -> None:
    with pytest.raises(KeyError, match=r"PickCub-v1.*PickCube-v1"):
        make("PickCub-v1")


def test_the_task_keeps_its_spec() -> None:
    env = pick_cube(num_envs=2)
    assert env.spec == gym.spec("PickCube-v1")
    env.close()


def test_a_nan_action_is_refused_and_nothing_moves() -> None:
    env = pick_cube()
    before = env.get_state_dict()
    action = torch.zeros(4, 8)
    action[2, 3] = torch.nan
    for bad in (action, action.numpy()):
        with pytest.raises(ValueError, match=r"action of env \[2\] is NaN"):
            env.step(bad)
    assert_identical(env.get_state_dict(), before)
    assert env.elapsed_steps.tolist() == [0, 0, 0, 0]
    env.step(torch.zeros(4, 8))
    env.close()


@pytest.mark.parametrize(
    ("index", "error", "named"),
    [
        ([True, False, True], ValueError, "3 bools for 4"),
        (torch.ones(5, dtype=torch.bool), ValueError, "5 bools for 4"),
        ([0.5, 1.0], TypeError, r"float32.*whole numbers"),
    ],
)
def test_env_idx_is_whole_numbers_or_a_bool_for_each_env(index: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        checked_env_idx(index, 4, torch.device("cpu"))


def test_a_dict_with_an_action_is_checked_like_the_action_itself() -> None:
    env = pick_cube()
    mode = env.unwrapped.control_mode
    before = env.get_state_dict()
    for action, message in (
        (torch.full((4, 8), torch.nan), r"the action of env \[0, 1, 2, 3\] is NaN"),
        (torch.zeros(3, 8), r"shape \(3, 8\): give \(4, 8\)"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step({"action": action, "control_mode": mode})
    after = env.get_state_dict()
    assert all(torch.equal(after["actors"][name], value) for name, value in before["actors"].items())


@pytest.mark.gpu
def test_env_idx_on_a_gpu_is_checked_where_it_is_read() -> None:
    cpu = torch.device("cpu")
    index = torch.arange(3, device="cuda")
    assert checked_env_idx(index, 4, cpu).tolist() == [0, 1, 2]
    with pytest.raises(IndexError, match="outside 0…1"):
        checked_env_idx(index, 2, cpu)


@pytest.mark.parametrize("index", [[4], [0, 7], [-1]])
def test_an_env_that_is_not_there_cannot_be_reset(index: list[int]) -> None:
    env = pick_cube()
    env.step(torch.ones(4, 8))
    before = env.get_state_dict()
    with pytest.raises(IndexError, match="outside 0…3") as error:
        env.reset(options={"env_idx": index})
    assert str(index) in str(error.value)
    assert_identical(env.get_state_dict(), before)
    assert env.elapsed_steps.tolist() == [1, 1, 1, 1]
    env.close()


@pytest.mark.parametrize("index", [[2], torch.tensor([2]), torch.tensor([False, False, True, False])])
def test_ways_to_name_an_env(index: Any) -> None:
    env = pick_cube()
    env.step(torch.ones(4, 8))
    env.reset(seed=0, options={"env_idx": index})
    assert env.elapsed_steps.tolist() == [1, 1, 0, 1]
    env.close()


def test_states_to_reset_to_go_with_the_envs_beside_which_they_stand() -> None:
    env = pick_cube()
    saved = env.get_state_dict()
    for _ in range(3):
        env.step(torch.ones(4, 8))
    rows = [3, 1]
    states = take_rows(saved, torch.tensor(rows))
    for env_states in (states, flatten_state_dict(states, use_torch=True)):
        env.reset(options={"env_idx": rows, "reset_to_env_states": {"env_states": env_states}})
        for kind in ("actors", "articulations"):
            for name, value in env.get_state_dict()[kind].items():
                assert torch.allclose(value[rows], saved[kind][name][rows], atol=1e-5), (kind, name)
    env.close()


def test_a_step_before_gpu_init_says_so() -> None:
    from mikasa_robo.sim.physx import BatchedCpuPhysx

    with pytest.raises(GpuApiMisuse, match="before gpu_init"):
        BatchedCpuPhysx([], threads=1, debug=True).step()


WITHOUT_VULKAN = """
import torch
from mikasa_robo.sim.env import make
from mikasa_robo.sim.render import RenderingUnavailableError
env = make("Empty-v1", num_envs=4, obs_mode="state", reward_mode="none")
env.reset(seed=0)
for _ in range(3):
    obs, *_ = env.step(torch.zeros(env.action_space.shape))
assert obs.isfinite().all() and len(obs) == 4
env.close()
print("stepped")
for asked in ({"obs_mode": "rgb"}, {"obs_mode": "state", "render_mode": "rgb_array"}):
    for num_envs in (1, 2):
        try:
            make("PickCube-v1", num_envs=num_envs, **asked)
        except RenderingUnavailableError as error:
            print(error)
"""


@pytest.fixture(scope="module")
def told_without_vulkan() -> list[str]:
    """The lines on stdout of `WITHOUT_VULKAN`."""
    done = run_python(WITHOUT_VULKAN, **NO_VULKAN)
    assert done.returncode == 0, done.stderr
    # a line or two of somebody's import are bearable, a warning per env or per material is not
    assert len(done.stderr.splitlines()) <= 3, done.stderr
    return done.stdout.splitlines()


def test_state_mode_without_vulkan_just_works(told_without_vulkan: list[str]) -> None:
    assert told_without_vulkan[0] == "stepped", "stdout belongs to the caller"


def test_pictures_without_vulkan_give_one_error(told_without_vulkan: list[str]) -> None:
    lines = told_without_vulkan[1:]
    assert len(lines) == 4, lines
    for line, asked in zip(lines, ["obs_mode='rgb'"] * 2 + ["render_mode='rgb_array'"] * 2, strict=True):
        assert line.startswith(asked)
        assert "mesa-vulkan-drivers" in line, "the error should say how to fix it"
        assert "obs_mode='state'" in line, "the error should say how to do without"


@pytest.mark.parametrize(
    "env_id",
    [
        "PushT-v1",  # paints the parts of its table
        "PullCubeTool-v1",  # calls the setters of a material
        "MS-CartpoleBalance-v1",  # MJCF, as the next two
        "MS-HopperHop-v1",
        "MS-AntWalk-v1",
        "TwoRobotPickCube-v1",  # a dict of actions
    ],
)
def test_a_task_that_says_what_it_looks_like_needs_no_renderer(env_id: str) -> None:
    env = make(env_id, num_envs=2, sim_threads=1)
    env.reset(seed=0)
    assert isinstance(env.action_space, gym.spaces.Box | gym.spaces.Dict)
    reward = env.step(env.action_space.sample())[1]
    assert reward.shape == (2,)
    assert reward.isfinite().all()
    env.close()


def test_what_stands_in_for_a_material_has_the_setters_of_one_and_no_others() -> None:
    material: Any = UndrawnMaterial(roughness=0.5)
    material.set_base_color([1, 0, 0, 1])
    assert (material.base_color, material.get_base_color(), material.roughness) == ([1, 0, 0, 1], [1, 0, 0, 1], 0.5)
    assert material.get_metallic() is None
    for name in ("set_colour", "get_colour", "metallic"):
        with pytest.raises(AttributeError, match=name):
            getattr(material, name)
