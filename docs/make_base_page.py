"""Writes docs/base.md, the page of the small memory environments, and draws their pictures.

The page is made from the registry and from the docstrings of the classes.

    python -m docs.make_base_page             # the page
    python -m docs.make_base_page --pictures  # and docs/pictures/base/<family>.png, for those that show images

A picture shows an episode of the agent with perfect memory (of random actions where there is none): its start and two
moments later on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from PIL import Image

from docs.docstrings import docstring_of, labelled, to_markdown
from mikasa_base.agents.agent import RandomAgent
from mikasa_base.factory import missing_dependency
from mikasa_base.registry import ENV_IDS, ROWS, EnvRow, load

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "base.md"
PICTURES = DOCS / "pictures" / "base"
SEED = 1
MOMENTS = (0.0, 0.4, 0.8)
"""Of an episode, as a share of its length."""
HEIGHT, GAP = 128, 4  # pixels
COLORS = 64  # a palette keeps the files small

HEAD = f"""# Small memory environments

<!-- Written by docs/make_base_page.py from mikasa_base/rows.py, popgym_rows.py and the docstrings: edit these. -->

`import mikasa_base` registers {len(ENV_IDS)} environment IDs of {len(ROWS)} families with Gymnasium;
`mikasa list --suite base` prints them, and `--memory` and `--tier` filter the list. They need numpy and Gymnasium. A family
that is built on another library also needs the extra named below.

```python
import gymnasium as gym
import mikasa_base  # registers the environments

env = gym.make("MemoryLength-v0", memory_length=30, num_bits=2)  # or a preset: MemoryLengthEasy-v0, -Medium-, -Hard-
envs = gym.make_vec("MemoryLength-v0", num_envs=1024)  # one numpy environment, for families marked "batched"
envs = gym.make_vec("MemoryLength-v0", num_envs=8, vectorization_mode="async")  # processes, for every family
```

Environment i of a batch that is reset with seed s plays the same episode as a single environment that is reset with seed
s + i. As in Gymnasium's vector environments, the step after the end of an episode starts the next one
(`AutoresetMode.NEXT_STEP`). `autoreset_mode="SameStep"` or `"Disabled"` changes that for batched families, and
`vector_kwargs={{"autoreset_mode": AutoresetMode.SAME_STEP}}` for all others. `max_episode_steps=T` truncates episodes after
T steps, in `gym.make` and in every kind of `gym.make_vec`.

Memory types and tiers are those of the MIKASA paper (arXiv 2502.10550, sections 4.2 and 5): observations are vectors in
the diagnostic tier and images in the complex tier. *Lag* is the number of steps between a cue and its recall; where it
has several values, the first is that of `<Family>-v0`, and those after the semicolon are those of the presets, in their
order. T is the maximum number of steps of an episode. *Perfect* and *memoryless* are mean scores of two scripted agents
(`mikasa_base/agents/`): one remembers every observation, the other uses only the current one. Scores are mean returns, or
success rates where they are marked with %. A dash means that the score is not known.

Spaces are Gymnasium's; `float32 (N,)` is a Box of N numbers. Every environment also takes `render_mode="rgb_array"`.

