"""examples/point_back.py keeps to what all tasks keep to, and docs/adding-a-task.md says what is so."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest
import torch
from task_helpers import (
    HIDDEN_HEIGHT,
    SUCCEED,
    Env,
    N,
    Record,
    base,
    go_to,
    make,
    plain_phase,
    random_actions,
    row_of,
    stagger,
    still_action,
)

# The very tests that all tasks of the package pass, here with the example's `task_id`.
from test_tasks import (  # noqa: F401
    MODES,
    eventful_run,
    test_a_list_of_seeds_gives_each_env_what_it_would_get_alone,
    test_a_partial_reset_changes_only_the_environments_it_names,
    test_a_seed_gives_env_i_the_same_episode_in_any_batch,
    test_a_single_environment_is_restored_too,
    test_a_state_goes_into_a_new_environment,
    test_before_the_response_only_being_still_pays,
    test_catalog_and_task_agree,
    test_cues_are_uniform,
    test_env_i_of_a_batch_equals_a_single_environment_for_a_whole_episode,
    test_global_generators_are_neither_read_nor_changed,
    test_looking_changes_nothing,
    test_spaces_agree_with_what_is_returned,
    test_success_does_not_depend_on_the_reward_mode,
    test_the_reward_is_the_sum_of_the_terms_of_the_same_step,
    test_what_was_returned_does_not_change_with_the_next_step,
    test_what_was_saved_does_not_change_with_the_episode,
    test_whole_episodes_run_through_all_phases_to_the_end,
)
from torch import Tensor

import mikasa_robo
from mikasa_robo import catalog
from mikasa_robo.catalog import CATALOG, TaskSpec
from mikasa_robo.experts.evaluation import PolicyMaker, evaluate
from mikasa_robo.experts.policies import Expert, WindowMemory

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "examples" / "point_back.py"
DOC = ROOT / "docs" / "adding-a-task.md"
ID = "PointBack-v0"
LOW_ARM = (0.0, 0.62, 0.0, -2.10, 0.0, 2.72, 0.785)
"""Joint angles, rad, that hold the tool centre point a few centimetres above the table."""


def restore_registries(rows: dict[str, TaskSpec], specs: dict[str, Any]) -> None:
    """Other test modules hold the catalog to the specification's 32 rows."""
    catalog._TABLE.clear()
    catalog._TABLE.update(rows)
    gym.registry.clear()
    gym.registry.update(specs)


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The file, imported from its path as a user's own file would be."""
    rows, specs = dict(catalog._TABLE), dict(gym.registry)
    spec = importlib.util.spec_from_file_location("my_point_back", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    SUCCEED[module.PointBack] = succeed_pointing
    yield module
    del SUCCEED[module.PointBack], sys.modules[spec.name]
    restore_registries(rows, specs)


@pytest.fixture
def registries() -> Iterator[None]:
    """What a test registers is gone after it."""
    rows, specs = dict(catalog._TABLE), dict(gym.registry)
    yield
    restore_registries(rows, specs)


@pytest.fixture(scope="module")
def task_id(example: ModuleType) -> str:
    return ID


def closing(env: Env) -> Iterator[Env]:
    yield env
    env.close()


@pytest.fixture(scope="module")
def batch(task_id: str) -> Iterator[Env]:
    yield from closing(make(task_id, N))


@pytest.fixture(scope="module")
def single(task_id: str) -> Iterator[Env]:
    yield from closing(make(task_id, 1))


@pytest.fixture(scope="module")
def big(task_id: str) -> Iterator[Env]:
    yield from closing(make(task_id, 64))


@pytest.fixture(scope="module")
def runs(task_id: str) -> dict[str, list[Record]]:
    found = {}
    for mode in MODES:
        env = make(task_id, N, reward_mode=mode)
        found[mode] = eventful_run(env)
        env.close()
    return found


def succeed_pointing(env: Env, rows: Sequence[int]) -> None:
    """Puts the arm low, at rest, and the remembered place under it."""
    task, index = base(env), list(rows)
    state = task.get_state_dict()
    arm = state["articulations"]["panda_wristcam"][index].clone()
    arm[:, 13:20] = torch.tensor(LOW_ARM)
    arm[:, 22:] = 0
    chosen = {kind: {name: value[index].clone() for name, value in group.items()} for kind, group in state.items()}
    chosen["articulations"]["panda_wristcam"] = arm
    task.set_state_dict(chosen, torch.tensor(index))
    tcp = task.agent.tcp.pose.p[index]
    assert bool((tcp[:, 2] < 0.09).all()), tcp
    task.task_state.place[index] = tcp[:, :2]


# ---------------------------------------------------------------------- the task's own
def test_the_disc_shows_in_the_cue_alone_where_the_state_says(batch: Env) -> None:
    task, row = base(batch), row_of(batch)
    stagger(batch, seed=1)
    shown = hidden = 0
    for action in random_actions(batch, 12, seed=2):
        batch.step(action)
        cue = torch.tensor([plain_phase(row, int(t)) == 0 for t in task.elapsed_steps])
        disc = task.object_layout.read()[:, 0]
        assert torch.equal(disc[:, 2] > HIDDEN_HEIGHT, ~cue)
        assert torch.equal(disc[cue][:, :2], task.task_state.place[cue])
        shown, hidden = shown + int(cue.sum()), hidden + int((~cue).sum())
    assert min(shown, hidden) > N


def test_places_fill_the_area_that_the_docstring_names(example: ModuleType, batch: Env) -> None:
    u = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    place = base(batch).sample(example.Uniforms(u)).place
    assert place.dtype == torch.float32
    for column, (low, high) in zip(place.T, ((-0.15, 0.1), (-0.2, 0.2)), strict=True):
        counts = torch.histc(column, 5, low, high)
        assert int(counts.sum()) == 1000, "a place outside the area"
        assert float(counts.min()) > 150
    assert abs(float(torch.corrcoef(place.T)[0, 1])) < 0.1


@pytest.mark.parametrize(
    ("dx", "z", "speed", "t", "success"),
    [
        (0.0, 0.05, 0.0, 10, True),
        (0.049, 0.099, 0.19, 59, True),
        (0.051, 0.05, 0.0, 30, False),
        (0.0, 0.101, 0.0, 30, False),
        (0.0, 0.05, 0.21, 30, False),
        (0.0, 0.05, 0.0, 9, False),
    ],
)
def test_success_is_low_near_still_and_in_the_response(
    example: ModuleType, batch: Env, dx: float, z: float, speed: float, t: int, success: bool
) -> None:
    task = base(batch)
    count = 1000
    place = torch.rand(count, 2, generator=torch.Generator().manual_seed(1)) * 0.2 - 0.1
    angle = torch.rand(count, generator=torch.Generator().manual_seed(2)) * 6.283
    tcp = torch.zeros(count, 7)
    tcp[:, :2] = place + dx * torch.stack([angle.cos(), angle.sin()], dim=1)
    tcp[:, 2] = z
    elapsed = torch.full((count,), t)
    data = example.StepData(
        elapsed=elapsed,
        responding=task.timeline.responding(elapsed),
        objects=torch.zeros(count, 1, 13),
        tcp=tcp,
        joint_speed=torch.full((count,), speed),
        fingers=torch.zeros(count),
        speeds=torch.zeros(count, 1),
    )
    state = example.PointBackState(place=place)
    verdict = task.outcome(state, data)
    assert verdict["success"].tolist() == [success] * count
    assert not bool(verdict["fail"].any())
    for term in task.reward_terms(state, data).values():
        assert bool(((term >= 0) & (term <= 1)).all())


def test_perception_shows_the_disc_in_the_cue_and_nothing_afterwards(task_id: str) -> None:
    env = make(task_id, N, obs_mode="objects")
    task = base(env)
    obs, _ = env.reset(seed=3)
    for t in range(15):
        if t:
            obs = env.step(random_actions(env, 1, seed=t)[0])[0]
        if t < 5:
            assert bool((obs["objects"][:, 0] == 1).all())
            # poses are rounded to 1e-4
            assert torch.allclose(obs["objects"][:, 1:3], task.task_state.place, rtol=0, atol=6e-5)
        else:
            assert not bool(obs["objects"].any())
    env.close()


def play(env: Env, choose: Callable[[Tensor], Tensor], steps: int) -> Tensor:
    """(N,) bool: who succeeded within an episode, pointing at what ``choose`` makes of the cue's `objects` (N, D)."""
    obs, _ = env.reset(seed=4)
    target = torch.cat([choose(obs["objects"]), torch.full((len(obs["objects"]), 1), 0.05)], dim=1)
    success = torch.zeros(len(target), dtype=torch.bool)
    for t in range(steps):
        _, _, _, _, info = env.step(go_to(env, target) if t >= 10 else still_action(env, -1.0))
        success |= info["success"]
    return success


def test_an_arm_that_remembers_what_it_saw_succeeds_and_one_that_does_not_fails(task_id: str) -> None:
    env = make(task_id, 64, obs_mode="objects", control_mode="pd_ee_delta_pos")
    assert bool(play(env, lambda seen: seen[:, 1:3].clone(), 60).all())
    assert float(play(env, lambda seen: torch.zeros(len(seen), 2), 60).to(torch.float32).mean()) < 0.3
    env.close()


# ---------------------------------------------------------------------- register_task
@pytest.mark.parametrize("entry_point", [None, "somewhere.PointBack"])
def test_a_row_that_names_no_class_is_refused(registries: None, entry_point: str | None) -> None:
    row = replace(CATALOG["RememberColor3-v0"], id="Mine-v0", entry_point=entry_point)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"'Mine-v0' has entry_point={entry_point!r}: .*'module:Class'"):
        mikasa_robo.register_task(row)
    assert "Mine-v0" not in CATALOG
    assert "Mine-v0" not in gym.registry


