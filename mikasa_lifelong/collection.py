"""The runs in some folders, and their metrics."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import metrics
from .catalog import STREAMS
from .errors import LifelongError
from .learners.registry import LEARNERS, label_of
from .record import RECORD_FILE, Record, read_record

__all__ = ["BEST", "COLUMNS", "SCRATCH", "Collection", "Column", "best_strength", "collect", "place_of", "values_of"]

SCRATCH = "scn"
"""The learner whose runs are what ``fwt_nav`` compares with."""
BEST = ", best λ"
"""Ends the name of a learner whose strength is, on each stream, the one with the highest PER."""
PROTOCOL = (
    *("steps", "batch_size", "network", "hidden_size", "dropout", "learning_rate", "max_grad_norm"),
    *("data", "episodes", "checkpoints", "select"),
)
"""Arguments that say how a stream is learnt and measured, whatever the learner. Data from files is known by its content."""


@dataclass(frozen=True)
class Column:
    """One metric of a table."""

    name: str
    title: str
    of_run: Callable[[Record], float] | None  # None for fwt_nav, which needs other runs
    higher_is_better: bool
    percent: bool = True


COLUMNS: tuple[Column, ...] = (
    Column("per", "PER", lambda r: metrics.per(r.array()), True),
    Column("bwt_nav", "BWT", lambda r: metrics.bwt_nav(r.array()), True),
    Column("fwt_nav", "FWT", None, True),
    Column("mem_inference", "MEM", lambda r: r.inference_numbers / r.one_network, False, percent=False),
    Column("inf_ms", "INF, ms", lambda r: math.nan if r.inference_ms is None else r.inference_ms, False, percent=False),
    Column("trn_s", "TRN, s", lambda r: r.train_seconds, False, percent=False),
    Column("mem_training", "MEM to train", lambda r: r.training_numbers / r.one_network, False, percent=False),
    Column("fwt_libero", "FWT LIBERO", lambda r: metrics.fwt_libero(r.array()), True),
    Column("nbt_libero", "NBT LIBERO", lambda r: metrics.nbt_libero(r.array()), False),
    Column("auc_libero", "AUC LIBERO", lambda r: metrics.auc_libero(r.array()), True),
    Column("bwt_gem", "BWT GEM", lambda r: metrics.bwt_gem(r.array()), True),
    Column("fwt_gem", "FWT GEM", lambda r: metrics.fwt_gem(r.array()), True),
)
"""What is reported, in the order of the tables. The first six are those of Continual NavBench."""


Seeds = dict[int, Record]


@dataclass
class Collection:
    """Runs by stream, learner and seed, and what is wrong with others.

    In ``runs`` a learner's name alone stands for its default strength λ. If a stream has no run with that, each strength is
    a learner of its own, such as ``"ewc, strength 100.0"``. Where there are several strengths, the runs with the best one
    are also there under the learner's name and `BEST`.
    """

    runs: dict[str, dict[str, Seeds]] = field(default_factory=dict)
    strengths: dict[str, dict[str, dict[float | None, Seeds]]] = field(default_factory=dict)
    """Runs by stream, learner, strength and seed; the strength is None for learners without one.

    Here and in ``runs`` a learner with other options than its defaults is one of its own, see `label_of`.
    """
    best: dict[tuple[str, str], float | None] = field(default_factory=dict)
    """By stream and learner, where there are several strengths: the best one."""
    problems: list[tuple[Path, str]] = field(default_factory=list)

    def streams(self) -> list[str]:
        """In the order of the catalog; those of somebody's own come last."""
        known = list(STREAMS)
        return sorted(self.runs, key=lambda name: (known.index(name) if name in known else len(known), name))

    def learners(self) -> list[str]:
        """All that have a run, in the order of the registry."""
        return sorted({label for by_learner in self.runs.values() for label in by_learner}, key=place_of)


def place_of(label: str) -> tuple[int, str]:
    """Sorts learners as the registry has them; unknown ones come last."""
    known, name = list(LEARNERS), _name_in(label)
    return (known.index(name) if name in known else len(known)), label


def collect(paths: Sequence[Path]) -> Collection:
    """Read all runs at or below ``paths``.

    Raises:
        LifelongError: a path does not exist.
    """
    result = Collection()
    folders: dict[Path, None] = {}  # each once, in order
    for path in paths:
        if not path.exists():
            raise LifelongError(f"{path} does not exist; name the folder of a run, or one that holds such folders")
        found = sorted(Path(place) for place, _, names in os.walk(path) if RECORD_FILE in names)
        if not found:
            result.problems.append((path, f"holds no run: no {RECORD_FILE}"))
        folders |= dict.fromkeys(folder.resolve() for folder in found)
    complete = [pair for folder in folders for pair in _complete(folder, result)]
    for record, folder in _of_same_tasks(complete, result):
        _add(record, folder, result)
    for stream, learners in result.strengths.items():
        for learner, by_strength in learners.items():
            _choose(stream, learner, by_strength, result)
    for stream in result.runs:
        _compare_learners(stream, result)
    return result


def _complete(folder: Path, into: Collection) -> list[tuple[Record, Path]]:
    """The record of a folder, if it can be read and the run is complete."""
    try:
        record = read_record(folder)
    except LifelongError as error:
        into.problems.append((folder, str(error)))
        return []
    if not record.complete:
        last = max((m.stage for m in record.measurements), default=0)
        text = f"unfinished, in stage {last} of {len(record.tasks)}; continue it with --resume"
        into.problems.append((folder, text))
        return []
    return [(record, folder)]


