"""The results of `mikasa attack`: rows of a CSV file, and the table that is made of them."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mikasa_robo.baselines.files import write_atomically
from mikasa_robo.baselines.option_words import read_env_kwargs
from mikasa_robo.catalog import CATALOG
from mikasa_robo.experts.chance import chance
from mikasa_robo.statistics import lowest_difference, wilson_interval

from .env_ids import OptionError

__all__ = [
    "AT_CHANCE",
    "FIND",
    "LEVEL",
    "UNKNOWN",
    "Attack",
    "Row",
    "markdown",
    "read_reference",
    "read_rows",
    "verdict",
    "write_row",
]

LEVEL = 0.999
"""Level of the intervals that decide, as in benchmarks/memory_need.py: with some 100 comparisons, one in twenty would be a
false alarm at 0.95."""
AT_CHANCE, FIND = "not above chance", "above chance: a find"
UNKNOWN = "-"
"""The simulator of rows that were written before there was a column of it."""
ORACLE_PARTS = ("oracle", "state")
"""Parts of an observation that hold what has to be remembered."""
SHARED_EPISODES = """\
Runs play the same episodes, so the
interval of a cell with several runs, which takes their episodes for independent, may be too narrow."""
Reference = tuple[int, int]
"""Successes and episodes of the script without memory, where no finite chance is known."""


@dataclass(frozen=True)
class Attack:
    """What tells one training run of an attacker from another."""

    env_id: str
    attacker: str  # "ppo", or "dagger-" and the teacher
    arm: str  # "held" or "free"
    obs: str  # the observation mode
    env_kwargs: str  # arguments of the environment as NAME=VALUE, joined by spaces
    steps: int  # environment steps of training that were asked for
    seed: int

    @property
    def case(self) -> tuple[str, str, str, str]:
        """What is attacked: ID, arm, observations, arguments."""
        return self.env_id, self.arm, self.obs, self.env_kwargs

    @property
    def chance(self) -> float | None:
        """Success of a guess in the task with these arguments; None where it is not known."""
        words = re.split(r" (?=[A-Za-z_]\w*=)", self.env_kwargs) if self.env_kwargs else []  # a list may have spaces
        return chance(CATALOG[self.env_id], read_env_kwargs(words))


@dataclass(frozen=True)
class Row(Attack):
    """The result of one training run, and where it comes from."""

    trained: int  # environment steps that were trained: whole rollouts
    num_envs: int  # environments that were trained in together
    sim_backend: str  # the simulator that was chosen, not "auto"; or `UNKNOWN`
    reward_mode: str  # "-" for an attacker that learns from no reward
    episodes: int  # of the final evaluation; episode k has the seed first_seed + k
    successes: int
    failures: int  # episodes with a mistake
    first_seed: int
    version: str  # of this package
    commit: str  # of its source; "+" where files had been changed
    seconds: float

    @property
    def attack(self) -> Attack:
        """The run that it is the result of."""
        return Attack(**{field.name: getattr(self, field.name) for field in fields(Attack)})


_INTEGERS = {"steps", "seed", "trained", "num_envs", "episodes", "successes", "failures", "first_seed"}


def read_rows(path: Path) -> dict[Attack, Row]:
    """The rows of a CSV file; none where there is no such file.

    Raises:
        OptionError: the file holds something else.
    """
    if not os.path.exists(path):
        return {}
    names = [field.name for field in fields(Row)]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames not in (names, [name for name in names if name != "sim_backend"]):
                raise ValueError(f"its columns are {', '.join(reader.fieldnames or ['none'])}")
            rows = [_row({"sim_backend": UNKNOWN, **values}) for values in reader]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise OptionError(
            f"--csv {path} is no table of `mikasa attack` ({error}); name another file, or move that one away"
        ) from error
    return {row.attack: row for row in rows}


def _row(values: Mapping[str, str]) -> Row:
    typed = {
        name: int(text) if name in _INTEGERS else float(text) if name == "seconds" else text
        for name, text in values.items()
    }
    row = Row(**typed)  # type: ignore[arg-type]  # the columns were compared with the fields
    if not 0 <= row.successes <= row.episodes or row.episodes < 1:
        raise ValueError(f"{row.env_id} has {row.successes} successes in {row.episodes} episodes")
    return row


def write_row(path: Path, row: Row) -> dict[Attack, Row]:
    """Add a row to the file, atomically, and return all rows. Several processes may write to the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        rows = read_rows(path) | {row.attack: row}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = [field.name for field in fields(Row)]
        writer.writerow(names)
        writer.writerows([getattr(each, name) for name in names] for each in _in_order(rows.values()))
        write_atomically(path, text.getvalue().encode())
    return rows


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A block that only one process at a time is in."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """By the order of the catalog, then by what was done."""
    order = {env_id: number for number, env_id in enumerate(CATALOG)}
    return sorted(
        rows, key=lambda row: (order.get(row.env_id, len(order)), *row.case, row.attacker, row.steps, row.seed)
    )


def read_reference(path: Path) -> dict[str, Reference]:
    """Results of the script without memory in the CSV of benchmarks/memory_need.py, by ID.

    Raises:
        OptionError: the file is not that CSV.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = {
                row["env_id"]: (int(row["successes"]), int(row["episodes"]))
                for row in csv.DictReader(file)
                if row["run"] == "memoryless"
            }
        for env_id, (successes, episodes) in found.items():
            if not 0 <= successes <= episodes or episodes < 1:
                raise ValueError(f"{env_id} has {successes} successes in {episodes} episodes")
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:  # TypeError: a row is short
        raise OptionError(
            f"--reference {path} is no CSV of benchmarks/memory_need.py ({error!r}); name another file"
        ) from error
    return found