def test_an_id_that_another_row_has_is_refused(registries: None) -> None:
    ours = CATALOG["RememberColor3-v0"]
    spec = gym.registry[ours.id]
    with pytest.raises(ValueError, match=r"'RememberColor3-v0' is taken by .*RememberColor: choose another"):
        mikasa_robo.register_task(replace(ours, entry_point="mine:Task"))
    with pytest.raises(ValueError, match=r"is taken"):
        mikasa_robo.register_task(replace(ours, kwargs={"n": 4}))
    assert CATALOG[ours.id] is ours
    assert gym.registry[ours.id] is spec


def test_an_id_that_gymnasium_does_not_take_leaves_the_catalog_as_it_was(registries: None) -> None:
    with pytest.raises(gym.error.Error, match="Point Back"):
        mikasa_robo.register_task(replace(CATALOG["RememberColor3-v0"], id="Point Back"))
    assert "Point Back" not in CATALOG


def test_the_same_row_may_come_twice(example: ModuleType, registries: None) -> None:
    spec = gym.registry[ID]
    mikasa_robo.register_task(replace(CATALOG[ID]))
    assert gym.registry[ID] is spec
    assert ID not in mikasa_robo.TASKS


def test_a_row_s_kwargs_make_another_mode_of_the_class(example: ModuleType, registries: None) -> None:
    kwargs = {"on_mistake": "ignore"}
    row = replace(CATALOG[ID], id="PointBackLate-v0", mode="Late", delay=20, kwargs=kwargs)
    kwargs["on_mistake"] = "fail"
    assert dict(row.kwargs) == {"on_mistake": "ignore"}, "the row has a copy of its own"
    mikasa_robo.register_task(row)
    env = mikasa_robo.make_env("PointBackLate-v0")
    assert base(env).horizon == row.horizon == 75
    assert base(env).on_mistake == "ignore"
    env.close()
    env = mikasa_robo.make_env("PointBackLate-v0", delay_steps=7)
    assert base(env).timeline.delay == 7, "what the caller asks for wins"
    env.close()