def _of_same_tasks(found: Sequence[tuple[Record, Path]], into: Collection) -> list[tuple[Record, Path]]:
    """Those with the tasks that most runs of their stream have: two streams of one name cannot share a table."""
    counts: dict[str, Counter[tuple[str, ...]]] = {}
    for record, _ in found:
        counts.setdefault(record.stream, Counter())[record.tasks] += 1
    kept = []
    for record, folder in found:
        usual = counts[record.stream].most_common(1)[0][0]
        if record.tasks == usual:
            kept.append((record, folder))
        else:
            text = f"not counted: its tasks are {', '.join(record.tasks)}; most runs of {record.stream} have "
            into.problems.append((folder, text + ", ".join(usual)))
    return kept


def _add(record: Record, folder: Path, into: Collection) -> None:
    strength = record.args.get("strength")
    learner = label_of(record.learner, record.args, without=("strength",))
    seeds = into.strengths.setdefault(record.stream, {}).setdefault(learner, {}).setdefault(strength, {})
    if record.seed in seeds:
        text = f"not counted: {record.stream}, {learner}, seed {record.seed} is there already"
        into.problems.append((folder, text))
        return
    other = next(iter(seeds.values()), None)
    if other is not None:
        ours, theirs = {**record.args, "data": _data_of(record)}, {**other.args, "data": _data_of(other)}
        if differ := [name for name in ours if name != "seed" and ours[name] != theirs.get(name)]:
            into.problems.append((folder, f"counted, but it differs from others of {learner} in {', '.join(differ)}"))
    seeds[record.seed] = record


def _name_in(label: str) -> str:
    """The name of the learner in a label of `label_of`, with or without `BEST`."""
    return label.partition(", ")[0]


def _choose(stream: str, learner: str, by_strength: dict[float | None, Seeds], into: Collection) -> None:
    """Fill ``runs`` and ``best`` from ``strengths``."""
    runs = into.runs.setdefault(stream, {})
    name = _name_in(learner)
    known = name in LEARNERS and "strength" in LEARNERS[name].options
    default = LEARNERS[name].options["strength"] if known else None
    if default in by_strength:
        usual = default
        runs[learner] = by_strength[usual]
    else:
        usual = max(by_strength, key=lambda strength: len(by_strength[strength]))
        for strength, seeds in by_strength.items():
            # of a learner that is not in the table here nobody knows the default
            alone = len(by_strength) == 1 and not known
            runs[learner if alone else _with_strength(learner, strength)] = seeds
    if len(by_strength) > 1:
        best = best_strength(by_strength, usual)
        into.best[stream, learner] = best
        runs[learner + BEST] = by_strength[best]


def _with_strength(learner: str, strength: float | None) -> str:
    """As `label_of` would have it: the strength is the first option."""
    name, *others = learner.split(", ")
    return ", ".join([name, f"strength {strength}", *others])


def _data_of(record: Record) -> object:
    """What the run learnt from, if it comes from files: its content, or the folder where a run does not tell it."""
    return record.args.get("data") if record.data_sha256 is None else record.data_sha256


def _protocol_of(record: Record) -> dict[str, object]:
    """The arguments that have to be alike where learners are compared."""
    return {name: _data_of(record) if name == "data" else record.args.get(name) for name in PROTOCOL}


def _compare_learners(stream: str, into: Collection) -> None:
    """Note the learners whose runs were made otherwise than most of the stream's."""
    runs = {learner: list(seeds.values()) for learner, seeds in into.runs[stream].items()}
    made = [_protocol_of(record) for records in runs.values() for record in records]
    usual = max(made, key=made.count)
    for learner, records in runs.items():
        differ = [name for name in PROTOCOL if any(_protocol_of(record)[name] != usual[name] for record in records)]
        if differ:
            text = f"{learner} differs from other learners in {', '.join(differ)}, so they cannot be compared"
            into.problems.append((Path(stream), text))


def best_strength(by_strength: Mapping[float | None, Seeds], usual: float | None) -> float | None:
    """The strength with the highest mean PER over the seeds of ``usual``; those without all of these are left out."""
    seeds = by_strength[usual].keys()
    means = {
        strength: math.fsum(metrics.per(runs[seed].array()) for seed in seeds)
        for strength, runs in by_strength.items()
        if runs.keys() >= seeds
    }
    return max(means, key=lambda strength: means[strength])


def values_of(column: Column, collection: Collection, stream: str, learner: str) -> dict[int, float]:
    """A metric of each seed.

    Raises:
        LifelongError: it is fwt_nav, and a run of scn with the same arguments is missing.
    """
    records = collection.runs.get(stream, {}).get(learner, {})
    if column.of_run is not None:
        return {seed: column.of_run(record) for seed, record in sorted(records.items())}
    scratch = {
        seed: record
        for seed, record in collection.runs.get(stream, {}).get(SCRATCH, {}).items()
        if seed in records and _protocol_of(record) == _protocol_of(records[seed])
    }
    arrays = {seed: record.array() for seed, record in sorted(records.items())}
    return metrics.fwt_nav(arrays, {seed: record.array() for seed, record in scratch.items()})
