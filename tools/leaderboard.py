"""The files of a leaderboard: evaluations that are signed by their content, and the list of them; docs/leaderboard.md."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from mikasa_robo.baselines.option_words import ArgumentError, read_env_kwargs
from mikasa_robo.data.seeds import EVALUATION_SEEDS

from .runs import CHANGED, EVALUATION_FORMAT, MOST_LIKELY, SAMPLED, agent_name

__all__ = ["CONTENT_HASH", "LEADERBOARD_FORMAT", "content_hash", "find_leaderboard_problems", "find_problems", "sign"]

CONTENT_HASH = "content_sha256"
"""The entry of an evaluation that holds its `content_hash`."""
LEADERBOARD_FORMAT = "mikasa/leaderboard/1"
"""The "format" entry of docs/leaderboard.json."""
FIRST_SEED = EVALUATION_SEEDS.start
"""That of `mikasa eval`."""
LEAST_EPISODES = 100
"""Fewest episodes of an entry of the leaderboard, unless it follows the paper's protocol."""
PAPER_RUNS, PAPER_EPISODES = 3, 16
PROTOCOLS = ("fixed", "paper")
"""Those of `mikasa eval`."""
ENTRIES: dict[str, type] = {
    "protocol": str,
    "env_id": str,
    "algorithm": str,
    "seeds": dict,
    "settings": dict,
    "summary": dict,
    "runs": list,
    "versions": dict,
}
"""What an evaluation has to hold, with types."""
RUN_ENTRIES: dict[str, type] = {"seed": int, "training_steps": int, "args": dict, "summary": dict, "episodes": dict}
SETTINGS = ("obs", "control_mode", "reward_mode", "sim_backend", "env_kwargs")
"""`evaluate.SHARED_ARGS`."""
LARGEST = 1e100
"""Longer episodes and larger returns are made up; statistics of them may overflow."""
RANDOM_SHARE = 0.3
"""Ends of a bootstrap may differ by this share of the standard error: with 2000 resamples, five standard deviations of what
another random generator would give."""
FLAGS, NUMBERS = ("success_once", "success_at_end", "fail_once"), ("returns", "lengths")
BOARD_ENTRIES: dict[str, type] = {"name": str, "date": str, "url": str, "evaluation": dict}


