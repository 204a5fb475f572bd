"""What a run measured, and the file ``record.json`` that holds it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import LifelongError
from .stream import Scores

__all__ = ["AFTER", "FORMAT", "RECORD_FILE", "Measurement", "Record", "read_record"]

FORMAT = "mikasa/lifelong/1"
RECORD_FILE = "record.json"
AFTER = -1
"""The checkpoint after a stage's consolidation."""
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "float | None": (float, int, type(None)),
    "str | None": (str, type(None)),
    "dict[str, Any]": (dict,),
    "tuple[str, ...]": (tuple,),
    "list[Measurement]": (list,),
}
"""What JSON holds for each kind of field."""


@dataclass(frozen=True)
class Measurement:
    """One evaluation of one task."""

    stage: int  # 0 before any training; stage k + 1 trains the task in place k
    checkpoint: int  # 0 … C within the stage, AFTER its consolidation
    task: int  # its place, counted from 0
    step: int  # gradient steps so far
    value: float
    successes: int
    trials: int
    loss: float | None = None  # mean training loss since the last checkpoint; None where nothing was trained


@dataclass
class Record:
    """All measurements of a run. Seconds and milliseconds are of this machine; all else is a function of the seed."""

    stream: str
    learner: str
    seed: int
    tasks: tuple[str, ...]
    """Names of the tasks in the order of their places."""
    checkpoints: int
    """C: checkpoints within a stage, besides the one before its first step."""
    args: dict[str, Any] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    steps: int = 0
    """Gradient steps so far."""
    train_seconds: float = 0.0
    """Training and consolidation without evaluation."""
    inference_ms: float | None = None
    """Median time of one forward with a batch of 64, on one thread; None until the end."""
    one_network: int = 0
    """Numbers of one network, the unit of the two sizes."""
    inference_numbers: int = 0
    """Numbers held to play all tasks."""
    training_numbers: int = 0
    """Numbers held to go on learning."""
    complete: bool = False
    data_sha256: str | None = None
    """Of what the tasks read from files; None where they read none, or do not tell it."""

    def add(self, stage: int, checkpoint: int, task: int, scores: Scores, loss: float | None = None) -> None:
        """Note an evaluation, made after `steps` steps."""
        self.measurements.append(
            Measurement(stage, checkpoint, task, self.steps, scores.value, scores.successes, scores.trials, loss)
        )

    def array(self, name: str = "value") -> NDArray[np.float64]:
        """``value``, ``successes``, ``trials`` or ``loss`` as (K + 1, C + 2, K); nan is what was not measured.

        The axes are stage, checkpoint (the last is `AFTER`) and task, as `mikasa_lifelong.metrics` has them.
        """
        K = len(self.tasks)
        found = np.full((K + 1, self.checkpoints + 2, K), np.nan)
        for m in self.measurements:
            value = getattr(m, name)
            found[m.stage, m.checkpoint, m.task] = np.nan if value is None else value
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values only."""
        return {"format": FORMAT, **asdict(self), "tasks": list(self.tasks)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "the record") -> Record:
        """What `to_dict` gave.

        Raises:
            LifelongError: another format, or an entry is missing or of the wrong kind.
        """
        if content.get("format") != FORMAT:
            raise LifelongError(
                f"{source} has the format {content.get('format')!r}, expected {FORMAT!r}; read it with the "
                "version of mikasa that wrote it"
            )
        try:
            content = {"data_sha256": None, **content}  # older records do not have it
            values = {f.name: content[f.name] for f in fields(cls)}
            values["tasks"] = tuple(values["tasks"])
            values["measurements"] = [Measurement(**m) for m in values["measurements"]]
            record = cls(**values)
            _require_kinds(record)
            _require_ranges(record)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise LifelongError(f"{source} is broken ({type(error).__name__}: {error}); move it away") from error
        return record

    def save(self, run_dir: Path) -> None:
        """Write ``record.json`` and ``progress.csv`` atomically."""
        from mikasa_robo.baselines.files import write_atomically

        write_atomically(run_dir / RECORD_FILE, (json.dumps(self.to_dict(), indent=1) + "\n").encode())
        write_atomically(run_dir / "progress.csv", self._progress().encode())

    def _progress(self) -> str:
        """The learning curve: a row for each checkpoint, with the score of what is being learnt, and one after each stage.

        ``eval/success_once`` is the mean over the tasks that were measured then. After a stage these are the ones learnt
        so far.
        """
        rows: dict[tuple[int, int], list[Measurement]] = {}
        for m in self.measurements:
            if m.stage > 0 and (m.checkpoint != AFTER or m.task < m.stage):
                rows.setdefault((m.stage, m.checkpoint), []).append(m)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(("step", "stage", "train/loss", "eval/success_once"))
        for (stage, _), found in rows.items():
            loss = found[0].loss
            mean = math.fsum(m.value for m in found) / len(found)
            writer.writerow((found[0].step, stage, "" if loss is None else loss, mean))
        return text.getvalue()


def _require_kinds(part: Record | Measurement) -> None:
    """Raise TypeError where a field holds something else than it is declared to."""
    for item in fields(part):
        value, kinds = getattr(part, item.name), _KINDS[str(item.type)]
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if wrong or (isinstance(value, tuple) and not all(isinstance(name, str) for name in value)):
            raise TypeError(f"{item.name} is {value!r}, which is no {item.type}")


def _require_ranges(record: Record) -> None:
    """Raise ValueError, TypeError or IndexError for numbers that no run has, from which metrics would be wrong."""
    K, strength = len(record.tasks), record.args.get("strength")
    if K == 0 or record.checkpoints < 1 or record.one_network < 1 or record.seed < 0:
        raise ValueError(
            f"{K} tasks, checkpoints {record.checkpoints}, one_network {record.one_network} and seed {record.seed}, "
            "expected at least 1, 1, 1 and 0"
        )
    if isinstance(strength, bool) or not isinstance(strength, (float, int, type(None))):
        raise TypeError(f"args.strength is {strength!r}, which is no number")
    for m in record.measurements:
        _require_kinds(m)
        if not (0 <= m.stage <= K and AFTER <= m.checkpoint <= record.checkpoints and 0 <= m.task < K):
            raise IndexError(f"{m} is of a stage, a checkpoint or a task that the run does not have")
        if not (0 <= m.successes <= m.trials and m.trials >= 1 and 0 <= m.value <= 1):
            raise ValueError(f"{m} has numbers that no evaluation has")


def read_record(run_dir: Path) -> Record:
    """The record of a run's folder.

    Raises:
        LifelongError: there is none, it cannot be read, or it has another format.
    """
    path = run_dir / RECORD_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LifelongError(f"{path} cannot be read ({error}); name the folder of a run") from error
    if not isinstance(content, dict):
        raise LifelongError(f"{path} is not a JSON object; name the folder of a run")
    return Record.from_dict(content, str(path))
