"""A reset sets every row of its scenes exactly once, also where one reset runs inside another."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sim_helpers import pick_cube, rows

from mikasa_robo.sim.forcing import ForcedRows

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")


@pytest.fixture
def forced() -> ForcedRows:
    """Three scenes: two bodies in each, and one joint row in scenes 0 and 2."""
    return ForcedRows({"bodies": np.array([0, 0, 1, 1, 2, 2]), "joints": np.array([0, 2])}, 3)


def test_nothing_is_forced_outside(forced: ForcedRows) -> None:
    assert not forced.mask("bodies").any()
    with forced.scenes([0, 1, 2]):
        assert forced.mask("bodies").all()
    assert not forced.mask("bodies").any()


def test_the_rows_of_the_scenes_are_forced(forced: ForcedRows) -> None:
    with forced.scenes([1, 2]):
        assert forced.mask("bodies").tolist() == [False, False, True, True, True, True]
        assert forced.mask("joints").tolist() == [False, True]


def test_a_row_is_forced_until_it_is_applied(forced: ForcedRows) -> None:
    with forced.scenes([0, 1]):
        forced.applied("bodies", np.array([0, 3]))
        assert forced.mask("bodies").tolist() == [False, True, True, False, False, False]
        assert forced.mask("joints").tolist() == [True, False]


def test_the_outer_block_goes_on_after_the_inner_one(forced: ForcedRows) -> None:
    with forced.scenes([0, 1]):
        with forced.scenes([0]):
            assert forced.mask("bodies").tolist() == [True, True, False, False, False, False]
            forced.applied("bodies", np.array([0]))
        assert forced.mask("bodies").tolist() == [False, True, True, True, False, False]
        with forced.scenes([]):
            assert not forced.mask("bodies").any()
        assert forced.mask("bodies").sum() == 3


def test_the_outer_block_goes_on_after_an_error(forced: ForcedRows) -> None:
    with forced.scenes([1]):
        with pytest.raises(KeyError), forced.scenes([0]):
            raise KeyError
        assert forced.mask("bodies").tolist() == [False, False, True, True, False, False]


def test_setting_a_state_inside_a_reset_leaves_the_other_envs_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Envs 0 and 1 are reset, and the reset sets the state of env 0. Every row of both is set once, and no other."""
    env: Any = pick_cube()
    state = rows(env.get_state_dict(), [0])
    layout, writer = env.scene.px._layout, env.scene.px._writer
    seen: dict[str, Counter[int]] = {"bodies": Counter(), "qpos": Counter(), "roots": Counter()}
    rigid_data, joint_values, root_poses = writer.rigid_data, writer.joint_values, writer.root_poses

    def spy_rigid(chosen: Any, values: Any, changed: Any) -> None:
        seen["bodies"].update(chosen[changed.all(axis=1)].tolist())
        rigid_data(chosen, values, changed)

    def spy_joints(setter: str, chosen: Any, values: Any) -> None:
        if setter == "qpos":
            seen["qpos"].update(chosen.tolist())
        joint_values(setter, chosen, values)

    def spy_roots(chosen: Any, values: Any) -> None:
        seen["roots"].update(chosen.tolist())
        root_poses(chosen, values)

    monkeypatch.setattr(writer, "rigid_data", spy_rigid)
    monkeypatch.setattr(writer, "joint_values", spy_joints)
    monkeypatch.setattr(writer, "root_poses", spy_roots)
    monkeypatch.setattr(
        env, "_initialize_episode", lambda env_idx, options: env.set_state_dict(state, torch.tensor([0]))
    )
    env.reset(options={"env_idx": [0, 1]})
    bodies = [row for row in range(layout.num_bodies) if layout.body_scene[row] in (0, 1)]
    assert seen["bodies"] == Counter(bodies)
    assert seen["qpos"] == Counter([0, 1])
    assert seen["roots"] == Counter([0, 1])
    env.close()
