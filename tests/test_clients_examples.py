"""The examples in examples/clients/ run, for a few hundred steps each."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "clients"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"client_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested() -> None:
    tested = {"train_with_sb3", "train_with_torchrl", "train_with_skrl"}
    tested |= {"train_with_cleanrl_wrappers", "use_maniskill_wrappers"}
    assert {path.stem for path in FOLDER.glob("*.py")} == tested


def test_sb3() -> None:
    pytest.importorskip("sb3_contrib")
    assert 0 < load("train_with_sb3").main(steps=240, num_envs=8) < 60


def test_torchrl() -> None:
    pytest.importorskip("torchrl")
    returns = load("train_with_torchrl").main(steps=512, num_envs=8)
    assert len(returns) == 1, "64 steps: the first episodes are over"
    assert 0 < returns[0] < 60


def test_skrl(tmp_path: Path) -> None:
    pytest.importorskip("skrl")
    module = load("train_with_skrl")
    agent = module.main(steps=512, num_envs=8, run_dir=str(tmp_path))
    assert bool((agent.policy.log_std != 0).all()), "the policy has learnt something"
    assert list(tmp_path.rglob("*.pt"))


def test_cleanrl_wrappers() -> None:
    returns = load("train_with_cleanrl_wrappers").main(steps=512, num_envs=8)
    assert len(returns) == 8
    assert all(0 < value < 60 for value in returns)


def test_maniskill_wrappers(tmp_path: Path) -> None:
    returns = load("use_maniskill_wrappers").main(steps=488, num_envs=8, out=str(tmp_path))
    assert len(returns) == 8
    assert np.isfinite(returns).all()
    assert (tmp_path / next(tmp_path.glob("*.h5")).name).stat().st_size > 0


def test_the_paper_s_code_3_runs() -> None:
    source = (FOLDER.parent / "paper_code_3.py").read_text()
    assert "gym.make(env_id, **env_kwargs)" in source
    names: dict[str, Any] = {}
    exec(compile(source, "paper_code_3.py", "exec"), names)
    assert names["env"].spec.kwargs["memory_length"] == 10
    assert names["terminations"] or names["truncations"], "11 steps are an episode of memory_length 10"
