"""A sweep: what its file may hold, and that its runs are started, retried, resumed and skipped. Nothing is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from sweep_helpers import require_refused
from tool_helpers import OWN_ID, own_task

from mikasa_robo.baselines.arguments import ArgumentError
from mikasa_robo.baselines.checkpoints import Checkpoints
from mikasa_robo.baselines.loggers import sole_writer
from mikasa_robo.baselines.memory import MEMORIES
from mikasa_robo.tools import sweep as module
from mikasa_robo.tools import sweep_plan
from mikasa_robo.tools.report import collect
from mikasa_robo.tools.sweep import Plan, PlannedRun, Progress, SweepError, main, read_plan, sweep, train_command

__all__ = ["own_task"]  # a fixture

FAKE_TRAINER = """
import json, pathlib, sys, time
folder, env_id, seed, resume, how = sys.argv[1:]
folder = pathlib.Path(folder)
folder.mkdir(parents=True, exist_ok=True)
with (folder / "calls").open("a") as calls:
    calls.write(resume + "\\n")
if how == "slow":
    try:
        time.sleep(100)
    except KeyboardInterrupt:
        (folder / "resume-000000000001.pt").write_text("interrupted")
        sys.exit(130)
if how == "usage":
    sys.exit(2)
if how == "a while":
    time.sleep(2)
if how == "from 1" and not (folder.parent / "RememberColor3-v0__ppo-mlp__1" / "final_eval.json").exists():
    sys.exit(2)
if how == "silent":
    sys.exit(0)
left = {"once": "resume-000000002048.pt", "once, early": "progress.csv"}.get(how, "")
earlier = list(folder.parent.glob(folder.name.split("__attempt")[0] + "*/" + left)) if left else []
if how == "always" or (left and not earlier):
    if how != "once, early":
        (folder / "resume-000000002048.pt").write_text("half way")
    (folder / "progress.csv").write_text("step,eval/success_once\\n2048,0.25\\n")
    sys.exit("the simulator fell over")
result = {"env_id": env_id, "algorithm": "ppo-mlp", "seed": int(seed), "args": {"learning_rate": 0.001}}
(folder / "progress.csv").write_text("step,eval/success_once\\n4096,0.75\\n")
(folder / "final_eval.json").write_text(json.dumps(result))
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One small Ray for all tests of this module: it takes seconds to start."""
    ray = pytest.importorskip("ray")
    with module._ray(None, 2):
        yield ray


def on_ray(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that starts processes on Ray, which takes seconds."""
    return pytest.mark.slow(pytest.mark.usefixtures("ray")(test))


def fake(**how: str) -> module.Command:
    """Commands of the fake trainer: what run of which seed goes wrong how (s2="once": that of seed 2 at first)."""

    def command(run: PlannedRun, folder: Path, resume: bool) -> list[str]:
        return [
            "-c",
            FAKE_TRAINER,
            str(folder),
            run.env_id,
            str(run.seed),
            str(resume),
            how.get(f"s{run.seed}", "well"),
        ]

    return command


def plan(out: Path, *seeds: int, retries: int = 1, **options: Any) -> Plan:
    return Plan(out, tuple(PlannedRun("RememberColor3-v0", "ppo-mlp", seed, options) for seed in seeds), retries)


def run(plan: Plan, command: module.Command) -> tuple[list[Progress], str]:
    shown: list[str] = []
    runs = sweep(plan, command=command, show=shown.append)
    return runs, shown[-1]


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


@on_ray
def test_all_runs_finish_each_with_its_own_folder_and_log(tmp_path: Path) -> None:
    runs, shown = run(plan(tmp_path, 1, 2, 3), fake())
    assert [progress.state for progress in runs] == ["finished"] * 3
    for progress in runs:
        assert json.loads((progress.folder / "final_eval.json").read_text())["seed"] == progress.run.seed
        assert "RememberColor3-v0" in (tmp_path / "logs" / f"{progress.run.name}.1.log").read_text()
    assert len({progress.folder for progress in runs}) == 3
    assert shown.splitlines()[-1] == "3 of 3 runs are finished"
    assert all(word in shown for word in ("RememberColor3-v0__ppo-mlp__2", "4,096", "75.0%"))


@on_ray
def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    run(plan(tmp_path, 1), fake())
    runs, shown = run(plan(tmp_path, 1, 2), fake(s1="always"))
    assert [progress.attempts for progress in runs] == [0, 1]
    assert calls(runs[0].folder) == ["False"]
    assert "skipped" in shown
    assert shown.splitlines()[-1] == "2 of 2 runs are finished"


@on_ray
def test_a_failed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (progress,), _ = run(plan(tmp_path, 1), fake(s1="once"))
    assert (progress.state, progress.attempts) == ("finished", 2)
    assert progress.folder == tmp_path / "RememberColor3-v0__ppo-mlp__1"
    assert calls(progress.folder) == ["False", "True"]
    assert "the simulator fell over" in (tmp_path / "logs" / f"{progress.run.name}.1.log").read_text()
    assert (tmp_path / "logs" / f"{progress.run.name}.2.log").is_file()


@on_ray
def test_without_a_checkpoint_a_failed_run_begins_again_in_a_new_folder(tmp_path: Path) -> None:
    (progress,), _ = run(plan(tmp_path, 1), fake(s1="once, early"))
    assert (progress.state, progress.attempts) == ("finished", 2)
    first = tmp_path / "RememberColor3-v0__ppo-mlp__1"
    assert progress.folder == first.with_name(f"{first.name}__attempt-2")
    assert calls(first) == calls(progress.folder) == ["False"]
    assert (first / "progress.csv").is_file(), "what the first attempt left stays"
    again, _ = run(plan(tmp_path, 1), fake(s1="always"))
    assert again[0].attempts == 0
    assert again[0].folder == progress.folder


