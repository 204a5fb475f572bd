"""The catalog against the table of the specification, written out a second time."""

import importlib
import subprocess
import sys
import warnings
from dataclasses import FrozenInstanceError, replace

import gymnasium
import pytest

import mikasa_robo
from mikasa_robo.catalog import CATALOG, TaskSpec, index_by_id

# ID: (T, memory, cue, delay, shape of the oracle, words of the oracle, prompt). Not computed on purpose.
# SeqOfColors7, ChainOfColors5 and ChainOfColors7 have more steps than the paper's 120: see `catalog._recall_horizon`.
TABLE = {
    "ShellGameTouch-v0": (90, "object", 5, 0, (1,), "mug with the ball", None),
    "ShellGamePush-v0": (90, "object", 5, 0, (1,), "mug with the ball", None),
    "ShellGamePick-v0": (90, "object", 5, 0, (1,), "mug with the ball", None),
    "InterceptSlow-v0": (90, "spatial", 90, 0, (3,), "initial velocity", None),
    "InterceptMedium-v0": (90, "spatial", 90, 0, (3,), "initial velocity", None),
    "InterceptFast-v0": (90, "spatial", 90, 0, (3,), "initial velocity", None),
    "InterceptGrabSlow-v0": (90, "spatial", 90, 0, (3,), "initial velocity", None),
    "InterceptGrabMedium-v0": (90, "spatial", 90, 0, (3,), "initial velocity", None),
    "InterceptGrabFast-v0": (90, "spatial", 90, 0, (3,), "initial velocity", None),
    "RotateLenientPos-v0": (90, "spatial", 1, 0, (1,), "signed angle still to turn", "target angle"),
    "RotateLenientPosNeg-v0": (90, "spatial", 1, 0, (1,), "signed angle still to turn", "target angle"),
    "RotateStrictPos-v0": (90, "object", 1, 0, (1,), "signed angle still to turn", "target angle"),
    "RotateStrictPosNeg-v0": (90, "object", 1, 0, (1,), "signed angle still to turn", "target angle"),
    "TakeItBack-v0": (180, "spatial", 1, 0, (3,), "initial position of the cube", None),
    "RememberColor3-v0": (60, "object", 5, 5, (1,), "index of the true colour", None),
    "RememberColor5-v0": (60, "object", 5, 5, (1,), "index of the true colour", None),
    "RememberColor9-v0": (60, "object", 5, 5, (1,), "index of the true colour", None),
    "RememberShape3-v0": (60, "object", 5, 5, (1,), "index of the true shape", None),
    "RememberShape5-v0": (60, "object", 5, 5, (1,), "index of the true shape", None),
    "RememberShape9-v0": (60, "object", 5, 5, (1,), "index of the true shape", None),
    "RememberShapeAndColor3x2-v0": (60, "object", 5, 5, (2,), "shape, index of the true colour", None),
    "RememberShapeAndColor3x3-v0": (60, "object", 5, 5, (2,), "shape, index of the true colour", None),
    "RememberShapeAndColor5x3-v0": (60, "object", 5, 5, (2,), "shape, index of the true colour", None),
    "BunchOfColors3-v0": (120, "capacity", 5, 5, (3,), "true colour indices", None),
    "BunchOfColors5-v0": (120, "capacity", 5, 5, (5,), "true colour indices", None),
    "BunchOfColors7-v0": (120, "capacity", 5, 5, (7,), "true colour indices", None),
    "SeqOfColors3-v0": (120, "capacity", 15, 5, (3,), "true colour indices", None),
    "SeqOfColors5-v0": (120, "capacity", 25, 5, (5,), "true colour indices", None),
    "SeqOfColors7-v0": (160, "capacity", 35, 5, (7,), "true colour indices", None),
    "ChainOfColors3-v0": (120, "sequential", 15, 5, (3,), "indices, in order", None),
    "ChainOfColors5-v0": (140, "sequential", 25, 5, (5,), "indices, in order", None),
    "ChainOfColors7-v0": (180, "sequential", 35, 5, (7,), "indices, in order", None),
}

FAMILIES = [
    "ShellGame",
    "Intercept",
    "InterceptGrab",
    "RotateLenient",
    "RotateStrict",
    "TakeItBack",
    "RememberColor",
    "RememberShape",
    "RememberShapeAndColor",
    "BunchOfColors",
    "SeqOfColors",
    "ChainOfColors",
]

