"""What every environment of mikasa_base promises, over all IDs of the registry.

An ID whose extra is not installed is skipped with the reason. Of families that are slow, fewer IDs and steps are tried
here; the rules of each have tests of their own.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from base_child import first_steps, is_registered, loaded
from base_helpers import leaves, make, same, skip_without_extra
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.utils import env_checker
from gymnasium.vector.utils import iterate

from mikasa_base import registry
from mikasa_base.agents.agent import Played, RandomAgent, play
from mikasa_base.factory import Factory, missing_dependency
from mikasa_base.registry import BY_NAME, ENV_IDS, ROWS, VARIANTS, EnvRow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
SLOW_FAMILIES = {"MemoryMaze", "ViZDoomTwoColors"}
"""Physics or a game engine: about a second for a reset, or a hundred steps."""
INFOS = {"success"}
"""All that an environment may tell besides the observation: what came out, and only when it has."""
STEPS, STEPS_OF_SLOW = 150, 20
"""So many steps tell whether trajectories are equal."""


def over(names: Callable[[EnvRow], list[str]]) -> list[Any]:
    """Parameters of a test: IDs, with the slow ones marked."""
    return [
        pytest.param(name, marks=pytest.mark.slow if row.name in SLOW_FAMILIES else ())
        for row in ROWS
        for name in names(row)
    ]


EVERY_ID = over(
    lambda row: [f"{row.name}{preset}-v0" for preset in ("", *(() if row.name in SLOW_FAMILIES else row.presets))]
)
"""Of the slow families one ID, as their presets differ in one number alone."""
EVERY_FAMILY = over(lambda row: [row.name])
FIRST_OF_EXTRA = {row.extra: row for row in reversed(ROWS)}


def boxes(space: gym.Space[Any]) -> list[gym.spaces.Box]:
    """All boxes of a space."""
    if isinstance(space, gym.spaces.Dict):
        return [box for part in space.values() for box in boxes(part)]
    return [space] if isinstance(space, gym.spaces.Box) else []


def rollout(env: gym.Env[Any, Any], seed: int, steps: int) -> tuple[list[Any], int]:
    """Everything that came out of so many random steps, and how many episodes ended."""
    env.action_space.seed(seed)
    came: list[Any] = [env.reset(seed=seed)]
    ended = 0
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        came.append((obs, reward, terminated, truncated, info))
        if terminated or truncated:
            ended += 1
            came.append(env.reset())
    return came, ended


# --- the table -----------------------------------------------------------------------------------------------------


def test_every_row_is_registered_under_its_ids() -> None:
    assert len(ENV_IDS) == len(set(ENV_IDS)) == sum(1 + len(row.presets) for row in ROWS)
    for env_id, variant in VARIANTS.items():
        spec = gym.spec(env_id)
        assert spec.entry_point == f"mikasa_base.factory:{variant.row.name}"
        assert spec.kwargs == variant.kwargs
        assert (spec.vector_entry_point is not None) == (variant.row.vector_entry_point is not None)
        assert spec.max_episode_steps is None, "environments end by themselves, so that single and batched are equal"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_whole(row: EnvRow) -> None:
    presets = {"", *row.presets}
    assert row.memory
    assert len(row.memory) == len(set(row.memory))
    assert set(row.steps) == presets
    for scores in (row.perfect, row.memoryless, row.chance):
        assert set(scores) <= presets
    for scores, agent in ((row.perfect, row.perfect_agent), (row.memoryless, row.memoryless_agent)):
        assert (agent is not None) == bool(scores), f"{row.name}: a score and the agent that reaches it go together"
    assert (row.extra is None) == (not row.requires)
    for preset in row.perfect.keys() & row.memoryless.keys():
        assert row.perfect[preset] > row.memoryless[preset] or row.weak
    json.dumps([dict(row.kwargs), {name: dict(kwargs) for name, kwargs in row.presets.items()}])


def test_the_extras_of_the_table_are_those_of_pyproject() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {row.extra for row in ROWS if row.extra} <= set(extras)


def test_two_rows_of_one_id_are_an_error() -> None:
    with pytest.raises(ValueError, match="MemoryLength-v0 stands twice"):
        registry._variants((BY_NAME["MemoryLength"], BY_NAME["MemoryLength"]))


def test_importing_loads_nothing_heavy_and_sets_nothing() -> None:
    heavy = sorted({name for row in ROWS for name in row.requires} | {"torch", "sapien", "pygame", "mujoco"})
    code = (
        "import os, sys\n"
        "before = dict(os.environ)\n"
        "import gymnasium, mikasa_base\n"
        "assert dict(os.environ) == before\n"
        f"print([name for name in {heavy!r} if name in sys.modules], 'mikasa_robo' in sys.modules)\n"
        "print(len([i for i in gymnasium.registry if i in mikasa_base.ENV_IDS]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[] False", str(len(ENV_IDS))]
    assert not done.stderr


def test_a_module_qualified_id_needs_no_import() -> None:
    code = "import gymnasium; print(gymnasium.make('mikasa_base:MemoryLength-v0').spec.id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "MemoryLength-v0\n", done.stderr


# --- 1. check_env --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_check_env_has_nothing_to_say(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(f"{family}-v0", render_mode="rgb_array", disable_env_checker=True)
    if family in SLOW_FAMILIES:  # each takes two resets, and test_trajectories checks the same over more steps
        for name in ("check_step_determinism", "check_returned_data_not_reused"):
            monkeypatch.setattr(env_checker, name, lambda env: None, raising=False)
    env_checker.check_env(env.unwrapped)
    has_images = any(len(leaf.shape or ()) == 3 and leaf.dtype == np.uint8 for leaf in boxes(env.observation_space))
    assert has_images is (BY_NAME[family].tier == "complex")
    env.close()


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_pictures_are_drawn_anew_and_change(family: str) -> None:
    env = make(f"{family}-v0", render_mode="rgb_array")
    env.reset(seed=0)
    env.action_space.seed(0)
    pictures: list[Any] = [env.render()]
    for _ in range(40):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        pictures.append(env.render())
        if terminated or truncated:
            env.reset()
    env.close()
    assert {p.dtype for p in pictures} == {np.dtype(np.uint8)}
    assert {(p.ndim, p.shape[2]) for p in pictures} == {(3, 3)}
    assert len({p.shape for p in pictures}) == 1
    assert pictures[0].shape[1] >= (64 if BY_NAME[family].extra else 96)
    assert len({p.tobytes() for p in pictures}) > 1, "nothing ever changes"
    assert not any(np.may_share_memory(a, b) for a, b in pairwise(pictures))


def test_a_window_shows_what_is_drawn() -> None:
    """By Gymnasium's wrapper; in a process of its own, as pygame keeps what it has opened."""
    pytest.importorskip("pygame", reason="render_mode='human' needs pygame: pip install pygame-ce")
    code = (
        "import gymnasium, mikasa_base, pygame\n"
        "env = gymnasium.make('NumpadDiscrete-v0', render_mode='human')\n"
        "env.reset(seed=0)\n"
        "env.step(0)\n"
        "window = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)\n"
        "print((window == env.unwrapped.frame()).all())\n"
    )
    environ = {**os.environ, "SDL_VIDEODRIVER": "dummy"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr


# --- 2. to 4., 8. trajectories -------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", EVERY_ID)
def test_trajectories(env_id: str) -> None:
    """Equal for equal seeds, within the spaces, of their own memory, at most one way of ending, nothing told on the side."""
    env = make(env_id)
    random_before, numpy_before = random.getstate(), np.random.get_state()  # noqa: NPY002 - nobody should touch it
    steps = STEPS_OF_SLOW if VARIANTS[env_id].row.name in SLOW_FAMILIES else STEPS
    came, _ = rollout(env, 7, steps)
    assert random.getstate() == random_before
    assert same(np.random.get_state(), numpy_before)  # noqa: NPY002
    kept = copy.deepcopy(came)
    again, _ = rollout(env, 7, steps)
    assert same(came, again), "the same seed and actions gave another trajectory"
    assert same(came, kept), "what was handed out before has changed"

    observations = [part[0] for part in came]
    infos = [part[-1] for part in came]
    for obs in observations:
        assert env.observation_space.contains(obs)
    for one, two in pairwise(observations):
        for a, b in product(leaves(one), leaves(two)):
            assert not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.may_share_memory(a, b))
    assert len({id(info) for info in infos}) == len(infos)
    for part in came:
        if len(part) == 5:
            assert np.isfinite(float(part[1]))
            assert not (part[2] and part[3]), "terminated and truncated at once"
        assert set(part[-1]) <= INFOS
        if "success" in part[-1]:
            assert len(part) == 5, "reset knows of no success"
            assert part[2] or part[3] or not part[-1]["success"], "success before the end"

    other, _ = rollout(env, 8, steps)
    assert not same(came, other), "another seed gave the same trajectory"
    env.close()


