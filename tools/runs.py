"""The runs in some folders, as `mikasa report` reads them."""

from __future__ import annotations

import fnmatch
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mikasa_lifelong.learners.registry import label_of
from mikasa_robo.env_ids import EnvIdError, split_env_id

from .env_ids import OptionError
from .plot import read_progress

__all__ = [
    "CHANGED",
    "EVALUATION_FORMAT",
    "METRICS",
    "TRAINED_WITH",
    "WARM_START",
    "Collection",
    "Run",
    "Source",
    "agent_name",
    "collect",
    "settings_that_differ",
    "unit_of_steps",
    "walk",
]

EVALUATION_FORMAT = "mikasa/eval/1"
"""The "format" entry of what `mikasa eval` writes."""
METRICS = ("success_once", "success_at_end", "return", "length")
"""Means over the episodes of an evaluation: two success rates, the sum of rewards, control steps."""
MOST_LIKELY, SAMPLED = "most likely", "sampled"
"""Which actions a policy took: "actions" of an evaluation. A served policy and files of earlier versions do not say it."""
CHANGED = "changed_env_kwargs"
"""Entry of an evaluation of another task than the policy learnt: the arguments that were not those of training."""
DATASET = "dataset_sha256"
"""Entry of a result of training: the SHA-256 of the episodes of its dataset."""
RUN_FILES = ("final_eval.json", "progress.csv", "*.pt")
"""A folder with one of these files is a run."""

TRAINED_WITH = " (trained with "
"""Follows the algorithm of a run whose training environments had arguments of their own, which come next."""
WARM_START = "(warm start)"
"""Follows the algorithm of a run that began with the policy of another run."""
WITH_EXPERT = "(with an expert)"
"""Follows the algorithm of a run of reinforcement learning that also learnt from episodes of an expert."""

LARGEST = 10**15
"""Larger seeds and numbers of steps are made up."""
LONGEST_NAME = 200
"""Characters of what a server may call its policy."""


OFFLINE = ("dt", "rate", "iql")
"""Algorithms that play nothing in training, whose steps are gradient steps."""

PER_RUN_ARGS = ("seed", "run_dir", "resume", "torch_threads")
"""Arguments of training in which runs that are averaged are expected to differ."""

Source = Literal["training", "eval", "lifelong"]


def unit_of_steps(learner: str, args: Mapping[str, Any]) -> str:
    """What the steps of a run of the algorithm ``learner`` with ``args`` count: "environment steps", or others."""
    if learner in OFFLINE:
        return "gradient steps"
    # With a dataset nothing is played, and a step stands for one that would be played without it. For SAC a dataset is an
    # addition to what it plays.
    return "steps without play" if args.get("dataset") and learner != "sac" else "environment steps"


@dataclass(frozen=True)
class Run:
    """One finished training run, with the results of its final evaluation or of `mikasa eval`.

    A run of `mikasa lifelong run` has the name of its stream as ``env_id``, that of its learner as ``algorithm``, and the
    mean over all tasks as success.
    """

    path: Path
    source: Source
    env_id: str  # and the task's own arguments, if any: other arguments make it another task
    algorithm: str
    seed: int
    steps: int  # of training, of the kind that `unit` names
    wall_time: float | None  # s, of training
    episodes: int
    scores: dict[str, float]  # by METRICS; nan where the task does not have this metric
    args: dict[str, Any]
    began_from: str = ""  # the policy that it began with, in words; empty for random weights
    learner: str = ""  # name of the algorithm in the registry
    served: bool = False  # whether a server held the policy, so that little more than its name and seed is known

    @property
    def unit(self) -> str:
        """What ``steps`` counts, see `unit_of_steps`."""
        return unit_of_steps(self.learner, self.args)


