"""`mikasa serve` and `mikasa eval --policy remote:…`: the same episodes through a server, and what happens when it fails."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_ppo_mlp import ReachEnv
from tool_helpers import OWN_ID, OWN_MODULE, own_task, save_untrained
from websockets.sync.client import connect
from websockets.sync.server import serve as serve_websocket

from mikasa_robo.baselines import ppo_lstm
from mikasa_robo.baselines.arguments import CommonArgs
from mikasa_robo.baselines.checkpoints import save_policy
from mikasa_robo.baselines.environments import make_gymnasium_env
from mikasa_robo.baselines.networks import RecurrentActorCritic
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.remote.client import RemotePolicy, RemotePolicyError, read_address
from mikasa_robo.remote.messages import MessageError, Observation, pack, read_actions, read_request, unpack
from mikasa_robo.remote.server import PolicyServer
from mikasa_robo.tools import serve as serve_tool
from mikasa_robo.tools.env_ids import OptionError
from mikasa_robo.tools.evaluate import Args, evaluate_checkpoints
from mikasa_robo.tools.evaluate import main as eval_main
from mikasa_robo.tools.evaluate_remote import _plain, evaluate_remote, partial_path
from mikasa_robo.tools.runs import collect

__all__ = ["own_task"]  # a fixture

BASE_ID = "MemoryLengthEasy-v0"
ROBOT_ID = "RememberColor3-v0"  # known to gym, and never made: ReachEnv stands for it
Answer = Callable[[int], Any]
DROP = b"drop"
"""Instead of an answer: the connection ends."""
HASHED = pack({"sha256": "5" * 64})
"""Metadata by which a policy is known at another address."""


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of an untrained LSTM for an environment of mikasa_base with discrete actions."""
    env = make_gymnasium_env(1, None, env_id=BASE_ID)
    torch.manual_seed(0)
    layout, action = ObservationLayout.of(env.single_observation_space), ActionLayout.of(env.single_action_space)
    path = tmp_path_factory.mktemp("recurrent") / "policy.pt"
    save_policy(path, RecurrentActorCritic(layout, action, (8,), 8, (8,)), ppo_lstm.Args(env_id=BASE_ID), step=7)
    return path


@contextlib.contextmanager
def running(server: PolicyServer) -> Iterator[PolicyServer]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def served(recurrent: Path) -> Iterator[int]:
    """The port of a server of that checkpoint."""
    with running(serve_tool.make_server(serve_tool.Args(recurrent, port=0))) as server:
        yield server.port


@contextlib.contextmanager
def answering(answer: Answer, metadata: bytes | str | None = None) -> Iterator[int]:
    """The port of a server that sends ``answer(k)`` to request k: a frame, None for none, or `DROP`."""

    def handle(connection: Any) -> None:
        connection.send(pack({}) if metadata is None else metadata)
        for k, _ in enumerate(connection):
            if (frame := answer(k)) is DROP:
                connection.socket.shutdown(socket.SHUT_RDWR)
            elif frame is not None:
                connection.send(frame)

    server = serve_websocket(handle, "127.0.0.1", 0, compression=None)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.socket.getsockname()[1]
    finally:
        server.shutdown()
        thread.join(10)


def reach(args: CommonArgs) -> Callable[[int, str | None], Any]:
    return ReachEnv


def remote(port: int, out: Path, **changes: Any) -> Args:
    values: dict[str, Any] = {"env_id": ROBOT_ID, "episodes": 4, "num_envs": 2, "timeout": 60.0}
    return Args(policy=f"remote:127.0.0.1:{port}", out=out, **{**values, **changes})


# ---- messages -----------------------------------------------------------------------------------------------------------


def test_arrays_have_the_layout_of_openpi() -> None:
    import msgpack

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw = msgpack.unpackb(pack({"a": array, "s": np.int64(3)}))
    assert raw["a"] == {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": "<f4", b"shape": [2, 3]}
    assert raw["s"] == {b"__npgeneric__": True, b"data": 3, b"dtype": "<i8"}
    for sent in (
        array,
        array.astype(">f8"),
        np.zeros((0, 4), np.uint8),
        np.array(5, np.int16),
        np.array([True, False]),
    ):
        found = unpack(pack({"a": sent}))["a"]
        assert found.dtype == sent.dtype.newbyteorder("=")
        assert found.flags.writeable
        np.testing.assert_array_equal(found, sent)
    scalar = unpack(pack({"s": np.float32(2.5)}))["s"]
    assert (type(scalar), float(scalar)) == (np.float32, 2.5)


def packed_array(**changes: Any) -> bytes:
    import msgpack

    array = {"__ndarray__": True, "data": bytes(8), "dtype": "<f4", "shape": [2]} | changes
    frame: bytes = msgpack.packb({"a": {key.encode(): value for key, value in array.items()}})
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("text", r"a text frame came \('text'\)"),
        (b"\xc1", "a frame of 1 bytes is not msgpack"),
        (pack({"a": 1})[:-1], "is not msgpack"),
        (b"\x91" * 100_000, "is not msgpack"),
        (packed_array(dtype="|O"), r"the dtype '\|O'; send Booleans, integers or real"),
        (packed_array(dtype=["f4"]), "the dtype"),
        (packed_array(shape=[3]), r"an array \(3,\) of float32 has 8 bytes of data; send 12 bytes"),
        (packed_array(shape=[-2]), r"the shape \[-2\]"),
        (packed_array(shape=[2**30, 2**30, 2**30]), "has 8 bytes of data"),
        (packed_array(data="text"), "has 'text' of data"),
    ],
)
def test_bad_frames_are_refused(frame: bytes | str, message: str) -> None:
    with pytest.raises(MessageError, match=message):
        unpack(frame)


