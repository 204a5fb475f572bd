"""Shortcuts: scripts that try to succeed without memory of the cue, with and without the rule that stops them.

    python benchmarks/shortcuts.py --csv docs/results/shortcuts.csv --markdown docs/results/shortcuts.md

Each shortcut is a scripted policy with the expert's skill. If a task differs from the paper's in order to stop a shortcut,
the shortcut is run on both: on the paper's task (``on_mistake="ignore"``, or a goal that is reached at its edge) and on
ours. Intercept and InterceptGrab do not differ: there it is run once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import tyro
from tables import in_markdown, plain, write_csv, write_text
from torch import Tensor

from mikasa_robo.catalog import CATALOG
from mikasa_robo.core.rest import REST_STEPS
from mikasa_robo.experts.evaluation import Outcome, evaluate
from mikasa_robo.experts.policies import ExhaustiveSearch, Expert, Policy
from mikasa_robo.experts.rotating import fold
from mikasa_robo.experts.servoing import MeanVelocity
from mikasa_robo.experts.skill import Skill, View
from mikasa_robo.experts.taking_back import CUBE, MAGENTA, RED
from mikasa_robo.tasks.rotate import TOLERANCE, Rotate, heading
from mikasa_robo.tasks.take_it_back import LANES

SPACING = 0.17
"""Angle between two stops, rad: a little less than twice the tolerance, because the hand does not stop exactly there."""
SLOW = 0.01
"""A peg that turns by less than this in a step, rad, is at rest: the limit is 0.2 rad/s."""


class TurnOn(Policy):
    """Keeps turning the peg in the prompted direction and stops every `SPACING` rad.

    It remembers the next stop only. After the first stop this does not contain the peg's yaw at the start any more.
    """

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self._first = cast(Rotate, skill.task).angle_range[0] + SPACING / 2
        n = skill.num_envs
        self._begins = torch.zeros(n, dtype=torch.bool, device=skill.device)
        self._stop, self._yaw = (torch.zeros(n, device=skill.device) for _ in range(2))  # rad
        self._stood = torch.zeros(n, dtype=torch.int64, device=skill.device)

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        index = slice(None) if env_idx is None else env_idx
        self._begins[index], self._stood[index] = True, 0

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        assert view.prompt is not None
        way = view.prompt[:, 0].sign()
        yaw = heading(view.quaternion[:, 0]).to(torch.float32)
        self._stop = torch.where(self._begins, yaw + way * self._first, self._stop)
        standing = (fold(self._stop - yaw).abs() < TOLERANCE / 2) & (fold(yaw - self._yaw).abs() < SLOW)
        self._stood = torch.where(standing & ~self._begins, self._stood + 1, torch.zeros_like(self._stood))
        over = self._stood > REST_STEPS
        self._stop = torch.where(over, self._stop + way * SPACING, self._stop)
        self._stood[over] = 0
        self._begins, self._yaw = torch.zeros_like(self._begins), yaw
        return fold(self._stop - yaw)[:, None]


class Bearing(Policy):
    """Drags the cube back along the line through the disc's centre and the cube, to the lane that this line meets."""

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        magenta = view.visible[:, MAGENTA, None]
        disc = torch.where(magenta, view.position[:, MAGENTA, :2], view.position[:, RED, :2])
        off = view.position[:, CUBE, :2] - disc
        # where the line meets x = 0, the mean of all starts
        y = disc[:, 1] - disc[:, 0] * off[:, 1] / off[:, 0].clamp(max=-1e-4)
        lanes = torch.tensor(LANES, device=y.device)
        lane = lanes[(y[:, None] - lanes).abs().argmin(dim=1)]
        return torch.stack([torch.zeros_like(lane), lane], dim=1)


@dataclass
class Shortcut:
    """A shortcut, and the arguments that make the paper's task; None: our task does not differ from it."""

    told: str
    ids: tuple[str, ...]
    policy: Callable[[Skill], Policy]
    paper: Mapping[str, Any] | None = None


SHORTCUTS = (
    Shortcut(
        "touch one thing after another",
        ("RememberColor3-v0", "RememberColor9-v0", "ShellGameTouch-v0"),
        ExhaustiveSearch,
        {"on_mistake": "ignore"},
    ),
    Shortcut(
        f"turn the peg on, stop every {SPACING} rad",
        ("RotateLenientPos-v0", "RotateLenientPosNeg-v0", "RotateStrictPos-v0", "RotateStrictPosNeg-v0"),
        TurnOn,
        {"on_mistake": "ignore"},
    ),
    Shortcut("set the cube down at six places in turn", ("TakeItBack-v0",), ExhaustiveSearch, {"on_mistake": "ignore"}),
    Shortcut("go by the cube's bearing from the disc", ("TakeItBack-v0",), Bearing, {"goal_tolerance": 0.05}),
    Shortcut(
        "take the ball to have the mean velocity",
        tuple(row.id for row in CATALOG.values() if row.family.startswith("Intercept")),
        MeanVelocity,
    ),
)
IDS = tuple(dict.fromkeys(env_id for way in SHORTCUTS for env_id in way.ids))
HEADER = ("shortcut", "ID", "as the paper has it, %", "here, %", "expert here, %", "episodes")


@dataclass
class Options:
    """Measure how often shortcuts succeed, policies that do not remember the cue."""

    ids: tuple[str, ...] = IDS
    """Only these tasks."""
    episodes: int = 128
    """Episodes for each cell, rounded up to whole batches."""
    num_envs: int = 64
    """Episodes at a time."""
    csv: Path | None = None
    """The CSV file of the table; an existing file is replaced."""
    markdown: Path | None = None
    """The Markdown file of the table; an existing file is replaced."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command."""
    options = tyro.cli(Options, args=argv)
    unknown = [env_id for env_id in options.ids if env_id not in IDS]
    if unknown:
        raise SystemExit(f"--ids {' '.join(unknown)}: no shortcut is tried there; use some of {', '.join(IDS)}")
    for name in ("episodes", "num_envs"):
        if getattr(options, name) < 1:
            raise SystemExit(f"--{name.replace('_', '-')} {getattr(options, name)} must be at least 1")
    torch.set_num_threads(1)

    def success(env_id: str, policy: Callable[[Skill], Policy], **kwargs: Any) -> Outcome:
        return evaluate(env_id, policy, options.episodes, options.num_envs, **kwargs)

    rows: list[Sequence[str]] = [HEADER]
    experts = {env_id: success(env_id, Expert).in_percent() for env_id in options.ids}
    for way in SHORTCUTS:
        for env_id in (env_id for env_id in way.ids if env_id in options.ids):
            before = "as here" if way.paper is None else success(env_id, way.policy, **way.paper).in_percent()
            here = success(env_id, way.policy)
            rows.append((way.told, f"`{env_id}`", before, here.in_percent(), experts[env_id], str(here.episodes)))
            print(", ".join(rows[-1]), flush=True)
    print(plain(rows))
    if options.csv is not None:
        write_csv(options.csv, [[text.strip("`") for text in row] for row in rows])
    if options.markdown is not None:
        write_text(options.markdown, in_markdown(rows, text_columns=2) + "\n")


if __name__ == "__main__":
    main()