@on_ray
def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    run(plan(tmp_path, 1, retries=0), fake(s1="always"))
    (progress,), _ = run(plan(tmp_path, 1, retries=0), fake())
    assert progress.state == "finished"
    assert calls(progress.folder) == ["False", "True"]


@on_ray
def test_a_sweep_that_is_stopped_lets_its_runs_save_what_they_have(tmp_path: Path) -> None:
    folder = tmp_path / "RememberColor3-v0__ppo-mlp__1"

    def stop(_: str) -> None:
        if (folder / "calls").is_file():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(plan(tmp_path, 1), command=fake(s1="slow"), show=stop, interval=0.0)
    assert (folder / "resume-000000000001.pt").read_text() == "interrupted"
    (progress,), _ = run(plan(tmp_path, 1), fake())
    assert progress.state == "finished"
    assert calls(folder) == ["False", "True"]


def test_a_run_can_be_interrupted_where_a_shell_had_ctrl_c_ignored(tmp_path: Path) -> None:
    asks = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for what a shell starts in the background
    try:
        assert module._task()(["-c", asks], str(tmp_path / "log"), str(tmp_path)) == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("status", [1, 2])
def test_a_run_with_a_result_is_finished_even_if_its_video_failed(status: int, tmp_path: Path) -> None:
    progress = Progress(plan(tmp_path, 1).runs[0], tmp_path, attempts=1)
    ray: Any = SimpleNamespace(get=lambda reference: status, exceptions=SimpleNamespace(RayError=LookupError))
    assert module._conclude(ray, None, progress) is (status == 1)
    assert progress.state == "failed"
    (tmp_path / "final_eval.json").write_text("{}")
    assert not module._conclude(ray, None, progress)
    assert progress.state == "finished"
    assert f"exit status {status} after its result was written" in progress.note


@on_ray
def test_a_run_that_fails_for_good_holds_up_no_other(tmp_path: Path) -> None:
    runs, shown = run(plan(tmp_path, 1, 2, 3, 4, retries=2), fake(s1="always", s2="usage", s3="silent"))
    assert [(p.state, p.attempts) for p in runs] == [("failed", 3), ("failed", 1), ("failed", 3), ("finished", 1)]
    assert "exit status 1" in runs[0].note
    assert "exit status 2" in runs[1].note
    assert "not tried again" in runs[1].note
    assert "no final_eval.json" in runs[2].note
    assert shown.splitlines()[-1] == "1 of 4 runs are finished"
    assert "25.0%" in shown, "how far a failed run came is shown too"


@on_ray
def test_the_result_of_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    run(plan(tmp_path, 1, learning_rate=0.001), fake())
    with pytest.raises(SweepError, match=r"finished with learning_rate = 0.001, and the sweep asks for 0.01"):
        run(plan(tmp_path, 1, 2, learning_rate=0.01), fake())
    assert not (tmp_path / "RememberColor3-v0__ppo-mlp__2").exists()


@on_ray
def test_more_cores_than_there_are_is_refused(tmp_path: Path) -> None:
    greedy = Plan(tmp_path, (PlannedRun("RememberColor3-v0", "ppo-mlp", 1, {}, cpus=3),))
    with pytest.raises(SweepError, match=r"cpus_per_run = 3 is more than any machine has for Ray \(2\)"):
        run(greedy, fake())


ASKED = (
    "NodeInfoGcsService/GetAllNodeInfo",
    "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Push",
    "CoreWorkerService/GetCoreWorkerStats",
)
"""A call of each of Ray's services that takes an empty message."""


def answers(address: str, token: str | None = None) -> set[str]:
    """What a program with ``token`` gets from a port of Ray: status codes of gRPC, or of HTTP where it speaks that."""
    grpc = pytest.importorskip("grpc")
    credentials = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        calls = [channel.unary_unary(f"/ray.rpc.{call}") for call in ASKED]
        found = {call.future(b"", timeout=10, metadata=credentials).code().name for call in calls}
    if found == {"UNAVAILABLE"}:
        try:
            with urllib.request.urlopen(f"http://{address}/get_or_create_runtime_env", b"", timeout=10) as reply:
                return {str(reply.status)}
        except urllib.error.HTTPError as error:
            return {str(error.code)}
    return found - {"UNIMPLEMENTED"}  # the service of another port