@pytest.mark.parametrize(
    "message",
    [
        [{}] * 2**23,
        [[[{}] * 1000] * 1000] * 8,  # no list is long
        {"a": [1.0] * 2**20},
        {str(i): i for i in range(2**17)},
        {"a": [[]] * 2**16},
    ],
    ids=["maps", "nested", "numbers", "entries", "lists"],
)
def test_a_message_takes_little_more_memory_than_its_bytes(message: Any) -> None:
    import msgpack

    frame = msgpack.packb(message)
    tracemalloc.start()
    try:
        with pytest.raises(MessageError, match=r"exceeds max_|more than 65536 entries; send numbers as arrays"):
            unpack(frame)
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_messages_have_room_for_what_policies_send() -> None:
    arrays = {f"part {i}": np.zeros((4, 2, 3), np.uint8) for i in range(5000)}
    assert {*unpack(pack({"observation": arrays}))["observation"]} == {*arrays}
    assert unpack(pack({"a": np.zeros(2**24, np.uint8)}))["a"].shape == (2**24,)
    assert unpack(pack({"actions": [0.5] * 60_000, "name": "x" * 100_000}))["actions"] == [0.5] * 60_000


def test_errors_quote_little_of_a_message() -> None:
    for request, told in (
        ({"observation": 1, "episode_start": [[{}] * 1000] * 60}, "episode_start is list "),
        ({"observation": 1, "episode_start": bytes(2**20)}, "episode_start is 1048576 bytes;"),
        ({"observation": 1, "episode_start": "x" * 2**20}, "episode_start is str "),
    ):
        with pytest.raises(MessageError, match=told) as caught:
            read_request(request)
        assert len(str(caught.value)) < 200


def test_what_cannot_be_packed_is_refused() -> None:
    for value in (np.array([object()]), np.array([1j]), np.array(["a"]), object(), 2**70):
        with pytest.raises(MessageError, match="cannot be packed"):
            pack({"a": value})


def test_bad_requests_and_answers_are_refused() -> None:
    starts, ones = np.ones(2, bool), np.ones((2, 3), np.float32)
    requests: list[tuple[Any, str]] = [
        ([], r"the request is \[\]; send a map"),
        ({"observation": ones}, "has no episode_start"),
        ({"observation": ones, "episode_start": np.ones(2)}, r"episode_start is an array \(2,\) of float64"),
        ({"observation": ones[:1], "episode_start": starts}, r"has the shape \(1, 3\), and episode_start has 2"),
        ({"observation": {"a": ones * np.nan}, "episode_start": starts}, "observation 'a' is not finite"),
        ({"observation": {}, "episode_start": starts}, "observation is an empty map"),
        ({"observation": {"a": [1]}, "episode_start": starts}, r"observation 'a' is \[1\]"),
    ]
    for request, message in requests:
        with pytest.raises(MessageError, match=message):
            read_request(request)
    answers: list[tuple[Any, tuple[int, ...], str]] = [
        (3, (), "the answer is 3; send a map"),
        ({"action": ones}, (), '"actions" is missing'),
        ({"actions": ones[:1]}, (), r"have the shape \(1, 3\); answer with \(2, 3\)"),
        ({"actions": ones * [1, np.inf, 1]}, (), r"not finite: row 0 is \[1.0, inf, 1.0\]"),
        ({"actions": np.full((2, 3), 1e300)}, (), "not finite"),
        ({"actions": starts[:, None] & np.ones((2, 3), bool)}, (), "of bool; answer with float32"),
        ({"actions": ones}, (2, 2, 2), "of float32; the task has discrete actions"),
        ({"actions": ones.astype(int) * 2}, (2, 3, 3), r"from 2 to 2; answer with 0 to \[2, 3, 3\] less 1"),
    ]
    for answer, sizes, message in answers:
        with pytest.raises(MessageError, match=message):
            read_actions(answer, (2, 3), sizes)