@dataclass
class Collection:
    """What was found: the runs that count, and what is wrong with the others."""

    runs: list[Run] = field(default_factory=list)
    problems: list[tuple[Path, str]] = field(default_factory=list)

    def keep(self, env_ids: Sequence[str]) -> None:
        """Drop the runs of all other tasks. Raises OptionError for a malformed ID, and for a task without a run."""
        try:
            wanted = {split_env_id(env_id)[1]: env_id for env_id in env_ids}
        except EnvIdError as error:
            raise OptionError(f"--env-id {error}") from error
        found = {run.env_id.split()[0] for run in self.runs}
        for name, env_id in wanted.items():
            if name not in found:
                tasks = ", ".join(sorted(found)) or "none"
                raise OptionError(
                    f"--env-id {env_id}: there is no finished run of this task; there are runs of {tasks}"
                )
        self.runs = [run for run in self.runs if run.env_id.split()[0] in wanted]

    def groups(self, source: Source) -> dict[tuple[str, str], list[Run]]:
        """Runs by task and algorithm, sorted by both and by seed."""
        found: dict[tuple[str, str], list[Run]] = {}
        for run in sorted(self.runs, key=lambda r: (r.env_id, r.algorithm, r.seed)):
            if run.source == source:
                found.setdefault((run.env_id, run.algorithm), []).append(run)
        return found


def collect(paths: Sequence[Path]) -> Collection:
    """Read all runs and evaluations at or below ``paths``. Raises ``FileNotFoundError`` for a path that does not exist."""
    result = Collection()
    seen: set[Path] = set()
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"{path} does not exist; name a run folder, a folder of run folders, or a file of `mikasa eval`"
            )
        if path.is_dir():
            folders, files = _search(path)
        else:
            folders, files = [], [path]
        before = len(result.runs) + len(result.problems)
        for folder in folders:
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                _read_run(folder, result)
        for file in files:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                _read_evaluation(file, result, named=file == path)
        if len(result.runs) + len(result.problems) == before and path.resolve() not in seen:
            result.problems.append((path, "contains no run and no evaluation"))
    _drop_repeated(result)
    return result