@on_ray
def test_rays_ports_refuse_strangers(ray: Any) -> None:
    """Ray listens on all interfaces: each of its ports is asked by an address that other machines use, if there is one."""
    ray.get(ray.remote(lambda: None).remote())  # a worker has a port, too
    me = psutil.Process()
    listening = [
        (process.name(), connection.laddr.port)
        for process in (me, *me.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    known = [a.address for of_one in psutil.net_if_addrs().values() for a in of_one if a.family == socket.AF_INET]
    address = next((a for a in known if not a.startswith("127.")), "127.0.0.1")
    for token in (None, "0" * 64):
        for name, port in listening:
            got = answers(f"{address}:{port}", token)
            assert got in ({"UNAUTHENTICATED"}, {"401"}), f"port {port} of {name} answers a stranger with {got}"
    (gcs,) = (port for name, port in listening if name == "gcs_server")
    assert "OK" in answers(f"{address}:{gcs}", module._token()), "whoever has the token gets in"


def test_a_ray_that_answers_strangers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    old = SimpleNamespace(__version__="2.40.0", shutdown=lambda: closed.append(True))
    monkeypatch.setitem(sys.modules, "ray._private.authentication.authentication_utils", None)
    with pytest.raises(SweepError, match=r"Ray 2\.40\.0 would run what anyone .* install ray >= 2\.52"):
        module._require_authentication(old)
    assert closed == [True]


def test_a_busy_machine_gets_three_attempts_to_start_ray() -> None:
    late = "The current node timed out during startup.\nMore."

    def slow_ray(failures: list[Exception]) -> Any:
        """A Ray whose first attempts fail; it keeps a list of all calls."""
        calls: list[str] = []

        def init(**options: Any) -> None:
            assert options == {"num_cpus": 2}
            calls.append("init")
            if failures:
                raise failures.pop(0)

        return SimpleNamespace(calls=calls, init=init, shutdown=lambda: calls.append("shutdown"))

    third = slow_ray([Exception(late), RuntimeError(late)])
    module._start_here(third, {"num_cpus": 2})
    assert third.calls == ["init", "shutdown", "init", "shutdown", "init"]
    with pytest.raises(
        SweepError, match=r"Ray did not start on this machine in 3 attempts \(The current .* startup\); .* again later$"
    ):
        module._start_here(slow_ray([Exception(late)] * 3), {"num_cpus": 2})
    refused = slow_ray([ValueError("num_cpus")])
    with pytest.raises(ValueError, match="num_cpus"):
        module._start_here(refused, {"num_cpus": 2})
    assert refused.calls == ["init"]


def test_the_token_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of a cluster")
    with module._own_token():
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert "RAY_AUTH_MODE" not in os.environ
    assert os.environ["RAY_AUTH_TOKEN"] == "of a cluster"


def test_a_task_with_a_namespace_has_a_log(tmp_path: Path) -> None:
    run = PlannedRun("lab/Maze-v0", "ppo-mlp", 1, {})
    first = module._new_log(tmp_path, run)
    first.write_bytes(b"")
    assert module._new_log(tmp_path, run) != first


def test_the_command_of_a_run() -> None:
    run = PlannedRun("RememberColor3-v0", "ppo-mlp", 3, {"anneal_lr": False, "hidden_sizes": [64, 64]}, cpus=2)
    words = train_command(run, Path("/runs/a"), resume=False)
    assert words[:4] == ["-m", "mikasa_robo.tools.cli", "train", "ppo-mlp"]
    text = " ".join(words)
    for part in (
        "--env-id RememberColor3-v0",
        "--seed 3",
        "--run-dir /runs/a",
        "--no-anneal-lr",
        "--hidden-sizes 64 64",
    ):
        assert part in text
    assert text.endswith("--torch-threads 2")
    assert train_command(run, Path("/runs/a"), resume=True)[4:] == ["--resume", "/runs/a"]


GOOD = """
out = "runs/colors"
tasks = ["RememberColor3-v0", "ShellGameTouch-v0"]
algorithms = ["ppo-mlp"]
seeds = [1, 2]
cpus_per_run = 2
[options.ppo-mlp]
total_timesteps = 300_000
video = false
"""


def test_a_good_file_gives_every_combination(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(GOOD)
    found = read_plan(file)
    assert [(r.env_id, r.seed) for r in found.runs] == [
        ("RememberColor3-v0", 1),
        ("RememberColor3-v0", 2),
        ("ShellGameTouch-v0", 1),
        ("ShellGameTouch-v0", 2),
    ]
    assert all(r.options == {"total_timesteps": 300_000, "video": False} and r.cpus == 2 for r in found.runs)
    assert found.retries == 2


VARIANTS = """
out = "runs/table"
tasks = ["RememberColor3-v0", "InterceptSlow-v0"]
seeds = [1]
[options.dagger]
env_kwargs = ["arm=held"]
learning_rate = 0.002
[task_options."Intercept*"]
env_kwargs = []
[[variant]]
name = "gru"
algorithm = "dagger"
[[variant]]
name = "ffm-small"
algorithm = "dagger"
options = { memory = "ffm", memory_kwargs = ["memory_size=8"], learning_rate = 0.001 }
"""


def test_variants_are_one_algorithm_with_several_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(VARIANTS.replace("runs/table", str(tmp_path / "runs")))
    found = read_plan(file)
    names = [f"{task}__{variant}__1" for task in found_tasks(found) for variant in ("gru", "ffm-small")]
    assert [r.name for r in found.runs] == names
    held, small, free, _ = found.runs
    assert held.options == {"env_kwargs": ["arm=held"], "learning_rate": 0.002}
    assert small.options == {
        "env_kwargs": ["arm=held"],
        "learning_rate": 0.001,
        "memory": "ffm",
        "memory_kwargs": ["memory_size=8"],
    }
    assert free.options["env_kwargs"] == [], "of this task only"
    words = train_command(small, tmp_path, resume=False)
    assert words[3] == "dagger"
    assert words[words.index("--variant") + 1] == "ffm-small"

    folder = tmp_path / "runs" / small.name
    folder.mkdir(parents=True)
    final = {"episodes": 100, "success_once": 0.5}
    args = {**(small.args or {}), "variant": "ffm-small"}
    result = {"env_id": small.task, "algorithm": "dagger", "seed": 1, "training_steps": 9, "final": final, "args": args}
    (folder / "final_eval.json").write_text(json.dumps(result))
    assert module._place(tmp_path / "runs", small).state == "finished"
    assert [run.algorithm for run in collect([folder]).runs] == ["ffm-small"], "in the report too"

    results = tmp_path / "results.csv"
    results.write_text("env_id,variant,seed\nRememberColor3-v0,gru,1\nRememberColor3-v0,gru,2\n")
    assert main([str(file), "--dry-run", "--only", "Remember*", "*__gru__*", "--skip-in", str(results)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:-1]] == [names[1], names[2]]
    assert main([str(file), "--dry-run", "--only", "Shell*"]) == 2
    assert "--only Shell* fits no run; the first is RememberColor3-v0__gru__1" in capsys.readouterr().err
    assert main([str(file), "--dry-run", "--skip-in", "/dev/full"]) == 2
    assert "--skip-in /dev/full is not a file" in capsys.readouterr().err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert main([str(file), "--dry-run", "--skip-in", str(tmp_path / "other.csv")]) == 2
    assert "is no CSV with the columns env_id, variant and seed" in capsys.readouterr().err


def found_tasks(plan: Plan) -> list[str]:
    return list(dict.fromkeys(run.task for run in plan.runs))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "gru"', 'name = "ffm-small"', r"name = 'ffm-small' is there twice"),
        ('name = "gru"', 'name = "a__b"', r"name = 'a__b' cannot be part of a folder's name"),
        ('name = "gru"', "", r"variant number 1: name is missing"),
        ('name = "gru"\nalgorithm = "dagger"', 'name = "gru"\nalgorithm = "dager"', r"there is no algorithm 'dager'"),
        ('memory = "ffm"', 'memroy = "ffm"', r"variant ffm-small.memroy is not known here; did you mean"),
        (
            "memory_size=8",
            "size=8",
            r"variant ffm-small: --memory ffm size=8: the memory 'ffm' has no option size; it takes",
        ),
        ("memory_size=8", "memory_size=0", r"variant ffm-small: --memory ffm memory_size=0: FFM: memory_size 0 cannot"),
        (
            "learning_rate = 0.002",
            'obs = "nonsense"',
            r"variant gru: --obs nonsense: .*'nonsense' is not known; join any",
        ),
        ("learning_rate = 0.002", 'obs = "state_dict"', r"variant gru: --obs state_dict gives nested observations"),
        ('"Intercept*"', '"Rotate*"', r"task_options.Rotate\* is for none of the tasks"),
        ("learning_rate = 0.001", 'variant = "x"', r"variant ffm-small.variant is set by the sweep itself"),
    ],
)
def test_a_bad_variant_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    require_refused(VARIANTS, old, new, message, tmp_path / "sweep.toml")


@pytest.mark.parametrize("name", MEMORIES)
def test_every_memory_can_be_checked_without_storage(name: str) -> None:
    sweep_plan._check_memory.__wrapped__(name, 128, ())
    with pytest.raises(ArgumentError, match=f"--memory {name} nonsense=1: .*has no option nonsense"):
        sweep_plan._check_memory.__wrapped__(name, 128, ("nonsense=1",))


def test_a_seed_of_the_runs_own_evaluations_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(f"{GOOD}eval_seed = 0\n".replace("[1, 2]", "[100, 101]"))
    assert {planned.seed for planned in read_plan(file).runs} == {100, 101}
    require_refused(f"{GOOD}eval_seed = 0\n", "[1, 2]", "[100, 7]", "seeds: --seed 7 cannot be used", file)


def test_obs_is_refused_for_a_task_that_has_one_kind_of_observation(tmp_path: Path) -> None:
    text = GOOD.replace("ShellGameTouch-v0", "MemoryLengthEasy-v0")
    message = "--obs state is for robot tasks; MemoryLengthEasy-v0 has only one kind"
    require_refused(text, "video = false", 'obs = "state"', message, tmp_path / "sweep.toml")


def test_a_policy_to_start_from_has_to_be_there_unless_the_sweep_makes_it(tmp_path: Path) -> None:
    out, nowhere = tmp_path / "runs", tmp_path / "other"
    with pytest.raises(SweepError, match=rf"ppo-mlp__1: init_from = '{nowhere}': .*there is no such file"):
        sweep(plan(out, 1, init_from=str(nowhere)))
    assert not out.exists()
    made = plan(out, 1, 2, init_from=str(out / "RememberColor3-v0__ppo-mlp__1" / "checkpoint.pt"))
    for planned in made.runs:
        module._require_start(out, planned, made.runs)
    with pytest.raises(SweepError, match=r"ppo-mlp__2: init_from = .*there is no such file"):
        module._require_start(out, made.runs[1], made.runs[1:])
    nowhere.mkdir()
    (nowhere / "best.pt").touch()
    (planned,) = plan(out, 1, init_from=str(nowhere)).runs
    module._require_start(out, planned, (planned,))


def chained(out: Path) -> Plan:
    """Runs 1 and 3 from nothing, and run 2 from the policy of run 1; run 2 is the first in the file."""
    alone, start = plan(out, 1, 3), str(out / "RememberColor3-v0__ppo-mlp__1")
    return dataclasses.replace(alone, runs=(*plan(out, 2, init_from=start).runs, *alone.runs))


class Threads:
    """What a sweep uses of Ray, on threads of this process."""

    exceptions = SimpleNamespace(RayError=ConnectionError)

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Resources": {"CPU": 2}}]

    def remote(self, max_retries: int) -> Callable[[Callable[..., int]], Any]:
        assert max_retries == 0
        return lambda run: SimpleNamespace(
            options=lambda num_cpus: SimpleNamespace(remote=lambda *words: self._pool.submit(run, *words))
        )

    def wait(self, pending: list[Future[int]], timeout: float) -> tuple[list[Future[int]], list[Future[int]]]:
        done, others = wait(pending, timeout, FIRST_COMPLETED)
        return list(done), list(others)

    def get(self, reference: Future[int]) -> int:
        return reference.result()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let sweeps run without Ray."""
    monkeypatch.setattr(module, "_ray", lambda address, num_cpus: contextlib.nullcontext(Threads()))
    # Where the tests run in the background, SIGINT is ignored. A run would handle it again, which threads cannot do.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("threads")
def test_a_run_waits_for_the_policy_that_it_starts_from(tmp_path: Path) -> None:
    runs, _ = run(chained(tmp_path), fake(s1="a while", s2="from 1"))
    assert [(progress.state, progress.attempts, progress.note) for progress in runs] == [("finished", 1, "")] * 3


@pytest.mark.usefixtures("threads")
def test_without_the_policy_that_it_starts_from_a_run_does_not_begin(tmp_path: Path) -> None:
    runs, _ = run(chained(tmp_path), fake(s1="usage"))
    assert [progress.state for progress in runs] == ["failed", "failed", "finished"]
    first = runs[0]
    assert (first.attempts, first.log) == (0, None)
    assert first.note == f"not started: {tmp_path / 'RememberColor3-v0__ppo-mlp__1'} is not the result of a run"
    assert not first.folder.exists()


def test_runs_that_would_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    one, two = "RememberColor3-v0__ppo-mlp__1", "RememberColor3-v0__ppo-mlp__2"
    (second,) = plan(tmp_path, 2, init_from=str(tmp_path / one)).runs
    (first,) = plan(tmp_path, 1, init_from=str(tmp_path / two / "checkpoint.pt")).runs
    with pytest.raises(
        SweepError, match=f"init_from: {one} starts from {two} starts from {one}; name the policy of another"
    ):
        sweep(Plan(tmp_path, (first, second)))
    (alone,) = plan(tmp_path, 1, init_from=str(tmp_path / one)).runs
    with pytest.raises(SweepError, match=f"init_from: {one} starts from {one}; "):
        sweep(Plan(tmp_path, (alone,)))
    assert not any(tmp_path.iterdir())


def test_only_does_not_start_a_run_from_the_policy_of_an_unfinished_run(tmp_path: Path) -> None:
    whole = chained(tmp_path)
    one, two = "RememberColor3-v0__ppo-mlp__1", "RememberColor3-v0__ppo-mlp__2"
    (tmp_path / one).mkdir()
    (tmp_path / one / "checkpoint.pt").touch()
    alone = module.select(whole, [f"*{two}"])
    message = (
        f"{two}: init_from = .* is the policy of {one}, which --only leaves out and which is not finished there; add"
    )
    with pytest.raises(SweepError, match=message):
        sweep(alone)
    assert not (tmp_path / "logs").exists()

    (planned,) = alone.runs
    (source,) = (other for other in whole.runs if other.name == one)
    write_result(tmp_path / f"{one}__attempt-2", source)
    with pytest.raises(SweepError, match=message):  # the named folder holds what the first attempt left
        module._require_start(tmp_path, planned, alone.runs, alone.left_out)
    write_result(tmp_path / one, source)
    module._require_start(tmp_path, planned, alone.runs, alone.left_out)

    (tmp_path / one / "final_eval.json").unlink()
    done = tmp_path / "done.csv"
    done.write_text("env_id,variant,seed\nRememberColor3-v0,ppo-mlp,1\n")  # which stands for its result
    alone = module.select(whole, [f"*{two}"], done)
    module._require_start(tmp_path, planned, alone.runs, alone.left_out)


def test_a_run_that_has_begun_needs_no_policy_to_start_from(tmp_path: Path) -> None:
    other, mine = (Progress(planned, tmp_path / planned.name) for planned in chained(tmp_path).runs[1::-1])
    assert module._when(tmp_path, mine, [mine, other]) == "later"
    mine.checked = frozenset({(mine.folder / "resume-000000002048.pt", 1, 1)})
    assert module._when(tmp_path, mine, [mine, other]) == "now"


def test_a_run_does_not_start_from_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    other, mine = (Progress(planned, tmp_path / planned.name) for planned in chained(tmp_path).runs[1::-1])
    other.state = "finished"
    assert module._when(tmp_path, mine, [mine, other]) == "now"
    other.folder = tmp_path / f"{other.run.name}__attempt-2"
    assert module._when(tmp_path, mine, [mine, other]) == "never"


def test_an_option_may_hold_the_task(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        'out = "runs"\ntasks = ["RememberColor3-v0", "TakeItBack-v0"]\nalgorithms = ["bc"]\nseeds = [1]\n'
        '[options.bc]\ndataset = "data/{task}"\nenv_kwargs = ["arm=held"]\n'
    )
    runs = read_plan(file).runs
    assert [run.options["dataset"] for run in runs] == ["data/RememberColor3-v0", "data/TakeItBack-v0"]
    assert all(run.options["env_kwargs"] == ["arm=held"] for run in runs)


def test_the_published_sweeps_can_be_run_again() -> None:
    folder = Path(__file__).parent.parent / "docs" / "results" / "robot-learning"
    plans = [read_plan(folder / f"{name}.toml") for name in ("colors", "shells")]
    runs = [(run.env_id, run.algorithm, run.seed) for plan in plans for run in plan.runs]
    assert len(runs) == len(set(runs)) == 18, "three tasks, two algorithms, three seeds"
    assert all(run.options["obs"] == "objects+joints" for plan in plans for run in plan.runs)
    options = read_plan(folder / "ppo-options.toml").runs
    assert len({run.name for run in options}) == len(options) == 3 * 11 * 3, "tasks, variants, seeds"
    variants = {run.label: run.options for run in options if run.env_id == "SeqOfColors3-v0" and run.seed == 1}
    shared = variants["preset"].items()
    assert all(values.items() >= shared for values in variants.values()), "each changes nothing but what it names"
    assert len({str(sorted(values.items())) for values in variants.values()}) == 11, "no two of them are the same"


def test_a_task_of_ones_own_is_swept_by_its_module(own_task: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(GOOD.replace("ShellGameTouch-v0", own_task))
    (*_, planned) = read_plan(file).runs
    assert planned.name == f"{OWN_ID}__ppo-mlp__2"
    folder = tmp_path / planned.name
    assert train_command(planned, folder, resume=False)[4:6] == ["--env-id", own_task]
    # a checkpoint's module is imported only where it is named
    assert train_command(planned, folder, resume=True)[4:] == ["--resume", str(folder), "--env-id", own_task]
    folder.mkdir()
    args = {**(planned.args or {}), "env_id": own_task}
    result = {"env_id": OWN_ID, "algorithm": "ppo-mlp", "seed": 2, "args": args}
    (folder / "final_eval.json").write_text(json.dumps(result))
    assert module._place(tmp_path, planned).state == "finished"
    file.write_text(GOOD.replace("RememberColor3-v0", OWN_ID).replace("ShellGameTouch-v0", own_task))
    with pytest.raises(SweepError, match=rf"'{OWN_ID}' and '{own_task}' are both {OWN_ID}; remove one"):
        read_plan(file)


@pytest.mark.usefixtures("forget")
def test_an_algorithm_of_ones_own_is_swept_by_its_module(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        GOOD.replace('"ppo-mlp"', '"toy_learners:toy-search"').replace("options.ppo-mlp", "options.toy-search")
    )
    (planned, *_) = read_plan(file).runs
    assert planned.name == "RememberColor3-v0__toy-search__1"
    assert planned.options["total_timesteps"] == 300_000
    assert train_command(planned, tmp_path, resume=False)[2:4] == ["train", "toy_learners:toy-search"]
    file.write_text(GOOD.replace('"ppo-mlp"', '"ppo-mlp", "toy_learners:ppo-mlp"'))
    with pytest.raises(SweepError, match=r"'ppo-mlp' and 'toy_learners:ppo-mlp' are both ppo-mlp; remove one"):
        read_plan(file)


def test_a_run_with_a_network_of_ones_own_is_finished_only_once(tmp_path: Path) -> None:
    planned = PlannedRun("RememberColor3-v0", "ppo-mlp", 1, {"network": "toy_learners:toy-linear"})
    folder = tmp_path / planned.name
    folder.mkdir()
    result = {"env_id": planned.task, "algorithm": "ppo-mlp", "seed": 1, "args": {"network": "toy-linear"}}
    (folder / "final_eval.json").write_text(json.dumps(result))
    assert module._place(tmp_path, planned).state == "finished"


def planned_in(out: Path, text: str = GOOD) -> PlannedRun:
    """The first run of a sweep."""
    file = out / "sweep.toml"
    file.write_text(text.replace("runs/colors", str(out)))
    return read_plan(file).runs[0]


def write_result(folder: Path, run: PlannedRun, **changes: Any) -> None:
    """What the run leaves once it is finished."""
    args = {**(run.args or {}), "env_id": run.task, "seed": run.seed, "run_dir": str(folder), **changes}
    result = {"env_id": run.task, "algorithm": run.algorithm_name, "seed": run.seed, "args": args}
    folder.mkdir(exist_ok=True)
    (folder / "final_eval.json").write_text(json.dumps(result))


def write_checkpoint(folder: Path, run: PlannedRun, **changes: Any) -> None:
    """What the run leaves half way."""
    args = {**(run.args or {}), "env_id": run.task, "seed": run.seed, "run_dir": str(folder), **changes}
    folder.mkdir(exist_ok=True)
    Checkpoints(folder, keep=2).save(2048, {"algorithm": run.algorithm_name, "args": args, "world_size": 1})


@pytest.mark.parametrize(
    ("write", "what"), [(write_result, "is finished"), (write_checkpoint, "was begun")], ids=["result", "checkpoint"]
)
def test_a_folder_is_that_of_a_run_only_if_all_options_are_the_same(
    write: Callable[..., None], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_option = planned_in(tmp_path, GOOD + "learning_rate = 0.01\n")
    folder = tmp_path / with_option.name
    write(folder, with_option, torch_threads=7, device="cuda", video=True, preset="robo-numbers")
    place = module._place(tmp_path, with_option)
    assert (place.folder, place.state) == (folder, "finished" if write is write_result else "waiting")

    without = planned_in(tmp_path)
    with pytest.raises(SweepError, match=rf"{what} with learning_rate = 0.01, and the sweep asks for 0.0003; name ano"):
        module._place(tmp_path, without)
    assert main([str(tmp_path / "sweep.toml")]) == 2
    assert f"{folder} {what} with learning_rate = 0.01" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, "sweep.toml"], "nothing was started"


def test_the_options_of_a_preset_are_compared_too(tmp_path: Path) -> None:
    planned = planned_in(tmp_path, GOOD.replace("ppo-mlp", "ppo"))
    assert planned.args is not None
    assert planned.args["gamma"] == 0.9
    write_result(tmp_path / planned.name, planned, gamma=0.99)
    with pytest.raises(SweepError, match=r"finished with gamma = 0.99, and the sweep asks for 0.9;"):
        module._place(tmp_path, planned)


@pytest.mark.parametrize("write", [write_result, write_checkpoint])
def test_a_record_older_than_an_option_has_its_default(write: Callable[..., None], tmp_path: Path) -> None:
    asked = planned_in(tmp_path, GOOD + "anneal_lr = false\nlearning_rate = 0.0003\n")
    plain = planned_in(tmp_path)
    older = {name: value for name, value in (plain.args or {}).items() if name not in ("anneal_lr", "learning_rate")}
    write(tmp_path / plain.name, dataclasses.replace(plain, args=older))
    assert module._place(tmp_path, plain).folder == tmp_path / plain.name
    with pytest.raises(SweepError, match=r"with anneal_lr = True, and the sweep asks for False"):
        module._place(tmp_path, asked)


def test_a_damaged_checkpoint_is_named_before_anything_is_started(tmp_path: Path) -> None:
    planned = planned_in(tmp_path)
    folder = tmp_path / planned.name
    folder.mkdir()
    (folder / "resume-000000002048.pt").write_text("half")
    with pytest.raises(SweepError, match=r"cannot be continued: .*resume-000000002048.pt is not a checkpoint"):
        module._place(tmp_path, planned)
    assert module.finished_folder(tmp_path, planned) is None, "which looks for results only"


def test_a_checkpoint_is_read_again_only_if_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep looks at its folders before it takes its lock, so that nothing is created in vain, and once it has it."""
    pytest.importorskip("ray")
    planned, load, read = planned_in(tmp_path), Checkpoints.load_newest, []
    folder = tmp_path / planned.name
    write_checkpoint(folder, planned)

    def count(run_dir: Path) -> dict[str, Any]:
        read.append(run_dir)
        return load(run_dir)

    monkeypatch.setattr(Checkpoints, "load_newest", count)
    monkeypatch.setattr(module, "_train", lambda *_, **__: None)
    sweep(read_plan(tmp_path / "sweep.toml"))
    assert read.count(folder) == 1

    lock = module._only_sweep

    def change_first(out: Path) -> Any:
        write_checkpoint(folder, planned, learning_rate=0.01)  # by a sweep that ends just now
        return lock(out)

    monkeypatch.setattr(module, "_only_sweep", change_first)
    with pytest.raises(SweepError, match=r"was begun with learning_rate = 0.01, and the sweep asks for 0.0003"):
        sweep(read_plan(tmp_path / "sweep.toml"))


def test_a_text_is_a_list_of_one_where_an_option_takes_several(tmp_path: Path) -> None:
    planned = planned_in(tmp_path, GOOD + 'env_kwargs = "arm=held"\nhidden_sizes = 32\ninit_from = "./a.pt"\n')
    assert planned.options["env_kwargs"] == ["arm=held"]
    assert planned.options["hidden_sizes"] == [32]
    write_result(tmp_path / planned.name, planned, env_kwargs=["arm=held"], hidden_sizes=[32], init_from="a.pt")
    assert module._place(tmp_path, planned).state == "finished"


def test_two_sweeps_do_not_train_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    planned_in(tmp_path)
    (tmp_path / "logs").mkdir()
    with (
        module._only_sweep(tmp_path),
        pytest.raises(SweepError, match=rf"out = {tmp_path}: another sweep is .* name another folder"),
    ):
        run(plan(tmp_path, 1), fake())
    with module._only_sweep(tmp_path):
        assert main([str(tmp_path / "sweep.toml"), "--dry-run"]) == 0, "which only looks"
        assert main([str(tmp_path / "sweep.toml")]) == 2
    assert "another sweep is training in this folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [module.LOCK]


def test_a_run_that_outlived_its_sweep_is_not_made_twice(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "RememberColor3-v0__ppo-mlp__1"
    folder.mkdir()
    (folder / "progress.csv").touch()
    with sole_writer(folder), pytest.raises(SweepError, match=rf"{folder}: a process is training in this folder; wait"):
        run(plan(tmp_path, 1), fake())
    assert not folder.with_name(f"{folder.name}__attempt-2").exists()


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"env_id": 5, "algorithm": "ppo-mlp", "seed": 1}',
        '{"env_id": "RememberColor3-v0", "algorithm": "ppo-mlp", "seed": 1, "args": []}',
        "[" * 100_000,
    ],
    ids=["list", "env_id", "args", "deep"],
)
def test_a_broken_result_is_named(content: str, tmp_path: Path) -> None:
    planned = planned_in(tmp_path)
    (tmp_path / planned.name).mkdir()
    (tmp_path / planned.name / "final_eval.json").write_text(content)
    with pytest.raises(SweepError, match=r"final_eval.json is broken \(.*\); move .* away"):
        module._place(tmp_path, planned)