def test_addresses() -> None:
    assert read_address("remote:example.org:80") == ("example.org", 80)
    assert read_address("remote:[::1]:8000") == ("::1", 8000)
    for wrong in (
        "remote:8000",
        "remote::8000",
        "remote:a:0",
        "remote:a:99999",
        "remote:::1:80",
        "a:80",
        "remote:a/b:80",
    ):
        with pytest.raises(ValueError, match=r"write remote:HOST:PORT"):
            read_address(wrong)


# ---- evaluation through a server ----------------------------------------------------------------------------------------


def test_an_evaluation_through_a_server_is_that_of_the_checkpoint(recurrent: Path, served: int, tmp_path: Path) -> None:
    direct = evaluate_checkpoints(Args((recurrent,), episodes=7, num_envs=3, out=tmp_path / "direct.json"))
    argv = ["--policy", f"remote:127.0.0.1:{served}", "--env-id", BASE_ID, "--episodes", "7", "--num-envs", "3"]
    assert eval_main([*argv, "--out", str(tmp_path / "remote.json")]) == 0
    found = json.loads((tmp_path / "remote.json").read_text())
    assert found["runs"][0]["episodes"] == direct["runs"][0]["episodes"]
    assert found["summary"] == direct["summary"]
    assert found["runs"][0]["sha256"] == direct["runs"][0]["sha256"]
    assert (found["algorithm"], found["runs"][0]["training_steps"]) == ("ppo-lstm", 7)
    assert found["runs"][0]["seed"] == direct["runs"][0]["seed"] == 1
    assert len(set(found["runs"][0]["episodes"]["returns"])) > 1, "else the comparison shows little"
    assert {path.name for path in tmp_path.iterdir()} == {"direct.json", "remote.json"}


def test_a_report_tells_served_agents_apart(served: int, tmp_path: Path) -> None:
    out = tmp_path / "gru.json"
    assert (
        eval_main(["--policy", f"remote:127.0.0.1:{served}", "--env-id", BASE_ID, "--episodes", "2", "--out", str(out)])
        == 0
    )
    content = json.loads(out.read_text())
    server = content["runs"][0]["server"]
    assert server["agent"] == "ppo-lstm", "as `agent_name` calls it"
    for name in ("gru", "mingru", "mingru again"):
        server["agent"] = f"ppo {name.removesuffix(' again')}"
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    found = collect([tmp_path])
    assert sorted(run.algorithm for run in found.runs) == ["ppo gru", "ppo mingru"]
    ((path, why),) = found.problems
    assert path.stem.startswith("mingru")
    assert why.endswith("; if they are different policies, let their servers tell different names or seeds")
    for odd in (None, "", " ", "x" * 201, "\x1b[2J", ["ppo gru"]):  # None: a server of an earlier version
        server["agent"] = odd
        out.write_text(json.dumps(content))
        assert [run.algorithm for run in collect([out]).runs] == ["ppo-lstm"]


def test_continuous_actions_and_a_task_of_ones_own(own_task: str, tmp_path: Path) -> None:
    path = save_untrained(tmp_path / "policy.pt", OWN_ID, 40, OWN_MODULE, env_kwargs=("response_steps=2",))
    few = {"episodes": 2, "num_envs": 2, "env_id": own_task}
    direct = evaluate_checkpoints(Args((path,), out=tmp_path / "direct.json", **few))
    with running(serve_tool.make_server(serve_tool.Args(path, port=0, env_id=own_task))) as server:
        with pytest.raises(OptionError, match=r"--env-kwargs \(none\): .* is for response_steps=2; give --env-kwargs"):
            evaluate_remote(remote(server.port, tmp_path / "a.json", **few))
        args = remote(server.port, tmp_path / "a.json", env_kwargs=("response_steps=2",), **few)
        content, _ = evaluate_remote(args)
    assert content["runs"][0]["episodes"] == direct["runs"][0]["episodes"]


