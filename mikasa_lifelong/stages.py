"""The learner as it was after a stage, in a file of the run's folder, so that it can be played later."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mikasa_robo.baselines.checkpoints import CheckpointError, load_checkpoint, save_checkpoint

from .arguments import RunArgs
from .errors import LifelongError
from .learners.base import Learner
from .stream import TaskStream

__all__ = ["FORMAT", "SavedStages", "save_stage"]

FORMAT = "mikasa/lifelong-stage/1"
_NAME = re.compile(r"stage-(\d+)\.pt")


def save_stage(run_dir: Path, stage: int, args: RunArgs, stream: TaskStream, state: Mapping[str, Any]) -> None:
    """Write ``stage-<stage>.pt``. Raises CheckpointError where it cannot be written."""
    learnt_from = {"tasks": list(stream.row.tasks), "data_sha256": stream.data_sha256}
    payload = {"format": FORMAT, "stage": stage, "args": args.to_dict(), **learnt_from, "learner": state}
    save_checkpoint(run_dir / f"stage-{stage}.pt", payload)


@dataclass(frozen=True)
class SavedStages:
    """The stages of a run that can be played."""

    run_dir: Path
    numbers: tuple[int, ...]
    """0 is before any training; stage k has learnt the task in place k, counted from 1."""

    @classmethod
    def find(cls, run_dir: Path) -> SavedStages:
        """Those in a folder. Raises LifelongError if there is none."""
        names = [path.name for path in run_dir.iterdir()] if run_dir.is_dir() else []
        numbers = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        if not numbers:
            raise LifelongError(
                f"--run {run_dir} holds no stage of a run (stage-*.pt); name a folder that `mikasa lifelong run` has written"
            )
        return cls(run_dir, tuple(numbers))

    def require(self, stages: Sequence[int]) -> None:
        """Raises LifelongError for a stage that was not saved."""
        for stage in stages:
            if stage not in self.numbers:
                known = ", ".join(map(str, self.numbers))
                raise LifelongError(f"--stages {stage}: {self.run_dir} has no such stage; use some of {known}")

    def load(self, stage: int) -> tuple[RunArgs, TaskStream, Learner]:
        """The run's arguments, its stream, and the learner as it was after ``stage``.

        Raises:
            LifelongError: that stage was not saved, its file is broken, or the run's tasks or data are no longer the same.
        """
        self.require([stage])
        from .loop import make_setup

        path = self.run_dir / f"stage-{stage}.pt"
        try:
            saved = load_checkpoint(path, FORMAT)
            args = RunArgs.from_dict(saved["args"]).completed()
            stream = TaskStream(args.stream_row, args.data)
            # Older files do not have these two.
            stream.require_tasks(saved.get("tasks", stream.row.tasks), f"--run {self.run_dir}")
            stream.require_data(saved.get("data_sha256"), f"--run {self.run_dir}")
            learner: Learner = args.learner_row.load()(make_setup(args, stream))
            learner.load(saved["learner"])
        except CheckpointError as error:
            raise LifelongError(str(error)) from error
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise LifelongError(f"{path} is broken ({type(error).__name__}: {error}); start the run anew") from error
        return args, stream, learner
