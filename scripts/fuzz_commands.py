"""Command lines of ``mikasa``: ones that work, with a few words changed."""

from __future__ import annotations

import dataclasses
import functools
import random
import typing
from pathlib import Path
from typing import Any

from fuzz_values import STRINGS, path_word, pick, word

from mikasa_lifelong.arguments import RunArgs
from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.sac_arguments import SACArgs
from mikasa_robo.tools import (
    attack,
    collect,
    data,
    doctor,
    evaluate,
    expert,
    gallery,
    plot,
    probe,
    record,
    report,
    serve,
    submit,
    sweep,
)
from mikasa_robo.tools.cli import ListTasks

__all__ = ["command_line"]

QUICK = (
    "--preset none --num-envs 2 --num-steps 8 --num-minibatches 2 --total-timesteps 32 --update-epochs 1 --eval-every 0 "
    "--eval-episodes 1 --eval-num-envs 1 --no-video --torch-threads 1 --stagger-groups 1"
)
QUICK_SAC = (
    "--preset none --num-envs 2 --num-steps 8 --total-timesteps 64 --random-steps 32 --batch-transitions 8 "
    "--num-critics 2 --buffer-transitions 100 --hidden-sizes 8 --eval-every 0 --eval-episodes 1 --eval-num-envs 1 "
    "--no-video --torch-threads 1"
)
GOOD: dict[str, tuple[tuple[str, ...], int]] = {
    # command: (words that work, how often)
    "train": (
        (
            f"train ppo-mlp --env-id PassiveTMaze-v0 --env-kwargs corridor_length=2 {QUICK} --hidden-sizes 8 --run-dir out",
            f"train ppo-lstm --env-id MemoryLength-v0 {QUICK} --lstm-size 8 --run-dir out",
            f"train ppo-mlp --env-id CartPole-v1 {QUICK} --init-from run --run-dir out",
            f"train ppo-mlp --env-id RememberColor3-v0 {QUICK} --run-dir out --env-kwargs arm=held response_steps=2",
            "train ppo-mlp --resume resumable",
            f"train sac --env-id Pendulum-v1 {QUICK_SAC} --run-dir out",
        ),
        24,
    ),
    "eval": (
        (
            "eval --checkpoint run --episodes 2 --num-envs 2 --out out.json",
            "eval --checkpoint run/best.pt --episodes 1 --out out.json",
            "eval --checkpoint robo.pt --episodes 1 --num-envs 1 --out out.json",
        ),
        14,
    ),
    "record": (("record --env-id RememberColor3-v0 --policy robo.pt --episodes 1 --out out",), 8),
    "expert": (("expert --env-id RememberColor3-v0 --episodes 1 --num-envs 1 --video out.mp4",), 8),
    "gallery": (("gallery --family RememberColor --out out",), 4),
    "report": (("report run --out out", "report run eval.json folder --out out"), 10),
    "plot": (("plot run --out out.png",), 5),
    "sweep": (("sweep sweep.toml --dry-run",), 7),
    "attack": (("attack --env-id RememberColor3-v0 --dry-run", "attack --env-id all --arm free --dry-run"), 7),
    "probe": (("probe --checkpoint robo.pt --episodes 10 --num-envs 2 --out out.json",), 5),
    "collect": (("collect --env-id RememberColor3-v0 --episodes 2 --num-envs 2 --out out",), 6),
    "data": (("data check folder", "data show run --no-figure", "data replay folder", "data formats"), 5),
    "lifelong": (
        (
            "lifelong run --stream split-digits --steps 2 --checkpoints 1 --timed-forwards 2 --run-dir out",
            "lifelong list",
            "lifelong play --run run --task 1",
            "lifelong report run --out out",
        ),
        6,
    ),
    "submit": (("submit check eval.json --episodes 0", "submit show eval.json"), 3),
    "serve": (("serve --help",), 1),
    "list": (("list", "list --suite base", "list --suite lifelong"), 6),
    "doctor": (("doctor --help",), 2),
}
OPTIONS: dict[str, type] = {
    "eval": evaluate.Args,
    "record": record.Options,
    "expert": expert.Options,
    "gallery": gallery.Options,
    "report": report.Args,
    "plot": plot.Args,
    "sweep": sweep.Args,
    "attack": attack.Args,
    "probe": probe.Args,
    "collect": collect.Options,
    "data": data.Show,
    "lifelong": RunArgs,
    "submit": submit.Check,
    "serve": serve.Args,
    "list": ListTasks,
    "doctor": doctor.Options,
}
SLOW = (
    "total_timesteps", "num_envs", "eval_num_envs", "eval_episodes", "episodes", "update_epochs", "num_steps", "size",
    "video_episodes", "num_workers", "num_cpus", "stagger_groups", "keep_checkpoints", "num_minibatches", "hidden_sizes",
    "encoder_sizes", "head_sizes", "lstm_size", "video", "compile", "k", "steps", "checkpoints", "timed_forwards", "draws",
    "fisher_samples", "hidden_size", "batch_size", "capacity",
)  # fmt: skip
"""Options whose large values would be a wish for more work."""
NOT_CHANGED = ("track", "wandb_project", "wandb_mode", "address", "dry_run", "video", "compile")
"""What would start other programs, or take minutes."""
ENV_IDS = (
    "PassiveTMaze-v0", "MemoryLengthEasy-v0", "CartPole-v1", "Pendulum-v1", "Blackjack-v1", "GymV26Environment-v0",
    "GymV21Environment-v0", "RememberColor3-v0", "RememberColor3-v1", "RememberColor3", "remembercolor3-v0", "PickCube-v1",
    "json:Foo-v0", "no.such.module:Foo-v0", "a:b:c", "os.path:X-v0", "FrozenLake-v1", "CliffWalking-v1", "Taxi-v3",
    "phys2d/CartPole-v1", "tabular/Blackjack-v0", "Acrobot-v1", "ALE/Pong-v5", "Ant-v5", "CarRacing-v3", "../x", "",
)  # fmt: skip
ENV_KWARGS = (
    "arm", "arm=held", "cue_steps", "delay_steps", "response_steps", "num_envs", "obs_mode", "sim_config", "robot_uids",
    "reward_scales", "corridor_length", "memory_length", "render_mode", "sim_threads", "render_backend", "natural",
    "sutton_barto_reward", "max_episode_steps", "on_mistake", "foo", "g", "wrappers", "env_id", "autoreset_mode", "self",
)  # fmt: skip
MAXIMA = {"total_timesteps": 64, "episodes": 2, "eval_episodes": 2, "update_epochs": 2}