@pytest.mark.parametrize("env_id", [i for i, variant in VARIANTS.items() if variant.row.name not in SLOW_FAMILIES])
def test_an_episode_is_as_long_as_the_table_says(env_id: str) -> None:
    steps = VARIANTS[env_id].steps
    env = make(env_id, disable_env_checker=True)
    env.reset(seed=3)
    env.action_space.seed(3)
    length, terminated, truncated = 0, False, False
    while not (terminated or truncated) and length <= steps:
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        length += 1
    env.close()
    assert terminated != truncated, f"neither or both after {length} steps"
    assert length == steps if truncated else length <= steps


# --- 5. and 6. agents ----------------------------------------------------------------------------------------------


def score(row: EnvRow, played: Played) -> np.ndarray[Any, np.dtype[Any]]:
    """Score of each episode, in the measure of the row."""
    if row.score == "return":
        return played.returns
    assert played.success is not None, f"{row.name} is scored by success and its info has none at the end"
    return played.success.astype(float)


def measured(env_id: str, agent: str | None) -> tuple[float, float]:
    """Mean score of an agent and a tolerance of four standard errors and a tenth of what memory brings.

    The agent is given another instance than that which it plays, so that it learns nothing by looking inside.
    """
    variant = VARIANTS[env_id]
    assert agent is not None
    env, twin = (make(env_id, disable_env_checker=True) for _ in range(2))
    twin.reset(seed=99)
    # Few successes and failures may all be alike, and then they have no standard error: of 4 with 35 % every fifth time.
    least = 20 if variant.row.score == "success" else 4
    episodes = int(np.clip(2000 // variant.steps, least, 50))
    scores = score(variant.row, play(env, registry.load(agent)(twin, np.random.default_rng(0)), episodes, seed=11))
    env.close()
    twin.close()
    reach = abs((variant.perfect or 0) - (variant.memoryless or 0))
    if variant.row.weak:  # memory brings next to nothing there: then a tenth of that is no measure
        reach = max(reach, 0.3)
    return float(scores.mean()), 4 * float(scores.std(ddof=1)) / episodes**0.5 + 0.1 * reach


@pytest.mark.parametrize("env_id", EVERY_ID)
def test_perfect_memory_reaches_its_score(env_id: str) -> None:
    variant = VARIANTS[env_id]
    if variant.perfect is None:
        pytest.skip("no score of a perfect-memory agent is known")
    mean, tolerance = measured(env_id, variant.row.perfect_agent)
    assert mean == pytest.approx(variant.perfect, abs=tolerance)


@pytest.mark.parametrize("env_id", EVERY_ID)
def test_without_memory_no_more_than_its_score_is_reached(env_id: str) -> None:
    variant = VARIANTS[env_id]
    if variant.memoryless is None:
        pytest.skip("no score of a memoryless agent is known")
    mean, tolerance = measured(env_id, variant.row.memoryless_agent)
    assert mean == pytest.approx(variant.memoryless, abs=tolerance)


@pytest.mark.parametrize("env_id", [i for i, variant in VARIANTS.items() if variant.chance is not None])
def test_chance(env_id: str) -> None:
    env = make(env_id, disable_env_checker=True)
    played = play(env, RandomAgent(env, np.random.default_rng(0)), 100, seed=5)
    scores = score(VARIANTS[env_id].row, played)
    assert scores.mean() == pytest.approx(VARIANTS[env_id].chance, abs=4 * scores.std(ddof=1) / 10)


# --- 7. making -----------------------------------------------------------------------------------------------------


def test_specs_survive_json_and_a_spawned_process() -> None:
    """Environments are the same where nobody has registered them: all that a process needs stands in the spec."""
    specs = [
        gym.spec(env_id)
        for env_id, variant in VARIANTS.items()
        if missing_dependency(variant.row) is None and variant.row.name not in SLOW_FAMILIES
    ]
    for spec in specs:
        assert EnvSpec.from_json(spec.to_json()) == spec
    texts = [spec.to_json() for spec in specs]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert not pool.apply(loaded, ("mikasa_base",))
        assert not pool.apply(is_registered, (ENV_IDS[0],))
        theirs = pool.map(first_steps, texts, chunksize=len(texts))
    for text, bytes_there in zip(texts, theirs, strict=True):
        assert first_steps(text) == bytes_there, text


@pytest.mark.parametrize("family", over(lambda row: [row.name] * (row is FIRST_OF_EXTRA[row.extra])))
def test_async_vector_env_of_spawned_processes(family: str) -> None:
    """One family of each extra, as a process takes a second to start."""
    skip_without_extra(BY_NAME[family])
    num_envs = 1 if family in SLOW_FAMILIES else 2
    envs = gym.make_vec(f"{family}-v0", num_envs, vectorization_mode="async", vector_kwargs={"context": "spawn"})
    single = gym.make(f"{family}-v0")
    obs, _ = envs.reset(seed=4)
    for i in range(num_envs):
        assert same(list(iterate(envs.observation_space, obs))[i], single.reset(seed=4 + i)[0])
    envs.action_space.seed(0)
    for _ in range(5):
        obs, *_ = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(obs)
    envs.close()
    single.close()


@pytest.mark.parametrize("env_id", EVERY_ID)
def test_kwargs_of_a_preset_are_those_of_the_environment(env_id: str) -> None:
    env = make(env_id)
    assert env.spec is not None
    assert env.spec.kwargs == VARIANTS[env_id].kwargs
    env.close()


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_an_unknown_argument_is_named_with_those_there_are(family: str) -> None:
    with pytest.raises(ValueError, match=r"no_such_thing=3.*arguments are") as caught:
        make(f"{family}-v0", no_such_thing=3)
    for name in BY_NAME[family].kwargs:
        assert name in str(caught.value)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_bad_value_is_named(family: str) -> None:
    """Of every argument that the table gives; a string that no argument takes."""
    skip_without_extra(BY_NAME[family])
    for name in BY_NAME[family].kwargs:
        bad: dict[str, Any] = {name: "no such value"}
        with pytest.raises(ValueError, match=rf"{name}='no such value'.*should be"):
            gym.make(f"{family}-v0", **bad)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_an_environment_outlives_another(family: str) -> None:
    one, two = (make(f"{family}-v0", render_mode="rgb_array") for _ in range(2))
    one.reset(seed=1)
    two.reset(seed=1)
    one.render()
    one.close()
    two.action_space.seed(1)
    for _ in range(3):
        obs, *_ = two.step(two.action_space.sample())
    assert two.observation_space.contains(obs)
    assert two.render() is not None
    two.close()


@pytest.mark.parametrize("row", [row for row in ROWS if row.requires], ids=lambda row: row.name)
def test_a_missing_extra_is_named_with_the_way_to_get_it(row: EnvRow, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in row.requires:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DependencyNotInstalled, match=re.escape(f"pip install 'mikasa-suite[{row.extra}]'")):
        gym.make(f"{row.name}-v0")


def test_a_row_without_a_batched_form_says_so() -> None:
    with pytest.raises(ValueError, match="'sync' or 'async'"):
        Factory(dataclasses.replace(BY_NAME["MemoryLength"], vector_entry_point=None), vector=True)


def test_the_factory_knows_only_the_names_of_the_table() -> None:
    with pytest.raises(AttributeError, match="NoSuchFamily"):
        registry.load("mikasa_base.factory:NoSuchFamily")
