"""The files of a leaderboard: evaluations that are signed by their content, and the list of them; docs/leaderboard.md."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from .runs import EVALUATION_FORMAT

__all__ = ["CONTENT_HASH", "LEADERBOARD_FORMAT", "content_hash", "find_leaderboard_problems", "find_problems", "sign"]

CONTENT_HASH = "content_sha256"
"""The entry of an evaluation that holds its `content_hash`."""
LEADERBOARD_FORMAT = "mikasa/leaderboard/1"
"""The "format" entry of docs/leaderboard.json."""
FIRST_SEED = 2_000_000
"""That of `mikasa eval`."""
LEAST_EPISODES = 100
"""Fewest episodes of an entry of the leaderboard, unless it follows the paper's protocol."""
PAPER_RUNS, PAPER_EPISODES = 3, 16
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
    problems = list(_seed_problems(content))
    for number, run in enumerate(content["runs"]):
        problems += _run_problems(run, f"runs[{number}]", content["seeds"].get("episodes"))
    if not problems and content["protocol"] == "paper":
        seeds = {run["seed"] for run in content["runs"]}
        if len(seeds) != PAPER_RUNS or content["seeds"]["episodes"] != PAPER_EPISODES:
            problems.append(f"protocol paper takes {PAPER_RUNS} runs of different seeds and {PAPER_EPISODES} episodes")
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
        if twin := seen.get(evaluation[CONTENT_HASH]):
            problems.append(f"{where}: its evaluation is that of {twin}; leave one out")
        seen.setdefault(evaluation[CONTENT_HASH], where)
        try:
            date.fromisoformat(entry["date"])
        except ValueError:
            problems.append(f"{where}: its date is {entry['date']!r}; write it as 2026-01-31")
    return problems


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
    if any(end and not once for end, once in zip(columns["success_at_end"], columns["success_once"], strict=True)):
        return [f"{where} has an episode with success_at_end and without success_once"]
    return []


def _summary_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Means that are not those of the episodes; the runs are known to be well-formed."""
    names = {
        "success_once": "success_once",
        "success_at_end": "success_at_end",
        "return": "returns",
        "length": "lengths",
    }
    for metric, column in names.items():
        means = [sum(run["episodes"][column]) / len(run["episodes"][column]) for run in content["runs"]]
        told = [run["summary"].get(metric) for run in content["runs"]]
        overall = content["summary"].get(metric)
        told.append(overall.get("mean") if isinstance(overall, dict) else None)
        if metric.startswith("success") and all(value is None for value in told) and not any(means):
            continue  # an environment that reports no success
        for value, mean in zip(told, [*means, sum(means) / len(means)], strict=True):
            same = _is(value, float) and (
                math.isclose(value, mean, rel_tol=1e-9, abs_tol=1e-12) or value != value != mean
            )
            if not same:
                yield f"its summary has {metric} {value}, and its episodes have {mean}"