def walk(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each folder at or below ``path`` once, also through links, and the names of its files. Skips what cannot be read."""
    visited = set()
    for place, below, names in os.walk(path, followlinks=True):
        if (real := os.path.realpath(place)) in visited:
            below.clear()  # a link to a folder above it would have no end
            continue
        visited.add(real)
        yield Path(place), names


def _search(path: Path) -> tuple[list[Path], list[Path]]:
    """The run folders at or below ``path``, and the JSON files that may be evaluations."""
    folders, files = [], []
    for place, names in walk(path):
        if any(fnmatch.filter(names, pattern) for pattern in RUN_FILES):
            folders.append(place)
        files += [place / name for name in names if name.endswith(".json") and name != "final_eval.json"]
    return sorted(folders), sorted(files)


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ``ValueError`` that says what is wrong with the file."""
    content = _parse_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def _parse_json(path: Path) -> Any:
    """What a JSON file holds. Raises ``ValueError`` that says what is wrong with the file."""
    try:
        if not path.is_file():
            raise ValueError("not a regular file")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read ({error})") from error


def _scores(summary: dict[str, Any]) -> dict[str, float]:
    """By `METRICS`; nan where the task has no such metric. Raises ``ValueError`` for a number that no evaluation has."""
    told = {name: float(summary[name]) for name in METRICS if summary.get(name) is not None}
    wrong = [
        f"{name} {value:g}"
        for name, value in told.items()
        if not math.isfinite(value) or (name.startswith("success") and not 0 <= value <= 1)
    ]
    if wrong:
        raise ValueError(f"it has {', '.join(wrong)}, which no evaluation has")
    return {name: told.get(name, math.nan) for name in METRICS}


def _count(content: Mapping[str, Any], name: str, least: int = 0) -> int:
    """A whole number in ``content``. Raises ``ValueError`` for one that no run has."""
    count = int(content[name])
    if not least <= count <= LARGEST:
        what = {"seed": "as its seed", "training_steps": "training steps"}.get(name, name)
        raise ValueError(f"it has {count if count < least else f'over {LARGEST:,}'} {what}, which no evaluation has")
    return count


def _read_run(folder: Path, into: Collection) -> None:
    file = folder / "final_eval.json"
    if not file.is_file():
        into.problems.append((folder, f"unfinished: no final_eval.json; {_how_far(folder)}"))
        return
    try:
        content = _read_json(file)
        source: Source = "lifelong" if "lifelong" in content else "training"
        run = Run(
            path=folder,
            source=source,
            env_id=_task(content["env_id"], content.get("args") or {}),
            algorithm=(label_of if source == "lifelong" else agent_name)(
                content["algorithm"], content.get("args") or {}
            ),
            seed=_count(content, "seed"),
            steps=_count(content, "training_steps"),
            wall_time=float(content["wall_time_s"]) if content.get("wall_time_s") is not None else None,
            episodes=_count(content["final"], "episodes", least=0 if source == "lifelong" else 1),
            scores=_scores(content["final"]),
            args=_args_and_data(content),
            began_from=_began_from(content.get("init_from"), content.get("args") or {}),
            learner=str(content["algorithm"]),
        )
    except KeyError as error:
        into.problems.append((folder, f"broken: final_eval.json lacks {error}"))
    except (ArithmeticError, AttributeError, ValueError, TypeError) as error:
        into.problems.append((folder, f"broken: {error}"))
    else:
        into.runs.append(run)
        try:
            read_progress(folder)
        except ValueError as error:
            into.problems.append((folder, f"counted, but not in the curves: {error}"))


def _task(env_id: Any, args: dict[str, Any]) -> str:
    own = " ".join(sorted(map(str, args.get("env_kwargs") or ())))
    if not str(env_id).strip():
        raise ValueError("its env_id is empty")
    return f"{split_env_id(str(env_id))[1]} {own}".strip()


def agent_name(algorithm: Any, args: dict[str, Any]) -> str:
    """The name of the variant, or else the algorithm and its memory; then what it began with or had besides."""
    memory, name = args.get("memory"), str(algorithm)
    if isinstance(memory, str) and (algorithm, memory) not in (("ppo-lstm", "lstm"), ("ppo-mlp", "none")):
        own = " ".join(sorted(map(str, args.get("memory_kwargs") or ())))
        name = f"{algorithm} {memory} {own}".strip()
    if isinstance(variant := args.get("variant"), str):
        name = variant
    taught = " ".join(sorted(map(str, args.get("train_env_kwargs") or ())))
    if taught:
        share = args.get("curriculum_share", 1.0)
        part = f" for {100 * share:g} % of the steps" if isinstance(share, float) and share < 1.0 else ""
        name += f"{TRAINED_WITH}{taught}{part})"
    if args.get("expert_steps") or (algorithm == "sac" and args.get("dataset")):
        name += f" {WITH_EXPERT}"
    return f"{name} {WARM_START}" if args.get("init_from") else name


def settings_that_differ(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the arguments that are not the same in all ``runs``, except for `PER_RUN_ARGS`.

    A run that lacks an argument is older than it. Such a run is the same as one that has the argument switched off (None,
    False, 0 or empty).

    Args:
        runs: the arguments of each run, as JSON holds them.
    """
    names = sorted({name for args in runs for name in args} - set(PER_RUN_ARGS))
    return [name for name in names if _differs([args[name] for args in runs if name in args], len(runs))]


def _differs(values: Sequence[Any], runs: int) -> bool:
    """Whether an argument with these values differs among so many runs."""
    return len({json.dumps(value) for value in values}) > 1 or (len(values) < runs and bool(values[0]))


def _args_and_data(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a run, and which episodes it learnt from: a dataset's path is the same for other episodes in it."""
    args = dict(content.get("args") or {})
    return args if content.get(DATASET) is None else {**args, DATASET: content[DATASET]}


def _began_from(policy: Any, args: dict[str, Any]) -> str:
    """The policy that a run began with, from the entry "init_from" of its result or else from its arguments."""
    if not args.get("init_from"):
        return ""
    if not policy:  # a result of an earlier version, or of `mikasa eval`
        return str(args["init_from"])
    return f"{policy['algorithm']} on {policy['env_id']}, {int(policy['training_steps']):,} steps"


def _how_far(folder: Path) -> str:
    try:
        last = f"progress.csv ends at step {float(read_progress(folder)[-1]['step']):,.0f}"
    except (ValueError, KeyError, TypeError):
        last = "progress.csv is missing or empty"
    resume = "continue it with --resume" if any(folder.glob("resume-*.pt")) else "it has no checkpoint to --resume from"
    return f"{last}; {resume}"


def _read_evaluation(file: Path, into: Collection, named: bool) -> None:
    """Read a JSON file of `mikasa eval`. Another kind of file is a problem only if the user has ``named`` it."""
    try:
        content = _parse_json(file)
        found = content.get("format") if isinstance(content, dict) else None
        if found != EVALUATION_FORMAT:
            if named:
                into.problems.append((file, f"its format is {found!r}, not {EVALUATION_FORMAT!r}"))
            return
        how = " (sampled actions)" if content.get("actions") == SAMPLED else ""
        into.runs += [
            Run(
                path=file,
                source="eval",
                env_id=_task(content["env_id"], content["settings"] if content.get(CHANGED) else entry["args"]),
                algorithm=_agent(content, entry) + _learnt_with(content, entry["args"]) + how,
                seed=_count(entry, "seed"),
                steps=_count(entry, "training_steps"),
                wall_time=None,
                episodes=_count(content["seeds"], "episodes", least=1),
                scores=_scores(entry["summary"]),
                args=dict(entry["args"]),
                began_from=_began_from(None, entry["args"]),
                learner=str(content["algorithm"]),
                served="server" in entry,
            )
            for entry in content["runs"]
        ]
    except KeyError as error:
        into.problems.append((file, f"broken: lacks {error}"))
    except (ArithmeticError, AttributeError, ValueError, TypeError) as error:
        into.problems.append((file, f"broken: {error}"))


def _agent(content: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """The name of an agent that was evaluated: `agent_name`, or what the server of its policy calls it."""
    server = entry.get("server")
    agent = server.get("agent") if isinstance(server, Mapping) else None
    if isinstance(agent, str) and agent.isprintable() and 1 <= len(agent.strip()) <= LONGEST_NAME:
        return agent.strip()
    return agent_name(content["algorithm"], entry["args"])


def _learnt_with(content: Mapping[str, Any], args: Mapping[str, Any]) -> str:
    """Follows the name of an agent that plays another task than it learnt, so that agents of several tasks stay apart."""
    if not content.get(CHANGED):
        return ""
    return f" (learnt with {' '.join(sorted(map(str, args.get('env_kwargs') or ()))) or 'no arguments'})"


def _drop_repeated(collection: Collection) -> None:
    """Keep the longest of several runs with the same task, algorithm and seed: they are not independent samples.

    All of them have been read without a fault: a broken run must not take the place of a good one.
    """
    kept: dict[tuple[Source, str, str, int], Run] = {}
    for run in sorted(collection.runs, key=lambda r: (-r.steps, -r.episodes)):
        first = kept.setdefault((run.source, run.env_id, run.algorithm, run.seed), run)
        if first is not run:
            differ = settings_that_differ([first.args, run.args])
            why = f"not counted: {run.env_id}, {run.algorithm}, seed {run.seed} is already in {first.path}" + (
                f"; the two differ in {', '.join(differ)}" if differ else ""
            )
            if first.served or run.served:
                why += "; if they are different policies, let their servers tell different names or seeds"
            collection.problems.append((run.path, why))
    collection.runs = [run for run in collection.runs if any(run is other for other in kept.values())]