def test_the_server_keeps_a_state_for_each_connection_and_refuses_what_does_not_fit(served: int) -> None:
    def ask(connection: Any, observation: Any, starts: list[bool]) -> Any:
        connection.send(pack({"observation": observation, "episode_start": np.array(starts)}))
        return connection.recv(timeout=5)

    def scores(frames: list[NDArray[Any]], connection: Any) -> list[Any]:
        return [
            unpack(ask(connection, frame, [k == 0] * len(frame)))["actions"].tolist() for k, frame in enumerate(frames)
        ]

    rng = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        one, two = (stack.enter_context(connect(f"ws://127.0.0.1:{served}", proxy=None)) for _ in range(2))
        metadata = unpack(one.recv(timeout=5))
        two.recv(timeout=5)
        assert metadata["protocol"] == "mikasa/remote/1"
        assert metadata["env_id"] == BASE_ID
        size = ObservationLayout.of(make_gymnasium_env(1, None, env_id=BASE_ID).single_observation_space).width
        frames = list(rng.standard_normal((8, 4, size)).astype(np.float32))
        expected = scores(frames, one)
        for k, frame in enumerate(frames):  # a request of another connection between any two
            assert unpack(ask(one, frame, [k == 0] * 4))["actions"].tolist() == expected[k]
            ask(two, frames[0][:1], [k == 0])
        # where only some episodes begin, the others go on
        both = [unpack(ask(one, frame, [k == 0, k in (0, 4)] * 2))["actions"] for k, frame in enumerate(frames[:4] * 2)]
        again = scores(frames[:4], one)
        assert [actions[1::2].tolist() for actions in both[4:]] == [np.array(rows)[1::2].tolist() for rows in again]
        assert "after 4; let all episodes start anew" in ask(one, frames[0][:2], [False, False])
    hostile = {"\x1b[2J": frames[0], **{f"x{k}": frames[0][:, :1] for k in range(30)}}
    for observation, message in (
        ({"x": frames[0]}, "the policy wants"),
        (hostile, "the observations are '\\x1b[2J' (N, "),
        (hostile, "and 11 more; the policy wants"),
        (frames[0][:, 1:], "the policy wants"),
        (frames[0].astype(np.float64) * 1e200, "observation has numbers that float32 cannot hold; send float32"),
    ):
        with connect(f"ws://127.0.0.1:{served}", proxy=None) as connection:
            connection.recv(timeout=5)
            told = ask(connection, observation, [True] * 4)
            assert message in told
            assert "\x1b" not in told


def test_a_host_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refused(uri: str, **kwargs: Any) -> Any:
        asked.append(uri)
        raise OSError("refused")

    monkeypatch.setattr("websockets.sync.client.connect", refused)
    for host in ("gpu-remote", "remote", "::1"):
        with pytest.raises(RemotePolicyError, match="cannot be reached"):
            RemotePolicy(host, 8000)
    assert asked == ["ws://gpu-remote:8000", "ws://remote:8000", "ws://[::1]:8000"]


def test_a_redirect_to_another_server_is_refused() -> None:
    """The result would name a server that did not play."""
    with answering(lambda k: None) as elsewhere, socket.create_server(("127.0.0.1", 0)) as listener:

        def redirect() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            answer = f"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:{elsewhere}/\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(answer.encode())
            connection.close()

        thread = threading.Thread(target=redirect)
        thread.start()
        with pytest.raises(RemotePolicyError, match="is not a policy server"):
            RemotePolicy("127.0.0.1", listener.getsockname()[1])
        thread.join(10)


def test_an_address_of_ipv6_is_served(recurrent: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"there is no IPv6: {error}")
    with running(serve_tool.make_server(serve_tool.Args(recurrent, port=0, host="::1"))) as server:
        policy = RemotePolicy("::1", server.port)
        assert policy.metadata["env_id"] == BASE_ID
        policy.close()


def test_an_address_of_another_machine_is_named(recurrent: Path) -> None:
    with pytest.raises(OptionError, match=r"--host 192\.0\.2\.1 .*; give --host an address of this machine"):
        serve_tool.make_server(serve_tool.Args(recurrent, port=0, host="192.0.2.1"))
    with pytest.raises(OptionError, match=r"--host '' is empty; give 127\.0\.0\.1"):  # it would listen everywhere
        serve_tool.make_server(serve_tool.Args(recurrent, port=0, host=""))


def test_a_server_is_closed_whether_it_served_or_not() -> None:
    server = PolicyServer(lambda: None, {})  # type: ignore[arg-type, return-value]
    server.close()
    server.close()
    server.serve_forever()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


OWN_SERVER = """
import signal
from mikasa_robo.remote.server import PolicyServer
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes background processes ignore it
server = PolicyServer(lambda: None, {})
print(server.port, flush=True)
server.serve_forever()
"""


