"""The catalog against the paper, and the registration of its rows."""

import importlib
import math
import re
import subprocess
import sys
import warnings
from dataclasses import FrozenInstanceError, replace

import gymnasium
import pytest

import mikasa_robo
from mikasa_robo.catalog import CATALOG, TaskSpec, index_by_id, recall_response_steps

# ID: (T, memory, cue, delay, shape of the oracle). The paper's facts (Table 1, appendix E), written out on purpose.
# ChainOfColors7 has more steps than the paper's 120: `catalog.recall_response_steps`.
PAPER: dict[str, tuple[int, str, int, int, tuple[int, ...]]] = {
    "ShellGameTouch-v0": (90, "object", 5, 0, (1,)),
    "ShellGamePush-v0": (90, "object", 5, 0, (1,)),
    "ShellGamePick-v0": (90, "object", 5, 0, (1,)),
    "InterceptSlow-v0": (90, "spatial", 90, 0, (3,)),
    "InterceptMedium-v0": (90, "spatial", 90, 0, (3,)),
    "InterceptFast-v0": (90, "spatial", 90, 0, (3,)),
    "InterceptGrabSlow-v0": (90, "spatial", 90, 0, (3,)),
    "InterceptGrabMedium-v0": (90, "spatial", 90, 0, (3,)),
    "InterceptGrabFast-v0": (90, "spatial", 90, 0, (3,)),
    "RotateLenientPos-v0": (90, "spatial", 1, 0, (1,)),
    "RotateLenientPosNeg-v0": (90, "spatial", 1, 0, (1,)),
    "RotateStrictPos-v0": (90, "object", 1, 0, (1,)),
    "RotateStrictPosNeg-v0": (90, "object", 1, 0, (1,)),
    "TakeItBack-v0": (180, "spatial", 1, 0, (3,)),
    "RememberColor3-v0": (60, "object", 5, 5, (1,)),
    "RememberColor5-v0": (60, "object", 5, 5, (1,)),
    "RememberColor9-v0": (60, "object", 5, 5, (1,)),
    "RememberShape3-v0": (60, "object", 5, 5, (1,)),
    "RememberShape5-v0": (60, "object", 5, 5, (1,)),
    "RememberShape9-v0": (60, "object", 5, 5, (1,)),
    "RememberShapeAndColor3x2-v0": (60, "object", 5, 5, (2,)),
    "RememberShapeAndColor3x3-v0": (60, "object", 5, 5, (2,)),
    "RememberShapeAndColor5x3-v0": (60, "object", 5, 5, (2,)),
    "BunchOfColors3-v0": (120, "capacity", 5, 5, (3,)),
    "BunchOfColors5-v0": (120, "capacity", 5, 5, (5,)),
    "BunchOfColors7-v0": (120, "capacity", 5, 5, (7,)),
    "SeqOfColors3-v0": (120, "capacity", 15, 5, (3,)),
    "SeqOfColors5-v0": (120, "capacity", 25, 5, (5,)),
    "SeqOfColors7-v0": (120, "capacity", 35, 5, (7,)),
    "ChainOfColors3-v0": (120, "sequential", 15, 5, (3,)),
    "ChainOfColors5-v0": (120, "sequential", 25, 5, (5,)),
    "ChainOfColors7-v0": (180, "sequential", 35, 5, (7,)),
}


def test_the_catalog_holds_the_paper_s_tasks() -> None:
    found = {row.id: (row.horizon, row.memory, row.cue, row.delay, row.oracle_shape) for row in CATALOG.values()}
    assert [env_id for env_id in found if env_id in PAPER] == list(PAPER)
    assert {env_id: found[env_id] for env_id in PAPER} == PAPER
    assert [row.id for row in CATALOG.values() if row.paper] == list(PAPER)
    assert {CATALOG[env_id].family for env_id in PAPER if CATALOG[env_id].prompt} == {"RotateLenient", "RotateStrict"}


def test_an_id_is_made_of_family_and_mode_and_a_mode_of_its_arguments() -> None:
    families = {row.family for row in CATALOG.values()}
    assert len(families) >= 12
    assert all(row.id == f"{row.family}{row.mode}-v0" for row in CATALOG.values())
    for family in families:
        modes = [tuple(sorted(row.kwargs.items())) for row in CATALOG.values() if row.family == family]
        assert len(set(modes)) == len(modes), family
    for row in (row for row in CATALOG.values() if row.paper):
        named = "x".join(str(value) for value in row.kwargs.values()).lower()
        assert row.mode.lower() == {"true": "posneg", "false": "pos"}.get(named, named), row.id


def test_instructions_are_finished_sentences() -> None:
    for row in CATALOG.values():
        assert row.instruction[0].isupper(), row.id
        assert row.instruction.endswith("."), row.id
        assert not re.search(r"[{}]|  | ,|\..", row.instruction), row.id


def test_the_length_of_each_cue_is_the_row_s() -> None:
    row = CATALOG["ChainOfColors3-v0"]
    assert (row.cue, row.cues) == (15, 3)
    assert row.make_kwargs == {"cue_steps": 5, "delay_steps": 5, "response_steps": 100, "n": 3}
    assert replace(row, kwargs={"delay_steps": 9}).make_kwargs["delay_steps"] == 9, "the row's own arguments win"
    with pytest.raises(ValueError, match=r"'ChainOfColors3-v0' has cue=16 and cues=3"):
        replace(row, cue=16)


def test_many_cubes_in_a_given_order_get_the_time_that_the_arm_needs() -> None:
    for n in range(2, 10):
        assert 5 * n + 5 + recall_response_steps(n, ordered=False) == 120
        length = 5 * n + 5 + recall_response_steps(n, ordered=True)
        assert (length == 120) == (n <= 5)
        assert n <= 5 or length == 20 * n + 40