def test_a_class_that_has_lengths_of_its_own_may_be_registered_as_before(
    example: ModuleType, registries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old(example.PointBack):  # type: ignore[name-defined]
        def __init__(
            self, *args: Any, cue_steps: int = 5, delay_steps: int = 5, response_steps: int = 30, **kwargs: Any
        ) -> None:
            lengths = {"cue_steps": cue_steps, "delay_steps": delay_steps, "response_steps": response_steps}
            super().__init__(*args, **lengths, **kwargs)

    monkeypatch.setattr(example, "Old", Old, raising=False)
    module = example.__name__
    row = replace(CATALOG[ID], id="OldBack-v0", response=30, entry_point=f"{module}:Old", kwargs={"delay_steps": 6})
    mikasa_robo.register_task(row)
    env = mikasa_robo.make_env("OldBack-v0")
    assert (base(env).timeline.cue, base(env).timeline.delay, base(env).timeline.response) == (5, 6, 30)
    env.close()


def test_the_example_s_expert_needs_the_memory_that_its_task_tests(example: ModuleType) -> None:
    rates = {}
    makers: dict[str, PolicyMaker] = {
        "expert": Expert,
        "remembers": functools.partial(WindowMemory, k=1000),
        "forgets": functools.partial(WindowMemory, k=0),
    }
    for name, maker in makers.items():
        rates[name] = evaluate(ID, maker, episodes=32, num_envs=32).rate
    assert rates["expert"] == rates["remembers"] == 1
    assert rates["forgets"] < 0.35


# ---------------------------------------------------------------------- the document
def blocks(info: str) -> list[str]:
    """The code blocks of the document whose fence says ``info``."""
    return re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL)


def test_what_is_quoted_from_the_file_stands_in_it_in_this_order() -> None:
    source, quoted = FILE.read_text(), blocks("python examples/point_back.py")
    assert len(quoted) >= 8
    end = 0
    for block in quoted:
        start = source.find(block, end)
        assert start >= 0, f"not in {FILE.name} (after what was quoted before):\n{block}"
        end = start + len(block)


def test_the_document_s_other_code_runs_as_it_stands() -> None:
    code = blocks("python")
    assert code
    for block in code:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", block],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