def test_ctrl_c_ends_a_server_of_ones_own_that_has_a_client() -> None:
    process = subprocess.Popen([sys.executable, "-c", OWN_SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    with connect(f"ws://127.0.0.1:{int(process.stdout.readline())}", proxy=None) as client:
        client.recv(timeout=30)
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in said


def test_a_web_page_cannot_use_the_policy(served: int) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.typing import Origin

    with pytest.raises(InvalidStatus, match="403"), connect(f"ws://127.0.0.1:{served}", origin=Origin("http://a.org")):
        pass


def test_a_server_of_ones_own_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Picky:
        def act(self, observation: Observation, episode_start: NDArray[np.bool_]) -> NDArray[Any]:
            assert isinstance(observation, np.ndarray)
            raise ZeroDivisionError("the weights are gone")

    out = tmp_path / "e.json"
    with running(PolicyServer(Picky, {"name": "picky"}, max_bytes=2000)) as server:
        with pytest.raises(
            RemotePolicyError, match="reports an error: the policy failed: ZeroDivisionError: the weights"
        ):
            evaluate_remote(remote(server.port, out), make_factory=reach)
        with pytest.raises(RemotePolicyError, match="frame is too long for the server; use fewer --num-envs"):
            evaluate_remote(remote(server.port, out, num_envs=200, episodes=200), make_factory=reach)
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=5) as response:
            assert response.read() == b"OK\n"
    assert not list(tmp_path.iterdir())
    assert eval_main(["--policy", f"remote:127.0.0.1:{server.port}", "--env-id", BASE_ID, "--out", str(out)]) == 2
    assert (
        f"remote:127.0.0.1:{server.port} cannot be reached (Connection refused); start the server"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (pack({"actions": np.zeros((2, 2), np.float32)}), r"actions have the shape \(2, 2\); answer with \(2, 1\)"),
        (pack({"actions": np.full((2, 1), np.nan)}), "actions are not finite"),
        (b"\xc1", "is not msgpack"),
        (b"x" * (16 * 2**20 + 1), "answered with more than 16777216 bytes"),
        ("Traceback:\n  KeyError: 'image'\x1b[2J\n", r"reports an error: KeyError: 'image'\?\[2J;"),
        (None, r"sent no answer within \d+\.\d s; .* --timeout"),
    ],
)
def test_bad_answers_end_the_evaluation(answer: bytes | str | None, message: str, tmp_path: Path) -> None:
    with answering(lambda k: answer) as port, pytest.raises(RemotePolicyError, match=message):
        # on a busy machine an answer may be late; none never comes
        evaluate_remote(remote(port, tmp_path / "e.json", timeout=0.5 if answer is None else 60.0), make_factory=reach)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("stray", "message"),
    [
        (
            pack({"actions": np.zeros((2, 1), np.float32)}),
            r"a message of \d+ bytes came without a request; answer each",
        ),
        ("KeyError: 'image'", "reports an error: KeyError: 'image'"),
    ],
)
def test_what_nobody_asked_for_is_no_answer(stray: bytes | str, message: str) -> None:
    def handle(connection: Any) -> None:
        connection.send(pack({}))
        for _ in connection:
            connection.send(pack({"actions": np.zeros((2, 1), np.float32)}))
            connection.send(stray)

    server = serve_websocket(handle, "127.0.0.1", 0, compression=None)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        policy = RemotePolicy("127.0.0.1", server.socket.getsockname()[1])
        policy.bind(ActionLayout(1))

        def play() -> None:
            for _ in range(1000):  # what was sent may still be on its way
                policy.act(torch.zeros(2, 3))
                time.sleep(0.01)

        with pytest.raises(RemotePolicyError, match=message):
            play()
    finally:
        server.shutdown()
        thread.join(10)


