"""The loop: stage after stage, measured as it goes, and resumable after any step."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mikasa_robo.baselines.checkpoints import Checkpoints
from mikasa_robo.baselines.evaluation import torch_threads

from .arguments import RunArgs
from .catalog import load_entry_point
from .errors import LifelongError
from .learners.base import Chance, Learner, Setup
from .nets import NETWORKS
from .record import AFTER, Record
from .stages import save_stage
from .stream import Dataset, Scores, TaskStream, UnionDataset

__all__ = ["Loop", "make_setup"]

log = logging.getLogger(__name__)

KEPT = 2
"""Files to resume from that are kept."""
TIMED_BATCH = 64

Phase = Literal["train", "end", "measure"]


@dataclass(frozen=True)
class Stage:
    """One stage of a run."""

    number: int  # in the record: 0 … K
    k: int  # the place of its task, as the learner is told
    current: tuple[int, ...]  # places of all tasks that are learnt in it


def make_setup(args: RunArgs, stream: TaskStream) -> Setup:
    """What the learner of a run is given. ``args`` are complete."""
    build = load_entry_point(NETWORKS[str(args.network)].entry_point)
    joint = args.learner_row.joint
    union: list[Dataset] = []

    def data(k: int) -> Dataset:
        if not joint:
            return stream.dataset(k, args.seed)
        if not union:
            union.append(UnionDataset([stream.dataset(i, args.seed) for i in range(len(stream))]))
        return union[0]

    assert args.steps is not None
    assert args.batch_size is not None
    assert args.learning_rate is not None
    return Setup(
        chance=Chance(args.seed),
        make_model=lambda: build(stream.signature, args.hidden_size, args.dropout),
        data=data,
        steps=args.steps * (len(stream) if joint else 1),
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        max_grad_norm=args.max_grad_norm,
        options=args.learner_options(),
    )


def _stages(K: int, joint: bool) -> list[Stage]:
    """The untrained stage and those that train. A joint learner has one of these, which counts as the last."""
    trained = [Stage(K, 0, tuple(range(K)))] if joint else [Stage(k + 1, k, (k,)) for k in range(K)]
    return [Stage(0, -1, ()), *trained]


class Loop:
    """A run in memory. What it writes: the record after each measurement, and checkpoints to resume from.

    Args:
        args: complete, see `RunArgs.completed`.
        stream: the tasks.
        run_dir: the folder, claimed.
    """

    def __init__(self, args: RunArgs, stream: TaskStream, run_dir: Path) -> None:
        self.args, self.stream, self.run_dir = args, stream, run_dir
        self.setup = make_setup(args, stream)
        self.learner: Learner = args.learner_row.load()(self.setup)
        self.record = Record(args.stream, args.learner, args.seed, stream.row.tasks, args.checkpoints, args.to_dict())
        self.record.one_network = self.setup.fresh_model(0).numbers()
        self.record.data_sha256 = stream.data_sha256
        self.stages = _stages(len(stream), args.learner_row.joint)
        self.index, self.t = 0, 0  # the stage, and its gradient steps so far
        self.phase: Phase = "measure"
        self.losses: tuple[float, int] = (0.0, 0)  # sum and number since the last checkpoint
        self.best: dict[str, Any] | None = None  # of this stage: score and state
        self.checkpoints = Checkpoints(run_dir, KEPT)
        self.saves = 0
        self.since_save = 0

    @property
    def stage(self) -> Stage:
        """The current one."""
        return self.stages[self.index]

    # ---- checkpoints
    def save(self) -> None:
        """Write a checkpoint."""
        self.since_save = 0
        self.saves += 1
        self.checkpoints.save(
            self.saves,
            {
                "algorithm": self.args.learner,
                "world_size": 1,
                "args": self.args.to_dict(),
                "lifelong": {"stage": self.index, "phase": self.phase, "t": self.t, "losses": list(self.losses)},
                "learner": self.learner.state(),
                "best": self.best,
                "record": self.record.to_dict(),
            },
        )

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` wrote.

        Raises:
            LifelongError: the run was begun with other data or other tasks.
        """
        record = Record.from_dict(saved["record"], "the checkpoint's record")
        self.stream.require_tasks(record.tasks, f"--resume {self.run_dir}")
        self.stream.require_data(record.data_sha256, f"--resume {self.run_dir}")
        place = saved["lifelong"]
        self.index, self.phase, self.t = place["stage"], place["phase"], place["t"]
        self.losses = (place["losses"][0], place["losses"][1])
        self.best, self.saves = saved["best"], saved["step"]
        self.record = record
        self.learner.load(saved["learner"])

    def _count(self) -> None:
        """One step or piece more; write a checkpoint if it is time."""
        self.since_save += 1
        if self.since_save >= self.args.checkpoint_every:
            self.save()

    # ---- the stages
    def go(self) -> None:
        """Run to the end, and time the forward."""
        if not self.saves:
            self.save()  # the first measurement may take long, and can then be begun again
        while self.index < len(self.stages):
            if self.phase == "train":
                self._train()
            if self.phase == "end":
                self._consolidate()
            self._measure()
        self.record.inference_ms = self._time_forward()
        self.record.complete = True
        self.record.save(self.run_dir)

    def _train(self) -> None:
        marks = {round(e * self.setup.steps / self.args.checkpoints): e for e in range(self.args.checkpoints + 1)}
        if self.t == 0:
            self.learner.begin(self.stage.k, self.setup.data(self.stage.k))
        while True:
            if self.t in marks:
                self._checkpoint(marks[self.t])
            if self.t == self.setup.steps:
                break
            start = time.perf_counter()
            figures = self.learner.step()
            self.record.train_seconds += time.perf_counter() - start
            self.t += 1
            self.record.steps += 1
            if "loss" in figures:
                self.losses = (self.losses[0] + figures["loss"], self.losses[1] + 1)
            self._count()
        if self.best is not None:
            self.learner.load(self.best["state"])
            self.best = None
        self.phase = "end"

    def _checkpoint(self, e: int) -> None:
        """Measure the tasks that are learnt."""
        total, count = self.losses
        self.losses = (0.0, 0)
        values = [self._evaluate(e, k, total / count if count else None) for k in self.stage.current]
        self.record.save(self.run_dir)
        if self.args.select == "best":
            score = math.fsum(values) / len(values)
            if self.best is None or score > self.best["score"]:
                self.best = {"score": score, "state": self.learner.state()}

    def _consolidate(self) -> None:
        done = False
        while not done:
            start = time.perf_counter()
            done = self.learner.end()
            self.record.train_seconds += time.perf_counter() - start
            if not done:
                self._count()
        self.phase = "measure"

    def _measure(self) -> None:
        values = [self._evaluate(AFTER, k) for k in range(len(self.stream))]
        sizes = self.learner.sizes()
        held = 0
        if self.args.learner_row.joint:  # it draws from all tasks, so it has to keep their data
            data = self.setup.data(0)
            held = len(data) * data.numbers_per_item
        self.record.inference_numbers, self.record.training_numbers = sizes.inference, sizes.training + held
        log.info(
            "stage %d of %d: %s",
            self.stage.number,
            len(self.stream),
            ", ".join(f"{name} {value:.1%}" for name, value in zip(self.stream.row.tasks, values, strict=True)),
        )
        self.record.save(self.run_dir)
        save_stage(self.run_dir, self.stage.number, self.args, self.stream, self.learner.state())
        self.index, self.phase, self.t = self.index + 1, "train", 0
        self.save()

    def _evaluate(self, checkpoint: int, k: int, loss: float | None = None) -> float:
        told = self.stream.tasks[k].evaluate(self.learner.policy(k), self.args.episodes)
        # A NaN, which fails here, would pass for a score that was not measured.
        if not (0 <= told.successes <= told.trials and told.trials > 0 and 0 <= told.value <= 1):
            raise LifelongError(
                f"the evaluation of {self.stream.row.tasks[k]} returned {told}; let it return a value from 0 to 1, at least "
                "one trial, and from 0 to that many successes"
            )
        # NumPy's numbers, which tasks tend to count with, cannot be written as JSON.
        scores = Scores(int(told.successes), int(told.trials), float(told.value))
        self.record.add(self.stage.number, checkpoint, k, scores, loss)
        return scores.value

    def _time_forward(self) -> float:
        """Median milliseconds of a policy's forward with `TIMED_BATCH` items, over all tasks in turn."""
        inputs = list(self.stream.signature.inputs)
        K = len(self.stream)
        policies, batches = [self.learner.policy(k) for k in range(K)], []
        for k in range(K):
            rng = np.random.default_rng(k)
            data = self.stream.dataset(k, self.args.seed)
            batch = data.draw(rng.integers(len(data), size=TIMED_BATCH), rng)
            batches.append({name: batch[name] for name in inputs})
        times = []
        with torch_threads(1):
            for i in range(self.args.timed_forwards):
                start = time.perf_counter()
                policies[i % K].act(batches[i % K])
                times.append(time.perf_counter() - start)
        return 1000 * statistics.median(times)
