"""`mikasa submit`: hash and form of evaluations, their replay, and the leaderboard in docs/."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from tool_helpers import save_untrained

from mikasa_robo.baselines import ppo_lstm
from mikasa_robo.baselines.checkpoints import save_policy
from mikasa_robo.baselines.environments import make_gymnasium_env
from mikasa_robo.baselines.evaluation import Evaluation
from mikasa_robo.baselines.networks import RecurrentActorCritic
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.tools import evaluate, leaderboard, submit
from mikasa_robo.tools.checkpoint import read_checkpoint
from mikasa_robo.tools.evaluate import Args, evaluate_checkpoints, summarize
from mikasa_robo.tools.leaderboard import CONTENT_HASH, content_hash, find_leaderboard_problems, find_problems, sign
from mikasa_robo.tools.submit import main

ENV_ID = "MemoryLengthEasy-v0"
EPISODES = 12
Content = dict[str, Any]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of an untrained policy."""
    env = make_gymnasium_env(1, None, env_id=ENV_ID)
    layout, action = ObservationLayout.of(env.single_observation_space), ActionLayout.of(env.single_action_space)
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("policy") / "policy.pt"
    save_policy(path, RecurrentActorCritic(layout, action, (8,), 8, (8,)), ppo_lstm.Args(env_id=ENV_ID), step=0)
    return path


@pytest.fixture(scope="module")
def file(policy: Path) -> Path:
    """Its evaluation."""
    out = policy.parent / "eval.json"
    evaluate_checkpoints(Args((policy,), episodes=EPISODES, num_envs=5, out=out))
    return out


def changed(file: Path, change: Callable[[Content], object], signed: bool = False) -> Content:
    content: Content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    return sign(content) if signed else content


def better_by_less_than_its_error(figures: dict[str, float]) -> None:
    """As much as the ends of an interval may differ, and a mean may not."""
    figures["mean"] += 0.1 * figures["standard_error"]


def retold(content: Content) -> None:
    """The statistics as they are of the episodes that the file has."""
    results = [Evaluation(2_000_000, **run["episodes"]) for run in content["runs"]]
    for run, result in zip(content["runs"], results, strict=True):
        run["summary"] = result.summary()
    content["summary"] = summarize(results)