KWARGS = {
    **{f"ShellGame{m}-v0": {"mode": m.lower()} for m in ("Touch", "Push", "Pick")},
    **{f"{f}{m}-v0": {"speed": m.lower()} for f in ("Intercept", "InterceptGrab") for m in ("Slow", "Medium", "Fast")},
    **{f"Rotate{f}Pos-v0": {"both_ways": False} for f in ("Lenient", "Strict")},
    **{f"Rotate{f}PosNeg-v0": {"both_ways": True} for f in ("Lenient", "Strict")},
    "TakeItBack-v0": {},
    **{f"Remember{f}{n}-v0": {"n": n} for f in ("Color", "Shape") for n in (3, 5, 9)},
    **{f"RememberShapeAndColor{s}x{c}-v0": {"shapes": s, "colors": c} for s, c in ((3, 2), (3, 3), (5, 3))},
    **{f"{f}OfColors{n}-v0": {"n": n} for f in ("Bunch", "Seq", "Chain") for n in (3, 5, 7)},
}


def test_the_ids_are_those_of_the_specification_in_its_order() -> None:
    assert len(TABLE) == 32
    assert list(CATALOG) == list(TABLE)
    assert [row.id for row in CATALOG.values()] == list(TABLE)


def test_there_are_twelve_families_in_order() -> None:
    assert list(dict.fromkeys(row.family for row in CATALOG.values())) == FAMILIES
    assert all(row.id == f"{row.family}{row.mode}-v0" for row in CATALOG.values())


@pytest.mark.parametrize("env_id", TABLE)
def test_a_row_says_what_the_specification_says(env_id: str) -> None:
    row = CATALOG[env_id]
    horizon, memory, cue, delay, oracle_shape, oracle, prompt = TABLE[env_id]
    assert (row.horizon, row.memory, row.cue, row.delay) == (horizon, memory, cue, delay)
    assert row.response == horizon - cue - delay >= 0
    assert row.oracle_shape == oracle_shape
    assert oracle in row.oracle
    assert row.prompt == prompt


@pytest.mark.parametrize("env_id", TABLE)
def test_the_instruction_is_one_finished_sentence(env_id: str) -> None:
    instruction = CATALOG[env_id].instruction
    assert instruction[0].isupper()
    assert instruction.endswith(".")
    assert instruction.count(".") == 1
    assert not set("{}") & set(instruction)
    assert "  " not in instruction
    assert " ," not in instruction


def test_modes_of_a_family_differ_in_their_arguments() -> None:
    for family in FAMILIES:
        modes = [tuple(sorted(row.kwargs.items())) for row in CATALOG.values() if row.family == family]
        assert len(set(modes)) == len(modes), family


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
        "catalog.loader.exec_module(module); assert len(module.CATALOG) == 32; "
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


def test_every_task_is_registered_with_its_mode() -> None:
    assert len(KWARGS) == 32
    assert {row.id: dict(row.kwargs) for row in CATALOG.values()} == KWARGS
    for env_id in mikasa_robo.TASKS:
        spec = gymnasium.spec(env_id)
        assert spec.entry_point == CATALOG[env_id].entry_point
        assert spec.kwargs == KWARGS[env_id]
        assert spec.max_episode_steps is None  # Gymnasium's own limit would end all envs of a batch at once
        assert [wrapper.name for wrapper in spec.additional_wrappers] == ["BatchedTimeLimit"]


@pytest.mark.parametrize("env_id", mikasa_robo.TASKS)
def test_entry_points_and_wrappers_can_be_imported(env_id: str) -> None:
    spec = gymnasium.spec(env_id)
    for target in (spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)):
        assert isinstance(target, str)
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


def test_make_env_says_when_a_task_is_not_written_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = replace(CATALOG["RememberColor3-v0"], id="Planned-v0", entry_point=None)
    monkeypatch.setattr(mikasa_robo, "CATALOG", {**CATALOG, planned.id: planned})
    with pytest.raises(ValueError, match=r"Planned-v0.*not written yet"):
        mikasa_robo.make_env(planned.id)


def test_make_env_passes_the_batch_size_and_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(gymnasium, "make", lambda *args, **kwargs: calls.append((args, kwargs)))
    mikasa_robo.make_env("RememberColor3-v0", 8, obs_mode="state")
    assert calls == [(("RememberColor3-v0",), {"num_envs": 8, "obs_mode": "state"})]