@pytest.mark.parametrize(
    ("metadata", "changes", "message"),
    [
        (b"\xc1", {}, "is not msgpack"),
        (pack({"protocol": "other/1"}), {}, "the server has to speak mikasa/remote/1"),
        (pack({"protocol": np.zeros(2)}), {}, "the server has to speak mikasa/remote/1"),
        (pack({"env_id": np.zeros(2)}), {}, "--env-id RememberColor3-v0: .* for 0.0 0.0; give --env-id"),
        (
            pack({"env_id": "RememberColor5-v0"}),
            {},
            "--env-id RememberColor3-v0: .* for RememberColor5-v0; give --env-id",
        ),
        (pack({"obs": "\x1b[2Jrgb"}), {}, r"is for \?\[2Jrgb; give --obs \?\[2Jrgb"),
        (pack({"obs": "rgb+joints"}), {}, r"--obs state: .* is for rgb\+joints; give --obs rgb\+joints"),
        (pack({}), {"checkpoint": (Path("a"),)}, "evaluate one of them"),
        (pack({}), {"env_id": None}, "needs --env-id"),
        (pack({}), {"env_id": "a:b:c"}, "--env-id 'a:b:c' is not an environment ID"),
        (pack({}), {"env_id": BASE_ID, "sim_backend": "physx_cpu"}, "--sim-backend physx_cpu is for robot tasks, and"),
        (pack({}), {"env_id": BASE_ID, "reward_mode": "sparse"}, "--reward-mode sparse is for robot tasks, and"),
        (pack({}), {"env_id": BASE_ID, "control_mode": "x"}, "--control-mode x is for robot tasks, and"),
        (pack({}), {"timeout": 0.0}, "--timeout 0.0 cannot be used"),
        (pack({}), {"timeout": float("nan")}, "--timeout nan cannot be used"),
        (pack({}), {"episodes": 0}, "--episodes 0 must be at least 1"),
        (pack({}), {"protocol": "paper"}, "takes three checkpoints"),
        (pack({}), {"sample_actions": True}, "--sample-actions is for --checkpoint"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    metadata: bytes, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with answering(lambda k: None, metadata) as port, pytest.raises((OptionError, RemotePolicyError), match=message):
        evaluate_remote(remote(port, tmp_path / "e.json", **changes), make_factory=reach)
    with pytest.raises(OptionError, match="--obs is for --policy"):
        evaluate_checkpoints(Args((tmp_path,), obs="state"))
    with pytest.raises(OptionError, match="--timeout -5 is for --policy"):
        evaluate_checkpoints(Args((tmp_path,), timeout=-5))


def test_a_server_that_ends_the_connection_at_once_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from websockets.sync.client import connect

    def closed(*args: Any, **kwargs: Any) -> Any:
        connection = connect(*args, **kwargs)
        connection.socket.close()  # as the thread that receives does it, if it is the faster one
        return connection

    monkeypatch.setattr("websockets.sync.client.connect", closed)
    with (
        answering(lambda k: None) as port,
        pytest.raises(RemotePolicyError, match=f"^remote:127.0.0.1:{port} closed the connection at once"),
    ):
        evaluate_remote(remote(port, tmp_path / "e.json"), make_factory=reach)


def test_a_partial_evaluation_goes_on_with_its_simulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    actions = pack({"actions": np.full((2, 1), 0.1, np.float32)})
    out = tmp_path / "e.json"
    with answering(lambda k: DROP if k == 27 else actions, HASHED) as port, pytest.raises(RemotePolicyError):
        evaluate_remote(remote(port, out), make_factory=reach)
    assert partial_path(out).exists()
    monkeypatch.setattr("mikasa_robo.tools.evaluate.simulator_used", lambda asked, env: "physx_cuda")  # another machine
    with (
        answering(lambda k: actions, HASHED) as port,
        pytest.raises(OptionError, match=r"another evaluation: not the same sim_backend\)"),
    ):
        evaluate_remote(remote(port, out), make_factory=reach)


def test_a_partial_evaluation_is_of_one_policy_and_one_task(tmp_path: Path) -> None:
    """Episodes of another are not mixed with those that are over."""
    actions = pack({"actions": np.full((2, 1), 0.1, np.float32)})
    out = tmp_path / "e.json"
    with answering(lambda k: DROP if k == 27 else actions, HASHED) as port, pytest.raises(RemotePolicyError):
        evaluate_remote(remote(port, out), make_factory=reach)
    kept = partial_path(out).read_bytes()
    others: list[tuple[bytes, dict[str, Any], str]] = [
        (pack({"sha256": "6" * 64}), {}, "server"),
        (HASHED, {"env_id": "RememberColor5-v0"}, "env_id"),
        (HASHED, {"env_kwargs": ("delay_steps=9",)}, "env_kwargs"),
        (HASHED, {"obs": "joints"}, "obs"),
        (HASHED, {"reward_mode": "sparse"}, "reward_mode"),
    ]
    for metadata, changed, name in others:
        with (
            answering(lambda k: actions, metadata) as port,
            pytest.raises(OptionError, match=rf"another evaluation: not the same {name}\)"),
        ):
            evaluate_remote(remote(port, out, **changed), make_factory=reach)
    assert partial_path(out).read_bytes() == kept


def test_metadata_that_json_cannot_hold_are_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(200_000):
        nested = {"a": nested}
    with pytest.raises(OptionError, match="the metadata of the server are nested too deeply"):
        _plain(nested)
    while nested:  # or Python takes it apart by recursion, too
        nested = nested.pop("a")


def test_a_continued_evaluation_says_what_that_does_to_a_policy_that_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actions = pack({"actions": np.full((2, 1), 0.1, np.float32)})
    for name, metadata, warned in (("a", {}, True), ("b", {"deterministic": True}, False)):
        out, hashed = tmp_path / f"{name}.json", pack({"sha256": "5" * 64, **metadata})
        for fails_at in (27, 7):  # in the second round, and before the next round is over

            def answer(k: int, at: int = fails_at) -> bytes:
                return DROP if k == at else actions

            with (
                answering(answer, hashed) as port,
                pytest.raises(RemotePolicyError, match="2 of 4 episodes are over"),
            ):
                evaluate_remote(remote(port, out), make_factory=reach)
        capsys.readouterr()
        with answering(lambda k: actions, hashed) as port:
            content, _ = evaluate_remote(remote(port, out), make_factory=reach)
        assert ("its success rate will be too high" in capsys.readouterr().err) is warned
        assert content["runs"][0]["attempts"] == 3
    with answering(lambda k: actions, HASHED) as port:
        content, _ = evaluate_remote(remote(port, tmp_path / "c.json"), make_factory=reach)
    assert "attempts" not in content["runs"][0]


def test_two_evaluations_do_not_share_a_file(tmp_path: Path) -> None:
    """Each would write over the episodes of the other."""
    actions = pack({"actions": np.full((2, 1), 0.1, np.float32)})
    out = tmp_path / "e.json"
    with answering(lambda k: actions, HASHED) as port:
        second: list[str] = []

        class Meanwhile(ReachEnv):
            def reset(self, **kwargs: Any) -> Any:
                if not second:
                    with pytest.raises(OptionError, match="another evaluation is running") as refused:
                        evaluate_remote(remote(port, out), make_factory=reach)
                    second.append(str(refused.value))
                return super().reset(**kwargs)

        evaluate_remote(remote(port, out), make_factory=lambda args: Meanwhile)
    assert second == [
        f"another evaluation is running that keeps its episodes in {partial_path(out)}; wait for it, or name another --out"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["e.json"], "the lock is removed"


def test_episodes_that_cannot_be_kept_do_not_end_the_evaluation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actions = pack({"actions": np.full((1, 1), 0.1, np.float32)})

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mikasa_robo.tools.evaluate_remote.write_atomically", full)
    with answering(lambda k: actions, HASHED) as port:
        content, _ = evaluate_remote(remote(port, tmp_path / "e.json", num_envs=1), make_factory=reach)
    assert len(content["runs"][0]["episodes"]["returns"]) == 4
    told = capsys.readouterr().err
    assert told.count("1 of 4 episodes are over and cannot be kept in") == told.count("cannot be kept") == 1
    assert "(No space left on device); make room there" in told


def test_a_name_without_room_for_the_partial_file_is_refused(tmp_path: Path) -> None:
    with answering(lambda k: None, HASHED) as port, pytest.raises(OptionError, match="bytes is too long; name another"):
        evaluate_remote(remote(port, tmp_path / f"{'x' * 246}.json"), make_factory=reach)


def test_without_a_hash_a_policy_is_known_by_its_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actions = pack({"actions": np.full((2, 1), 0.1, np.float32)})
    out, requests = tmp_path / "e.json", 27
    with answering(lambda k: DROP if k == requests else actions, pack({"name": "mine"})) as port:
        with pytest.raises(RemotePolicyError, match="2 of 4 episodes are over"):
            evaluate_remote(remote(port, out), make_factory=reach)
        kept = partial_path(out).read_bytes()
        with (
            answering(lambda k: actions, pack({"name": "mine"})) as other,
            pytest.raises(OptionError, match=r"another evaluation: not the same policy\); move it away"),
        ):
            evaluate_remote(remote(other, out), make_factory=reach)
        assert partial_path(out).read_bytes() == kept
        requests = -1
        capsys.readouterr()
        evaluate_remote(remote(port, out), make_factory=reach)
        assert f"2 episodes are taken from {partial_path(out)}" in capsys.readouterr().err
    assert out.exists()


def test_of_a_task_of_maniskill_whole_rounds_are_played_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its episodes depend on the first seed of their round."""
    monkeypatch.setattr("mikasa_robo.tools.evaluate_remote.is_maniskill_task", lambda env_id: True)
    out, rounds = tmp_path / "e.json", []

    class Noted(ReachEnv):
        """Environment 0 ends after 5 steps."""

        def reset(self, **kwargs: Any) -> Any:
            rounds.append(kwargs["seed"])
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            obs, reward, terminated, *rest = super().step(action)
            return obs, reward, terminated | (self.elapsed_steps >= 5) & (torch.arange(self.num_envs) == 0), *rest

    actions = pack({"actions": np.full((2, 1), 0.1, np.float32)})
    with answering(lambda k: DROP if k == 27 else actions, HASHED) as port:
        with pytest.raises(RemotePolicyError, match="3 of 4 episodes are over"):
            evaluate_remote(remote(port, out), make_factory=lambda args: Noted)
        with pytest.raises(OptionError, match=r"another evaluation: not the same num_envs\)"):
            evaluate_remote(remote(port, out, num_envs=4), make_factory=lambda args: Noted)
    rounds.clear()
    with answering(lambda k: actions, HASHED) as port:
        evaluate_remote(remote(port, out), make_factory=lambda args: Noted)
    assert rounds == [[2_000_002, 2_000_003]]


def test_a_server_that_dies_loses_no_episode_that_is_over(tmp_path: Path) -> None:
    class Staggered(ReachEnv):
        """Environment 0 ends after 5 steps."""

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return (
                obs,
                reward,
                terminated | (self.elapsed_steps >= 5) & (torch.arange(self.num_envs) == 0),
                truncated,
                info,
            )

    out = tmp_path / "e.json"
    actions = pack({"actions": np.full((2, 1), 0.1, np.float32)})

    def dies_at(request: int) -> Answer:
        def answer(k: int) -> bytes:
            if k == request:
                return DROP
            return actions

        return answer

    with answering(dies_at(10**9)) as port:
        whole, _ = evaluate_remote(remote(port, tmp_path / "whole.json"), make_factory=lambda args: Staggered)
    with (
        answering(dies_at(27), HASHED) as port,
        pytest.raises(RemotePolicyError, match=r"3 of 4 episodes are over and kept in"),
    ):
        evaluate_remote(remote(port, out), make_factory=lambda args: Staggered)
    assert not out.exists()
    kept = partial_path(out).read_bytes()
    with answering(dies_at(10**9), HASHED) as port:
        with pytest.raises(
            OptionError, match=r"another evaluation: not the same episodes\); move it away, or name another"
        ):
            evaluate_remote(remote(port, out, episodes=5), make_factory=reach)
        assert partial_path(out).read_bytes() == kept
        older = json.loads(kept)
        older["of"]["versions of libraries"]["torch"] = "1.0"
        older["of"]["git revision"] = {"revision": "0" * 40, "dirty": False}
        partial_path(out).write_text(json.dumps(older))
        with pytest.raises(OptionError, match="not the same versions of libraries, git revision"):
            evaluate_remote(remote(port, out), make_factory=reach)
        partial_path(out).write_bytes(kept.replace(b"[true,", b"[1,").replace(b"[false,", b"[0,"))
        with pytest.raises(OptionError, match="an outcome is not of the types"):
            evaluate_remote(remote(port, out), make_factory=reach)
        partial_path(out).write_bytes(kept)
        content, _ = evaluate_remote(remote(port, out), make_factory=lambda args: Staggered)
    for name in ("success_once", "returns", "lengths"):
        # episode 3 is played by environment 0 now, which ends earlier
        assert content["runs"][0]["episodes"][name][:3] == whole["runs"][0]["episodes"][name][:3]
    assert content["runs"][0]["episodes"]["lengths"] == [5, 20, 5, 5]
    assert not partial_path(out).exists()


@pytest.mark.parametrize("number", [0, 1])
def test_the_servers_of_the_documentation_are_evaluated(number: int, tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "remote-policies.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number]
    *lines, last = code.replace("8000", "0").replace(", 8)", ", 1)").strip().splitlines()
    if last.strip() == "server.serve_forever()":
        last = lines.pop().removeprefix("with ").removesuffix(" as server:")
    names: dict[str, Any] = {}
    exec("\n".join([*lines, f"server = {last.removesuffix('.serve_forever()')}"]), names)
    server = names["server"]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        port = server.port if isinstance(server, PolicyServer) else server.socket.getsockname()[1]
        content, out = evaluate_remote(remote(port, tmp_path / "e.json"), make_factory=reach)
    finally:
        server.close() if isinstance(server, PolicyServer) else server.shutdown()
        thread.join(10)
    assert content["algorithm"] == "my-policy"
    assert content["runs"][0]["episodes"]["lengths"] == [20] * 4
    assert collect([out]).runs[0].algorithm == "my-policy"


@pytest.mark.slow
def test_a_served_checkpoint_whose_process_is_killed(recurrent: Path, tmp_path: Path) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mikasa_robo.tools.cli"]
    child = subprocess.Popen(
        [*command, "serve", "--checkpoint", str(recurrent), "--port", "0"], stdout=subprocess.PIPE, text=True, env=env
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        port = int(line.partition(";")[0].rpartition(":")[2])
        out = tmp_path / "e.json"

        def kill_once_something_is_kept() -> None:
            while not partial_path(out).exists() and child.poll() is None:
                time.sleep(0.01)
            child.kill()

        threading.Thread(target=kill_once_something_is_kept, daemon=True).start()
        args = remote(port, out, env_id=BASE_ID, episodes=100_000, num_envs=4)
        with pytest.raises(
            RemotePolicyError, match=r"closed the connection .* of 100000 episodes are over and kept in"
        ):
            evaluate_remote(args)
        assert json.loads(partial_path(out).read_text())["outcomes"]
    finally:
        child.kill()
        child.wait(10)