def test_an_evaluation_is_signed_and_plays_again(file: Path, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content[CONTENT_HASH] == content_hash(content)
    # whatever the order of the entries
    assert content_hash(dict(reversed(content.items()))) == content[CONTENT_HASH]
    assert find_problems(content) == []
    assert main(["check", str(file), "--episodes", "4"]) == 0
    assert "of 1 policy were played again; as it says" in capsys.readouterr().out
    assert main(["check", str(file), "--episodes", "0"]) == 0
    assert "nothing was played again; as it says" in capsys.readouterr().out
    assert main(["show", str(file)]) == 0
    assert content[CONTENT_HASH] in capsys.readouterr().out


def test_sampled_actions_play_again_as_such(
    file: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = tmp_path / "sampled.json"
    evaluate_checkpoints(Args((policy,), episodes=EPISODES, num_envs=5, sample_actions=True, out=sampled))
    assert main(["check", str(sampled), "--episodes", str(EPISODES)]) == 0
    assert main(["show", str(sampled)]) == 0
    assert "sampled actions" in capsys.readouterr().out
    # and not as the most likely ones
    sampled.write_text(json.dumps(changed(sampled, lambda c: c.update(actions="most likely"), signed=True)))
    assert main(["check", str(sampled), "--episodes", str(EPISODES)]) == 1
    assert json.loads(file.read_text(encoding="utf-8"))["actions"] == "most likely"
    # files of earlier versions do not say it
    older = tmp_path / "older.json"
    older.write_text(json.dumps(changed(file, lambda c: c.pop("actions"), signed=True)))
    assert main(["check", str(older), "--episodes", str(EPISODES)]) == 0


def test_what_was_changed_since_training_plays_again(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = tmp_path / "longer.json"
    evaluate_checkpoints(Args((policy,), episodes=EPISODES, num_envs=5, env_kwargs=("memory_length=30",), out=longer))
    assert find_problems(json.loads(longer.read_text())) == []
    assert main(["check", str(longer), "--episodes", str(EPISODES)]) == 0
    assert main(["show", str(longer)]) == 0
    assert "with memory_length=30 unlike in training" in capsys.readouterr().out
    # An easier task is not passed off as the one that was learnt.
    easier = tmp_path / "easier.json"
    easier.write_text(json.dumps(changed(longer, lambda c: c.pop("changed_env_kwargs"), signed=True)))
    assert main(["check", str(easier)]) == 1
    assert "env_kwargs is ['memory_length=30'] in the file, and [] in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(changed_env_kwargs="a=1"), "its changed_env_kwargs are no list of NAME=VALUE"),
        (lambda c: c.update(changed_env_kwargs=["a"]), "its changed_env_kwargs cannot be used: --env-kwargs a is not"),
        (lambda c: c.update(changed_env_kwargs=["a=1"]), "its changed_env_kwargs have a=1, and its settings do not"),
        (lambda c: c.update(actions="best"), "its actions are 'best', not 'most likely' or 'sampled'"),
        (lambda c: c["runs"][0]["episodes"]["lengths"].pop(), "has no lengths of 12 values of type int"),
        (
            lambda c: c["runs"][0]["episodes"]["returns"].__setitem__(0, "1"),
            "has no returns of 12 values of type float",
        ),
        (lambda c: c["summary"]["return"].update(mean=5.0), "its summary has return 5.0, and its episodes have"),
        (lambda c: c["seeds"].update(first=7), "its first seed is 7, not 2000000"),
        (lambda c: c["runs"][0].pop("seed"), r"runs\[0\] has no seed"),
        (lambda c: c["runs"].clear(), "it has no runs"),
        (lambda c: c.pop("versions"), "it has no versions"),
        (lambda c: c.update(format="other"), "its format is 'other'"),
        (lambda c: c.update(protocol="paper"), "protocol paper takes 3 runs"),
        (lambda c: c.update(protocol="strict"), "its protocol is 'strict', not 'fixed' or 'paper'"),
        (lambda c: c["summary"]["return"].update(mean=math.nan), "its summary has return nan, and its episodes have"),
        (lambda c: better_by_less_than_its_error(c["summary"]["return"]), "its summary has return "),
        (
            lambda c: c["runs"][0]["episodes"].update(success_at_end=[True] + [False] * (EPISODES - 1)),
            r"runs\[0\] has an episode with success_at_end and without success_once",
        ),
        (lambda c: c["runs"][0]["summary"].update(length=math.nan), r"runs\[0\]: its summary has length nan, and"),
        (lambda c: c["summary"]["return"].update(low=0.9), "its summary has return low 0.9, and its episodes have"),
        (lambda c: c["summary"]["return"].update(high=None), "its summary has return high None, and its episodes"),
        (lambda c: c["summary"]["return"].update(standard_error=0.0), "its summary has return standard_error 0.0, and"),
        (lambda c: c["summary"]["return"].update(mean=10**400), "its summary has return 1"),
        (lambda c: c["summary"].pop("over"), "its summary is over None, and its runs give one over episodes"),
        (lambda c: c["summary"].pop("length"), "its summary has length None"),
        (
            lambda c: c["runs"][0]["episodes"]["lengths"].__setitem__(0, 10**400),
            r"runs\[0\] has lengths beyond 1e\+100, which no episode has",
        ),
        (lambda c: c["runs"][0]["episodes"]["returns"].__setitem__(0, math.inf), r"has returns beyond 1e\+100"),
        (lambda c: c["settings"].pop("sim_backend"), "its settings have no sim_backend"),
        (lambda c: c["settings"].update(env_kwargs=[3]), "its settings have env_kwargs that are no list of NAME=VALUE"),
        (lambda c: c["settings"].update(obs=3), "its settings have obs of type int, not str"),
        (
            lambda c: c["runs"].append(
                {**c["runs"][0], "sha256": None, "seed": 2, "args": {**c["runs"][0]["args"], "variant": "mine"}}
            ),
            r"runs\[1\] is of mine, and runs\[0\] of ppo-lstm; evaluate them one by one",
        ),
        (lambda c: c["runs"][0]["args"].update(env_kwargs=[], memory="gru", memory_kwargs=3), "args that no training"),
        (lambda c: c["runs"].append(c["runs"][0]), r"runs\[0\] and runs\[1\] have the same sha256"),
        (
            lambda c: c["runs"].append({**c["runs"][0], "sha256": "0" * 64}),
            r"runs\[0\] and runs\[1\] have the same seed 1",
        ),
    ],
)
def test_a_file_that_was_changed_is_found(change: Callable[[Content], object], message: str, file: Path) -> None:
    if "format" not in message:
        (problem,) = find_problems(changed(file, change))
        assert "it was changed after it was written" in problem
    # and where the hash was made anew
    problems = find_problems(changed(file, change, signed=True))
    with pytest.raises(AssertionError, match=message):
        assert not problems, "\n".join(problems)


def test_of_a_task_of_maniskill_whole_rounds_are_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It draws all episodes of a batch from the seed of the first."""
    policy = save_untrained(tmp_path / "p.pt", "PickCube-v1", 42)
    out = tmp_path / "e.json"
    evaluate_checkpoints(Args((policy,), episodes=5, num_envs=3, out=out))
    for chosen in ([1], [4], [0, 3]):
        monkeypatch.setattr("random.sample", lambda population, k, chosen=chosen: chosen)
        assert main(["check", str(out), "--episodes", str(len(chosen))]) == 0, capsys.readouterr().out
        assert f"episodes {', '.join(map(str, chosen))} of 1 policy" in capsys.readouterr().out
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(changed(out, lambda c: c.update(num_envs=10**9), signed=True)))
    assert main(["check", str(forged)]) == 2
    assert "its num_envs is 1000000000, not from 1 to 5; give --episodes 0" in capsys.readouterr().err


def test_what_others_wrote_does_not_control_the_terminal(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "ppo\x1b[2Jcleared\x07"
    path = tmp_path / "evil.json"
    path.write_text(json.dumps(changed(file, lambda c: c.update(algorithm=evil), signed=True)))
    assert main(["show", str(path)]) == 0
    assert "ppo?[2Jcleared?" in capsys.readouterr().out
    path.write_text(json.dumps(changed(file, lambda c: c["settings"].update(env_kwargs=[evil]), signed=True)))
    assert main(["check", str(path)]) == 1
    told = capsys.readouterr()
    assert (told.out + told.err).replace("\n", "").isprintable()
    path.write_text(json.dumps(changed(file, lambda c: c["runs"][0].update(checkpoint=f"{evil}.pt"), signed=True)))
    assert main(["check", str(path)]) == 2
    told = capsys.readouterr()
    assert "ppo?[2Jcleared?.pt" in told.err
    assert (told.out + told.err).replace("\n", "").isprintable()


def test_a_backend_is_for_robot_tasks(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(file), "--sim-backend", "foo"]) == 2
    assert "--sim-backend foo is for robot tasks" in capsys.readouterr().err


def test_results_that_were_made_up_are_found_by_playing_again(
    file: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def better(content: Content) -> None:
        returns = [value + 1 for value in content["runs"][0]["episodes"]["returns"]]
        content["runs"][0]["episodes"]["returns"] = returns
        retold(content)

    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(changed(file, better, signed=True)))
    assert main(["check", str(forged), "--episodes", "0"]) == 0, "its form alone does not tell"
    assert main(["check", str(forged), "--episodes", "2"]) == 1
    assert "returns is" in capsys.readouterr().out
    easier = changed(file, lambda c: c["settings"].update(env_kwargs=["memory_length=1"]), signed=True)
    forged.write_text(json.dumps(easier))
    assert main(["check", str(forged), "--checkpoint", str(policy)]) == 1
    assert "env_kwargs is ['memory_length=1'] in the file, and [] in" in capsys.readouterr().out
    other = changed(file, lambda c: c["runs"][0].update(sha256="0" * 64), signed=True)
    forged.write_text(json.dumps(other))
    for argv, message in (
        ([], "is of a policy with the SHA-256 0000000000000000…"),
        (["--checkpoint", str(tmp_path / "none.pt")], "there is no such file"),
        (["--checkpoint", str(file)], "is not a checkpoint"),
        (["--episodes", "-1"], "--episodes -1 must be at least 0"),
    ):
        assert main(["check", str(forged), *argv]) == 2
        assert message in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [("returns", 5.0), ("lengths", 12), ("fail_once", True)],
)
def test_a_single_episode_that_was_made_up_is_found(
    name: str, value: Any, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def better(content: Content) -> None:
        content["runs"][0]["episodes"][name][3] = value
        retold(content)

    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(changed(file, better, signed=True)))
    assert main(["check", str(forged), "--episodes", str(EPISODES)]) == 1
    told = capsys.readouterr().out
    assert f"runs[0], episode 3: {name} is {value} in the file, and " in told
    assert "; 1 problems" in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(algorithm="mine"), "algorithm is mine in the file, and ppo-lstm in"),
        (lambda c: c["runs"][0].update(seed=7), "seed is 7 in the file, and 1 in"),
        (lambda c: c["runs"][0].update(training_steps=7), "training_steps is 7 in the file, and 0 in"),
        (lambda c: c["runs"][0]["args"].update(seed=7), "args.seed is 7 in the file, and 1 in"),
        (lambda c: c["runs"][0]["args"].update(variant="ours"), "args.variant is ours in the file, and None in"),
        (lambda c: c["runs"][0]["args"].update(env_id="Hard-v0"), f"args.env_id is Hard-v0 in the file, and {ENV_ID}"),
        (lambda c: c["runs"][0]["args"].update(init_from="a.pt"), "args.init_from is a.pt in the file, and None in"),
        (lambda c: c["runs"][0]["args"].pop("env_id"), f" in the file, and {ENV_ID} in"),
        (lambda c: c["runs"][0]["args"].update(luck=1), "args is unusable (ppo-lstm has no argument luck"),
        (
            lambda c: c["runs"][0].update(checkpoint=None, args={"env_id": ENV_ID, "memory": "none"}),
            "args.memory is none in the file, and lstm in",
        ),
    ],
)
def test_what_is_said_about_the_policy_is_compared_with_it(
    change: Callable[[Content], object],
    message: str,
    file: Path,
    policy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(changed(file, change, signed=True)))
    assert main(["check", str(forged), "--checkpoint", str(policy)]) == 1
    said = capsys.readouterr().out
    assert message in said
    assert "nothing was played again; 1 problems" in said


def test_settings_are_compared_as_they_are_played(file: Path, tmp_path: Path) -> None:
    robot = save_untrained(tmp_path / "p.pt", "RememberColor3-v0", 40, obs="objects", env_kwargs=("b=1", "a=2"))
    checkpoint = read_checkpoint(robot)
    content = json.loads(file.read_text(encoding="utf-8"))
    content |= {"env_id": checkpoint.env_id, "algorithm": checkpoint.algorithm}
    content["settings"] |= {"env_kwargs": ["a=2", "b=1"], "obs": "objects"}
    served = {"env_id": checkpoint.env_id, "env_kwargs": ["a=2", "b=1"]}
    run = content["runs"][0] | {"checkpoint": None, "seed": checkpoint.args.seed, "args": served}
    assert submit._differing(content, run, checkpoint) == []
    for obs in ("state", None):  # a served policy is evaluated with state by default
        content["settings"]["obs"] = obs
        (problem,) = submit._differing(content, run, checkpoint)
        assert problem.startswith("obs is state in the file, and objects in")
    default = read_checkpoint(save_untrained(tmp_path / "q.pt", "RememberColor3-v0", 40, env_kwargs=("a=2", "b=1")))
    assert submit._differing(content, run, default) == [], "the same spelt out or not"


def test_a_mean_that_is_an_integer_is_shown(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def whole(content: Content) -> None:
        content["runs"][0]["episodes"]["returns"] = [1] * EPISODES
        retold(content)
        content["summary"]["return"]["mean"] = 1

    path = tmp_path / "e.json"
    path.write_text(json.dumps(changed(file, whole, signed=True)))
    assert main(["show", str(path)]) == 0
    assert "return: 1.00" in capsys.readouterr().out


def test_every_entry_of_the_leaderboard_passes() -> None:
    path = Path(__file__).parent.parent / "docs" / "leaderboard.json"
    assert find_leaderboard_problems(json.loads(path.read_text())) == []


def test_what_a_leaderboard_refuses(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (leaderboard.FIRST_SEED, leaderboard.PAPER_RUNS) == (evaluate.FIRST_SEED, evaluate.PAPER_RUNS)
    assert leaderboard.SETTINGS == evaluate.SHARED_ARGS
    assert get_args(get_type_hints(Args)["protocol"]) == leaderboard.PROTOCOLS
    assert (leaderboard.PAPER_EPISODES, leaderboard.LEAST_EPISODES) == (evaluate.PAPER_EPISODES, evaluate.EPISODES)
    evaluation = json.loads(file.read_text(encoding="utf-8"))

    def longer(content: Content) -> None:
        """As if 12 x 10 episodes had been played."""
        content["seeds"]["episodes"] *= 10
        columns = content["runs"][0]["episodes"]
        columns.update({name: column * 10 for name, column in columns.items()})
        retold(content)

    entry = {"name": "a", "date": "2026-01-31", "url": "https://example.org", "evaluation": changed(file, longer, True)}
    tampered = copy.deepcopy(entry)
    tampered["evaluation"]["summary"]["return"]["mean"] += 0.1  # type: ignore[index]
    whole = changed(file, longer)
    again = {**entry, "evaluation": sign({**whole, "command": "mikasa eval --out other.json"})}
    whole["runs"][0]["sha256"] = "0" * 64
    other = {**entry, "evaluation": sign(whole)}
    harder, sampled = changed(file, longer), changed(file, longer)
    harder["settings"]["env_kwargs"] = ["memory_length=30"]
    sampled["actions"] = "sampled"
    others = [{**entry, "evaluation": sign(played)} for played in (harder, sampled)]
    for entries, messages in (
        ([entry], []),
        ([entry, entry], ["entries[1]: its evaluation is that of entries[0]"]),
        ([entry, again], ["entries[1]: its evaluation is that of entries[0]"]),
        ([entry, other], []),
        ([entry, *others], []),
        ([entry, tampered], ["entries[1]: its content_sha256 is"]),
        ([{**entry, "evaluation": evaluation}], ["entries[0]: 12 episodes; play at least 100"]),
        ([{**entry, "date": "yesterday"}], ["entries[0]: its date is 'yesterday'"]),
        ([{**entry, "date": "2026-W05-6"}], ["entries[0]: its date is '2026-W05-6'; write it as 2026-01-31"]),
        ([{**entry, "date": "20260131"}], ["entries[0]: its date is '20260131'"]),
        ([{**entry, "name": "", "url": " "}], ["entries[0]: its name is empty", "entries[0]: its url is empty"]),
        (
            [{"name": "a"}, 3],
            ["entries[0] has no date", "has no url", "has no evaluation", "entries[1] is not an object"],
        ),
    ):
        found = find_leaderboard_problems({"format": "mikasa/leaderboard/1", "entries": entries})
        assert len(found) == len(messages)
        assert all(message in problem for message, problem in zip(messages, found, strict=True))
    board = tmp_path / "board.json"
    board.write_text(json.dumps({"format": "mikasa/leaderboard/1", "entries": [entry]}))
    assert main(["check", str(board)]) == 0
    assert main(["show", str(board)]) == 0
    assert "a, 2026-01-31, https://example.org" in capsys.readouterr().out
    board.write_text(json.dumps({"format": "mikasa/leaderboard/1", "entries": [tampered]}))
    assert main(["check", str(board)]) == 1
    assert main(["show", str(board)]) == 2