def test_a_held_arm_gets_back_the_steps_of_cues_that_are_shown_one_after_another() -> None:
    longer = {row.id: row.held_horizon for row in CATALOG.values() if row.held_horizon != row.horizon}
    assert longer == {
        "SeqOfColors3-v0": 140,
        "SeqOfColors5-v0": 150,
        "SeqOfColors7-v0": 160,
        "ChainOfColors3-v0": 140,
        "ChainOfColors5-v0": 150,
        "ChainOfColors7-v0": 220,
    }


def test_each_family_is_drawn_in_the_gallery_by_one_id() -> None:
    drawn = [row.family for row in CATALOG.values() if row.gallery]
    assert sorted(drawn) == sorted({row.family for row in CATALOG.values()})
    for view in {view for row in CATALOG.values() for view in (row.view, row.gallery) if view}:
        assert math.dist(view.eye, view.target) > 0.5
        assert 0.3 < view.fov < 1.5


def test_a_row_cannot_be_changed() -> None:
    row = CATALOG["RememberColor3-v0"]
    with pytest.raises(FrozenInstanceError):
        row.cue = 1  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        row.kwargs["n"] = 4  # type: ignore[index]
    with pytest.raises(TypeError, match="does not support item assignment"):
        CATALOG["New-v0"] = row  # type: ignore[index]
    assert hash(row) == hash(replace(row))


def test_two_rows_with_one_id_are_refused() -> None:
    row = CATALOG["RememberColor3-v0"]
    with pytest.raises(ValueError, match="RememberColor3-v0"):
        index_by_id([row, replace(row, mode="three")])


def test_the_catalog_needs_the_standard_library_only() -> None:
    # By path, past the package, which needs Gymnasium to register its tasks.
    code = (
        "import importlib.util, sys; spec = importlib.util.find_spec('mikasa_robo'); "
        "path = spec.submodule_search_locations[0] + '/catalog.py'; "
        "catalog = importlib.util.spec_from_file_location('catalog', path); "
        "module = importlib.util.module_from_spec(catalog); sys.modules['catalog'] = module; "
        "catalog.loader.exec_module(module); assert sum(row.paper for row in module.CATALOG.values()) == 32; "
        "foreign = {'torch', 'numpy', 'gymnasium', 'tyro', 'sapien', 'mani_skill'} & set(sys.modules); "
        "assert not foreign, foreign"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_loads_no_simulator() -> None:
    code = (
        "import sys, mikasa_robo; assert 'RememberColor3-v0' in mikasa_robo.TASKS; "
        "heavy = {'torch', 'sapien', 'mani_skill'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- registration


def test_every_task_is_registered_with_its_arguments() -> None:
    assert set(PAPER) <= set(mikasa_robo.TASKS)
    for env_id in mikasa_robo.TASKS:
        spec = gymnasium.spec(env_id)
        assert spec.entry_point == CATALOG[env_id].entry_point
        assert spec.kwargs == CATALOG[env_id].make_kwargs
        assert spec.max_episode_steps is None  # Gymnasium's own limit would end all envs of a batch at once
        assert [wrapper.name for wrapper in spec.additional_wrappers] == ["BatchedTimeLimit"]


def test_classes_that_rows_name_can_be_imported() -> None:
    limit = gymnasium.spec(mikasa_robo.TASKS[0]).additional_wrappers[0].entry_point
    for target in {limit, *(name for row in CATALOG.values() for name in (row.entry_point, row.skill) if name)}:
        module, name = target.split(":")
        assert isinstance(getattr(importlib.import_module(module), name), type)


def test_a_reload_registers_nothing_twice() -> None:
    before = {env_id: gymnasium.registry[env_id] for env_id in mikasa_robo.TASKS}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(mikasa_robo)
    assert all(gymnasium.registry[env_id] is spec for env_id, spec in before.items())


def test_an_id_that_somebody_else_has_taken_is_not_left_to_them() -> None:
    row: TaskSpec = CATALOG["RememberColor3-v0"]
    ours = gymnasium.registry.pop(row.id)
    try:
        gymnasium.register(row.id, entry_point="somebody.else:RememberColor")
        with pytest.warns(UserWarning, match="Overriding environment RememberColor3-v0"):
            importlib.reload(mikasa_robo)
        assert gymnasium.registry[row.id].entry_point == row.entry_point
    finally:
        gymnasium.registry[row.id] = ours


def test_make_env_names_a_wrong_id_and_what_is_close() -> None:
    with pytest.raises(ValueError, match=r"'RememberColour3-v0'; did you mean RememberColor3-v0"):
        mikasa_robo.make_env("RememberColour3-v0")
    with pytest.raises(ValueError, match=r"'xyz'; `mikasa list`"):
        mikasa_robo.make_env("xyz")


def test_make_env_passes_the_batch_size_and_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(gymnasium, "make", lambda *args, **kwargs: calls.append((args, kwargs)))
    mikasa_robo.make_env("RememberColor3-v0", 8, obs_mode="state")
    assert calls == [(("RememberColor3-v0",), {"num_envs": 8, "obs_mode": "state"})]


def test_no_row_asks_for_less_time_than_its_expert_needs() -> None:
    from mikasa_robo.core.choice import NEEDED_FOR_ANOTHER, NEEDED_RESPONSE

    for row in (row for row in CATALOG.values() if "n" in row.kwargs):
        targets = row.kwargs["n"] if row.memory in ("capacity", "sequential") else 1
        assert row.response >= NEEDED_RESPONSE + NEEDED_FOR_ANOTHER * (targets - 1), row.id
