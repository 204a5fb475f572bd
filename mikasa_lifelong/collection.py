"""The runs in some folders, and their metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from mikasa_robo.tools.runs import walk

from . import metrics
from .arguments import RunArgs
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

    Here and in ``runs`` a learner with other options than its defaults is one of its own, see `label_of`. So is one whose
    runs of the same seed were also made with another network or other steps: ``"ewc, hidden size 512"``.
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
        found = sorted(place for place, names in walk(path) if RECORD_FILE in names)
        if not found:
            result.problems.append((path, f"holds no run: no {RECORD_FILE}"))
        folders |= dict.fromkeys(folder.resolve() for folder in found)
    complete = [pair for folder in folders for pair in _complete(folder, result)]
    kept = _of_same_tasks(complete, result)
    for (record, folder), learner in zip(kept, _labels(kept), strict=True):
        _add(record, folder, learner, result)
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


def _labels(found: Sequence[tuple[Record, Path]]) -> list[str]:
    """The name of each run's learner, without its strength.

    If runs of the same stream, learner, strength and seed were made in several ways, with one network and with a wider one
    for example, the names tell these apart. The way that most runs of the learner have keeps the plain name; of equally
    many, the one that is nearer to the defaults.
    """
    labels = [label_of(record.learner, record.args, without=("strength",)) for record, _ in found]
    groups: dict[tuple[str, str], list[int]] = {}
    for i, (record, _) in enumerate(found):
        groups.setdefault((record.stream, labels[i]), []).append(i)
    for (stream, _), members in groups.items():
        ways = {i: _protocol_of(found[i][0]) for i in members}
        first: dict[tuple[object, int], dict[str, object]] = {}
        if all(ways[i] == first.setdefault(_strength_and_seed(found[i][0]), ways[i]) for i in members):
            continue
        defaults, all_ways = _defaults_of(stream), list(ways.values())
        usual = max(all_ways, key=lambda way: (all_ways.count(way), sum(way[n] == defaults.get(n) for n in PROTOCOL)))
        for i, way in ways.items():
            differ = [name for name in PROTOCOL if way[name] != usual[name]]
            labels[i] = ", ".join([labels[i], *(f"{name.replace('_', ' ')} {way[name]}" for name in differ)])
    return labels


def _strength_and_seed(record: Record) -> tuple[object, int]:
    return record.args.get("strength"), record.seed


def _defaults_of(stream: str) -> dict[str, object]:
    """The default of each of `PROTOCOL` on a stream, as far as it is known."""
    of_runs = {item.name: item.default for item in fields(RunArgs)}
    of_stream = {name: getattr(STREAMS[stream], name) for name in PROTOCOL if hasattr(STREAMS.get(stream), name)}
    return of_runs | of_stream


def _add(record: Record, folder: Path, learner: str, into: Collection) -> None:
    strength = record.args.get("strength")
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
        for label, by_seed in collection.runs.get(stream, {}).items()
        for seed, record in by_seed.items()
        if _name_in(label) == SCRATCH and seed in records and _protocol_of(record) == _protocol_of(records[seed])
    }
    arrays = {seed: record.array() for seed, record in sorted(records.items())}
    return metrics.fwt_nav(arrays, {seed: record.array() for seed, record in scratch.items()})
