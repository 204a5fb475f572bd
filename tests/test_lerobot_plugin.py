"""The plugin in LeRobot itself: found by its discovery, trained and evaluated by its commands. Skipped without LeRobot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lerobot.envs", reason="LeRobot 0.6 is not installed; docs/lerobot.md says how")

from mikasa_robo.clients.lerobot import LeRobotVectorEnv
from mikasa_robo.tools import collect

ID = "RememberColor3-v0"
FOLDER = Path(__file__).resolve().parent.parent / "integrations" / "lerobot_env_mikasa"
ACT = {
    "type": "act",
    "device": "cpu",
    "push_to_hub": "false",
    "pretrained_backbone_weights": "null",
    "dim_model": 32,
    "n_heads": 2,
    "dim_feedforward": 64,
    "n_encoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 4,
    "chunk_size": 10,
    "n_action_steps": 5,
    "optimizer_lr": 1e-3,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed distribution."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / FOLDER.name
    _run("-c", f"import shutil; shutil.copytree({str(FOLDER)!r}, {str(source)!r})")
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps")
    _run(*pip, "--no-build-isolation", "--target", str(target), str(source))
    return target


def _run(*command: str, path: Path | None = None) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
        env["HF_HOME"] = str(path.parent / "huggingface")
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


@pytest.fixture
def plugin(site: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """LeRobot's own discovery has imported the plugin."""
    from lerobot.utils.import_utils import register_third_party_plugins

    monkeypatch.syspath_prepend(str(site))
    register_third_party_plugins()
    return sys.modules["lerobot_env_mikasa"]


def test_the_configuration_and_the_environments(plugin: Any) -> None:
    from lerobot.envs.factory import make_env, make_env_config
    from lerobot.envs.utils import env_to_policy_features, preprocess_observation

    cfg = make_env_config("mikasa", task=f"{ID},RotateLenientPos-v0", obs="joints+time", frames="blank")
    assert isinstance(cfg, plugin.MikasaEnv)
    assert cfg.type == "mikasa"
    features = env_to_policy_features(cfg)
    shapes = {name: feature.shape for name, feature in features.items()}
    # the prompt is not a feature, because one of the tasks has none
    assert shapes == {"action": (8,), "observation.state": (25,), "observation.time": (1,)}
    envs = make_env(cfg, n_envs=2, use_async_envs=True)
    assert {task: list(group) for task, group in envs.items()} == {ID: [0], "RotateLenientPos-v0": [0]}
    env = envs["RotateLenientPos-v0"][0]
    obs, _ = env.reset(seed=[1, 2])
    seen = preprocess_observation(obs)
    assert {name: tuple(value.shape) for name, value in seen.items()} == {
        "observation.state": (2, 25),
        "observation.time": (2, 1),
        "observation.prompt": (2, 1),
    }
    assert np.array_equal(seen["observation.state"].numpy(), obs["agent_pos"])
    env.close()


def test_a_bad_configuration_is_refused_with_its_value(plugin: Any) -> None:
    with pytest.raises(ValueError, match=r"no task with the ID 'RememberColor4-v0'"):
        plugin.MikasaEnv(task="RememberColor4-v0", obs="joints")
    with pytest.raises(ValueError, match=r"fps=30: RememberColor3-v0 has 20"):
        plugin.MikasaEnv(task=ID, obs="joints", fps=30)
    with pytest.raises(
        ValueError, match=r"'environment_state' has the shape \(51,\) in .* and \(.*,\) in TakeItBack-v0"
    ):
        plugin.MikasaEnv(task=f"{ID},TakeItBack-v0", obs="objects")
    with pytest.raises(ValueError, match=r"env_kwargs has 'sim_backend', .*: use --env\.sim_backend"):
        plugin.MikasaEnv(task=ID, obs="joints", env_kwargs={"sim_backend": "physx_cpu"})


def test_the_hubs_file_is_taken_by_lerobots_loader() -> None:
    from lerobot.envs.utils import _call_make_env, _import_hub_module, _normalize_hub_result

    module = _import_hub_module(str(FOLDER / "env.py"), "mikasa/envs")
    module.OBS = "joints"  # images would need a renderer
    envs = _normalize_hub_result(_call_make_env(module, n_envs=2, use_async_envs=False, cfg=None))
    assert isinstance(envs[ID][0], LeRobotVectorEnv)


@pytest.mark.slow
@pytest.mark.parametrize("obs", ["objects+joints", pytest.param("rgb+joints", marks=pytest.mark.render)])
def test_lerobot_trains_on_our_dataset_and_evaluates_in_our_environment(obs: str, site: Path, tmp_path: Path) -> None:
    """ACT on a dataset of `mikasa collect`: `lerobot-train` with an evaluation, then `lerobot-eval`, on the CPU."""
    form, images = "lerobot-images" if "rgb" in obs else "lerobot", "rgb" in obs
    data, out = tmp_path / "data", tmp_path / "train"
    command = ("--env-id", ID, "--episodes", "4", "--num-envs", "4", "--obs", obs, "--format", form)
    assert collect.main((*command, "--out", str(data), "--no-states")) == 0
    env = {"type": "mikasa", "task": ID, "obs": obs, "frames": "observation" if images else "blank"}
    env_options = [f"--env.{name}={value}" for name, value in env.items()]
    steps, batch = (6, 2) if images else (100, 8)
    said = _run(
        "-m",
        "lerobot.scripts.lerobot_train",
        f"--dataset.repo_id=mikasa/{ID}",
        f"--dataset.root={data / form}",
        *(f"--policy.{name}={value}" for name, value in ACT.items()),
        *env_options,
        *f"--steps={steps} --batch_size={batch} --num_workers=0 --log_freq={steps // 2} --save_freq={steps}".split(),
        *f"--env_eval_freq={steps} --eval.n_episodes=2 --eval.batch_size=2 --wandb.enable=false --seed=1".split(),
        f"--output_dir={out}",
        path=site,
    )
    losses = [float(part.split("loss:")[1].split()[0]) for part in said.splitlines() if " loss:" in part]
    assert len(losses) == 2
    assert images or losses[1] < losses[0], "it learns"
    _run(
        "-m",
        "lerobot.scripts.lerobot_eval",
        f"--policy.path={out / 'checkpoints' / 'last' / 'pretrained_model'}",
        "--policy.device=cpu",
        *env_options,
        *["--eval.n_episodes=3", "--eval.batch_size=2", "--seed=2000000"],
        f"--output_dir={tmp_path / 'eval'}",
        path=site,
    )
    found = json.loads((tmp_path / "eval" / "eval_info.json").read_text())
    assert found["overall"]["n_episodes"] == 3
    assert found["per_group"][ID]["n_episodes"] == 3
    assert 0 <= found["overall"]["pc_success"] <= 100
    assert found["overall"]["avg_sum_reward"] > 0
    assert all(Path(video).stat().st_size > 0 for video in found["overall"]["video_paths"])
    assert len(found["overall"]["video_paths"]) == 4  # of whole batches
