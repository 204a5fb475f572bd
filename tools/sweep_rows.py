"""The finished runs of a sweep as rows of a CSV that outlives their folders; `mikasa sweep --skip-in` reads it too."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mikasa_robo.baselines.files import write_atomically
from mikasa_robo.baselines.loggers import short_revision

from .env_ids import OptionError
from .plot import read_column, read_progress
from .runs import unit_of_steps
from .sweep import finished_folder
from .sweep_plan import Plan, PlannedRun

__all__ = ["Row", "delay_of", "gather", "memory_of", "read_csv", "read_run", "write_csv"]

GRADIENT_STEPS = ("imitation/total_updates",)
"""Columns of progress.csv with the gradient steps so far; PPO has none."""
OPTIONAL = ("delay", "gradient_steps", "successes")
"""Columns of the CSV that may be empty."""


@dataclass(frozen=True)
class Row:
    """One finished run, a row of the CSV."""

    env_id: str
    variant: str
    memory: str
    delay: int | None
    """``delay_steps`` where the sweep sets it."""
    seed: int
    env_steps: int
    gradient_steps: int | None
    episodes: int
    """Of the final evaluation."""
    successes: int | None
    """None where the task has no success."""
    mean_return: float
    seconds: float
    revision: str

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from other runs."""
        return self.env_id, self.variant, self.seed

    @property
    def score(self) -> float:
        """Success rate, or mean return where there is no success."""
        return self.mean_return if self.successes is None else self.successes / self.episodes


def delay_of(run: PlannedRun) -> int | None:
    """``delay_steps`` of a run, where the sweep sets it.

    Raises:
        OptionError: it is no whole number.
    """
    words = run.options.get("env_kwargs", ())
    words = [words] if isinstance(words, str) else words  # a plan made by hand may hold a single one
    found = [text for name, _, text in (str(word).partition("=") for word in words) if name == "delay_steps"]
    try:
        return int(found[-1]) if found else None
    except ValueError as error:
        raise OptionError(
            f"{run.name}: delay_steps={found[-1]} is not a whole number; write one in the sweep"
        ) from error


def memory_of(run: PlannedRun) -> str:
    """The memory of a run; the name of its variant where it has no such option."""
    return str(run.options.get("memory", run.label))


def read_run(run: PlannedRun, folder: Path) -> Row:
    """The row of a finished run.

    Raises:
        OptionError: its result lacks something.
    """
    try:
        return _row_of(run, folder, json.loads((folder / "final_eval.json").read_text(encoding="utf-8")))
    except OptionError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise OptionError(f"{folder / 'final_eval.json'} is broken ({reason}); move that folder away") from error


def _row_of(run: PlannedRun, folder: Path, result: Mapping[str, Any]) -> Row:
    final, git = result["final"], result.get("git")
    steps = [values for name in GRADIENT_STEPS if (values := read_column(read_progress(folder), name)[1])]
    success = final.get("success_once")
    plays = unit_of_steps(run.algorithm_name, result["args"]) == "environment steps"
    return Row(
        env_id=run.task,
        variant=run.label,
        memory=memory_of(run),
        delay=delay_of(run),
        seed=run.seed,
        env_steps=int(result["training_steps"]) if plays else 0,
        gradient_steps=int(steps[0][-1]) if steps else None,
        episodes=int(final["episodes"]),
        successes=None if success is None else round(success * final["episodes"]),
        mean_return=round(float(final["return"]), 4),
        seconds=float(result["wall_time_s"]),
        revision=short_revision(git),
    )


def read_csv(path: Path) -> list[Row]:
    """The rows of a CSV, which need not exist.

    Raises:
        OptionError: it holds something else, or a cell that has to be there is missing or cannot be read.
    """
    if not path.exists():
        return []
    names = [field.name for field in fields(Row)]
    kinds: dict[str, Callable[[str], Any]] = dict.fromkeys(names, int)
    kinds |= dict.fromkeys(("env_id", "variant", "memory", "revision"), str)
    kinds |= {"mean_return": float, "seconds": float}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if list(reader.fieldnames or ()) != names:
                raise OptionError(f"--csv {path} has other columns than {', '.join(names)}; name another file")
            return [_read_row(row, kinds, f"--csv {path}, line {reader.line_num}") for row in reader]
    except OSError as error:
        raise OptionError(f"--csv {path} cannot be read: {error.strerror}; name a CSV file") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise OptionError(f"--csv {path} is no CSV file ({error}); name another file") from error


def _read_row(row: Mapping[str, str | None], kinds: Mapping[str, Callable[[str], Any]], where: str) -> Row:
    """A row of the CSV; ``where`` says which, for the error."""
    fix = "correct the line, or remove it and run the script again with the run's folder in place"
    if set(row) != set(kinds):  # DictReader puts what is too much under None
        raise OptionError(f"{where} has more cells than there are columns; {fix}")
    values: dict[str, Any] = {}
    for name, text in row.items():
        if not text and name not in OPTIONAL:
            raise OptionError(f"{where} has no {name}; {fix}")
        try:
            values[name] = kinds[name](text) if text else None
        except ValueError as error:
            raise OptionError(f"{where}: {name} = {text!r} is not a number of its kind; {fix}") from error
    if values["episodes"] < 1:
        raise OptionError(f"{where}: episodes = {values['episodes']} is less than 1; {fix}")
    return Row(**values)


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Replace the CSV at once: it may be all that is left of the runs, and a full disk must not cost them.

    Raises:
        OptionError: it cannot be written. The older one is left as it is.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [field.name for field in fields(Row)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.getvalue().encode())
    except OSError as error:
        raise OptionError(
            f"--csv {path} cannot be written: {error.strerror}; what it held is unchanged: make room, or name another file"
        ) from error


def gather(plan: Plan, known: Sequence[Row]) -> list[Row]:
    """``known`` and the finished runs that are not among them, in the order of the plan; rows of other runs come last.

    Raises:
        SweepError: a folder holds the result of another run.
        OptionError: a result lacks something.
    """
    by_key = {row.key: row for row in known}
    found: dict[tuple[str, str, int], Row] = {}
    for run in plan.runs:
        key = run.task, run.label, run.seed
        if key in by_key:
            found[key] = by_key.pop(key)
        elif (folder := finished_folder(plan.out, run)) is not None:
            found[key] = read_run(run, folder)
    return [*found.values(), *by_key.values()]