def test_files_that_python_cannot_read_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned_in(tmp_path)
    results = tmp_path / "results.csv"
    results.write_text("env_id,variant,seed\n" + "x" * 131_073 + ",a,1\n")
    assert main([str(tmp_path / "sweep.toml"), "--dry-run", "--skip-in", str(results)]) == 2
    assert "results.csv is no CSV with the columns" in capsys.readouterr().err
    (tmp_path / "sweep.toml").write_text(f"out = {'[' * 100_000}")
    assert main([str(tmp_path / "sweep.toml")]) == 2
    assert "nested too deeply; write it as docs/training.md shows" in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_named_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SweepError, match=r"out = .*file is a file, not a folder"):
        run(plan(tmp_path / "file" / "runs", 1), fake())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds", "sedes", r"sedes is not known here; did you mean seeds\?"),
        ("seeds = [1, 2]", "", r"seeds is missing; add seeds = \[1, 2, 3\]"),
        ("[1, 2]", "[]", r"seeds = \[\] is not a list, or is empty; write seeds"),
        ("[1, 2]", "[1, 1]", r"seeds: 1 is there twice"),
        ("[1, 2]", "[-1]", r"seeds: -1 is negative"),
        ("[1, 2]", "[5000000000]", r"seeds: 5000000000 is too large; use numbers of at most 4294967295"),
        ("cpus_per_run = 2", "cpus_per_run = inf", r"cpus_per_run = inf is not a finite number above 0"),
        ("cpus_per_run = 2", "cpus_per_run = nan", r"cpus_per_run = nan is not a finite number above 0"),
        ("[1, 2]", "[1, 2000007]", r"seeds: --seed 2000007 cannot be used: training would play episodes of the eval"),
        ("[1, 2]", '["one"]', r"seeds: 'one' is not a number"),
        (
            "RememberColor3-v0",
            "RememberColour3-v0",
            r"tasks: .*RememberColour3-v0 is not registered; .*RememberColor3-v0",
        ),
        ('["ppo-mlp"]', '["ppo-mpl"]', r"algorithms: there is no algorithm 'ppo-mpl'; use one of ppo-mlp"),
        ("cpus_per_run = 2", "cpus_per_run = 0", r"cpus_per_run = 0 is not a finite number above 0"),
        ("cpus_per_run = 2", "cpus_per_run = 1.5", r"cpus_per_run = 1.5: Ray shares one core among runs"),
        ("cpus_per_run = 2", "retries = -1", r"retries = -1 is not a whole number"),
        ('"runs/colors"', '""', r"out = '' is not the name of a folder"),
        ('"runs/colors"', r'"a\u0000"', r"out = 'a\\x00' is no name that a folder can have"),
        ('"runs/colors"', f'"{"x" * 256}"', r"is no name that a folder can have"),
        ("video = false", "init_from = 3", r"options.ppo-mlp.init_from = 3 is not the name of a policy"),
        (
            "video = false",
            'init_from = ["x.pt"]',
            r"options.ppo-mlp.init_from = \['x.pt'\] is not the name of a policy",
        ),
        (
            "video = false",
            r'init_from = "a\u0000"',
            r"options.ppo-mlp.init_from = 'a\\x00' is not the name of a policy",
        ),
        ("options.ppo-mlp", "options.ppo", r"options.ppo is not known here; did you mean options.ppo-mlp\?"),
        ("video =", "viedo =", r"options.ppo-mlp.viedo is not known here; did you mean options.ppo-mlp.video\?"),
        ("video = false", "seed = 3", r"options.ppo-mlp.seed is set by the sweep itself; remove it"),
        ("300_000", '"many"', r"options.ppo-mlp: .*--total-timesteps many.* cannot be read"),
        ("300_000", "3", r"options.ppo-mlp: --total-timesteps 3 is less than one rollout"),
        ("[options", "options", r"sweep.toml is not a TOML file"),
    ],
)
def test_a_bad_file_is_refused_by_key_and_fix(
    old: str,
    new: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "sweep.toml"
    require_refused(GOOD, old, new, message, file)
    assert main([str(file)]) == 2
    assert capsys.readouterr().err.startswith(str(file))
    assert list(tmp_path.iterdir()) == [file]


def test_a_finished_attempt_counts_where_an_earlier_one_was_removed(tmp_path: Path) -> None:
    (planned,) = plan(tmp_path, 1).runs
    third = tmp_path / f"{planned.name}__attempt-3"
    write_result(third, planned)
    assert module.finished_folder(tmp_path, planned) == third
    (third / "final_eval.json").rename(third / "progress.csv")
    (tmp_path / f"{planned.name}__attempt-9").mkdir()  # empty
    (tmp_path / f"{planned.name}__attempt-x").mkdir()
    progress = module._find(tmp_path, planned)
    assert (progress.state, progress.folder) == ("waiting", third)
    assert not module._next_attempt(progress, tmp_path)
    assert progress.folder == tmp_path / f"{planned.name}__attempt-4", "later than all others"


@on_ray
def test_files_in_the_current_folder_hide_no_package_from_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not the json you want')")
    monkeypatch.chdir(tmp_path)
    words = (
        "import json, pathlib, sys; f = pathlib.Path(sys.argv[1]); f.mkdir(); (f / 'final_eval.json').write_text('{}')"
    )
    (progress,), _ = run(plan(tmp_path / "runs", 1), lambda planned, folder, resume: ["-c", words, str(folder)])
    assert progress.state == "finished" or sys.version_info < (3, 11)


def test_the_score_of_a_finished_run_is_that_of_the_report(tmp_path: Path) -> None:
    """Its last evaluation during training may say something else."""
    (planned,) = plan(tmp_path, 1).runs
    folder = tmp_path / planned.name
    folder.mkdir()
    (folder / "progress.csv").write_text("step,eval/success_once\n2048,0.25\n4096,0.75\n")
    progress = module.Progress(planned, folder, state="running")
    assert "success 75.0%" in module.table([progress])
    final = {"episodes": 100, "success_once": 0.5, "success_at_end": 0.5, "return": 1.0, "length": 9.0}
    run = {"env_id": planned.env_id, "algorithm": planned.algorithm, "seed": 1, "training_steps": 4096, "final": final}
    (folder / "final_eval.json").write_text(json.dumps(run))
    progress.state = "finished"
    assert "success 50.0%" in module.table([progress])
    (found,) = collect([folder]).runs
    assert found.scores["success_once"] == 0.5