[results/base_memory_need.md](results/base_memory_need.md) (`python benchmarks/base_memory_need.py`) lists the measured
scores of these agents and of random actions. [results/base_speed.md](results/base_speed.md)
(`python benchmarks/base_speed.py`) lists steps per second of single environments and of batches.
"""

LINKS = {row.entry_point.partition(":")[2]: f"#{row.name.lower()}" for row in ROWS}
"""Where the page describes a class."""
TIERS = {"diagnostic": "Diagnostic tier: vectors", "complex": "Complex tier: images"}


@dataclass
class Args:
    """Writes docs/base.md."""

    pictures: bool = False
    """Draw the pictures, too, of all families of the complex tier whose extra is installed."""
    families: tuple[str, ...] = ()
    """Draw only these."""


def format_kwargs(kwargs: Mapping[str, Any]) -> str:
    """Arguments as they are written in a call."""
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())


def number(scores: Mapping[str, float], preset: str, row: EnvRow) -> str:
    """A score, or a dash."""
    if preset not in scores:
        return "-"
    return f"{100 * scores[preset]:.3g} %" if row.score == "success" else f"{scores[preset]:.3g}"


def section(row: EnvRow) -> str:
    """The section of a family."""
    facts = [f"Memory: {', '.join(row.memory)}", f"Lag: {row.lag}"]
    if row.vector_entry_point:
        facts.append("Batched")
    if row.extra:
        facts.append(f"`pip install 'mikasa-suite[{row.extra}]'`")
    lines = [f"### {row.name}", "", ". ".join(facts) + ".", ""]
    if row.tier == "complex" and (PICTURES / f"{row.name}.png").exists():
        lines += [f"![Three moments of an episode of {row.name}](pictures/base/{row.name}.png)", ""]
    lines += ["| ID | arguments | T | perfect | memoryless |", "|---|---|---:|---:|---:|"]
    for preset in ("", *row.presets):
        kwargs = {**row.kwargs, **(row.presets[preset] if preset else {})}
        cells = [f"`{row.name}{preset}-v0`", f"`{format_kwargs(kwargs)}`" if kwargs else "", str(row.steps[preset])]
        cells += [number(row.perfect, preset, row), number(row.memoryless, preset, row)]
        lines.append("| " + " | ".join(cells) + " |")
    if row.weak:
        lines += ["", f"**A weak test of memory**: {row.weak}"]
    doc = docstring_of(row.entry_point)
    lines += ["", to_markdown(doc, LINKS, without_arguments=("render_mode",))]
    if not re.search(r"\d{4}", labelled(doc, "Source")):  # no publication: it says "of the same", or nothing
        lines += ["", f"Source: {row.source}."]
    return "\n".join(lines)


def overview(rows: Sequence[EnvRow]) -> str:
    """A line for each family."""
    lines = ["| Family | memory | lag | presets | |", "|---|---|---|---|---|"]
    for row in rows:
        notes = [*(["weak"] if row.weak else []), *([f"extra `{row.extra}`"] if row.extra else [])]
        cells = [f"[{row.name}](#{row.name.lower()})", ", ".join(row.memory), row.lag, ", ".join(row.presets) or "-"]
        lines.append("| " + " | ".join([*cells, ", ".join(notes)]) + " |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for tier, title in TIERS.items():
        rows = [row for row in ROWS if row.tier == tier]
        if rows:
            parts.append(f"## {title}\n\n{overview(rows)}\n")
        parts.extend(section(row) + "\n" for row in rows)
    return "\n".join(parts)


def frames(row: EnvRow) -> list[Any]:
    """Pictures of an episode at `MOMENTS`."""
    env = gym.make(f"{row.name}-v0", render_mode="rgb_array", disable_env_checker=True)
    rng = np.random.default_rng(SEED)
    agent = load(row.perfect_agent)(env, rng) if row.perfect_agent else RandomAgent(env, rng)
    obs, _ = env.reset(seed=SEED)
    agent.begin(obs)
    drawn, reward, over = [env.render()], 0.0, False
    while not over:
        obs, step_reward, terminated, truncated, _ = env.step(agent.act(obs, reward))
        reward, over = float(step_reward), terminated or truncated
        drawn.append(env.render())
    env.close()
    return [drawn[round(moment * (len(drawn) - 1))] for moment in MOMENTS]


def strip(pictures: Sequence[Any]) -> Image.Image:
    """Pictures side by side, `HEIGHT` pixels high."""
    images = [Image.fromarray(picture) for picture in pictures]
    images = [i.resize((round(i.width * HEIGHT / i.height), HEIGHT), Image.Resampling.BOX) for i in images]
    whole = Image.new("RGB", (sum(i.width + GAP for i in images) - GAP, HEIGHT), "white")
    left = 0
    for image in images:
        whole.paste(image, (left, 0))
        left += image.width + GAP
    return whole.quantize(COLORS)


def main(argv: Sequence[str] | None = None) -> int:
    """Draws and writes."""
    args = tyro.cli(Args, args=argv)
    shown = {row.name: row for row in ROWS if row.tier == "complex"}
    unknown = sorted(set(args.families) - set(shown))
    if unknown:
        print(f"--families {' '.join(unknown)}: only families with images: {', '.join(shown)}", file=sys.stderr)
        return 2
    for name in (args.families or shown) if args.pictures or args.families else ():
        missing = missing_dependency(shown[name])
        if missing is not None:
            print(f"{name} is not drawn: it needs {missing}", file=sys.stderr)
            continue
        PICTURES.mkdir(parents=True, exist_ok=True)
        strip(frames(shown[name])).save(PICTURES / f"{name}.png", optimize=True)
        print(PICTURES / f"{name}.png")
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