def verdict(runs: Sequence[Row], reference: Reference | None = None, of: int | None = None) -> str:
    """What the runs of one case show.

    A run is above chance if the interval of its success rate is, at `LEVEL` divided among the runs: the best of several
    runs is above chance more often by luck. Without a finite chance a run is compared with the script without memory.

    Args:
        runs: results of one task, one arm and one kind of observation, of any attackers and seeds.
        reference: see `read_reference`.
        of: number of runs among which the level is divided, where there are more than those of ``runs``.
    """
    bound = runs[0].chance
    if bound is None and reference is None:
        return "-"
    level = 1 - (1 - LEVEL) / (of or len(runs))

    def beats(run: Row) -> bool:
        if bound is not None:
            return wilson_interval(run.successes, run.episodes, level)[0] > bound
        assert reference is not None
        return lowest_difference((run.successes, run.episodes), reference, level) > 0

    found = sorted({run.attacker for run in runs if beats(run)})
    if not found:
        return AT_CHANCE if bound is not None else "no better than the script"
    if set(runs[0].obs.split("+")) & set(ORACLE_PARTS):
        return f"above chance, but told the cue: {', '.join(found)}"
    return f"{FIND if bound is not None else 'above the script: a find'} ({', '.join(found)})"


def markdown(rows: Iterable[Row], references: Mapping[str, Reference]) -> str:
    """The table, with what one has to know to read it."""
    ordered = _in_order(rows)
    attackers = sorted({row.attacker for row in ordered})
    lines = [_introduction(ordered, attackers), ""]
    lines.append("| ID | arm | observation | chance | " + " | ".join(attackers) + " | |")
    lines.append("|---|---|---|---:|" + "---:|" * len(attackers) + "---|")
    cases: dict[tuple[str, ...], list[Row]] = {}
    for row in ordered:
        cases.setdefault(row.case, []).append(row)
    for (env_id, arm, obs, env_kwargs), runs in cases.items():
        reference = references.get(env_id) if not env_kwargs else None
        name = f"`{env_id}`" + (f" {env_kwargs}" if env_kwargs else "")
        cells = [_cell([run for run in runs if run.attacker == attacker]) for attacker in attackers]
        told = _bound(runs[0].chance, reference)
        lines.append(f"| {name} | {arm} | {obs} | {told} | {' | '.join(cells)} | {verdict(runs, reference)} |")
    return "\n".join(lines) + "\n"


def _bound(bound: float | None, reference: Reference | None) -> str:
    if bound is not None:
        return f"{100 * bound:.3g}"
    return "-" if reference is None else f"{100 * reference[0] / reference[1]:.1f} (script)"


def _largest(runs: Sequence[Row]) -> list[Row]:
    """The runs with the largest budget, which a cell shows."""
    most = max(run.steps for run in runs)
    return [run for run in runs if run.steps == most]


def _cell(runs: Sequence[Row]) -> str:
    """Success rate over all runs with the largest budget, with its 95 % interval, in per cent."""
    if not runs:
        return "-"
    counted = _largest(runs)
    successes, episodes = sum(run.successes for run in counted), sum(run.episodes for run in counted)
    low, high = wilson_interval(successes, episodes)
    return f"{100 * successes / episodes:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def _introduction(rows: Sequence[Row], attackers: Sequence[str]) -> str:
    budgets = []
    for attacker in attackers:
        trained = sorted({row.trained for row in rows if row.attacker == attacker})
        budgets.append(f"{attacker} {' or '.join(f'{steps:,}' for steps in trained)}")
    cells: dict[tuple[Any, str], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.case, row.attacker), []).append(row)
    seeds = {key: len(_largest(runs)) for key, runs in cells.items()}
    counts = " or ".join(str(count) for count in sorted(set(seeds.values())))
    episodes = " or ".join(str(count) for count in sorted({row.episodes for row in rows}))
    commits = ", ".join(sorted({row.commit for row in rows}))
    shared = "" if set(seeds.values()) == {1} else " " + SHARED_EPISODES
    return f"""\
Success in per cent, with its 95 % interval, of learnt policies without a recurrent state, which see the present observation
and a clock. Environment steps of training: {"; ".join(budgets)}. Training runs a cell: {counts}. Episodes of the
final evaluation of a run: {episodes}, with seeds that training does not use.{shared} A run is above chance if its
{LEVEL:.1%} interval is (divided among the runs of a line). Where no finite chance is known, "script" is the scripted policy
without memory of `memory_need.md`. Made by `mikasa attack` with the commits {commits}; `docs/attack.md` explains it."""