def content_hash(content: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of an evaluation without the hash: keys sorted, no spaces, ASCII."""
    rest = {key: value for key, value in content.items() if key != CONTENT_HASH}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sign(content: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluation with its hash, as it is once it is read from a file again."""
    plain: dict[str, Any] = json.loads(json.dumps(content))
    return {**plain, CONTENT_HASH: content_hash(plain)}


def find_problems(content: Mapping[str, Any]) -> list[str]:
    """What is wrong with an evaluation that `mikasa eval` wrote, as far as the file alone tells; nothing is played."""
    if content.get("format") != EVALUATION_FORMAT:
        return [f"its format is {content.get('format')!r}, not {EVALUATION_FORMAT!r}: pass a file of `mikasa eval`"]
    if CONTENT_HASH not in content:
        return [f"it has no {CONTENT_HASH}: an earlier version wrote it; evaluate again"]
    if content[CONTENT_HASH] != (found := content_hash(content)):
        return [
            f"its {CONTENT_HASH} is {str(content[CONTENT_HASH])[:16]}…, and its content has {found[:16]}…: it was changed "
            "after it was written; pass the file as `mikasa eval` wrote it"
        ]
    if problems := list(_missing(content, ENTRIES, "it")):
        return problems
    problems = []
    if content["protocol"] not in PROTOCOLS:
        problems.append(f"its protocol is {content['protocol']!r}, not {' or '.join(map(repr, PROTOCOLS))}")
    problems += [*_seed_problems(content), *_settings_problems(content["settings"]), *_changed_problems(content)]
    if content.get("actions", MOST_LIKELY) not in (MOST_LIKELY, SAMPLED):
        problems.append(f"its actions are {content['actions']!r}, not {MOST_LIKELY!r} or {SAMPLED!r}")
    for number, run in enumerate(content["runs"]):
        problems += _run_problems(run, f"runs[{number}]", content["seeds"].get("episodes"))
    if not problems:
        problems += [*_repeated(content["runs"]), *_different(content)]
    if not problems and content["protocol"] == "paper":
        if len(content["runs"]) != PAPER_RUNS or content["seeds"]["episodes"] != PAPER_EPISODES:
            problems.append(f"protocol paper takes {PAPER_RUNS} runs of different seeds and {PAPER_EPISODES} episodes")
        for number, run in enumerate(content["runs"]):
            if run.get("sha256") is None:
                problems.append(f"runs[{number}] has no sha256; protocol paper takes checkpoints")
    return problems or list(_summary_problems(content))


def find_leaderboard_problems(board: Mapping[str, Any]) -> list[str]:
    """What is wrong with the leaderboard, each with the entry it is about; nothing is played."""
    if board.get("format") != LEADERBOARD_FORMAT or not isinstance(board.get("entries"), list):
        return [f'it is not a leaderboard: "format" is {LEADERBOARD_FORMAT!r}, and "entries" is a list']
    problems, seen = [], dict[str, str]()
    for number, entry in enumerate(board["entries"]):
        where = f"entries[{number}]"
        if not isinstance(entry, dict) or (missing := list(_missing(entry, BOARD_ENTRIES, where))):
            problems += missing if isinstance(entry, dict) else [f"{where} is not an object"]
            continue
        evaluation = entry["evaluation"]
        if found := find_problems(evaluation):
            problems += [f"{where}: {problem}" for problem in found]
            continue
        if evaluation["protocol"] != "paper" and evaluation["seeds"]["episodes"] < LEAST_EPISODES:
            problems.append(f"{where}: {evaluation['seeds']['episodes']} episodes; play at least {LEAST_EPISODES}")
        played = _what_was_played(evaluation)
        if twin := seen.get(played):
            problems.append(f"{where}: its evaluation is that of {twin}; leave one out")
        seen.setdefault(played, where)
        problems += [f"{where}: its {name} is empty; fill it in" for name in ("name", "url") if not entry[name].strip()]
        try:
            if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", entry["date"], re.ASCII):  # Python 3.11 reads others, too
                raise ValueError
            date.fromisoformat(entry["date"])
        except ValueError:
            problems.append(f"{where}: its date is {entry['date']!r}; write it as 2026-01-31")
    return problems


def _what_was_played(evaluation: Mapping[str, Any]) -> str:
    """The same for two evaluations of the same policies that played the same task; by its hash where a policy has none."""
    policies = [run.get("sha256") for run in evaluation["runs"]]
    if None in policies:
        return str(evaluation[CONTENT_HASH])
    told = [evaluation.get(name) for name in ("protocol", "env_id", "settings", "actions")]
    return json.dumps([sorted(policies), *told], sort_keys=True)


def _is(value: Any, kind: type) -> bool:
    """Whether ``value`` is of ``kind``; a Boolean is no integer, and an integer is a number."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _missing(content: Mapping[str, Any], entries: Mapping[str, type], what: str) -> Iterator[str]:
    for name, kind in entries.items():
        if name not in content:
            yield f"{what} has no {name}"
        elif not _is(content[name], kind):
            yield f"{what} has {name} of type {type(content[name]).__name__}, not {kind.__name__}"


def _seed_problems(content: Mapping[str, Any]) -> Iterator[str]:
    seeds = content["seeds"]
    if seeds.get("first") != FIRST_SEED:
        yield f"its first seed is {seeds.get('first')!r}, not {FIRST_SEED}"
    if not _is(seeds.get("episodes"), int) or seeds["episodes"] < 1:
        yield f"its seeds have {seeds.get('episodes')!r} episodes; an evaluation has at least one"
    if not content["runs"]:
        yield "it has no runs"


def _settings_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    for name in SETTINGS:
        if name not in settings:
            yield f"its settings have no {name}; evaluate again"
    if not isinstance(settings.get("obs"), str | None):
        yield f"its settings have obs of type {type(settings['obs']).__name__}, not str"
    if not isinstance(settings.get("sim_backend", ""), str):
        yield f"its settings have sim_backend of type {type(settings['sim_backend']).__name__}, not str"
    own = settings.get("env_kwargs", [])
    if not isinstance(own, list) or not all(isinstance(each, str) for each in own):
        yield "its settings have env_kwargs that are no list of NAME=VALUE"


def _changed_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """The arguments that were not those of training are among the ones that were played."""
    changed = content.get(CHANGED, [])
    if not isinstance(changed, list) or not all(isinstance(word, str) for word in changed):
        yield f"its {CHANGED} are no list of NAME=VALUE"
        return
    try:
        read_env_kwargs(changed)
    except ArgumentError as error:
        yield f"its {CHANGED} cannot be used: {error}"
        return
    own = content["settings"].get("env_kwargs", [])
    if isinstance(own, list) and (missing := [word for word in changed if word not in own]):
        yield f"its {CHANGED} have {' '.join(missing)}, and its settings do not"


def _repeated(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Runs of the same policy or the same seed: an average over training runs needs different ones."""
    for name in ("sha256", "seed"):
        first: dict[Any, int] = {}
        for number, run in enumerate(runs):
            if (value := run.get(name)) is not None and (twin := first.setdefault(value, number)) != number:
                yield f"runs[{twin}] and runs[{number}] have the same {name} {str(value)[:16]}; each policy counts once"


def _different(content: Mapping[str, Any]) -> Iterator[str]:
    """Runs of different agents, which have no common average."""
    first = None
    for number, run in enumerate(content["runs"]):
        try:
            agent = agent_name(content["algorithm"], run["args"]), run["args"].get("network")
        except (TypeError, ValueError) as error:
            yield f"runs[{number}] has args that no training has ({error})"
            continue
        first = first or agent
        if agent != first:
            names = [" ".join(str(word) for word in words if word) for words in (first, agent)]
            yield f"runs[{number}] is of {names[1]}, and runs[0] of {names[0]}; evaluate them one by one"


def _run_problems(run: Any, where: str, episodes: Any) -> list[str]:
    """What is wrong with one policy's episodes."""
    if not isinstance(run, dict):
        return [f"{where} is not an object"]
    if problems := list(_missing(run, RUN_ENTRIES, where)):
        return problems
    if not isinstance(run.get("sha256"), str | None):
        return [f"{where} has sha256 of type {type(run['sha256']).__name__}, not str"]
    columns = run["episodes"]
    for name in (*FLAGS, *NUMBERS):
        kind = bool if name in FLAGS else int if name == "lengths" else float
        column = columns.get(name)
        if not isinstance(column, list) or len(column) != episodes or not all(_is(value, kind) for value in column):
            return [f"{where} has no {name} of {episodes} values of type {kind.__name__}"]
    if any(length < 1 for length in columns["lengths"]):
        return [f"{where} has an episode without a step"]
    for name in NUMBERS:
        if any(abs(value) > LARGEST for value in columns[name]):
            return [f"{where} has {name} beyond {LARGEST:g}, which no episode has"]
    if any(end and not once for end, once in zip(columns["success_at_end"], columns["success_once"], strict=True)):
        return [f"{where} has an episode with success_at_end and without success_once"]
    return []


def _summary_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Figures that are not those of the episodes; the runs are known to be well-formed."""
    from mikasa_robo.baselines.evaluation import Evaluation

    from .evaluate import summarize

    told = [content["summary"], *(run["summary"] for run in content["runs"])]
    # An environment may report no success. The file does not say so, but then nothing succeeds and no summary has it.
    tells = any(summary.get(name) is not None for summary in told for name in ("success_once", "success_at_end"))
    results = []
    for run in content["runs"]:
        columns = {name: run["episodes"][name] for name in (*FLAGS, *NUMBERS)}
        tells = tells or any(columns["success_once"])
        results.append(Evaluation(FIRST_SEED, **columns))
    for result in results:
        result.tells_success = tells
    try:
        overall, means = summarize(results), [result.summary() for result in results]
    except (ArithmeticError, AttributeError, ValueError) as error:  # such as infinite returns
        yield f"its episodes have no statistics ({error}); evaluate again"
        return
    for number, (mean, run) in enumerate(zip(means, content["runs"], strict=True)):
        for name, value in mean.items():
            if not _same(run["summary"].get(name), value):
                yield f"runs[{number}]: its summary has {name} {run['summary'].get(name)}, and its episodes have {value}"
    if content["summary"].get("over") != overall["over"]:
        yield f"its summary is over {content['summary'].get('over')!r}, and its runs give one over {overall['over']}"
    for metric, figures in overall.items():
        if metric == "over":
            continue
        found = content["summary"].get(metric)
        found = found if isinstance(found, dict) else {}
        margin = RANDOM_SHARE * (figures["standard_error"] or 0.0) if figures["interval"] == "bootstrap" else 0.0
        for name, value in figures.items():
            if not _same(found.get(name), value, margin if name in ("low", "high") else 0.0):
                label = metric if name == "mean" else f"{metric} {name}"
                yield f"its summary has {label} {found.get(name)}, and its episodes have {value}"


def _same(told: Any, found: Any, margin: float = 0.0) -> bool:
    """Whether the file tells what was found, to a rounding error or ``margin``. Only nan is the same as nan."""
    if not _is(told, float) or not _is(found, float):
        return type(told) is type(found) and told == found
    if told != told or found != found:  # math.isnan fails for integers that are too large for a float
        return told != told and found != found
    return abs(told) <= LARGEST and math.isclose(told, found, rel_tol=1e-9, abs_tol=max(1e-12, margin))
