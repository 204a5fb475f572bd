"""Writes docs/tasks.md, the page of the robot tasks, from the catalog and the docstrings of the task classes.

python -m docs.make_tasks_page
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from docs.docstrings import docstring_of, to_markdown, wrapped
from mikasa_robo.catalog import CATALOG, CERTIFICATIONS, TaskSpec
from mikasa_robo.experts.chance import chance

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "tasks.md"
PICTURES = DOCS / "pictures"
SHARED = (
    "mikasa_robo.tasks.remember_task:RememberTask",
    "mikasa_robo.tasks.colored_cubes:RecallColors",
    "mikasa_robo.core.choice:ChoiceTask",
    "mikasa_robo.tasks.rotate:Rotate",
    "mikasa_robo.tasks.rolling_ball:RollingBallTask",
)
"""Classes that several families derive from, whose docstrings say what these share."""

HEAD = """# The robot tasks

<!-- Written by docs/make_tasks_page.py from mikasa_robo/catalog.py and the docstrings of mikasa_robo/tasks: edit these. -->

This page says what each task shows, what counts as success and as a mistake, and what its dense reward pays for. It is made
from the docstrings of the classes that are simulated. The arguments that all tasks share are in
[arguments.md](arguments.md), the observations and actions in the [README](../README.md#use), and what the tasks need memory
for in [memory.md](memory.md).

**What all tasks share.** A Panda arm stands at x = -0.615 m and faces +x; +y is on its left, and z = 0 is the top of the
table. A control step is 0.05 s. An episode is cue, delay and response, and acting counts in the response. (In Intercept and
InterceptGrab the cue is the whole episode, and acting counts from the start.) An episode ends with a success or a mistake,
and at the latest after T steps. The robot is *static* if every joint of its arm is slower than 0.2 rad/s. A *touch* is a
contact of the hand, a finger or the wrist camera with more than 0.05 N at the end of a control step.

**Dense reward.** In the response it is the weighted sum of the terms that are named below; before it only `still` pays. A
success pays twice the sum of all weights in place of the terms, and a mistake pays nothing. `normalized_dense` divides this
by what a success pays, so a success is 1, and anything else is at most 0.5. `info["reward_terms"]` has the terms of the last
step, each with its weight.

In the tables lengths are in control steps, and "3 x 5" stands for three cues of 5 steps each. T is longer with `arm="held"`
where the table says so. "A guess" is the share of episodes that a guess gets right; a dash means that the cue is not one of
finitely many. "Measured" says what else than a memory can hold the cue; "even then" means even with `arm="held"`.

"""


@dataclass
class Args:
    """Writes docs/tasks.md."""


def percent(value: float | None) -> str:
    """A share as the tables print it, or a dash."""
    return "-" if value is None else f"{100 * value:.3g} %"


def anchor(title: str) -> str:
    """The end of a link to a heading of this page."""
    return "#" + title.lower().replace(" ", "-")


def class_name(entry_point: str) -> str:
    """The class of ``module:Class``."""
    return entry_point.partition(":")[2]


def families() -> dict[str, list[TaskSpec]]:
    """The rows of every family, in the order of the catalog."""
    found: dict[str, list[TaskSpec]] = {}
    for row in CATALOG.values():
        found.setdefault(row.family, []).append(row)
    return found


def table(rows: Sequence[TaskSpec]) -> str:
    """The IDs with the lengths of their phases."""
    lines = ["| ID | arguments | cue | delay | response | T | a guess |", "|---|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        cue = f"{row.cues} x {row.cue // row.cues}" if row.cues > 1 else str(row.cue)
        longest = f"{row.horizon}; held: {row.held_horizon}" if row.held_horizon != row.horizon else str(row.horizon)
        given = ", ".join(f"{name}={value!r}" for name, value in row.kwargs.items())
        cells = [
            f"`{row.id}`",
            f"`{given}`" if given else "",
            cue,
            str(row.delay),
            str(row.response),
            longest,
            percent(chance(row)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def instructions(rows: Sequence[TaskSpec]) -> str:
    """What language-conditioned agents are told."""
    return "\n".join(wrapped(f"`{row.id}`: {row.instruction}", "- ", "  ") for row in rows)


def facts(rows: Sequence[TaskSpec]) -> str:
    """Kind of memory, what the oracle and the prompt hold, and what else than memory can hold the cue."""
    row = rows[0]
    told = [f"Memory: {row.memory}", f"Oracle: {row.oracle}", *([f"Prompt: {row.prompt}"] if row.prompt else [])]
    measured: dict[str, list[str]] = {}
    for row in rows:
        if row.certification:
            measured.setdefault(CERTIFICATIONS[row.certification], []).append(f"`{row.id}`")
    if len(measured) == 1:
        told.append(f"[Measured](memory.md): {next(iter(measured))}")
    elif measured:
        told.append(
            "[Measured](memory.md): " + "; ".join(f"{text} ({', '.join(ids)})" for text, ids in measured.items())
        )
    return wrapped(". ".join(told) + ".")


def section(family: str, rows: Sequence[TaskSpec], links: dict[str, str]) -> str:
    """The section of a family."""
    parts = [f"## {family}", facts(rows)]
    if (PICTURES / f"{family}.png").exists():
        parts.append(f"![Moments of an episode of {family}](pictures/{family}.png)")
    parts += [
        table(rows),
        to_markdown(docstring_of(rows[0].entry_point), links),
        f"Instructions:\n\n{instructions(rows)}",
    ]
    return "\n\n".join(parts)


def page() -> str:
    """The whole page."""
    found = families()
    links = {"MemoryEnv": "arguments.md"}
    links |= {class_name(rows[0].entry_point): anchor(family) for family, rows in found.items()}
    links |= {class_name(entry_point): anchor(class_name(entry_point)) for entry_point in SHARED}
    parts = [wrapped("Families: " + ", ".join(f"[{family}]({anchor(family)})" for family in found) + ".")]
    parts += [section(family, rows, links) for family, rows in found.items()]
    parts.append("## What families share")
    parts += [f"### {class_name(e)}\n\n{to_markdown(docstring_of(e), links)}" for e in SHARED]
    return HEAD + "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page."""
    tyro.cli(Args, args=argv)
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