def command_line(rng: random.Random) -> list[str]:
    """The words after ``mikasa``."""
    command = rng.choices(list(GOOD), [weight for _, weight in GOOD.values()])[0]
    words = str(pick(rng, GOOD[command][0])).split()
    for _ in range(rng.choices((0, 1, 2, 3), (1, 8, 4, 2))[0]):
        _change(rng, command, words)
    if rng.random() < 0.02:
        words = [str(pick(rng, STRINGS)) for _ in range(rng.randrange(4))]
    for command, quick in (
        ("doctor", "--help"),
        ("sweep", "--dry-run"),
        ("attack", "--dry-run"),
        ("serve", "--help"),  # it would wait for clients
    ):  # what they start would take minutes
        if words[:1] == [command] and quick not in words:
            words.append(quick)
    return words


@functools.cache
def _fields(command: str, algorithm: str) -> dict[str, Any]:
    """The options of a command with their types."""
    of_train = {"ppo-lstm": ppo_lstm.Args, "sac": SACArgs}.get(algorithm, ppo_mlp.Args)
    options = of_train if command == "train" else OPTIONS[command]
    hints = typing.get_type_hints(options)
    return {field.name: hints[field.name] for field in dataclasses.fields(options) if field.name not in NOT_CHANGED}


def _change(rng: random.Random, command: str, words: list[str]) -> None:
    """Change, add, remove or repeat an option, or put a word somewhere."""
    how = rng.random()
    fields = _fields(command, words[1] if len(words) > 1 else "")
    if how < 0.75:
        name = pick(rng, list(fields))
        _set(words, name, _values(rng, name, fields[name]))
    elif how < 0.85 and len(words) > 1:
        del words[rng.randrange(1, len(words))]
    elif how < 0.95:
        words.insert(rng.randrange(1, len(words) + 1), str(pick(rng, STRINGS)))
    else:
        words.insert(rng.randrange(1, len(words) + 1), f"--{pick(rng, list(fields))}")


def _set(words: list[str], name: str, values: list[str]) -> None:
    option = f"--{name.replace('_', '-')}"
    if option in words:
        start = stop = words.index(option) + 1
        while stop < len(words) and not words[stop].startswith("--"):
            stop += 1
        words[start:stop] = values
    else:
        words += [option, *values]


def _values(rng: random.Random, name: str, hint: Any) -> list[str]:
    """Values for an option."""
    if hint is bool:
        return [] if rng.random() < 0.8 else [word(rng, "any")]
    if name == "env_id" and rng.random() < 0.8:
        return [str(pick(rng, ENV_IDS))]
    if name in ("env_kwargs", "train_env_kwargs"):
        return [_assignment(rng) for _ in range(rng.choice((1, 1, 2)))]
    kinds = {int: "int", float: "float", Path: "path", str: "text"}
    text = str(hint)
    kind = kinds.get(hint) or (
        "path" if "Path" in text else "int" if "int" in text else "float" if "float" in text else "text"
    )
    kind = "small" if kind == "int" and name in SLOW else kind
    count = rng.randrange(4) if "tuple" in text else 1
    values = [path_word(rng) if kind == "path" else word(rng, kind) for _ in range(count)]
    if name in MAXIMA and any(value.isdecimal() and int(value) > MAXIMA[name] for value in values):
        return [str(MAXIMA[name])]
    return values


def _assignment(rng: random.Random) -> str:
    name = pick(rng, ENV_KWARGS)
    if "=" in name or rng.random() < 0.05:
        return str(name)
    value = rng.choice(
        (word(rng, "int"), word(rng, "text"), '{"reach": 2}', "[1, 2]", "null", "true", '{"sim_freq": 7}', "NaN")
    )
    return f"{name}={value}"
