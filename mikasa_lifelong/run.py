"""A run in a folder of its own: begin it, or go on with it, and write its result."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mikasa_robo.baselines.checkpoints import Checkpoints
from mikasa_robo.baselines.evaluation import torch_threads
from mikasa_robo.baselines.files import write_atomically
from mikasa_robo.baselines.loggers import claim_run_dir, provenance, require_free, sole_writer
from mikasa_robo.statistics import wilson_interval

from . import metrics
from .arguments import RunArgs
from .errors import LifelongError
from .loop import Loop, make_setup
from .record import FORMAT, Record
from .stream import TaskStream
from .trial import require_learnable

__all__ = ["RESULT_FILE", "read_saved", "result_of", "run"]

RESULT_FILE = "final_eval.json"


def read_saved(run_dir: Path) -> dict[str, Any]:
    """The newest checkpoint of a run that is to go on.

    Raises:
        LifelongError: the run is complete, or is not one of this package.
        CheckpointError: there is no checkpoint that can be read.
    """
    if os.path.exists(run_dir / RESULT_FILE):
        raise LifelongError(f"--resume {run_dir} is complete: {RESULT_FILE} is there; start a new run instead")
    saved: dict[str, Any] = Checkpoints.load_newest(run_dir)
    if "lifelong" not in saved:
        raise LifelongError(f"--resume {run_dir} is a run of `mikasa train {saved['algorithm']}`; use that command")
    return saved


def run(args: RunArgs, command: Sequence[str]) -> dict[str, Any]:
    """Begin a run, or go on with the one in ``args.resume``; return the content of its ``final_eval.json``.

    Args:
        args: complete, see `RunArgs.completed`.
        command: the command line, for the record of where a result comes from.

    Raises:
        LifelongError, FileExistsError: an argument cannot be used; nothing has been written.
        CheckpointError: the run cannot go on from its checkpoint, or a checkpoint cannot be written.
        FloatingPointError: training has diverged.
    """
    folder = args.folder
    if args.resume is None:
        require_free(folder)
    made_by = provenance(command)  # of the code that is loaded: files may change until the end of the run
    stream = TaskStream(args.stream_row, args.data)
    if args.resume is None:  # earlier versions began runs with more
        stream.require_episodes(args.episodes)
    for k in range(len(stream)):  # what cannot be built is found before there is a folder
        stream.dataset(k, args.seed)
    args.learner_row.load()
    require_learnable(make_setup(args, stream), stream)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch_threads(args.torch_threads))
        if args.resume is None:
            claim_run_dir(folder)
        stack.enter_context(sole_writer(folder))
        loop = Loop(args, stream, folder)
        if args.resume is not None:  # read under the lock: a process that still trains there would write newer ones
            loop.load(read_saved(folder))
        loop.go()
        result = {**result_of(loop.record), **made_by}
        write_atomically(folder / RESULT_FILE, (json.dumps(result, indent=2) + "\n").encode())
    return result


def result_of(record: Record) -> dict[str, Any]:
    """The content of ``final_eval.json``: that of `mikasa train`, whose success is the mean over all tasks, and more.

    The interval of the success is Wilson's over the episodes of the last stage, so it is about this run alone. Where tasks
    have different numbers of episodes, it is that of as many as would measure the mean over tasks as well.
    """
    R = record.array()
    last = [m for m in record.measurements if m.stage == len(record.tasks) and m.checkpoint == -1]
    trials = sum(m.trials for m in last)
    mean = metrics.per(R)
    worth = max(1, round(len(last) ** 2 / math.fsum(1 / m.trials for m in last)))
    low, high = wilson_interval(round(mean * worth), worth)
    found = {
        "per": mean,
        "bwt_nav": metrics.bwt_nav(R),
        "fwt_libero": metrics.fwt_libero(R),
        "nbt_libero": metrics.nbt_libero(R),
        "nbt_libero_without_last": metrics.nbt_libero(R, without_last=True),
        "auc_libero": metrics.auc_libero(R),
        "bwt_gem": metrics.bwt_gem(R),
        "fwt_gem": metrics.fwt_gem(R),
        "mem_inference": record.inference_numbers / record.one_network,
        "mem_training": record.training_numbers / record.one_network,
        "inf_ms": record.inference_ms,
        "trn_s": round(record.train_seconds, 2),
    }
    return {
        "env_id": record.stream,
        "algorithm": record.learner,
        "seed": record.seed,
        "training_steps": record.steps,
        "wall_time_s": round(record.train_seconds, 1),
        "final": {
            "episodes": trials,
            "success_once": mean,
            "success_low": low,
            "success_high": high,
            "success_at_end": mean,
            "tasks": {f"{k + 1} {name}": float(R[-1, -1, k]) for k, name in enumerate(record.tasks)},
        },
        "lifelong": {
            "format": FORMAT,
            "tasks": list(record.tasks),
            "metrics": {name: None if value is None or np.isnan(value) else value for name, value in found.items()},
        },
        "args": record.args,
    }
